"""What to do after an attempt: what becomes of the batch, and what it says of its receiver."""

import pytest

from doubledecker.delivery.verdict import (
    PROBE_BASE_MS,
    PROBE_CAP_MS,
    RetrySchedule,
    Tried,
    decide,
    decide_named,
    delay_after,
)
from doubledecker.model.outcome import Outcome, OutcomeKind
from doubledecker.model.retry import RetryPolicy
from doubledecker.model.settlement import DELIVERED, FIRST, Settlement

BACKOFF = RetrySchedule(base_ms=1_000, cap_ms=60_000)
NOBODY = Outcome(OutcomeKind.UNREACHABLE, 5)
LATE = Outcome(OutcomeKind.TIMED_OUT, 5)
BROKEN = Outcome(OutcomeKind.BROKEN, 5)


def refused(status: int, retry_after_ms: int | None = None) -> Outcome:
    return Outcome(OutcomeKind.REFUSED, 5, status=status, retry_after_ms=retry_after_ms)


def settled(
    outcome: Outcome,
    *,
    attempts: int = 1,
    failures: int = 0,
    chance: float = 1.0,
    events: int = 10,
    batch: str = "b",
    age_ms: int = 0,
    retry: RetryPolicy | None = None,
) -> Settlement:
    tried = Tried(batch, events, attempts, failures, age_ms)
    return decide(outcome, tried, backoff=BACKOFF, chance=chance, retry=retry)


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
    assert settled(refused(500), attempts=attempts, failures=1).retry_ms in {FIRST, delay_ms + 1}
    assert delay_after(attempts, backoff=BACKOFF, chance=1.0) == delay_ms + 1


def test_a_delay_is_a_random_part_of_its_span():
    assert settled(refused(500), attempts=3, failures=1, chance=0.25).retry_ms == 1_001
    assert settled(refused(500), attempts=3, failures=1, chance=0.0).retry_ms == 1
    assert settled(NOBODY, failures=2, chance=0.5).probe_ms == 2 * PROBE_BASE_MS + 1


@pytest.mark.parametrize(("failures", "times"), [(0, 1), (1, 2), (2, 4), (3, 8)])
def test_a_receiver_is_probed_soon_at_first_and_then_left_alone_for_twice_as_long(failures: int, times: int):
    assert settled(NOBODY, attempts=failures + 1, failures=failures).probe_ms == times * PROBE_BASE_MS + 1


def test_a_receiver_that_is_back_is_found_so_within_a_minute():
    lazy = RetrySchedule(base_ms=1_000, cap_ms=300_000)

    assert decide(NOBODY, Tried("b", 1, 50, 50), backoff=lazy, chance=1.0).probe_ms == PROBE_CAP_MS + 1
    assert settled(NOBODY, failures=5_000).probe_ms == PROBE_CAP_MS + 1


def test_the_same_batch_once_more_does_not_double_the_delay_of_its_receiver():
    assert settled(refused(500), attempts=2, failures=1).probe_ms == PROBE_BASE_MS + 1
    assert settled(refused(500), attempts=1, failures=1).probe_ms == 2 * PROBE_BASE_MS + 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_receiver_that_asks_for_patience_gets_at_least_that(status: int):
    assert settled(refused(status, 30_000), chance=0.0).probe_ms == 30_000
    assert settled(refused(status, 1)).probe_ms == PROBE_BASE_MS + 1


def test_patience_has_an_end_and_only_some_answers_may_ask_for_it():
    assert settled(refused(503, 10**12), chance=0.0).probe_ms == 86_400_000
    assert settled(refused(500, 30_000), chance=0.0).probe_ms == 1


@pytest.mark.parametrize("failures", [0, 3])
def test_a_batch_that_is_refused_for_its_content_is_split_at_once(failures: int):
    assert settled(refused(400), failures=failures).is_split
    assert not settled(refused(400), failures=failures, events=1).is_split


def test_a_batch_that_fails_is_split_when_it_would_be_put_aside_and_others_succeed():
    assert not settled(refused(500), attempts=1).is_split
    assert not settled(refused(500), attempts=3, failures=1).is_split, "nobody knows if the receiver is well"
    assert settled(refused(500), attempts=3).is_split
    assert not settled(refused(404), attempts=4).is_split
    assert settled(refused(404), attempts=5).is_split
    assert settled(LATE, attempts=2).is_split


def test_a_part_that_fails_is_split_at_its_first_failure():
    assert settled(refused(500), batch="b.01").is_split
    assert settled(LATE, batch="b.01", failures=1).is_split
    assert settled(refused(500), batch="b.01").raises
    assert not settled(NOBODY, batch="b.01").is_split
    assert not settled(refused(503, 1_000), batch="b.01").is_split


@pytest.mark.parametrize(
    ("batch", "events", "most"), [("b", 100, 14), ("b.0", 50, 14), ("b.0110011", 1, 14), ("b", 1, 2)]
)
def test_the_parts_of_a_batch_are_one_piece_of_evidence_for_as_long_as_one_event_may_be_looked_for(
    batch: str, events: int, most: int
):
    assert settled(refused(400), batch=batch, events=events).parts_max == most


@pytest.mark.parametrize("status", [400, 500])
def test_an_event_that_stands_alone_is_given_up_after_eight_attempts_while_others_are_taken(status: int):
    assert settled(refused(status), attempts=7, events=1).dead == ""
    assert settled(refused(status), attempts=8, events=1).dead == "attempts"
    assert settled(refused(status), attempts=50, events=1, failures=1).dead == "", "the receiver may be to blame"
    assert settled(refused(status), attempts=50).dead == "", "it is not alone"


def test_the_attempts_at_an_event_that_stands_alone_span_hours():
    hour_ms = 3_600_000
    spans = [sum(_alone_ms(attempts, chance) for attempts in range(1, 8)) for chance in (0.0, 1.0)]

    assert 1.5 * hour_ms < spans[0] < spans[1] < 6 * hour_ms
    assert _alone_ms(1, 1.0) <= 1_001


def _alone_ms(attempts: int, chance: float) -> int:
    tried = Tried("b", 1, attempts, 0)
    return decide(refused(400), tried, backoff=RetrySchedule(), chance=chance).retry_ms


@pytest.mark.parametrize("outcome", [NOBODY, LATE, refused(400), refused(429), refused(500), refused(503, 1)], ids=str)
def test_with_a_retry_of_its_own_any_event_is_given_up(outcome: Outcome):
    few, soon = RetryPolicy(attempts_max=3), RetryPolicy(age_max_s=60)

    assert settled(outcome, attempts=2, failures=2, events=1, retry=few).dead == ""
    assert settled(outcome, attempts=3, failures=2, events=1, retry=few).dead == "attempts"
    assert settled(outcome, failures=2, age_ms=59_999, retry=soon).dead == ""
    assert settled(outcome, failures=2, age_ms=60_000, retry=soon).dead == "age"


def test_without_one_a_receiver_that_fails_is_never_given_up():
    for outcome in (NOBODY, LATE, refused(404), refused(429), refused(500)):
        assert settled(outcome, attempts=10_000, failures=100, age_ms=10**10, events=1).dead == ""


def test_what_is_gone_is_not_given_up():
    assert settled(refused(410), attempts=9, retry=RetryPolicy(attempts_max=1)).dead == ""


def test_delays_may_be_listed():
    retry = RetryPolicy(attempts_max=4, delays_ms=(10, 20, 30))

    assert [settled(refused(400), attempts=n, events=1, retry=retry).retry_ms for n in (1, 2, 3)] == [10, 20, 30]
    assert settled(NOBODY, retry=retry).probe_ms >= 10
    assert settled(NOBODY, retry=retry).retry_ms == FIRST


def test_a_receiver_may_have_a_base_and_a_cap_of_its_own():
    retry = RetryPolicy(base_ms=10, cap_ms=15)

    assert [settled(refused(400), attempts=n, events=1, retry=retry).retry_ms for n in (1, 2, 3)] == [11, 16, 16]


def test_events_that_are_named_as_failed_go_on_by_the_same_rules():
    first, last = (decide_named(Tried("b", 2, n, 0), backoff=BACKOFF, chance=1.0, retry=None) for n in (1, 8))

    assert (first.what, first.retry_ms, first.dead) == ("delivered", 1_001, "")
    assert (last.what, last.dead) == ("delivered", "attempts")


def test_a_large_batch_is_not_tried_again_sooner_than_its_bytes_allow():
    at_once, size = RetryPolicy(base_ms=1, cap_ms=1), 16_777_216

    for of in (size, 100):
        tried = Tried("b", 1, 3, 0, bytes=of)
        named = decide_named(tried, backoff=BACKOFF, chance=1.0, retry=at_once)
        alone = decide(refused(422), tried, backoff=BACKOFF, chance=1.0, retry=at_once)
        assert (named.retry_ms, alone.retry_ms) == ((2_048, 2_048) if of == size else (2, 2))


def test_a_batch_that_has_had_its_attempts_is_split_where_some_of_it_may_be_to_blame():
    few = RetryPolicy(attempts_max=3)

    for outcome in (refused(500), refused(400), LATE):
        found = settled(outcome, attempts=3, failures=2, retry=few)
        assert (found.dead, found.is_split) == ("", True)
    assert settled(NOBODY, attempts=3, failures=2, retry=few).dead == "attempts"


def test_attempts_during_an_outage_use_up_none_of_those_that_an_event_has():
    assert settled(refused(500), attempts=5, failures=1, events=1).is_counted
    assert not settled(refused(500), attempts=6, failures=1, events=1).is_counted
    assert settled(refused(500), attempts=6, failures=0, events=1).is_counted
    assert settled(NOBODY, attempts=6, failures=1, retry=RetryPolicy(attempts_max=9)).is_counted
    assert settled(refused(500), attempts=6, failures=1, events=1).retry_ms == 32_001, "soon after the outage"
