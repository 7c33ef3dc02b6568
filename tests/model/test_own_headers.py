"""Which headers a receiver may have of its own."""

import pytest

from doubledecker.errors import BadRequest
from doubledecker.model import own_headers
from doubledecker.model.own_headers import HEADERS_BYTES_MAX, HEADERS_MAX

TAKEN = [
    *("Host", "content-length", "Content-Type", "Content-Encoding", "authorization", "Proxy-Authorization"),
    *("connection", "keep-alive", "TE", "trailer", "Transfer-Encoding", "upgrade", "http2-settings", "Expect"),
    *("Webhook-Id", "webhook-anything", "User-Agent", "accept", "Accept-Encoding", "traceparent", "tracestate"),
    *("Doubledecker-Replay", "Webhook_Signature", "Content_Length", "transfer_encoding"),
]


def test_headers_are_kept_as_they_are_written_and_in_order():
    asked = {"X-Key": "s3cret", "cookie": "a=b; c=d", "X-Empty": ""}

    assert own_headers.checked(asked) == (("X-Key", "s3cret"), ("cookie", "a=b; c=d"), ("X-Empty", ""))
    assert own_headers.stored(own_headers.encode(own_headers.checked(asked))) == own_headers.checked(asked)
    assert own_headers.stored(own_headers.encode(())) == ()


@pytest.mark.parametrize("name", TAKEN)
def test_a_header_that_is_the_buss_or_about_the_connection_is_refused_by_its_name(name: str):
    with pytest.raises(BadRequest, match=f"headers has '{name}'"):
        own_headers.checked({name: "x"})


@pytest.mark.parametrize("name", ["", "a b", "a:b", "ü", "a\r\nb", "a\x00", "x" * 65, "(a)"])
def test_what_is_no_name_of_a_header_is_refused(name: str):
    with pytest.raises(BadRequest, match="headers has the name"):
        own_headers.checked({name: "x"})


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "\x00", "a\tb", "\x7f", "ü", " a", "a "])
def test_a_value_that_no_header_can_have_is_refused_and_not_shown(value: str):
    with pytest.raises(BadRequest, match="a value for 'X-Key'") as refused:
        own_headers.checked({"X-Key": f"hidden{value}hidden" if value.strip() == value else value})
    assert "hidden" not in str(refused.value)


def test_names_differ_by_more_than_the_case_of_letters():
    with pytest.raises(BadRequest, match="'x-key' twice"):
        own_headers.checked({"X-Key": "a", "x-key": "b"})
    with pytest.raises(BadRequest, match="'x_key' twice"):
        own_headers.checked({"X-Key": "a", "x_key": "b"})


def test_headers_are_bounded_in_number_and_bytes():
    most = {f"X-{n:02}": "" for n in range(HEADERS_MAX)}
    largest = {"X-Key": "v" * (HEADERS_BYTES_MAX - len("X-Key"))}

    assert len(own_headers.checked(most)) == HEADERS_MAX
    assert own_headers.checked(largest) == tuple(largest.items())
    with pytest.raises(BadRequest, match="at most 20 are allowed"):
        own_headers.checked({**most, "X-More": ""})
    with pytest.raises(BadRequest, match="4097 bytes"):
        own_headers.checked({"X-Key": largest["X-Key"] + "v"})
