"""Simulate: rehearse a chain with made-up or recorded traffic, in virtual time.

Each replication has a loop, a binding and a stream of chance of its own. Traffic, keys and stages draw from separate
streams, so that two chains compared with the same seed meet the same traffic.
"""

import asyncio
import inspect
from asyncio.tasks import _enter_task, _leave_task
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextvars import copy_context
from random import Random
from typing import cast

from doubledecker.stages import limits
from doubledecker.stages.bound import Bound
from doubledecker.stages.chain import Chain
from doubledecker.stages.context import Event
from doubledecker.stages.simulation.loop import VirtualLoop
from doubledecker.stages.simulation.report import Replication, Report, SimulationSample, looks
from doubledecker.stages.simulation.traffic import Arrival, Keys, Traffic

# A caller: the task of one simulated event, with what a simulation needs of a task and no more.
#
# asyncio's own tasks have names, are kept in a list of all tasks, begin and end in a turn of the loop of their own, and
# can be waited for. That is most of what they cost, and nobody asks for it here. What is inside a chain sees no
# difference: while a caller runs it is the current task, it has a context of its own, and it is cancelled as any other.
# (asyncio lets others make tasks; "Extending" in its documentation says how.)

Work = Coroutine["asyncio.Future[object] | None", None, object]


class SimulatedCaller:
    """Leads a coroutine to its end, and reports which: `succeeded`, `cancelled`, or the class of what it raised."""

    __slots__ = ("_context", "_loop", "_must_cancel", "_report", "_requests", "_waits_for", "_work", "begun_at")

    def __init__(self, work: Work, report: "Callable[[SimulatedCaller, str], None]", loop: VirtualLoop) -> None:
        self._work = work
        self._report = report
        self._loop = loop
        self._context = copy_context()
        self._requests = 0
        self._must_cancel = False
        self._waits_for: asyncio.Future[object] | None = None
        self.begun_at = loop.now

    def begin(self) -> None:
        """Run until the first wait, or to the end if there is none."""
        self._context.run(self._step)

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - as asyncio's own
        """Ask it to end: it gets a CancelledError where it waits."""
        self._requests += 1
        if self._waits_for is None or not self._waits_for.cancel():
            self._must_cancel = True
        return True

    def done(self) -> bool:
        """Asked by groups of tasks, of the one they belong to."""
        return inspect.getcoroutinestate(self._work) == inspect.CORO_CLOSED

    def cancelling(self) -> int:
        """How often it was asked to end."""
        return self._requests

    def uncancel(self) -> int:
        """Take one such request back."""
        self._requests = max(0, self._requests - 1)
        return self._requests

    def _step(self, _: object = None) -> None:
        self._waits_for = None
        loop = self._loop
        _enter_task(loop, self)  # type: ignore[arg-type]  # a task of our own make
        try:
            if self._must_cancel:
                self._must_cancel = False
                waits_for = self._work.throw(asyncio.CancelledError())
            else:
                waits_for = self._work.send(None)
        except StopIteration:
            how = "succeeded"
        except asyncio.CancelledError:
            how = "cancelled"
        except Exception as error:  # noqa: BLE001 - however an event ends, the simulation goes on
            how = type(error).__name__
        else:
            if waits_for is None:  # a bare yield: let others run
                loop.call_soon(self._step, context=self._context)
                return
            waits_for._asyncio_future_blocking = False  # noqa: SLF001 - how a task marks a future as awaited
            waits_for.add_done_callback(self._step, context=self._context)
            self._waits_for = waits_for
            if self._must_cancel and waits_for.cancel():
                self._must_cancel = False
            return
        finally:
            _leave_task(loop, self)  # type: ignore[arg-type]
        self._report(self, how)


_TRAFFIC = limits.with_method("arrivals", "traffic, such as Poisson(100)")


def simulate(
    chain: Chain,
    *,
    traffic: Traffic,
    duration: float,
    seed: int = 0,
    replications: int = 1,
    keys: Keys | None = None,
    sample_every: float | None = None,
) -> Report:
    """Send `duration` seconds of traffic through the chain, and let what is under way finish.

    Times are in seconds, or in whatever unit the chain's own are. The same seed gives the same report.
    """
    limits.check_argument("simulate", "replications", replications, limits.ONE_OR_MORE)
    return Report(
        tuple(
            replicate(chain, traffic, duration, stream=f"{seed}/{i}", keys=keys, sample_every=sample_every)
            for i in range(replications)
        )
    )


def replicate(
    chain: Chain,
    traffic: Traffic,
    duration: float,
    *,
    stream: str,
    keys: Keys | None = None,
    sample_every: float | None = None,
) -> Replication:
    """One run, its chance named by `stream`; for runners that spread replications over processes."""
    limits.check_argument(
        "simulate", "traffic", traffic, limits.with_method("arrivals", "traffic, such as Poisson(100)")
    )
    limits.check_argument("simulate", "duration", duration, limits.FINITE_ABOVE_ZERO)
    limits.check_argument("simulate", "sample_every", sample_every, limits.or_none(limits.ABOVE_ZERO))
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        arrivals = traffic.arrivals(duration, _chance(stream, "traffic"))
        return runner.run(_run(chain, arrivals, duration, stream, keys, sample_every))


async def _run(
    chain: Chain,
    arrivals: Iterator[Arrival],
    duration: float,
    stream: str,
    keys: Keys | None,
    sample_every: float | None,
) -> Replication:
    loop = asyncio.get_running_loop()
    async with chain.bind(clock=loop.time, random=_chance(stream, "stages")) as bound:
        callers = Callers(bound, arrivals, keys, _chance(stream, "keys"))
        sampler = _Sampler(bound, callers, duration, sample_every)
        await callers.finished()
        snapshots, samples = bound.snapshots(), await sampler.finished()
        return Replication(duration, snapshots, dict(callers.outcomes), callers.latencies_s, samples)


def _chance(stream: str, purpose: str) -> Random:
    return Random(f"{stream}/{purpose}")  # noqa: S311 - a simulation wants chance it can repeat


class Callers:
    """Sends each event at its time, and writes down how it ended."""

    def __init__(self, bound: Bound, arrivals: Iterator[Arrival], keys: Keys | None, random: Random) -> None:
        self.outcomes: Counter[str] = Counter()
        self.latencies_s: list[float] = []
        self._run = cast("Callable[[Event], Work]", bound.run)
        self._arrivals = arrivals
        self._keys = keys
        self._random = random
        self._loop = cast("VirtualLoop", asyncio.get_running_loop())
        self._running = 0
        self._all_ended = self._loop.create_future()
        self._begun_at = self._loop.time()
        self._await_next()

    async def finished(self) -> None:
        """Return when the last event has ended."""
        await self._all_ended

    def _await_next(self) -> None:
        self._next = next(self._arrivals, None)
        if self._next is not None:
            self._loop.set(self._begun_at + self._next.at, self)
        elif not self._running:
            self._all_ended.set_result(None)

    def ring(self) -> None:
        """It is time for the next event."""
        arrival = self._next
        assert arrival is not None
        key = self._keys.draw(self._random) if arrival.key is None and self._keys else arrival.key
        self._running += 1
        self._await_next()
        SimulatedCaller(self._run(Event(key)), self._ended, self._loop).begin()

    ring_in_turn = ring

    def _ended(self, caller: SimulatedCaller, how: str) -> None:
        self._running -= 1
        self.latencies_s.append(self._loop.now - caller.begun_at)
        self.outcomes[how] += 1
        if self._next is None and not self._running and not self._all_ended.done():
            self._all_ended.set_result(None)


class _Sampler:
    """Looks at callers and stages at the beginning, every so often, and at the end of the traffic."""

    def __init__(self, bound: Bound, callers: Callers, duration: float, every: float | None) -> None:
        self._bound = bound
        self._callers = callers
        self._taken: list[SimulationSample] = []
        self._loop = asyncio.get_running_loop()
        self._is_done = self._loop.create_future()
        self._moments = iter(() if every is None else looks(duration, every)[1:])
        if every is None:
            self._await_next()
        else:
            self._look()  # now, before the first event

    async def finished(self) -> tuple[SimulationSample, ...]:
        """All looks, when the last one is taken."""
        await self._is_done
        return tuple(self._taken)

    def _await_next(self) -> None:
        moment = next(self._moments, None)
        if moment is None:
            self._is_done.set_result(None)
        else:
            self._loop.call_at(moment, self._look)

    def _look(self) -> None:
        ended, succeeded = len(self._callers.latencies_s), self._callers.outcomes["succeeded"]
        self._taken.append(SimulationSample(self._loop.time(), self._bound.snapshots(), ended, succeeded))
        self._await_next()
