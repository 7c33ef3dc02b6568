"""The one form of a callback, and the spellings that are refused because two programs may read them differently."""

import string
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from doubledecker.errors import BadRequest
from doubledecker.model import callback
from doubledecker.model import subscriber as subscribing
from doubledecker.model.dial_guard import REFUSAL, DialGuard


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://a.example/cb?x=1", "https://a.example/cb?x=1"),
        ("https://a.example", "https://a.example/"),
        ("https://a.example?x=1", "https://a.example/?x=1"),
        ("https://A.Example./Cb", "https://a.example/Cb"),
        ("https://a.example:443/", "https://a.example/"),
        ("https://a.example:/", "https://a.example/"),
        ("http://a.example:080/", "http://a.example/"),
        ("https://a.example:80/", "https://a.example:80/"),
        ("https://a.example/a/../b/./c", "https://a.example/b/c"),
        ("https://a.example/%7Ea%2fb?q=%41", "https://a.example/~a%2Fb?q=A"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/"),
        ("https://my_app.internal:8443/", "https://my_app.internal:8443/"),
        ("https://8.8.8.8/", "https://8.8.8.8/"),
        ("https://[2606:4700:0::1111]:8443/", "https://[2606:4700::1111]:8443/"),
        ("https://[2A00::A]/", "https://[2a00::a]/"),
    ],
)
def test_a_callback_has_one_form(given: str, kept: str):
    assert str(callback.parse(given)) == kept
    assert str(callback.parse(kept)) == kept


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *(
            (f"https://{host}/", "four decimal numbers")
            for host in ("2130706433", "0x7f000001", "0X7F.1", "017700000001")
        ),
        *((f"https://{host}/", "four decimal numbers") for host in ("127.1", "127.0.1", "0177.0.0.1", "127.0.0.01")),
        *(
            (f"https://{host}/", "four decimal numbers")
            for host in ("127.0.0.1.", "127.0.0.256", "1.2.3.4.5", "a.0x7f")
        ),
        ("https://[::ffff:127.0.0.1]/", "version 4"),
        ("https://[::ffff:7f00:1]/", "version 4"),
        ("https://[fe80::1%25eth0]/", "zone id"),
        ("https://[fe80::1%eth0]/", "zone id"),
        ("https://[127.0.0.1]/", "version 6"),
        ("https://[v1.x]/", "version 6"),
        ("https://[::1/", "must be a URL"),
        ("https://::1/", "must be a URL"),
        ("https://[::1]x/", "must be a URL"),
        ("https://\uff11\uff12\uff17.0.0.1/", "printable ASCII"),
        ("https://b\u00fccher.example/", "xn--bcher-kva.example"),
        ("https://a\u3002example/", "printable ASCII"),
        ("https://%31%32%37.0.0.1/", "four decimal numbers"),
        ("https://%61.example/", "letters, digits"),
        ("https://a.example\\@127.0.0.1/", "backslashes"),
        ("https://a.example/\r\nX: 1", "printable ASCII"),
        ("https://a.example/\x00", "printable ASCII"),
        ("https://a.exa\tmple/", "printable ASCII"),
        ("https://a..example/", "letters, digits"),
        ("https://./", "letters, digits"),
        ("https://a.example../", "letters, digits"),
        ("https://-a.example/", "letters, digits"),
        (f"https://{'a' * 64}.example/", "letters, digits"),
        (f"https://{'a.' * 130}example/", "letters, digits"),
        ("https://a.example:0/", "from 1 to 65535"),
        ("https://a.example:65536/", "from 1 to 65535"),
        (f"https://a.example:{'9' * 1000}/", "from 1 to 65535"),
        ("https://a.example:+80/", "must be a URL"),
        ("https://a.example:80:80/", "must be a URL"),
        ("https://a@a.example/", "letters, digits"),
        ("https:///x", "must be a URL"),
        ("https:a.example/", "must be a URL"),
        ("ftp://a.example/", "must be a URL"),
        ("https://a.example/#x", "fragment"),
        (f"https://a.example/{'x' * 2048}", "at most 2048"),
        ("https://a.example/" + '"' * 1000, "percent-encoded; 2048 are allowed"),
    ],
)
def test_a_callback_that_may_be_read_in_two_ways_is_refused(given: str, said: str):
    with pytest.raises(BadRequest, match=said):
        callback.parse(given)


@given(st.text(st.sampled_from(string.ascii_letters + string.digits + ".:@[]%/?#x-_~\\&=+"), max_size=40))
def test_what_is_kept_stays_as_it_is_and_all_read_the_same_host_in_it(rest: str):
    try:
        url = callback.parse(f"https://{rest}")
    except BadRequest:
        return

    assert callback.parse(str(url)) == url
    assert urlsplit(str(url)).hostname == URL(str(url)).host == url.host
    assert (urlsplit(str(url)).port or 443) == URL(str(url)).port == url.port


@pytest.mark.parametrize("host", ["10.0.0.1", "169.254.169.254", "224.0.0.1", "[::1]", "[fd00:ec2::254]", "127.0.0.1"])
def test_an_address_that_may_not_be_called_is_refused_in_the_same_words(host: str):
    with pytest.raises(BadRequest) as refused:
        subscribing.where_to(f"https://{host}/", None, guard=DialGuard())

    assert refused.value.detail == (
        f"callback is 'https://{host}/': {REFUSAL}; give a host with public addresses, or have the operator of the bus "
        "allow it (DOUBLEDECKER_CALLBACK_ALLOW)"
    )


def test_what_was_stored_before_is_judged_as_far_as_its_text_shows():
    guard = DialGuard.parse("10.1.0.0/16", is_private_allowed=False)

    assert callback.why_not("https://a.example/", guard) == callback.why_not("http://10.1.0.1:9/", guard) == ""
    assert callback.why_not("https://10.2.0.1/", guard) == "private"
    assert "four decimal numbers" in callback.why_not("https://0x7f.1/", guard)
