"""Callers of a simulation against asyncio's own tasks: what is inside a chain cannot tell them apart."""

import asyncio
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass
from random import Random

import pytest

from doubledecker.stages import Chain, Event, Exponential, Hedge, Poisson, Simulated, Stage, Timeout, simulate
from doubledecker.stages.simulation.simulate import SimulatedCaller
from stages.rehearsal import Broken, now, virtually
from stages.test_laws import POOLED, STAGES

TRAFFIC = Poisson(2.0)
DURATION = 120.0
DEPENDENCY = Simulated(Exponential(0.7), availability=0.8)


async def with_tasks(chain: Chain) -> tuple[Counter[str], list[float], list[object]]:
    """The same as a replication, each event in a task of asyncio's."""
    loop = asyncio.get_running_loop()
    outcomes: Counter[str] = Counter()
    latencies_s: list[float] = []

    async def call() -> None:
        begun_at = loop.time()
        try:
            await bound.run(Event())
            outcomes["succeeded"] += 1
        except Exception as error:  # noqa: BLE001 - however it ends
            outcomes[type(error).__name__] += 1
        latencies_s.append(loop.time() - begun_at)

    async with chain.bind(random=Random("0/0/stages")) as bound:
        tasks = []
        for arrival in TRAFFIC.arrivals(DURATION, Random("0/0/traffic")):
            await asyncio.sleep(arrival.at - loop.time())
            tasks.append(asyncio.create_task(call()))
        await asyncio.gather(*tasks)
        return outcomes, latencies_s, [(s.arrived, s.started, s.rejected, s.failed) for s in bound.snapshots()]


@pytest.mark.parametrize("stage", STAGES + POOLED, ids=lambda stage: type(stage).__name__)
def test_a_simulation_gives_what_tasks_would_give(stage: Stage):
    chain = stage | DEPENDENCY
    [run] = simulate(chain, traffic=TRAFFIC, duration=DURATION).replications
    outcomes, latencies_s, counted = virtually(with_tasks(chain))

    assert run.outcomes == outcomes
    assert run.latencies_s == pytest.approx(latencies_s)
    assert [(s.arrived, s.started, s.rejected, s.failed) for s in run.snapshots] == counted


def ends(*works) -> list[str]:
    """How callers of these coroutines end, begun in this order."""
    found: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        callers = [SimulatedCaller(work, lambda _, how: found.append(how), loop) for work in works]
        loop.call_soon(lambda: [caller.begin() for caller in callers])
        await asyncio.sleep(100)

    virtually(main())
    return found


async def in_time(takes_s: float) -> None:
    async with asyncio.timeout(2):
        await asyncio.sleep(takes_s)


async def in_a_group(fails: bool) -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise Broken

    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail() if fails else asyncio.sleep(1))
            await asyncio.sleep(5)
    except* Broken:
        raise Broken from None


def test_asyncio_s_own_timeouts_and_groups_work_inside():
    assert ends(in_time(1), in_time(3), in_a_group(False), in_a_group(True)) == [
        "succeeded",
        "Broken",
        "TimeoutError",
        "succeeded",
    ]


def test_a_caller_that_is_cancelled_ends_so_and_one_that_swallows_it_goes_on():
    async def gives_up() -> None:
        asyncio.current_task().cancel()
        await asyncio.sleep(1)

    async def goes_on() -> None:
        asyncio.current_task().cancel()
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            asyncio.current_task().uncancel()
        await asyncio.sleep(1)
        assert asyncio.current_task().cancelling() == 0

    assert ends(gives_up(), goes_on()) == ["cancelled", "succeeded"]


def test_each_caller_has_a_context_of_its_own():
    variable: ContextVar[int] = ContextVar("variable", default=0)

    async def count(number: int) -> None:
        assert variable.get() == 0
        variable.set(number)
        await asyncio.sleep(1)
        assert variable.get() == number
        await asyncio.sleep(0)
        assert variable.get() == number

    assert ends(*(count(number) for number in (1, 2, 3))) == ["succeeded"] * 3


@dataclass
class Sleeper(Stage):
    """Waits in every way there is."""

    async def work(self, event: Event) -> object:  # noqa: ARG002 - all alike
        await self.context.sleep(0)
        await self.context.sleep(1)
        await asyncio.sleep(1)
        await asyncio.wait_for(self.context.sleep(1), 2)  # noqa: TID251 - users may
        await asyncio.gather(self.context.sleep(1), asyncio.sleep(1))
        return now()


def test_a_pause_can_be_waited_for_in_any_way():
    async def main() -> object:
        return await (Timeout(9) | Hedge(8) | Sleeper()).bind().run(Event())

    assert virtually(main()) == 4.0
    [run] = simulate(Timeout(9) | Sleeper(), traffic=Poisson(1), duration=20).replications
    assert run.outcomes == {"succeeded": run.sent}
    assert set(map(round, run.latencies_s)) == {4}
