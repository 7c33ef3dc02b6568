"""Each technique, by exact traces in virtual time."""

import asyncio
from random import Random

import pytest

from doubledecker.stages import (
    Adaptive,
    AsideCache,
    Backoff,
    Breaker,
    Budget,
    Bulkhead,
    Cache,
    Chain,
    Constant,
    Count,
    Deadline,
    Event,
    Fallback,
    Fault,
    Fifo,
    Hedge,
    Notice,
    Outage,
    RateLimit,
    Retry,
    Shed,
    Simulated,
    SingleFlight,
    Time,
    Timeout,
    value,
)
from doubledecker.stages.errors import ChainInvalid, DeadlineReached, FaultInjected, TimedOut
from stages.rehearsal import Broken, Ending, a_call, at, bind, ending, now, virtually


class Plan:
    """A dependency that takes and fails as planned, call by call; True is a success."""

    def __init__(self, *successes: bool, takes_s: float = 0.0) -> None:
        self.successes = list(successes)
        self.takes_s = takes_s
        self.moments: list[float] = []

    async def __call__(self) -> str:
        self.moments.append(now())
        succeeds = self.successes.pop(0) if self.successes else True
        if self.takes_s:
            await asyncio.sleep(self.takes_s)
        if not succeeds:
            raise Broken
        return "answer"

    def event(self, key: str | None = None, **fields: object) -> Event:
        return Event(key, function=self, **fields)


# Retry


def test_a_retry_asks_again_until_it_succeeds_or_has_no_attempts_left():
    async def main() -> None:
        bound = bind(Retry(3))
        lucky, unlucky = Plan(False, False, True), Plan(False, False, False)

        assert await bound.run(lucky.event()) == "answer"
        assert (await ending(bound.run(unlucky.event()))).how == "Broken"
        assert (len(lucky.moments), len(unlucky.moments)) == (3, 3)

    virtually(main())


def test_the_delay_is_a_random_part_of_a_span_that_doubles_up_to_the_cap():
    backoff = Backoff(0.1, cap_s=1.0)

    assert [backoff.delay_s(n, 1.0) for n in (1, 2, 3, 4, 5, 5_000)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert backoff.delay_s(3, 0.25) == pytest.approx(0.1)


def test_a_dependency_that_names_a_delay_gets_at_least_that():
    async def main() -> list[float]:
        moments = []

        async def ask() -> None:
            moments.append(now())
            raise Broken(retry_after_s=[7.0, 1000.0][len(moments) > 1])

        await ending(bind(Retry(3, retry_after_s_max=60)).run(Event(function=ask)))
        return moments

    assert virtually(main()) == pytest.approx([0, 7, 67])


def test_a_budget_keeps_retries_to_their_share():
    async def main() -> int:
        bound = bind(Retry(4, budget=Budget(0.2, saved_max=10)) | Timeout(1))
        for _ in range(1_000):
            await ending(bound.run(a_call(fails=True)))
        return bound["timeout"].snapshot().arrived

    # A fifth more, and what was saved up before.
    assert virtually(main()) == pytest.approx(1_000 + 200 + 10, abs=5)


def test_a_retry_that_could_not_begin_before_the_deadline_is_not_tried():
    async def main() -> list[float]:
        plan = Plan(*[False] * 9, takes_s=1)
        await ending(bind(Retry(9, Backoff(1, 1))).run(plan.event(deadline=3.0)))
        return plan.moments

    moments = virtually(main())

    assert len(moments) > 1
    assert max(moments) < 3.0


def test_only_the_named_exceptions_are_retried():
    async def main() -> int:
        plan = Plan(False)
        await ending(bind(Retry(3, on=(TimeoutError,))).run(plan.event()))
        return len(plan.moments)

    assert virtually(main()) == 1


def test_a_rejection_from_inside_is_not_retried_unless_asked_for():
    async def main(retry: Retry) -> int:
        bound = bind(retry | Bulkhead(workers=1))
        bound["bulkhead"].resize(0)
        await ending(bound.run(a_call()))
        return bound["bulkhead"].snapshot().arrived

    assert virtually(main(Retry(3))) == 1
    assert virtually(main(Retry(3, never=()))) == 3


# Timeout and deadline


def test_a_timeout_cancels_at_its_moment_and_not_before():
    async def main() -> None:
        bound = bind(Timeout(2))
        quick, exact, slow = await asyncio.gather(
            at(0, bound, a_call(1.9)), at(1, bound, a_call(2.5)), at(1.5, bound, a_call(9))
        )

        assert quick == Ending("ok", pytest.approx(1.9))
        assert exact == Ending("TimedOut", pytest.approx(3))
        assert slow == Ending("TimedOut", pytest.approx(3.5))

    virtually(main())


def test_the_work_that_timed_out_was_cancelled_unless_it_is_abandoned():
    async def ended(abandon: bool) -> list[float]:
        moments: list[float] = []

        async def ask() -> None:
            try:
                await asyncio.sleep(5)
            finally:
                moments.append(now())

        bound = bind(Timeout(2, abandon=abandon))
        assert await ending(bound.run(Event(function=ask))) == Ending("TimedOut", pytest.approx(2))
        await asyncio.sleep(10)
        await bound.close()
        return moments

    assert virtually(ended(False)) == pytest.approx([2])
    assert virtually(ended(True)) == pytest.approx([5])


def test_a_cancellation_from_outside_that_meets_the_timeout_stays_a_cancellation():
    async def main() -> None:
        bound = bind(Timeout(2))
        task = asyncio.create_task(bound.run(a_call(9)))
        asyncio.get_running_loop().call_at(2.0, task.cancel)
        await asyncio.wait((task,))

        assert task.cancelled()

    virtually(main())


def test_nested_timeouts_each_mean_their_own():
    async def main() -> list[str]:
        ends = []
        for outer_s, inner_s in ((3, 1), (1, 3), (2, 2)):
            bound = bind(Timeout(outer_s, name="outer") | Timeout(inner_s, name="inner"))
            with pytest.raises(TimedOut) as caught:
                await bound.run(a_call(9))
            ends.append(caught.value.stage)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
        return ends

    assert virtually(main())[:2] == ["inner", "outer"]


def test_a_timeout_is_a_timeout_error_and_retry_gives_each_attempt_its_own():
    async def main() -> Ending:
        assert issubclass(TimedOut, TimeoutError)
        return await ending(bind(Retry(3) | Timeout(2)).run(a_call(9)))

    assert virtually(main()) == Ending("TimedOut", pytest.approx(6))


def test_a_deadline_counts_all_attempts_and_an_earlier_one_is_kept():
    async def main() -> None:
        bound = bind(Deadline(5) | Retry(9) | Timeout(2))
        own, earlier, over = await asyncio.gather(
            ending(bound.run(a_call(9))),
            ending(bound.run(a_call(9, deadline=3.0))),
            ending(bound.run(a_call(9, deadline=0.0))),
        )

        assert own == Ending(DeadlineReached.__name__, pytest.approx(5))
        assert earlier == Ending(DeadlineReached.__name__, pytest.approx(3))
        assert over == Ending("DeadlinePassed", 0.0)

    virtually(main())


# Breaker


def test_the_trace_of_a_breaker():
    heard: list[Notice] = []

    async def main() -> list[Ending]:
        plan = Plan(True, False, False, False, False, True, True)
        bound = bind(Breaker(Count(4), threshold=0.5, calls_min=4, open_s=10, probes=1), heard.append)
        moments = [0, 1, 2, 3, 4, 12.9, 13, 14, 22.9, 23.5, 24]
        return [await at(moment, bound, plan.event()) for moment in moments]

    ends = virtually(main())

    assert [end.how for end in ends] == [
        *("ok", "Broken", "Broken", "Broken"),  # 3 of 4 failed: open at 3, for 10 s
        *("CircuitOpen", "CircuitOpen"),
        "Broken",  # the probe at 13 fails: open again until 23
        *("CircuitOpen", "CircuitOpen"),
        *("ok", "ok"),  # the probe succeeds: closed
    ]
    changes = [(notice.what, notice.at) for notice in heard if notice.what != "rejected"]
    assert changes == [("open", 3), ("half-open", 13), ("open", 13), ("half-open", 23.5), ("closed", 23.5)]


def test_an_open_circuit_says_when_to_come_back():
    async def main() -> None:
        bound = bind(Breaker(calls_min=1, open_s=10))
        await ending(bound.run(a_call(fails=True)))
        await asyncio.sleep(4)
        with pytest.raises(Exception, match="again in 6 s"):
            await bound.run(a_call())

    virtually(main())


def test_a_breaker_per_key_opens_for_one_key_alone():
    async def main() -> tuple[str, str]:
        bound = bind(Breaker(calls_min=1, per_key=True))
        await ending(bound.run(a_call(fails=True, key="bad")))
        bad, good = await ending(bound.run(a_call(key="bad"))), await ending(bound.run(a_call(key="good")))
        return bad.how, good.how

    assert virtually(main()) == ("CircuitOpen", "ok")


def test_a_window_of_time_forgets():
    async def main() -> str:
        bound = bind(Breaker(Time(10), calls_min=4))
        for moment in (0, 1, 2, 30, 31):
            await at(moment, bound, a_call(fails=True))
        return bound["breaker"].state

    assert virtually(main()) == "closed"


def test_a_window_smaller_than_the_least_number_of_calls_opens_when_it_is_full():
    async def main() -> str:
        bound = bind(Breaker(Count(3)))
        for _ in range(3):
            await ending(bound.run(a_call(fails=True)))
        return bound["breaker"].state

    assert virtually(main()) == "open"


def test_a_rejection_from_inside_says_nothing_of_the_dependency():
    async def main() -> str:
        bound = bind(Breaker(calls_min=1) | RateLimit(0.001))
        for _ in range(20):
            await ending(bound.run(a_call()))
        return bound["breaker"].state

    assert virtually(main()) == "closed"


@pytest.mark.parametrize("fails", [False, True])
def test_an_answer_from_before_the_opening_is_no_probe(fails: bool):
    async def main() -> list[str]:
        bound = bind(Breaker(calls_min=1, open_s=5))
        while_open, while_half_open = (
            asyncio.create_task(ending(bound.run(a_call(takes_s, fails=fails)))) for takes_s in (3, 7)
        )
        await at(1, bound, a_call(fails=True))
        probe = asyncio.create_task(at(6.5, bound, a_call(9)))
        states = []
        for old in (while_open, while_half_open, probe):
            await old
            states.append(bound["breaker"].state)
        return states

    assert virtually(main()) == ["open", "half-open", "closed"]


# Limits


def test_a_rate_limit_spaces_events_after_its_burst():
    async def main() -> list[Ending]:
        bound = bind(RateLimit(2, burst=2, wait_s_max=1))
        return list(await asyncio.gather(*(ending(bound.run(a_call())) for _ in range(6))))

    assert [(end.how, end.at) for end in virtually(main())] == [
        ("ok", 0),
        ("ok", 0),
        ("ok", 0.5),
        ("ok", 1),
        ("RateExceeded", 0),
        ("RateExceeded", 0),
    ]


def test_a_rate_limit_per_key_knows_keys_apart():
    async def main() -> list[str]:
        bound = bind(RateLimit(1, per_key=True))
        return [(await ending(bound.run(a_call(key=key)))).how for key in ("a", "b", "a")]

    assert virtually(main()) == ["ok", "ok", "RateExceeded"]


def test_shedding_grows_with_load_spares_the_important_and_ends_at_hard():
    async def main() -> None:
        bound = bind(Shed(10, 20, spare=1))
        plain = await asyncio.gather(*(ending(bound.run(a_call(1))) for _ in range(200)))
        important = await asyncio.gather(*(ending(bound.run(a_call(1, priority=1))) for _ in range(200)))

        assert 10 < sum(end.how == "ok" for end in plain) <= 20
        assert sum(end.how == "ok" for end in important) == 20

    virtually(main())


def test_adaptive_concurrency_finds_what_the_dependency_can_bear():
    async def main() -> int:
        # Ten at a time are served in 0.1 s; more share the same throughput.
        dependency = Simulated(Constant(0.1), saturation=lambda working: max(1.0, working / 10))
        bound = bind(Adaptive(workers=1, target_s=0.15, queue=Fifo(100)) | dependency)
        limits = []
        for second in range(30):
            calls = [at(second + i / 150, bound, Event()) for i in range(150)]
            await asyncio.gather(*calls)
            limits.append(int(bound["adaptive"].state.split()[1]))
        return max(limits[10:])

    assert 8 <= virtually(main()) <= 25


# Caches


def test_a_cache_keeps_for_its_time_and_drops_the_least_recently_used():
    async def main() -> int:
        plan = Plan()
        bound = bind(Cache(2, ttl_s=10))
        for moment, key in ((0, "a"), (1, "b"), (2, "a"), (3, "c"), (4, "a"), (5, "b"), (11, "a")):
            await at(moment, bound, plan.event(key))
        return plan.moments

    # a; b; a is there; c pushes b out; a is there; b again; a is too old.
    assert virtually(main()) == pytest.approx([0, 1, 3, 5, 11])


def test_a_stale_answer_is_given_while_one_fetch_renews_it():
    async def main() -> None:
        plan = Plan(takes_s=1)
        bound = bind(Cache(ttl_s=10, stale_s=5))
        await bound.run(plan.event("k"))
        await asyncio.sleep(12)
        ends = await asyncio.gather(*(ending(bound.run(plan.event("k"))) for _ in range(5)))
        await asyncio.sleep(2)
        await bound.run(plan.event("k"))

        assert {end.at for end in ends} == {13}
        assert plan.moments == pytest.approx([0, 13])

    virtually(main())


def test_a_negative_answer_is_kept_too_but_not_a_rejection():
    async def main() -> None:
        plan = Plan(False, True)
        bound = bind(Cache(negative_s=5))
        ends = [(await at(moment, bound, plan.event("k"))).how for moment in (0, 1, 6)]
        assert ends == ["Broken", "Broken", "ok"]

        limited = bind(Cache(negative_s=5) | RateLimit(1))
        ends = [(await at(now() + 0.6, limited, a_call(key=key))).how for key in ("x", "y", "y")]
        assert ends == ["ok", "RateExceeded", "ok"]

    virtually(main())


def test_a_renewal_that_fails_leaves_the_stale_answer():
    async def main() -> list[str]:
        plan = Plan(True, False)
        bound = bind(Cache(ttl_s=10, stale_s=100, negative_s=50))
        return [(await at(moment, bound, plan.event("k"))).how for moment in (0, 12, 13)]

    assert virtually(main()) == ["ok", "ok", "ok"]


def test_an_aside_cache_never_waits():
    async def main() -> list[Ending]:
        plan = Plan(takes_s=2)
        async with bind(AsideCache()) as bound:
            return [await at(moment, bound, plan.event("k")) for moment in (0, 1, 3)]

    assert virtually(main()) == [Ending("NotCached", 0), Ending("NotCached", 1), Ending("ok", 3)]


def test_an_aside_cache_needs_keys():
    async def main() -> None:
        with pytest.raises(ChainInvalid):
            await bind(AsideCache()).run(a_call())

    virtually(main())


def test_single_flight_calls_once_for_many_waiters():
    async def main() -> None:
        plan = Plan(False, True, takes_s=1)
        bound = bind(SingleFlight())
        first = await asyncio.gather(*(ending(bound.run(plan.event("k"))) for _ in range(50)))
        second = await asyncio.gather(*(ending(bound.run(plan.event("k"))) for _ in range(50)))

        assert {end.how for end in first} == {"Broken"}
        assert {end.how for end in second} == {"ok"}
        assert plan.moments == pytest.approx([0, 1])

    virtually(main())


def test_who_gives_up_leaves_the_flight_to_the_others_and_the_last_one_ends_it():
    async def main() -> None:
        plan = Plan(takes_s=5)
        bound = bind(SingleFlight() | Bulkhead(workers=1))
        first, second = (asyncio.create_task(ending(bound.run(plan.event("k")))) for _ in range(2))
        await asyncio.sleep(1)
        first.cancel()
        assert await second == Ending("ok", 5)

        alone = asyncio.create_task(bound.run(plan.event("k")))
        await asyncio.sleep(1)
        alone.cancel()
        await asyncio.sleep(1)
        snapshot = bound["bulkhead"].snapshot()
        assert (snapshot.cancelled, snapshot.working) == (1, 0)

    virtually(main())


# The others


def test_a_hedge_takes_the_first_success_and_cancels_the_rest():
    async def main() -> None:
        bound = bind(Hedge(1, attempts=3) | Bulkhead(workers=10))
        takes = iter([9, 0.5])

        async def ask() -> str:
            await asyncio.sleep(next(takes))
            return "answer"

        assert await ending(bound.run(Event(function=ask))) == Ending("ok", 1.5)
        snapshot = bound["bulkhead"].snapshot()
        assert (snapshot.started, snapshot.succeeded, snapshot.cancelled) == (2, 1, 1)

    virtually(main())


def test_a_hedge_fails_when_all_have_failed_and_does_not_wait_to_ask_again():
    async def main() -> None:
        plan = Plan(False, False)

        assert await ending(bind(Hedge(5)).run(plan.event())) == Ending("Broken", 0)
        assert plan.moments == [0, 0]

    virtually(main())


def test_a_fallback_answers_instead():
    async def main() -> None:
        assert await bind(Fallback(function=value("else"))).run(a_call(fails=True)) == "else"
        assert await bind(Fallback(function=value("else"))).run(a_call()) == "answer"
        slow = Fallback(Chain() | Simulated(Constant(3)), on=(TimedOut,)) | Timeout(1)
        assert await ending(bind(slow).run(a_call(9))) == Ending("ok", pytest.approx(4))
        assert (await ending(bind(slow).run(a_call(fails=True)))).how == "Broken"
        with pytest.raises(ChainInvalid):
            bind(Fallback())

    virtually(main())


def test_faults_are_injected_at_their_rate():
    async def main() -> tuple[int, float]:
        bound = bind(Fault(0.3, delay_rate=0.5, delay=Constant(1)))
        ends = [(await ending(bound.run(a_call()))).how for _ in range(1_000)]
        return ends.count(FaultInjected.__name__), now()

    faults, took_s = virtually(main())

    assert faults == pytest.approx(300, abs=45)
    assert took_s == pytest.approx(500, abs=50)


def test_a_simulated_dependency_has_outages_and_saturates():
    async def main() -> None:
        bound = bind(Simulated(Constant(1), outages=[Outage(10, 20)], saturation=float))
        ends = [await at(moment, bound, Event()) for moment in (0, 10, 19.9, 20)]
        assert [end.how for end in ends] == ["ok", "DependencyFailed", "DependencyFailed", "ok"]

        four = await asyncio.gather(*(ending(bound.run(Event())) for _ in range(4)))
        assert [end.at - 21 for end in four] == pytest.approx([1, 2, 3, 4])

    virtually(main())


def test_chance_comes_from_the_binding():
    async def main(seed: int) -> list[str]:
        bound = (Chain() | Fault(0.5)).bind(random=Random(seed))
        return [(await ending(bound.run(a_call()))).how for _ in range(30)]

    assert virtually(main(1)) == virtually(main(1)) != virtually(main(2))
