"""`doubledecker pipeline`: run the Spark pipeline, and show how it fares."""

import asyncio
import importlib.util
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from doubledecker import clock, log
from doubledecker.assembly import build
from doubledecker.assembly import settings as reading
from doubledecker.assembly.settings import Settings
from doubledecker.cli import folder, words
from doubledecker.cli import status as showing
from doubledecker.errors import BusAway, SettingInvalid, SparkUnfit
from doubledecker.model.step import StepReport
from doubledecker.store import journal, nodes, pipeline
from doubledecker.store.journal import Lag
from doubledecker.store.pipeline import PipelineState

if TYPE_CHECKING:
    from doubledecker.pipeline.sources.config import SourceConfig, Sources

MISSING = "PySpark is not installed; get it with: pip install 'doubledecker[spark]'"
_BAR = 20
# More of an error would widen the table; the whole stands below it.
_ERROR_SHOWN = 80


def is_installed() -> bool:
    """Whether Spark is there to run a pipeline."""
    return importlib.util.find_spec("pyspark") is not None


def find(data: Path | None, lake: str | None) -> tuple[Settings, str]:
    """Settings that lead to the bus, and where its lake is; raises SparkUnfit when there is no Spark to use them."""
    if not is_installed():
        raise SparkUnfit(MISSING)
    return folder.locate(data, lake)


def run(*, data: Path | None, lake: str | None, master: str | None, is_once: bool, takes_over: bool) -> None:
    """Run the pipeline until it is stopped, or once until there is no more."""
    settings, where = find(data, lake)
    nodes.check_url(settings.redis_url)
    settings = replace(settings, spark_master=master or settings.spark_master)
    log.configure(level=settings.log_level, as_json=settings.log_json)
    reading.log_retired(os.environ)
    wanted = _read_sources(settings, data)
    from doubledecker.pipeline import run as running  # noqa: PLC0415 - Spark is slow to import, and may not be there

    if not running.run(settings, root=where, sources=wanted, is_once=is_once, takes_over=takes_over):
        sys.exit(1)


def write_package(folder: Path) -> None:
    """Write the files for spark-submit, and print how it is called."""
    if not is_installed():
        raise SparkUnfit(MISSING)
    from doubledecker.pipeline import package  # noqa: PLC0415 - the rest of its package needs Spark

    try:
        folder.mkdir(parents=True, exist_ok=True)
        code, program = package.write_zip(folder), package.write_main(folder)
    except OSError as error:
        raise SettingInvalid(f"cannot write to {folder}: {error.strerror}") from error
    click.echo(f"spark-submit --master spark://HOST:7077 --py-files {code} {program} pipeline run")


def show_sources(*, data: Path | None, as_json: bool) -> None:
    """Print what the pipeline consumes, if the file is well formed."""
    if not is_installed():
        raise SparkUnfit(MISSING)
    wanted = _read_sources(reading.read(os.environ), data)
    if as_json:
        click.echo(json.dumps([asdict(source) for source in wanted.all]))
        return
    titles = ["source", "format", "from", "mode", "publisher", "topic", "type"]
    words.show(titles, [_source_row(source) for source in wanted.all])
    if not wanted.all:
        click.echo(f"There are no sources; docs/pipeline.md describes how to write {folder.SOURCES}", err=True)


def _source_row(source: "SourceConfig") -> list[str]:
    shown = [source.fields.get(name, "") if source.fields else "(sql)" for name in ("topic", "type")]
    return [source.name, source.format, source.path, source.mode, source.publisher, *shown]


def _read_sources(settings: Settings, data: Path | None) -> "Sources":
    """What a setting names, else what is in the data folder, else none."""
    from doubledecker.pipeline.sources import config  # noqa: PLC0415 - what Spark needs is slow to import, and may not be there

    beside = (data or folder.default()) / folder.SOURCES
    named = settings.sources or (str(beside) if beside.exists() else "")
    return config.read(Path(named)) if named else config.Sources()


def status(*, url: str | None, data: Path | None, as_json: bool) -> None:
    """Print how the pipeline fares."""
    settings = showing.find(url, data)
    try:
        state, lags = asyncio.run(_look(settings))
    except BusAway as error:
        raise folder.away(error, options="--data or --url") from error
    if as_json:
        click.echo(json.dumps(_as_json(state, lags)))
        return
    click.echo(_headline(state))
    if state.steps:
        titles = ["step", "state", "rows", "rows/s", "lag", "caught up", "refused", "table", "files", "last error"]
        words.show(titles, [_row(name, step, lags.get(name)) for name, step in state.steps.items()])
    for name, step in state.steps.items():
        if len(step.error) > _ERROR_SHOWN:
            click.echo(f"{name}: {step.error}", err=True)


async def _look(settings: Settings) -> tuple[PipelineState, dict[str, Lag]]:
    async with build.open_bus(settings, patience_s=0) as bus:
        state = await pipeline.read(bus.partitions.home)
        began = {name: state.steps[name].from_ms if name in state.steps else 0 for name in journal.ALL}
        return state, {name: await journal.read_lag(bus.partitions, name, from_ms=began[name]) for name in journal.ALL}


def _headline(state: PipelineState) -> str:
    run, now_ms = state.run, clock.now_ms()
    if run is None:
        return "No pipeline has run on this bus; start one with `doubledecker pipeline run`"
    age = words.age(now_ms - run.at)
    if not run.is_alive(now_ms):
        word = "stopped" if run.state == "stopped" else "was last seen"
        return f"The pipeline {word} {age} ago; start it with `doubledecker pipeline run`"
    return (
        f"The pipeline is {run.state} on {run.master}, for {words.age(now_ms - run.began_at)}; its lake is {run.lake}"
    )


def _row(name: str, step: StepReport, behind: Lag | None) -> list[str]:
    has_table = bool(behind or step.table_files)
    return [
        name,
        step.state,
        f"{step.rows:,}",
        words.rate(step.rows_per_s),
        words.age(behind.age_ms) if behind else "",
        _bar(behind.share) if behind else "",
        f"{step.refused:,}" if step.refused else "",
        f"{step.table_rows:,} rows, {words.size(step.table_bytes)}" if has_table else "",
        f"{step.table_files:,}" if has_table else "",
        step.error[:_ERROR_SHOWN],
    ]


def _bar(share: float) -> str:
    full = int(share * _BAR)
    return f"{'█' * full}{'░' * (_BAR - full)} {int(share * 100)} %"


def _as_json(state: PipelineState, lags: dict[str, Lag]) -> dict[str, object]:
    run = state.run
    return {
        "run": None if run is None else {**structs.asdict(run), "alive": run.is_alive(clock.now_ms())},
        "steps": {
            name: {**structs.asdict(step), "rows_per_s": round(step.rows_per_s, 1), **_lag_as_json(lags.get(name))}
            for name, step in state.steps.items()
        },
    }


def _lag_as_json(behind: Lag | None) -> dict[str, object]:
    return {"lag_ms": behind.age_ms, "share": round(behind.share, 4)} if behind else {}
