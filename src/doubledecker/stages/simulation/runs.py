"""Runs: the replications of a rehearsal as plain values, and who carries them out.

A run names its file's text, chain, settings, seed and number, and nothing else. So it can be carried out in this
process, in others, or on other machines, in any order, with the same result: a replication's chance comes from its
seed and number alone. A runner carries runs out: runs in, their replications out in the same order.
"""

import multiprocessing
import os
import re
import signal
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import cast

from doubledecker.stages.bound import named
from doubledecker.stages.chain import Chain
from doubledecker.stages.errors import ChainInvalid, ScenarioInvalid, StagesError
from doubledecker.stages.simulation.declared import unknown
from doubledecker.stages.simulation.record import Fit
from doubledecker.stages.simulation.report import Replication, Report
from doubledecker.stages.simulation.scenario import Scenario, ScenarioFile, load_file
from doubledecker.stages.simulation.simulate import replicate
from doubledecker.stages.simulation.traffic import Keys, Traffic
from doubledecker.stages.stage import Stage

# Settings by path, and grids of them.
#
# retry.attempts=1..5            whole numbers, both ends included; 1..9..2 in steps of two
# timeout=0.5,1,2                a stage without a setting means its first one: limit_s
# bulkhead.queue.size_max=none   none is no bound
# traffic.rate_per_s=50,100      the traffic, the keys, or the dependency at the chain's end
# duration=60                    of the traffic

Value = float | bool | None
Settings = tuple[tuple[str, Value], ...]

_RANGE = re.compile(r"(-?\d{1,12})\.\.(-?\d{1,12})(?:\.\.(\d{1,12}))?")
_WORDS: dict[str, Value] = {"none": None, "true": True, "false": False}
# A grid larger than this is more likely a slip than a wish.
_VALUES_MAX = 10_000


@dataclass(frozen=True)
class Axis:
    """One setting and the values to try."""

    path: str
    values: tuple[Value, ...]


def parse(text: str) -> Axis:
    """`path=values`, as the top of this file explains."""
    path, equals, right = text.partition("=")
    if not equals or not path or not right:
        raise ScenarioInvalid(f"{text!r} is no setting; write it as retry.attempts=1..5 or timeout=0.5,1,2")
    values = [value for part in right.split(",") for value in _values(part.strip(), text)]
    return Axis(path.strip(), tuple(_few(values, text)))


def points(axes: Sequence[Axis]) -> list[Settings]:
    """Every combination, the last axis fastest."""
    paths = [axis.path for axis in axes]
    return [tuple(zip(paths, values, strict=True)) for values in product(*(axis.values for axis in axes))]


def apply(scenario: Scenario, chain: str, settings: Settings) -> Scenario:
    """The scenario with other settings of the named chain, of the traffic, the keys, or the duration."""
    for path, value in settings:
        scenario = _apply(scenario, chain, path, value)
    return scenario


def word(value: Value) -> str:
    """A value as it is written in a setting."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def _apply(scenario: Scenario, name: str, path: str, value: Value) -> Scenario:
    head, _, rest = path.partition(".")
    if path == "duration":
        return scenario.lasting(cast("float", value))
    names = rest.split(".") if rest else []
    if head == "traffic":
        return replace(scenario, traffic=cast("Traffic", _changed(scenario.traffic, names, value, path)))
    if head == "keys":
        return replace(scenario, keys=cast("Keys", _changed(scenario.keys, names, value, path)))
    changed = _change_stage(scenario.chain(name), head, rest, value, path)
    return replace(scenario, chains={**scenario.chains, name: changed})


def _change_stage(chain: Chain, head: str, rest: str, value: Value, path: str) -> Chain:
    stages = {named(stage): stage for stage in chain.stages}
    if head == "dependency" and "dependency" not in stages and chain.stages and chain.stages[-1].is_end:
        head = named(chain.stages[-1])
    if head not in stages:
        others = [*stages, "dependency", "traffic", "keys", "duration"]
        raise ScenarioInvalid(f"{path}: {unknown('stage', head, others)}")
    setting, *deeper = (rest or _first_setting(stages[head])).split(".")
    if deeper:
        value = _changed(_setting(stages[head], setting, path), deeper, value, path)  # type: ignore[assignment]
    else:
        _setting(stages[head], setting, path)
    return chain.change(head, **{setting: value})


def _changed(owner: object, names: list[str], value: object, path: str) -> object:
    """A copy of the owner with one of its settings, or one of a setting's own, changed."""
    if not names or not is_dataclass(owner) or isinstance(owner, type):
        raise ScenarioInvalid(f"{path}: name one of its settings: {', '.join(_settings(owner)) or 'it has none'}")
    name, *deeper = names
    inner = _setting(owner, name, path)
    try:
        return replace(owner, **{name: _changed(inner, deeper, value, path) if deeper else value})
    except ChainInvalid as error:
        raise ScenarioInvalid(f"{path}: {error}") from error


def _setting(owner: object, name: str, path: str) -> object:
    if name not in _settings(owner):
        raise ScenarioInvalid(f"{path}: {unknown('setting', name, _settings(owner))}")
    return cast("object", getattr(owner, name))


def _settings(owner: object) -> list[str]:
    if not is_dataclass(owner):
        return []
    return [field.name for field in fields(owner) if field.init and field.name != "name"]


def _first_setting(stage: Stage) -> str:
    return next((field.name for field in fields(stage) if field.init and not field.kw_only), "workers")


def _values(part: str, text: str) -> Sequence[Value]:
    if match := _RANGE.fullmatch(part):
        low, high, step = int(match[1]), int(match[2]), int(match[3] or 1)
        if low > high or step == 0:
            raise ScenarioInvalid(f"{text!r}: the range {part} is empty; write the smaller number first")
        return _few(range(low, high + 1, step), text)
    if part in _WORDS:
        return [_WORDS[part]]
    try:
        return [int(part)]
    except ValueError:
        pass
    try:
        return [float(part)]
    except ValueError:
        raise ScenarioInvalid(
            f"{text!r}: {part!r} is no value; write numbers, a range as 1..5, none, true or false"
        ) from None


def _few(values: Sequence[Value], text: str) -> Sequence[Value]:
    """The values, unless they are too many; a range is asked before it is made a list of."""
    if len(values) > _VALUES_MAX:
        raise ScenarioInvalid(f"{text!r} has {len(values)} values; at most {_VALUES_MAX} are tried")
    return values


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
    return apply(found, plan.chain, plan.settings)


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
    """Those that this process may use, where the system reports it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _spread(wanted: Sequence[Run], *, count: int) -> Iterable[Replication]:
    workers = min(count, len(wanted))
    if workers <= 1:
        yield from here(wanted)
        return
    # Spawned, not forked: a fork copies the locks of threads, as of a progress bar.
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
    return load_file(source, needs_dependency=needs_dependency)
