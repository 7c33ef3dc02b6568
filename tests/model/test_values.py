"""UIDs, tokens, jobs and subscriptions."""

import json
import re
import uuid
from itertools import islice

import msgspec
import pytest

from doubledecker.errors import BadRequest
from doubledecker.model import subscriber as subscribing
from doubledecker.model import token as tokens
from doubledecker.model.dial_guard import DialGuard
from doubledecker.model.job import Job
from doubledecker.model.subscriber import Subscriber, Subscription
from doubledecker.model.uid import event_id, event_ids, made_at, repeatable_event_id, repeatable_event_ids, uid, uids


def test_a_uid_is_20_characters_of_url_safe_base64():
    assert re.fullmatch(r"[A-Za-z0-9_-]{20}", uid())
    assert len(uids(7)) == 140
    assert len({uid() for _ in range(1000)}) == 1000


def test_event_ids_are_uuids_of_version_7_that_sort_by_time():
    early, late = event_id(1_700_000_000_000), event_id(1_700_000_000_001)

    assert uuid.UUID(early).version == 7
    assert uuid.UUID(early).variant == uuid.RFC_4122
    assert early < late
    assert int(early[:8] + early[9:13], 16) == 1_700_000_000_000


@pytest.mark.parametrize(
    ("id_", "at"),
    [
        (event_id(1_700_000_000_000), 1_700_000_000_000),
        (event_id(1_700_000_000_000).upper(), 1_700_000_000_000),
        (repeatable_event_id("a"), None),
        (str(uuid.uuid4()), None),
        ("a-publishers-own", None),
        # A time that is in no calendar.
        ("ffffffff-ffff-7fff-8fff-ffffffffffff", None),
    ],
    ids=["ours", "in capitals", "repeatable", "of version 4", "a publisher's own", "beyond the calendar"],
)
def test_an_event_id_of_version_7_tells_when_it_was_made(id_: str, at: int | None):
    assert made_at(id_) == at


def test_the_event_ids_of_a_request_are_distinct_and_in_order():
    ids = event_ids(1_700_000_000_000, 10_000)

    assert len(ids) == 10_000
    assert ids == sorted(set(ids))
    assert {(uuid.UUID(id_).version, id_[:13]) for id_ in ids} == {(7, "018bcfe5-6800")}
    assert not set(ids) & set(event_ids(1_700_000_000_000, 10_000))


def test_a_repeated_request_names_the_same_events():
    assert repeatable_event_id("a", "k", "0") == repeatable_event_id("a", "k", "0")
    assert repeatable_event_id("a", "k", "0") != repeatable_event_id("a", "k", "1")
    assert uuid.UUID(repeatable_event_id("a", "k", "0")).version == 8


def test_rows_have_ids_of_their_own_which_depend_on_their_number_alone():
    whole = list(islice(repeatable_event_ids("q", "0", first=0), 10_000))

    assert len(set(whole)) == 10_000
    assert list(islice(repeatable_event_ids("q", "0", first=4_090), 20)) == whole[4_090:4_110]
    assert {uuid.UUID(id_).version for id_ in whole} == {8}
    assert not set(whole) & set(islice(repeatable_event_ids("q", "1", first=0), 10_000))


def test_a_job_is_messagepack_of_its_name_and_arguments():
    packed = Job("batch", ("bid", "tok")).encode()

    assert msgspec.msgpack.decode(packed) == ["batch", ["bid", "tok"]]
    assert Job.decode(packed) == Job("batch", ("bid", "tok"))


def test_a_token_is_kept_as_hashes_and_known_by_its_id():
    token = tokens.make(tokens.make_id("shop"), "shop", "shop--secret", now_ms=1)

    assert re.fullmatch(r"shop-[0-9a-f]{8}", token.id)
    assert "secret" not in msgspec.json.encode(token).decode()


def test_a_made_secret_is_a_valid_token_for_any_name():
    for name in ("a", "x" * 64):
        secret = tokens.make_secret(name)
        assert tokens.PATTERN.fullmatch(secret)
        assert len(secret.rpartition("--")[2]) == 32


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"name":"A"}', b'{"name":"a","token":"a b"}', b'{"name":"a","x":1}']
)
def test_a_bad_token_request_is_refused(body: bytes):
    with pytest.raises(BadRequest):
        tokens.parse_request(body)


def subscription(**fields: object) -> Subscription:
    body = {"topics": ["a"], "callback": "https://a.example/cb", **fields}
    return subscribing.checked(subscribing.parse(json.dumps(body).encode()), guard=DialGuard())


def test_what_is_absent_keeps_its_former_value():
    former = Subscriber(
        "t", "https://old.example/", "u", ("x",), timeout_ms=7, max_events=8, max_bytes=9, concurrency=2
    )

    kept = subscribing.merge(subscription(), former)
    changed = subscribing.merge(subscription(timeout=0, max=1, uuid="v"), former)

    assert (kept.timeout_ms, kept.max_events, kept.max_bytes, kept.concurrency, kept.uuid) == (7, 8, 9, 2, "u")
    assert (kept.callback, kept.topics) == ("https://a.example/cb", ("a",))
    assert (changed.timeout_ms, changed.max_events, changed.uuid) == (0, 1, "v")


@pytest.mark.parametrize(
    "fields",
    [
        {"timeout": -1},
        {"timeout": 3_600_001},
        {"max": 0},
        {"max": 10_001},
        {"max_bytes": 0},
        {"concurrency": 0},
        {"concurrency": 101},
        {"topics": ["7bad"]},
        {"topics": "a"},
        {"uuid": "a:b"},
        {"uuid": ""},
        {"colour": 1},
        {"callback": "http://a.example/"},
        {"callback": "https://u:p@a.example/"},
        {"callback": "https://a.example/#x"},
        {"callback": "ftp://a.example/"},
        {"callback": "https://"},
        {"callback": "https://a.example:99999/"},
        {"callback": "https://[::1"},
        {"callback": "https://a.example/ x"},
    ],
)
def test_a_subscription_outside_the_limits_is_refused(fields: dict[str, object]):
    with pytest.raises(BadRequest):
        subscription(**fields)


def test_plain_http_needs_private_callbacks():
    body = b'{"topics":[],"callback":"http://127.0.0.1:9/"}'

    allowed = subscribing.checked(subscribing.parse(body), guard=DialGuard(is_private_allowed=True))

    assert allowed.callback == "http://127.0.0.1:9/"
    with pytest.raises(BadRequest, match="https"):
        subscribing.checked(subscribing.parse(body), guard=DialGuard())
