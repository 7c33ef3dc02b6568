"""What a watch pushes: when its messages were accepted, and what an answer names as failed."""

import msgspec
import pytest

from doubledecker.model.outcome import failed_ids
from doubledecker.model.uid import event_id, repeatable_event_id
from doubledecker.worker.push import accepted_at


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"ok",
        b"[]",
        b'{"failed": "a"}',
        b'{"failed": [1]}',
        b'{"failed": ["a"',
        b'{"failed": ["\xff"]}',
        b"[" * 99_999,
    ],
)
def test_an_answer_that_says_nothing_of_the_kind_fails_nothing(answer: bytes):
    assert failed_ids(answer) == frozenset()


def test_an_answer_may_say_other_things_too():
    assert failed_ids(b'{"ok": 2, "failed": ["a", "b"]}') == {"a", "b"}


def an_event(id_: str, **more: str) -> bytes:
    return msgspec.json.encode({"topic": "orders", "type": "create", "id": id_, **more})


@pytest.mark.parametrize(
    ("events", "at"),
    [
        ([], 0),
        ([an_event("a-publishers-own")], 0),
        ([an_event(repeatable_event_id("a"))], 0),
        ([an_event(event_id(5_000)), an_event("own"), an_event(event_id(3_000)), an_event(event_id(4_000))], 3_000),
        # A replayed event has its old id; an id from later than now was made elsewhere.
        ([an_event(event_id(1_000), replay="again"), an_event(event_id(5_000))], 5_000),
        ([an_event(event_id(10_001)), an_event("ffffffff-ffff-7fff-8fff-ffffffffffff")], 0),
    ],
)
def test_a_batch_was_accepted_with_its_oldest_message_as_ids_tell(events: list[bytes], at: int):
    assert accepted_at(events, now_ms=10_000) == at
