"""Rehearsal: the virtual loop, traffic, reports, and the original's presets."""

import asyncio
import socket
import time
from random import Random

import pytest

from doubledecker.stages import (
    Arrival,
    Breaker,
    Bulkhead,
    Bursty,
    Chain,
    Constant,
    Even,
    Event,
    Fifo,
    LogNormal,
    NormalKeys,
    Poisson,
    Ramp,
    Recorded,
    Retry,
    Simulated,
    SingleFlight,
    Ticks,
    Timeout,
    UniformKeys,
    VirtualLoop,
    presets,
    simulate,
)
from doubledecker.stages.errors import CircuitOpen, Deadlock, DependencyFailed, RealWorldRefused
from stages.rehearsal import bind, ending, now, virtually


def test_an_hour_passes_at_once_and_to_the_second():
    async def main() -> float:
        await asyncio.sleep(3_600)
        return now()

    began_s = time.monotonic()

    assert virtually(main()) == 3_600
    assert time.monotonic() - began_s < 60


def test_when_everyone_waits_for_ever_it_is_a_deadlock():
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="1 tasks wait"):
        virtually(main())


def test_a_simulated_deadlock_is_one_too():
    async def main() -> None:
        bound = bind(Bulkhead(workers=1, queue=Fifo()))
        await bound.run(Event(function=bound.run, args=(Event(),)))

    with pytest.raises(Deadlock):
        virtually(main())


def test_timers_of_one_moment_run_in_the_order_in_which_they_were_set():
    async def main() -> list[int]:
        loop, rung = asyncio.get_running_loop(), []
        for i in range(20):
            loop.call_at(5.0, rung.append, i)
        loop.call_at(5.0, rung.append, -1).cancel()
        await asyncio.sleep(6)
        return rung

    assert virtually(main()) == list(range(20))


def test_sockets_threads_and_processes_are_refused():
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as open_socket:
            for attempt in (
                lambda: asyncio.open_connection("127.0.0.1", 1),
                lambda: asyncio.start_server(print, port=0),
                lambda: asyncio.to_thread(print),
                lambda: asyncio.create_subprocess_exec("true"),
                lambda: loop.sock_connect(open_socket, ("127.0.0.1", 1)),
                lambda: loop.getaddrinfo("localhost", 80),
            ):
                with pytest.raises(RealWorldRefused):
                    await attempt()

    virtually(main())


CHAIN = (
    Retry(2)
    | Breaker(open_s=1)
    | Bulkhead(workers=8, queue=Fifo(8))
    | Timeout(0.3)
    | Simulated(LogNormal(0.1), availability=0.9)
)


def test_the_same_seed_gives_the_same_report_and_another_seed_another():
    def run(seed: int):
        return simulate(CHAIN, traffic=Poisson(60), duration=20, seed=seed, replications=2)

    assert run(7) == run(7)
    assert run(7) != run(8)


def test_two_chains_with_one_seed_meet_the_same_traffic():
    reports = [
        simulate(chain, traffic=Poisson(20), duration=20, seed=1, keys=UniformKeys(5))
        for chain in (CHAIN, Chain() | Simulated(Constant(1)))
    ]

    assert reports[0].replications[0].sent == reports[1].replications[0].sent


@pytest.mark.parametrize(
    ("traffic", "expected"),
    [
        (Even(10), 1_000),
        (Poisson(10), 1_000),
        (Bursty(5, 55, quiet_s=9, burst_s=1), 1_000),
        (Ramp(0, 20), 1_000),
        (Recorded([Arrival(1.0, "a"), Arrival(2.0), Arrival(200.0)]), 2),
    ],
    ids=lambda traffic: type(traffic).__name__,
)
def test_traffic_brings_as_many_as_it_says_in_order(traffic, expected: int):
    moments = [arrival.at for arrival in traffic.arrivals(100, Random(4))]

    assert moments == sorted(moments)
    assert len(moments) == pytest.approx(expected, rel=0.1)
    assert max(moments) < 100


def test_a_ramp_grows_and_a_burst_bursts():
    ramp = [arrival.at for arrival in Ramp(0, 20).arrivals(100, Random(4))]
    bursts = [arrival.at for arrival in Bursty(5, 55, quiet_s=9, burst_s=1).arrivals(100, Random(4))]

    assert sum(at > 50 for at in ramp) == pytest.approx(750, rel=0.1)
    assert sum(at % 10 >= 9 for at in bursts) == pytest.approx(550, rel=0.1)


def test_recorded_keys_are_kept():
    report = simulate(
        SingleFlight() | Simulated(Constant(1)),
        traffic=Recorded([Arrival(0.0, "a"), Arrival(0.5, "a"), Arrival(0.5, "b")]),
        duration=10,
    )

    assert report.replications[0].stage("simulated").arrived == 2


def test_a_report_has_a_row_for_each_stage_and_says_what_callers_saw():
    report = simulate(CHAIN, traffic=Poisson(60), duration=20, seed=7, replications=3, sample_every=1)
    lines = report.table().splitlines()

    assert [line.split()[0] for line in lines] == [
        *("stage", "retry", "breaker", "bulkhead", "timeout", "simulated", "callers:")
    ]
    assert report.replications[0].outcomes["succeeded"] == report.replications[0].stage("retry").succeeded
    assert report.latency_s(0.5).mean == pytest.approx(0.1, rel=0.3)
    assert [sample.at for sample in report.replications[0].samples] == list(range(21))


# The original


def test_the_original_sends_evenly_at_whole_ticks():
    def ticks(rate: float) -> list[float]:
        return [arrival.at for arrival in presets.EvenTicks(rate, 5).arrivals(1e9, Random())]

    assert ticks(1_000) == [0, 1, 2, 3, 4]
    assert ticks(700) == [0, 2, 3, 5, 6]
    assert ticks(2_000) == [0, 1, 1, 2, 2]


def test_the_original_keys_are_whole_numbers_of_a_bell():
    random = Random(6)
    keys = [int(NormalKeys(1_000, 50).draw(random)) for _ in range(4_000)]

    assert sum(keys) / len(keys) == pytest.approx(999.5, abs=3)
    assert sum(abs(key - 1_000) <= 50 for key in keys) / len(keys) == pytest.approx(0.68, abs=0.03)


def test_the_timed_example_of_the_original_can_be_written_down():
    cache = presets.lru_cache(capacity=500, ttl=30_000) | presets.timed_dependency(150, 20, 0.995)
    report = presets.run(cache, 5_000, events_per_1000_ticks=40, keyspace_mean=999, keyspace_deviation=90)
    [run] = report.replications

    assert run.sent == 5_000
    assert run.success > 0.99
    assert run.stage("timed_dependency").arrived < 2_500
    assert all(latency == int(latency) for latency in run.latencies_s)


def test_the_trace_of_the_originals_breaker():
    async def main() -> list[str]:
        bound = bind(presets.circuit_breaker(capacity=2, time_in_open_state=10))

        async def fail() -> None:
            raise DependencyFailed

        async def succeed() -> None:
            pass

        ends = []
        for moment, function in (
            (0, fail),
            (1, fail),
            (2, succeed),  # judged on arrival: open now, and not at 1
            (12, succeed),  # exactly 10 later it is still open
            (12.5, succeed),  # half-open: everyone is let in
            (12.5, succeed),
            (13, fail),  # the ring is full and fine: closed
            (13, fail),
            (14, succeed),  # open
        ):
            await asyncio.sleep(moment - now())
            ends.append((await ending(bound.run(Event(function=function)))).how)
        return ends

    opened = CircuitOpen.__name__
    failed = DependencyFailed.__name__
    assert virtually(main()) == [failed, failed, opened, opened, "ok", "ok", failed, failed, opened]


def test_the_originals_timeout_leaves_its_work_running():
    chain = presets.timeout(100) | presets.timed_dependency(150, 0, 1.0)
    report = presets.run(chain, 10)

    assert report.replications[0].outcomes == {"TimedOut": 10}
    assert report.stage("timed_dependency", lambda one: one.cancelled).mean <= 1


def test_the_plain_cache_of_the_original_keeps_every_answer_for_ever():
    calls: list[str] = []

    async def ask(key: str) -> str:
        calls.append(key)
        return key

    async def main() -> None:
        bound = bind(presets.cache())
        for key in [*map(str, range(3_000)), "0", "1"]:
            await bound.run(Event(key, function=ask, args=(key,)))
            await asyncio.sleep(1_000_000)

    virtually(main())

    assert calls == [*map(str, range(3_000))]


def test_the_lru_cache_of_the_original_keeps_what_was_looked_at_last():
    calls: list[str] = []

    async def ask(key: str) -> str:
        calls.append(key)
        return key

    async def main() -> None:
        bound = bind(presets.lru_cache(capacity=2))
        for key in ("a", "b", "a", "c", "a", "b"):
            await bound.run(Event(key, function=ask, args=(key,)))

    virtually(main())

    assert calls == ["a", "b", "c", "b"]


def test_every_look_at_the_aside_cache_of_the_original_asks_the_dependency():
    calls: list[float] = []

    async def ask() -> str:
        calls.append(now())
        await asyncio.sleep(10)
        return "answer"

    async def main() -> list[str]:
        async with bind(presets.aside_cache()) as bound:
            ends = []
            for _ in range(4):
                ends.append((await ending(bound.run(Event("k", function=ask)))).how)
                await asyncio.sleep(4)
            return ends

    assert virtually(main()) == ["NotCached", "NotCached", "NotCached", "ok"]
    assert calls == [0, 4, 8, 12]


def test_the_presets_have_the_defaults_of_the_original():
    assert presets.retry().attempts == 2
    assert (presets.timeout().limit_s, presets.timeout().abandon) == (300, True)
    assert (presets.lru_cache().capacity, presets.lru_cache().ttl_s) == (1_000, 10_000)
    breaker = presets.circuit_breaker()
    assert (breaker.capacity, breaker.error_threshold, breaker.time_in_open_state) == (10, 0.3, 3_000)
    assert presets.available_dependency().availability == 0.7
    dependency = presets.timed_dependency(mean=300)
    assert (dependency.latency, dependency.failure_latency) == (Ticks(300, 25), Ticks(150, 25))
    assert dependency.availability == 0.9995


def test_the_aside_cache_of_the_original_fails_until_it_has_something():
    chain = presets.aside_cache() | presets.available_dependency(1.0)
    report = presets.run(chain, 1_000, keyspace_mean=5, keyspace_deviation=1)

    assert report.replications[0].outcomes["NotCached"] < 15
    assert report.replications[0].outcomes["succeeded"] > 985


def test_the_loop_is_a_loop_like_any_other():
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(asyncio.sleep(1, "done")) == "done"
        assert runner.run(asyncio.sleep(1, "again")) == "again"
