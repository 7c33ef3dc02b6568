"""Against theory: queues, Little's law, retries; and virtual time against real time.

An interval of 95 % misses one time in twenty; the seeds are fixed, so these either always pass or always fail. Seed
11 was such a miss for the blocking (0.0628 ± 0.0014); 60 replications of it, 1.15 million customers, gave 0.0608 ±
0.0009, so the seed was changed and not the stages. Of 24 seeds for the wait of four servers all covered it, together
0.740 ± 0.017.
"""

import asyncio
from random import Random

import pytest

from doubledecker.stages import (
    Batch,
    Breaker,
    Bulkhead,
    Chain,
    CoDel,
    Event,
    Exponential,
    Fifo,
    Poisson,
    Report,
    Retry,
    Simulated,
    Snapshot,
    Timeout,
    UniformKeys,
    VirtualLoop,
    simulate,
)
from doubledecker.stages.simulation.report import estimate
from stages.rehearsal import Broken
from stages.test_laws import POOLED, STAGES


def a_queueing_system(workers: int, load: float, places: int | None = None) -> Report:
    """Service takes one second on average."""
    chain = Chain() | Simulated(Exponential(1), workers=workers, queue=Fifo(places))
    duration = 60_000 / (workers * load) / 4
    return simulate(chain, traffic=Poisson(workers * load), duration=duration, seed=1, replications=8)


def test_the_mean_wait_of_one_server_is_that_of_theory():
    wait = a_queueing_system(workers=1, load=0.8).stage("simulated", lambda one: one.wait_mean_s)

    assert wait.covers(4.0)
    assert wait.margin < 0.5


def test_the_mean_wait_of_four_servers_is_that_of_theory():
    wait = a_queueing_system(workers=4, load=0.8).stage("simulated", lambda one: one.wait_mean_s)

    assert wait.covers(0.7455)
    assert wait.margin < 0.12


def test_the_blocking_of_four_servers_with_four_places_is_that_of_theory():
    blocked = a_queueing_system(workers=4, load=0.8, places=4).stage(
        "simulated", lambda one: one.rejected / one.arrived
    )

    assert blocked.covers(0.0607)
    assert blocked.margin < 0.006


CHAINS = [stage | Simulated(Exponential(0.7), 0.9) for stage in STAGES + POOLED]
CHAINS += [Retry(2) | Bulkhead(workers=4, queue=Fifo(20)) | Timeout(3) | Simulated(Exponential(1), 0.95)]


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: type(chain.stages[0]).__name__)
def test_littles_law_holds_on_every_stage(chain: Chain):
    """The mean number in a stage, looked at now and then, is the rate times the mean time there."""
    traffic = Poisson(1 if any(isinstance(stage, Batch) for stage in chain) else 3)
    report = simulate(chain, traffic=traffic, duration=1_500, seed=5, keys=UniformKeys(50), sample_every=0.4)
    [run] = report.replications

    for number, end in enumerate(run.snapshots):
        looks = [sample.snapshots[number] for sample in run.samples]
        working = sum(look.working for look in looks) / len(looks)
        queued = sum(look.queued for look in looks) / len(looks)
        assert working == pytest.approx(end.work_time.total_s / run.duration, rel=0.06, abs=0.02), end.stage
        if isinstance(chain.stages[0].queue, CoDel):
            continue  # the waiting of those whom it turns away is in no histogram
        assert queued == pytest.approx(end.queue_time.total_s / run.duration, rel=0.15, abs=0.02), end.stage


@pytest.mark.parametrize(("attempts", "availability"), [(1, 0.7), (2, 0.5), (4, 0.6)])
def test_retries_succeed_and_ask_as_often_as_theory_says(attempts: int, availability: float):
    chain = Retry(attempts) | Simulated(availability=availability)
    report = simulate(chain, traffic=Poisson(10), duration=250, seed=2, replications=8)
    success = 1 - (1 - availability) ** attempts

    assert report.success.covers(success)
    asked = report.estimate(lambda run: run.stage("simulated").arrived / run.sent)
    assert asked.covers(success / availability)
    assert asked.margin < 0.05


def test_an_estimate_is_a_mean_with_students_interval():
    found = estimate([1.0, 2.0, 3.0])

    assert found.mean == 2.0
    assert found.margin == pytest.approx(4.303 / 3**0.5)


# Virtual and real time


COMPRESSION = 100


def a_chain(scale: float) -> Chain:
    return (
        Retry(2)
        | Breaker(threshold=0.9, calls_min=20, open_s=20 * scale)
        | Bulkhead(workers=4, queue=Fifo(4))
        | Timeout(6.0 * scale)
    )


async def ask(takes_s: float, fails: bool) -> None:
    await asyncio.sleep(takes_s)
    if fails:
        raise Broken


async def play(scale: float) -> tuple[Snapshot, ...]:
    """Five minutes of the same calls, each with its own latency and fate; `scale` shrinks all times."""
    random = Random(8)
    bound = a_chain(scale).bind()
    loop = asyncio.get_running_loop()
    begun_at = loop.time()
    running = set()
    at = 0.0
    for _ in range(400):
        at += random.expovariate(1.3) * scale
        takes_s, fails = random.lognormvariate(1.4, 0.3) * scale, random.random() < 0.1
        await asyncio.sleep(begun_at + at - loop.time())
        running.add(loop.create_task(bound.run(Event(function=ask, args=(takes_s, fails)))))
    await asyncio.gather(*running, return_exceptions=True)
    return bound.snapshots()


def differences(virtual: tuple[Snapshot, ...], real: tuple[Snapshot, ...]) -> list[str]:
    """What differs by more than ten percent."""
    found = []
    for expected, seen in zip(virtual, real, strict=True):
        for column in ("arrived", "rejected", "started", "succeeded", "failed"):
            counted, wanted = getattr(seen, column), getattr(expected, column)
            if counted != pytest.approx(wanted, rel=0.1, abs=10):
                found.append(f"{expected.stage} {column}: {counted} instead of {wanted}")
    return found


@pytest.mark.slow
def test_virtual_and_compressed_real_time_count_the_same_within_ten_percent():
    """A busy machine is late by as much as a call takes here: a real difference would be there every time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        virtual = runner.run(play(1.0))
    for _ in range(5):
        different = differences(virtual, asyncio.run(play(1.0 / COMPRESSION)))
        if not different:
            break

    assert different == []
    assert min(virtual[2].rejected, virtual[3].failed) > 20
