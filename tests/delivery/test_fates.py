"""What becomes of the messages of a batch after an attempt: pure."""

import pytest

from doubledecker.delivery.verdict import Backoff, fates
from doubledecker.model.outcome import Kind, Outcome
from doubledecker.store.queues import Held, Message

MESSAGES = [Message(f"0-{n}", n, "acme", b"{}", 0, n) for n in (1, 2, 3)]
IDS = ["a", "b", "c"]
BACKOFF = Backoff(base_ms=1_000, cap_ms=10_000)


def after(outcome: Outcome) -> tuple[list[Held], list[Held]]:
    found = fates(outcome, MESSAGES, IDS, backoff=BACKOFF, chance=0.5)
    return list(found.acked), list(found.given_back)


def test_a_delivered_batch_is_acked():
    assert after(Outcome(Kind.DELIVERED, 5, 204)) == ([Held("0-1", 1), Held("0-2", 2), Held("0-3", 3)], [])


def test_those_that_the_receiver_names_come_back_by_their_own_attempts():
    outcome = Outcome(Kind.DELIVERED, 5, 200, answer=b'{"failed": ["b", "unknown"]}')

    assert after(outcome) == ([Held("0-1", 1), Held("0-3", 3)], [Held("0-2", 2, delay_ms=1_001)])


def test_a_failed_batch_comes_back_by_each_ones_attempts():
    assert after(Outcome(Kind.REFUSED, 5, 500)) == (
        [],
        [Held("0-1", 1, 501), Held("0-2", 2, 1_001), Held("0-3", 3, 2_001)],
    )


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(Kind.UNREACHABLE, 5),
        Outcome(Kind.REFUSED, 5, 429),
        Outcome(Kind.REFUSED, 5, 503, retry_after_ms=1_000),
    ],
)
def test_what_is_nobodys_fault_keeps_its_place_and_does_not_count(outcome: Outcome):
    assert after(outcome)[1] == [Held(message.id, message.attempt, is_spared=True) for message in MESSAGES]


@pytest.mark.parametrize(
    "outcome", [Outcome(Kind.TIMED_OUT, 5), Outcome(Kind.REFUSED, 5, 503), Outcome(Kind.BROKEN, 5)]
)
def test_what_may_be_a_messages_fault_counts(outcome: Outcome):
    assert not any(held.is_spared for held in after(outcome)[1])
