"""Signing secrets: how they are made, replaced and bounded, and that no text of ours shows one."""

import base64

import pytest

from doubledecker.errors import BadRequest, TooMany
from doubledecker.model import signing
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.signing import FORMER_MAX, SigningKeys
from doubledecker.model.subscriber import Subscriber

NOW = 1_700_000_000_000


def test_a_secret_is_random_and_in_the_form_of_standard_webhooks():
    first, second = signing.make(NOW), signing.make(NOW)

    assert first.secret != second.secret
    assert first.secret.startswith("whsec_")
    assert len(base64.b64decode(first.secret.removeprefix("whsec_"), validate=True)) == 32


def test_a_former_secret_signs_until_the_overlap_ends():
    first = signing.rotate(None, overlap_s=60, now_ms=NOW)
    second = signing.rotate(first, overlap_s=60, now_ms=NOW + 1000)

    assert first.former_until is None
    assert second.secrets(NOW + 60_999) == [second.secret, first.secret]
    assert second.secrets(NOW + 61_000) == [second.secret]
    assert (second.rotated_at, second.former_until) == (NOW + 1000, NOW + 61_000)


def test_no_former_secret_outlasts_the_overlap_of_a_later_rotation():
    keys = signing.rotate(None, overlap_s=0, now_ms=NOW)
    for _ in range(2):
        keys = signing.rotate(keys, overlap_s=3600, now_ms=NOW)

    shortened = signing.rotate(keys, overlap_s=10, now_ms=NOW)
    ended = signing.rotate(shortened, overlap_s=0, now_ms=NOW)

    assert {each.until for each in shortened.former} == {NOW + 10_000}
    assert ended.secrets(NOW) == [ended.secret]


def test_so_many_sign_at_once_and_no_more():
    keys = signing.make(NOW)
    for _ in range(FORMER_MAX):
        keys = signing.rotate(keys, overlap_s=60, now_ms=NOW)

    with pytest.raises(TooMany, match="shorten overlap_s"):
        signing.rotate(keys, overlap_s=60, now_ms=NOW)
    assert len(keys.secrets(NOW)) == FORMER_MAX + 1
    assert len(signing.rotate(keys, overlap_s=60, now_ms=NOW + 60_000).secrets(NOW + 60_000)) == 2


@pytest.mark.parametrize("body", [b'{"overlap_s": -1}', b'{"overlap_s": 2592001}', b'{"secret": "mine"}', b"[]"])
def test_a_rotation_has_an_overlap_within_bounds_and_nothing_else(body: bytes):
    with pytest.raises(BadRequest):
        signing.parse_rotation(body)


def test_what_is_kept_is_read_again():
    keys = signing.rotate(signing.make(NOW), overlap_s=60, now_ms=NOW)

    assert signing.stored(signing.encode(keys)) == keys
    assert signing.stored(signing.encode(None)) is None


def test_secrets_and_headers_are_in_no_text_of_a_receiver():
    keys = SigningKeys("whsec_current", NOW, (signing.FormerSecret("whsec_former", NOW),))
    receiver = Subscriber("shop", "https://shop.example/", "u", headers=(("X-Key", "hidden"),), signing=keys)
    queue = RegisteredQueue("jobs", "", ("a",), callback="https://shop.example/", signing=keys)

    for shown in (repr(receiver), repr(queue), repr(queue.receiver), repr(keys), str(keys.former)):
        assert "whsec_" not in shown
        assert "hidden" not in shown
    assert receiver.bare.signing is None
