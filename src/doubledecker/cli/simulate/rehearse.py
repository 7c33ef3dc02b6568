"""A rehearsal from the command line: which chains, carried out by whom, shown how."""

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from doubledecker.cli import sketch
from doubledecker.cli.simulate import findings
from doubledecker.cli.simulate.simulate import Request
from doubledecker.errors import SettingInvalid
from doubledecker.plots import over_grid, over_time, png, svg
from doubledecker.plots.chart import Chart
from doubledecker.stages.errors import StagesError
from doubledecker.stages.simulation import runs
from doubledecker.stages.simulation.record import Fit, Record, fit
from doubledecker.stages.simulation.report import Replication, Report
from doubledecker.stages.simulation.runs import Run, Runner, RunPlan
from doubledecker.stages.simulation.scenario import read_file


def rehearse(request: Request) -> None:
    """Do what was asked; every error of the stages is one line."""
    try:
        _check(request)
        if request.sweep:
            _sweep(request)
        elif request.is_recorded:
            _what_if(request)
        else:
            _side_by_side(request)
    except StagesError as error:
        raise SettingInvalid(str(error)) from error


def _check(request: Request) -> None:
    """Report what contradicts itself before anything is simulated."""
    if request.plot is not None and request.plot.suffix not in {".svg", ".png"}:
        raise click.UsageError(f"--plot {request.plot}: draw into a .svg or a .png file")
    if request.plot is not None and not request.plot.absolute().parent.is_dir():
        raise click.UsageError(f"--plot {request.plot}: there is no such folder")
    if (request.journal or request.subscriber) and not request.is_recorded:
        raise click.UsageError("--journal and --subscriber need --traffic recorded")
    if request.plot is not None and request.plot.suffix == ".png":
        png.check()
    if request.compare and (request.sweep or request.chain):
        raise click.UsageError("--compare names its two chains itself; leave --chain and --sweep out")
    if request.compare and len(set(request.compare)) == 1:
        raise click.UsageError(f"--compare {request.compare[0]} with itself shows nothing; name two")


def _side_by_side(request: Request) -> None:
    plans = _plans(request, None)
    reports = _carry_out(request, list(plans.values()))
    found = dict(zip(plans, reports, strict=True))
    title = runs.scenario(next(iter(plans.values()))).title
    with _drawing(request, lambda: over_time.chart(found, title=title)):
        findings.show(title, found, as_json=request.as_json)


def _what_if(request: Request) -> None:
    record = _record(request)
    fitted = fit(record)
    plans = _plans(request, fitted)
    reports = _carry_out(request, list(plans.values()))
    scenario = runs.scenario(next(iter(plans.values())))
    recorded = record.report(sample_every=scenario.sample_every)
    found = {"recorded": recorded, **dict(zip(plans, reports, strict=True))}
    title = f"{scenario.title}, on recorded traffic"
    with _drawing(request, lambda: over_time.chart(found, title=title)):
        findings.show(title, found, fit=fitted, as_json=request.as_json)


def _sweep(request: Request) -> None:
    axes = [runs.parse(text) for text in request.sweep]
    fitted = fit(_record(request)) if request.is_recorded else None
    plans = _plans(request, fitted)
    if len(plans) > 1:
        raise SettingInvalid(f"the file has several chains; sweep one of them with --chain: {', '.join(plans)}")
    [plan] = plans.values()
    points = runs.points(axes)
    swept = [replace(plan, settings=plan.settings + point, sample_every=None) for point in points]
    for one in swept:
        runs.scenario(one)  # a setting that cannot be is reported now, not after an hour of the others
    reports = _carry_out(request, swept)
    title = f"{runs.scenario(plan).title}: {', '.join(axis.path for axis in axes)}"
    with _drawing(request, lambda: over_grid.chart(axes, points, reports, title=title)):
        findings.show_grid(points, reports, as_json=request.as_json)


def _record(request: Request) -> Record:
    from doubledecker.cli.simulate import recordings  # noqa: PLC0415 - the store is slow to import

    record = recordings.read(request.journal, subscriber=request.subscriber)
    return record if request.duration is None else record.first(request.duration)


def _plans(request: Request, fitted: Fit | None) -> dict[str, RunPlan]:
    """What to rehearse, by name: two to compare, one that was chosen, or all chains of the file."""
    settings = [(axis.path, _one_value(axis)) for axis in map(runs.parse, request.changes)]
    if request.duration is not None and fitted is None:
        settings.append(("duration", request.duration))
    wanted = [_find(request, name, fitted) for name in request.compare or ()] or _of_file(request, fitted)
    names = [plan.chain for plan in wanted]
    if len(set(names)) < len(names):
        names = list(request.compare or names)
    common = RunPlan(wanted[0].source, "", tuple(settings), request.seed, request.replications, fit=fitted)
    plans = {name: replace(common, source=one.source, chain=one.chain) for name, one in zip(names, wanted, strict=True)}
    return _sampled(plans)


def _sampled(plans: dict[str, RunPlan]) -> dict[str, RunPlan]:
    """All looked at in the same moments, so that they can be drawn over one another."""
    scenarios = [runs.scenario(plan) for plan in plans.values()]
    if len({one.duration for one in scenarios}) > 1:
        seen = " and ".join(f"{one.duration:g} s" for one in scenarios)
        raise SettingInvalid(f"their durations differ ({seen}); give them the same with --duration")
    return {name: replace(plan, sample_every=scenarios[0].sample_every) for name, plan in plans.items()}


def _one_value(axis: runs.Axis) -> runs.Value:
    if len(axis.values) != 1:
        raise SettingInvalid(f"--set {axis.path} takes one value; to try {len(axis.values)}, use --sweep")
    return axis.values[0]


def _find(request: Request, name: str, fitted: Fit | None) -> RunPlan:
    """A chain of the file by its name, or the only chain of another file."""
    if request.file is not None:
        source = read_file(request.file)
        chains = runs.load(source, needs_dependency=fitted is None).chains
        if name in chains:
            return RunPlan(source, name)
        if not Path(name).exists():
            raise SettingInvalid(f"{name!r} is neither a chain of {request.file} ({', '.join(chains)}) nor a file")
    other = read_file(Path(name))
    chains = runs.load(other, needs_dependency=fitted is None).chains
    if len(chains) > 1:
        raise SettingInvalid(
            f"{name} has several chains ({', '.join(chains)}); compare two of them with: simulate {name} --compare A B"
        )
    return RunPlan(other, next(iter(chains)))


def _of_file(request: Request, fitted: Fit | None) -> list[RunPlan]:
    assert request.file is not None
    source = read_file(request.file)
    scenario = runs.load(source, needs_dependency=fitted is None)
    if request.chain is not None:
        scenario.chain(request.chain)
        return [RunPlan(source, request.chain)]
    return [RunPlan(source, name) for name in scenario.chains]


def _carry_out(request: Request, plans: Sequence[RunPlan]) -> list[Report]:
    """A report for each plan, with a progress bar when someone watches."""
    runner = _spark() if request.with_spark else runs.in_processes(request.jobs)
    total = sum(len(runs.runs(plan)) for plan in plans)
    with _Bar(total) as bar:
        return runs.reports(plans, bar.watching(runner))


def _spark() -> Runner:
    """The runner of the pipeline, which alone knows Spark."""
    try:
        runner: Runner = importlib.import_module("doubledecker.pipeline.sweep").run
    except ImportError as error:
        raise SettingInvalid(
            "--spark needs pyspark, which is not installed; get it with: pip install 'doubledecker[spark]', "
            "or leave --spark out to use this machine's cores"
        ) from error
    return runner


class _Bar:
    """How far the runs are, on stderr, and only on a terminal."""

    def __init__(self, total: int) -> None:
        columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("runs", total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def watching(self, runner: Runner) -> Runner:
        def run(wanted: Sequence[Run]) -> Iterable[Replication]:
            for done in runner(wanted):
                self._progress.advance(self._task)
                yield done

        return run


@contextmanager
def _drawing(request: Request, make: Callable[[], Chart]) -> Iterator[None]:
    """Draw around the tables: a file before them, since `| head` may end us while we print; in the terminal after."""
    console = Console()
    in_terminal = request.terminal if request.terminal is not None else console.is_terminal and not request.as_json
    chart = make() if in_terminal or request.plot else None
    if chart is not None and request.plot is not None:
        _save(chart, request.plot)
    yield
    if chart is not None and in_terminal:
        sketch.show(chart, console)


def _save(chart: Chart, path: Path) -> None:
    try:
        if path.suffix == ".svg":
            path.write_text(svg.draw(chart), encoding="utf-8")
        else:
            png.save(chart, path)
    except OSError as error:
        raise SettingInvalid(f"cannot write {path}: {error.strerror}") from error
    click.echo(f"drawn into {path}", err=True)
