"""What becomes of the messages of a batch after an attempt: pure."""

import pytest

from doubledecker.delivery.verdict import RetrySchedule, fates
from doubledecker.model.outcome import Outcome, OutcomeKind
from doubledecker.store.queues import LeasedMessage, QueueMessage

MESSAGES = [QueueMessage(f"0-{n}", n, "acme", b"{}", 0, n) for n in (1, 2, 3)]
IDS = ["a", "b", "c"]
BACKOFF = RetrySchedule(base_ms=1_000, cap_ms=10_000)


def after(outcome: Outcome) -> tuple[list[LeasedMessage], list[LeasedMessage]]:
    found = fates(outcome, MESSAGES, IDS, backoff=BACKOFF, chance=0.5)
    return list(found.acked), list(found.given_back)


def test_a_delivered_batch_is_acked():
    assert after(Outcome(OutcomeKind.DELIVERED, 5, 204)) == (
        [LeasedMessage("0-1", 1), LeasedMessage("0-2", 2), LeasedMessage("0-3", 3)],
        [],
    )


def test_those_that_the_receiver_names_come_back_by_their_own_attempts():
    outcome = Outcome(OutcomeKind.DELIVERED, 5, 200, answer=b'{"failed": ["b", "unknown"]}')

    assert after(outcome) == (
        [LeasedMessage("0-1", 1), LeasedMessage("0-3", 3)],
        [LeasedMessage("0-2", 2, delay_ms=1_001)],
    )


def test_a_failed_batch_comes_back_by_each_ones_attempts():
    assert after(Outcome(OutcomeKind.REFUSED, 5, 500)) == (
        [],
        [LeasedMessage("0-1", 1, 501), LeasedMessage("0-2", 2, 1_001), LeasedMessage("0-3", 3, 2_001)],
    )


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(OutcomeKind.UNREACHABLE, 5),
        Outcome(OutcomeKind.REFUSED, 5, 429),
        Outcome(OutcomeKind.REFUSED, 5, 503, retry_after_ms=1_000),
    ],
)
def test_what_is_nobodys_fault_keeps_its_place_and_does_not_count(outcome: Outcome):
    assert after(outcome)[1] == [LeasedMessage(message.id, message.attempt, is_spared=True) for message in MESSAGES]


@pytest.mark.parametrize(
    "outcome", [Outcome(OutcomeKind.TIMED_OUT, 5), Outcome(OutcomeKind.REFUSED, 5, 503), Outcome(OutcomeKind.BROKEN, 5)]
)
def test_what_may_be_a_messages_fault_counts(outcome: Outcome):
    assert not any(held.is_spared for held in after(outcome)[1])
