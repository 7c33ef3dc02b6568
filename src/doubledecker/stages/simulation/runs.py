"""Runs: the replications of a rehearsal as plain values, and who carries them out.

A run names its file's text, chain, settings, seed and number, and nothing else. So it can be carried out in this
process, in others, or on other machines, in any order, with the same result: a replication's chance comes from its
seed and number alone. Whoever carries runs out is a runner: runs in, their replications out in the same order.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache, partial

from doubledecker.stages.errors import ChainInvalid, StagesError
from doubledecker.stages.simulation import files, grid
from doubledecker.stages.simulation.files import ScenarioFile
from doubledecker.stages.simulation.fit import Fit
from doubledecker.stages.simulation.grid import Settings
from doubledecker.stages.simulation.report import Replication, Report
from doubledecker.stages.simulation.scenario import Scenario
from doubledecker.stages.simulation.simulate import replicate


@dataclass(frozen=True)
class RunPlan:
    """A scenario with its settings: what one report is about."""

    source: ScenarioFile
    chain: str
    settings: Settings = ()
    seed: int | None = None
    replications: int | None = None
    sample_every: float | None = None
    fit: Fit | None = None


@dataclass(frozen=True)
class Run:
    """One replication of a plan."""

    plan: RunPlan
    number: int


Runner = Callable[[Sequence[Run]], Iterable[Replication]]


def scenario(plan: RunPlan) -> Scenario:
    """The scenario that a plan is about, with its settings and, if there is one, with its record."""
    found = load(plan.source, needs_dependency=plan.fit is None)
    if plan.fit is not None:
        found = found.against(plan.fit.traffic, plan.fit.dependency, duration=plan.fit.duration_s)
    return grid.apply(found, plan.chain, plan.settings)


def runs(plan: RunPlan) -> list[Run]:
    """All replications of a plan."""
    count = plan.replications if plan.replications is not None else scenario(plan).replications
    return [Run(plan, number) for number in range(count)]


def carry_out(run: Run) -> Replication:
    """Simulate one replication; the same run gives the same replication wherever it is carried out."""
    plan, found = run.plan, scenario(run.plan)
    seed = found.seed if plan.seed is None else plan.seed
    return replicate(
        found.chain(plan.chain),
        found.traffic,
        found.duration,
        stream=f"{seed}/{run.number}",
        keys=found.keys,
        sample_every=plan.sample_every,
    )


def reports(plans: Sequence[RunPlan], runner: Runner) -> list[Report]:
    """A report for each plan; all their runs go to the runner together, so that it can spread them."""
    planned = [runs(plan) for plan in plans]
    done = iter(runner([run for one in planned for run in one]))
    return [Report(tuple(next(done) for _ in one)) for one in planned]


def here(wanted: Sequence[Run]) -> Iterable[Replication]:
    """A runner: one after the other, in this process."""
    return map(carry_out, wanted)


def in_processes(count: int | None = None) -> Runner:
    """A runner: on so many processes, or one for each core that we may use."""
    return partial(_spread, count=count or _cores())


def _cores() -> int:
    """Those that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _spread(wanted: Sequence[Run], *, count: int) -> Iterable[Replication]:
    workers = min(count, len(wanted))
    if workers <= 1:
        yield from here(wanted)
        return
    # Spawned, not forked: a fork copies the threads' locks of whoever draws a progress bar.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_leave_interrupts)
    is_done = False
    try:
        yield from pool.map(_carry_out_there, wanted)
        is_done = True
    except BrokenProcessPool as error:
        raise ChainInvalid(
            "a process that simulated was ended, perhaps for lack of memory; try fewer at once"
        ) from error
    finally:
        if not is_done:
            _end(pool)
        pool.shutdown(cancel_futures=True)


def _end(pool: ProcessPoolExecutor) -> None:
    """Do not wait for runs that nobody wants any more: one may take minutes."""
    for process in list((pool._processes or {}).values()):  # noqa: SLF001 - Python 3.14 has a method for it
        process.terminate()


def _leave_interrupts() -> None:
    """Ctrl-C is the parent's business; it ends the children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _carry_out_there(run: Run) -> Replication:
    try:
        return carry_out(run)
    except StagesError as error:
        # Rebuilt from its words: not every error survives the way between processes.
        raise ChainInvalid(str(error)) from None


@lru_cache(maxsize=8)
def load(source: ScenarioFile, *, needs_dependency: bool) -> Scenario:
    """The scenario of a file, which is run or read once in each process."""
    return files.load(source, needs_dependency=needs_dependency)
