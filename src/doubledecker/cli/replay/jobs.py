"""What `doubledecker replay`, `replays` and `erase` do: ask as root, count, confirm, and follow until it is over.

The pipeline carries jobs out. When none runs, one is run here until the job is over: there is one way to do it.
"""

import asyncio
import getpass
import json
import math
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import TypeVar

import click
import msgspec
from msgspec import structs

from doubledecker import clock, log
from doubledecker.assembly import build
from doubledecker.assembly.settings import Settings
from doubledecker.bus.audit import AuditTrail
from doubledecker.bus.pipeline_jobs import PipelineJobs
from doubledecker.cli import folder, progress, words
from doubledecker.cli import pipeline as piping
from doubledecker.cli import status as showing
from doubledecker.errors import BusAway, DoubledeckerError, Refused
from doubledecker.model import audit as records
from doubledecker.model import pipeline_job as views
from doubledecker.model.erasure import ErasureAsked
from doubledecker.model.pipeline_job import PipelineJob
from doubledecker.model.replay import ReplayAsked
from doubledecker.model.token import ROOT_NAME, Caller
from doubledecker.model.uid import uid
from doubledecker.store import pipeline
from doubledecker.store.pipeline_jobs import ERASURES, REPLAYS

_ROOT = Caller("", ROOT_NAME, is_root=True)
_LOOK_S = 0.3
# A pipeline that has just started takes up jobs only after Spark has.
_SILENT_S = 2.0
# What is still to be printed when the pipeline has ended.
_END_S = 5.0
_CELL_MAX = 80

_Result = TypeVar("_Result")
_Asked = TypeVar("_Asked")


class JobCalls:
    """Root's own way to jobs, straight to Redis: it works when the web process does not."""

    def __init__(self, data: Path | None, lake: str | None, *, as_json: bool) -> None:
        self._data = data
        self._lake = lake
        self._as_json = as_json
        self._settings = showing.find(None, data)
        self._stop = threading.Event()
        self._is_local = False

    def replay(self, asked: Mapping[str, str | int | bool], *, is_dry: bool, is_sure: bool) -> None:
        """Count, ask, send."""
        wanted = ReplayAsked(**asked, dry_run=True)  # type: ignore[arg-type]  # click gave each its type
        kept = self._ask_first(lambda desk: desk.ask_replay(wanted, _ROOT))

        def talk() -> None:
            counted = self._follow(REPLAYS, kept)
            if not self._is_wanted(REPLAYS, counted, is_dry=is_dry, is_sure=is_sure):
                return
            wanted.dry_run, wanted.end = False, views.replay(counted).end
            self._tell(REPLAYS, self._follow(REPLAYS, self._change("replay.asked", wanted, PipelineJobs.ask_replay)))

        self._with_pipeline(talk)

    def erase(self, asked: Mapping[str, str], *, is_dry: bool, is_sure: bool) -> None:
        """Count, ask, erase."""
        wanted = ErasureAsked(**asked, dry_run=True)
        kept = self._ask_first(lambda desk: desk.ask_erasure(wanted, _ROOT))

        def talk() -> None:
            counted = self._follow(ERASURES, kept)
            if not self._is_wanted(ERASURES, counted, is_dry=is_dry, is_sure=is_sure):
                return
            wanted.dry_run = False
            self._tell(
                ERASURES, self._follow(ERASURES, self._change("erasure.asked", wanted, PipelineJobs.ask_erasure))
            )

        self._with_pipeline(talk)

    def follow_replay(self, id_: str) -> None:
        """Go on with a replay, or watch the pipeline do so."""
        found = self._ask(lambda desk: desk.read(REPLAYS, id_, _ROOT))
        if found.is_active:
            self._with_pipeline(lambda: self._tell(REPLAYS, self._follow(REPLAYS, found)))
        else:
            self._tell(REPLAYS, found)

    def list_replays(self) -> None:
        """Print all that are kept, the newest first."""
        shown = [msgspec.to_builtins(views.replay(each)) for each in self._ask(lambda desk: desk.list_(REPLAYS, _ROOT))]
        if self._as_json:
            click.echo(json.dumps(shown))
            return
        titles = ["id", "state", "sent", "of", "to", "asked", "owner", "note"]
        words.show(titles, [_row(each) for each in shown])

    def cancel_replay(self, id_: str) -> None:
        """End one where it is."""
        self._tell(REPLAYS, self._change("replay.cancelled", id_, _cancel))

    def _is_wanted(self, kind: str, counted: PipelineJob, *, is_dry: bool, is_sure: bool) -> bool:
        """Show what was counted, and ask whether to go on."""
        if is_dry or counted.state != "done" or not counted.total:
            self._tell(kind, counted)
            return False
        word, more = ("Replay", "") if kind == REPLAYS else ("Erase", " They cannot be brought back.")
        topics = {topic for topic, _, _ in counted.counts}
        click.echo(f"{counted.total:,} events, on {', '.join(sorted(topics))}", err=True)
        if not is_sure:
            click.confirm(f"{word} {counted.total:,} events?{more}", abort=True, err=True)
        return True

    def _ask_first(self, act: Callable[[PipelineJobs], Awaitable[_Result]]) -> _Result:
        """Ask before there is a pipeline: what is refused is refused at once, and not after Spark has started."""
        if not _is_alive(self._settings):
            self._find_pipeline()  # without one there would be nobody to carry it out
        return self._ask(act)

    def _change(
        self, action: str, asked: _Asked, act: Callable[[PipelineJobs, _Asked, Caller], Awaitable[PipelineJob]]
    ) -> PipelineJob:
        """Ask, and record it in the audit trail, as done by the system's user on this machine."""

        async def change() -> PipelineJob:
            begun = records.begun(uid(), clock.now_ms(), action, _ROOT)
            begun = structs.replace(begun, actor_name=_user(), address=socket.gethostname())
            async with build.open_bus(self._settings, patience_s=0) as bus:
                desk = PipelineJobs(bus.partitions, bus.registry, rate=self._settings.replay_rate_per_s)
                async with AuditTrail(bus.partitions).recorded(begun) as learned:
                    job = await act(desk, asked, _ROOT)
                    learned.target = job.id
                    learned.detail = records.given(asked) if isinstance(asked, msgspec.Struct) else ""
                return job

        return _run(change())

    def _ask(self, act: Callable[[PipelineJobs], Awaitable[_Result]]) -> _Result:
        async def ask() -> _Result:
            async with build.open_bus(self._settings, patience_s=0) as bus:
                return await act(PipelineJobs(bus.partitions, bus.registry, rate=self._settings.replay_rate_per_s))

        return _run(ask())

    def _follow(self, kind: str, job: PipelineJob) -> PipelineJob:
        """Until it is over, with a bar when someone watches; raises when there is nobody left to carry it out."""
        id_ = job.id
        said_s = time.monotonic() + _SILENT_S
        with progress.bar() as show:
            while job.is_active:
                if job.state == "waiting" and time.monotonic() > said_s:
                    said_s = math.inf
                    click.echo(f"Waiting for the pipeline to take up {id_}", err=True)
                if self._stop.is_set() or not (self._is_local or _is_alive(self._settings)):
                    go_on = f"`doubledecker replay --id {id_}`" if kind == REPLAYS else "`doubledecker pipeline run`"
                    raise BusAway(f"the pipeline stopped at {job.done:,} of {job.total:,} events; {go_on} goes on")
                self._stop.wait(_LOOK_S)
                job = self._ask(lambda desk: desk.read(kind, id_, _ROOT))
                show(job.note or job.state, job.done, job.total)
        return job

    def _tell(self, kind: str, job: PipelineJob) -> None:
        """How it ended; a failure is the command's own."""
        if self._as_json:
            view = views.replay(job) if kind == REPLAYS else views.erasure(job)
            click.echo(json.dumps(msgspec.to_builtins(view)))
        else:
            words.show(["topic", "day", "events"], [[topic, day, f"{count:,}"] for topic, day, count in job.counts])
            word = "sent" if kind == REPLAYS else "erased"
            click.echo(f"{job.id} is {job.state}: {job.done:,} of {job.total:,} events {word}", err=True)
        if job.state == "failed":
            raise Refused(job.error)

    def _with_pipeline(self, talk: Callable[[], None]) -> None:
        """Talk while a pipeline runs: the one that does, or one here."""
        if _is_alive(self._settings):
            talk()
            return
        settings, root = self._find_pipeline()
        log.configure(level="error", as_json=settings.log_json)
        from doubledecker.pipeline import run as running  # noqa: PLC0415 - Spark is slow to import, and may not be there
        from doubledecker.pipeline.sources.config import Sources  # noqa: PLC0415 - the same

        click.echo("No pipeline runs; one is started here, which takes some seconds", err=True)
        self._is_local = True
        talking = _Talk(talk, self._stop)
        talking.start()
        try:
            running.run(settings, root=root, sources=Sources(), is_once=False, takes_over=False, stop=self._stop)
        finally:
            self._stop.set()
        talking.join(_END_S)
        if talking.error is not None:
            raise talking.error

    def _find_pipeline(self) -> tuple[Settings, str]:
        settings, root = piping.find(self._data, self._lake)
        folder.check_readable(root)
        return settings, root


def _cancel(desk: PipelineJobs, id_: str, caller: Caller) -> Awaitable[PipelineJob]:
    return desk.cancel(REPLAYS, id_, caller)


def _user() -> str:
    """The system's user, by number where it has no name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


class _Talk(threading.Thread):
    """What is shown to the user while the pipeline has the main thread, which alone may be signalled."""

    def __init__(self, talk: Callable[[], None], stop: threading.Event) -> None:
        super().__init__(name="talk", daemon=True)
        self._talk = talk
        self._stop_all = stop
        self.error: DoubledeckerError | click.Abort | None = None

    def run(self) -> None:
        try:
            self._talk()
        except (DoubledeckerError, click.Abort) as error:
            self.error = error
        finally:
            self._stop_all.set()


def _is_alive(settings: Settings) -> bool:
    """Whether a pipeline runs on this bus."""

    async def look() -> bool:
        async with build.open_bus(settings, patience_s=0) as bus:
            run = (await pipeline.read(bus.partitions.home)).run
            return run is not None and run.is_alive(clock.now_ms())

    return _run(look())


def _run(work: Coroutine[None, None, _Result]) -> _Result:
    try:
        return asyncio.run(work)
    except BusAway as error:
        raise folder.away(error) from error


def _row(shown: Mapping[str, object]) -> list[str]:
    target = next(f"{name.removeprefix('to_')} {value}" for name, value in shown.items() if name.startswith("to_"))
    asked = words.moment(int(str(shown["created_at"])))
    why = str(shown["error"] or shown["note"])[:_CELL_MAX]
    numbers = [f"{shown[name]:,}" for name in ("sent", "total")]
    state = f"{shown['state']}, dry run" if shown["dry_run"] else str(shown["state"])
    return [str(shown["id"]), state, *numbers, target, asked, str(shown["owner"]), why]
