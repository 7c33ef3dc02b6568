"""What to do after an attempt."""

import pytest

from doubledecker.bus.verdict import Backoff, Delivered, Retry, decide
from doubledecker.model.outcome import Kind, Outcome

BACKOFF = Backoff(base_ms=1_000, cap_ms=60_000)


def refused(status: int, retry_after_ms: int | None = None) -> Outcome:
    return Outcome(Kind.REFUSED, 5, status=status, retry_after_ms=retry_after_ms)


def test_a_delivered_batch_is_done():
    assert decide(Outcome(Kind.DELIVERED, 5, status=204), attempts=1, backoff=BACKOFF, chance=0.5) == Delivered()


@pytest.mark.parametrize(("attempts", "delay_ms"), [(1, 1_000), (2, 2_000), (3, 4_000), (7, 60_000), (5_000, 60_000)])
def test_the_span_of_the_delay_doubles_up_to_the_cap(attempts: int, delay_ms: int):
    assert decide(refused(500), attempts=attempts, backoff=BACKOFF, chance=1.0) == Retry(delay_ms + 1)


def test_the_delay_is_a_random_part_of_the_span():
    assert decide(refused(500), attempts=3, backoff=BACKOFF, chance=0.25) == Retry(1_001)
    assert decide(refused(500), attempts=3, backoff=BACKOFF, chance=0.0) == Retry(1)


@pytest.mark.parametrize("status", [429, 503])
def test_a_receiver_that_asks_for_patience_gets_at_least_that(status: int):
    assert decide(refused(status, 30_000), attempts=1, backoff=BACKOFF, chance=0.0) == Retry(30_000)
    assert decide(refused(status, 1), attempts=1, backoff=BACKOFF, chance=1.0) == Retry(1_001)


def test_patience_has_an_end_and_only_some_answers_may_ask_for_it():
    assert decide(refused(503, 10**12), attempts=1, backoff=BACKOFF, chance=0.0) == Retry(3_600_000)
    assert decide(refused(500, 30_000), attempts=1, backoff=BACKOFF, chance=0.0) == Retry(1)
