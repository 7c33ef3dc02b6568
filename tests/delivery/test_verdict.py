"""What to do after an attempt: what becomes of the batch, and what it says of its receiver."""

import pytest

from doubledecker.delivery.verdict import PROBE_BASE_MS, PROBE_CAP_MS, RetrySchedule, decide, delay_after
from doubledecker.model.outcome import Outcome, OutcomeKind
from doubledecker.model.settlement import DELIVERED, FIRST, Settlement

BACKOFF = RetrySchedule(base_ms=1_000, cap_ms=60_000)
NOBODY = Outcome(OutcomeKind.UNREACHABLE, 5)
LATE = Outcome(OutcomeKind.TIMED_OUT, 5)
BROKEN = Outcome(OutcomeKind.BROKEN, 5)


def refused(status: int, retry_after_ms: int | None = None) -> Outcome:
    return Outcome(OutcomeKind.REFUSED, 5, status=status, retry_after_ms=retry_after_ms)


def settled(outcome: Outcome, *, attempts: int = 1, failures: int = 0, chance: float = 1.0) -> Settlement:
    return decide(outcome, attempts=attempts, failures=failures, backoff=BACKOFF, chance=chance)


def test_a_delivered_batch_is_done():
    assert settled(Outcome(OutcomeKind.DELIVERED, 5, status=204)) == DELIVERED


@pytest.mark.parametrize("status", [400, 409, 413, 415, 422])
def test_an_answer_that_blames_the_content_is_about_that_batch(status: int):
    found = settled(refused(status), attempts=3)

    assert (found.what, found.retry_ms) == ("refused", 4_001)


@pytest.mark.parametrize(
    "outcome",
    [NOBODY, LATE, BROKEN, *map(refused, (302, 401, 403, 404, 405, 408, 410, 425, 429, 500, 502, 503, 504))],
    ids=str,
)
def test_any_other_failure_is_about_the_receiver_and_the_batch_stays_first(outcome: Outcome):
    found = settled(outcome)

    assert (found.what, found.raises, found.retry_ms) == ("failed", True, FIRST)


@pytest.mark.parametrize("outcome", [LATE, BROKEN, refused(500), refused(503), refused(408)], ids=str)
def test_a_batch_that_fails_twice_is_put_aside_and_says_nothing_new_of_its_receiver(outcome: Outcome):
    found = settled(outcome, attempts=2)

    assert (found.what, found.raises, found.retry_ms) == ("failed", False, 2_001)


@pytest.mark.parametrize("status", [302, 401, 403, 404, 405])
def test_a_batch_that_is_refused_for_its_address_five_times_is_put_aside(status: int):
    """A receiver may look up what an event names, and answer 404: then one event must not stop the others."""
    fourth, fifth = (settled(refused(status), attempts=attempts) for attempts in (4, 5))

    assert (fourth.what, fourth.raises, fourth.retry_ms) == ("failed", True, FIRST)
    assert (fifth.what, fifth.raises, fifth.retry_ms) == ("failed", False, 16_001)


@pytest.mark.parametrize("outcome", [NOBODY, refused(429), refused(503, 1_000)], ids=str)
def test_a_batch_that_cannot_be_to_blame_is_never_put_aside(outcome: Outcome):
    found = settled(outcome, attempts=50)

    assert (found.what, found.raises, found.retry_ms) == ("failed", True, FIRST)


@pytest.mark.parametrize(("attempts", "delay_ms"), [(1, 1_000), (2, 2_000), (3, 4_000), (7, 60_000), (5_000, 60_000)])
def test_the_span_of_a_batch_s_delay_doubles_up_to_the_cap(attempts: int, delay_ms: int):
    assert settled(refused(400), attempts=attempts).retry_ms == delay_ms + 1
    assert delay_after(attempts, backoff=BACKOFF, chance=1.0) == delay_ms + 1


def test_a_delay_is_a_random_part_of_its_span():
    assert settled(refused(400), attempts=3, chance=0.25).retry_ms == 1_001
    assert settled(refused(400), attempts=3, chance=0.0).retry_ms == 1
    assert settled(NOBODY, failures=2, chance=0.5).probe_ms == 2 * PROBE_BASE_MS + 1


@pytest.mark.parametrize(("failures", "times"), [(0, 1), (1, 2), (2, 4), (3, 8)])
def test_a_receiver_is_probed_soon_at_first_and_then_left_alone_for_twice_as_long(failures: int, times: int):
    assert settled(NOBODY, attempts=failures + 1, failures=failures).probe_ms == times * PROBE_BASE_MS + 1


def test_a_receiver_that_is_back_is_found_so_within_a_minute():
    lazy = RetrySchedule(base_ms=1_000, cap_ms=300_000)

    assert decide(NOBODY, attempts=50, failures=50, backoff=lazy, chance=1.0).probe_ms == PROBE_CAP_MS + 1
    assert settled(NOBODY, failures=5_000).probe_ms == PROBE_CAP_MS + 1


def test_the_same_batch_once_more_does_not_double_the_delay_of_its_receiver():
    assert settled(refused(500), attempts=2, failures=1).probe_ms == PROBE_BASE_MS + 1
    assert settled(refused(500), attempts=1, failures=1).probe_ms == 2 * PROBE_BASE_MS + 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_receiver_that_asks_for_patience_gets_at_least_that(status: int):
    assert settled(refused(status, 30_000), chance=0.0).probe_ms == 30_000
    assert settled(refused(status, 1)).probe_ms == PROBE_BASE_MS + 1


def test_patience_has_an_end_and_only_some_answers_may_ask_for_it():
    assert settled(refused(503, 10**12), chance=0.0).probe_ms == 3_600_000
    assert settled(refused(500, 30_000), chance=0.0).probe_ms == 1
