"""`doubledecker up`: the whole bus on one machine, supervised in the foreground.

Order is what this file is about. Up: the port is checked, Valkey answers, then worker, web, demo and pipeline start.
Down: the demo, so that nobody publishes; web, so that nobody asks; the worker, which finishes or gives back what it
holds; the pipeline at the same time, since it waits for none of them; and Valkey last, when nobody needs it.
"""

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console
from rich.live import Live

from doubledecker import clock, log
from doubledecker.assembly import build, spark_conf
from doubledecker.assembly import settings as reading
from doubledecker.assembly.settings import PREFIX, Settings
from doubledecker.cli import dashboard, folder, live, pipeline, words
from doubledecker.cli import live as boards
from doubledecker.cli.live import Board
from doubledecker.cli.serve.keep import ChildLife, Command, Ended, Kept, ValkeyLife
from doubledecker.cli.serve.processes import members, stop_signals
from doubledecker.cli.up import demo
from doubledecker.errors import BusAway, SettingInvalid
from doubledecker.store import machine
from doubledecker.store.embedded import DiskReserve, EmbeddedServer
from doubledecker.web import listening

# Together with the worker's own shutdown time, five seconds unless set, a stop ends within ten.
_DEMO_GRACE_S, _WEB_GRACE_S, _WORKER_MARGIN_S, _VALKEY_GRACE_S = 1.0, 2.0, 0.5, 1.5
# Killed after that it loses nothing: it begins again where its tables end.
_PIPELINE_GRACE_S = 6.0
# A server of someone else's that does not answer within this is rather not there.
_PATIENCE_S = 5.0
# While less is left on the disk of its data, the server takes no writes.
_DISK_MIN_FREE_BYTES = 33_554_432
_LOGS = "logs"
# The children that act as root; the others, and what they start, do not get its key.
_ROOT_KEY_USERS = frozenset({"web", "demo"})

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class UpPlan:
    """What to run, and on what."""

    settings: Settings
    data: Path
    is_embedded: bool
    is_key_set: bool
    with_demo: bool
    with_pipeline: bool
    lacks_spark: bool
    logs_here: bool
    is_live: bool


def up(
    *, port: int | None, data: Path, processes: int | None, with_demo: bool, with_pipeline: bool, logs_here: bool
) -> None:
    """Run everything until SIGINT or SIGTERM."""
    settings = reading.read(os.environ)
    log.configure(level="error", as_json=settings.log_json)
    wanted = settings.port if port is None else port
    settings = replace(settings, port=wanted or machine.free_port())
    if processes is not None:
        settings = replace(settings, web_processes=processes, worker_processes=processes)
    # Held until the end, and refused when it is taken, before anything starts.
    with listening.on(settings.host, settings.port, by=listening.reserve, remedy="; pass another --port"):
        _up(settings, data, with_demo=with_demo, with_pipeline=with_pipeline, logs_here=logs_here)


def _up(settings: Settings, data: Path, *, with_demo: bool, with_pipeline: bool, logs_here: bool) -> None:
    folder.prepare(data)
    settings = replace(settings, spark_conf=spark_conf.read(data, settings.spark_conf))
    console = Console()
    plan = UpPlan(
        settings=settings,
        data=data,
        is_embedded=reading.variable("redis_url", os.environ) is None,
        is_key_set=bool(settings.root_key),
        with_demo=with_demo,
        with_pipeline=with_pipeline and pipeline.is_installed(),
        lacks_spark=with_pipeline and not pipeline.is_installed(),
        logs_here=logs_here,
        # Logs would scroll the view away.
        is_live=console.is_terminal and not console.is_dumb_terminal and not logs_here,
    )
    asyncio.run(_Up(plan, console).run())


class _Up:
    """One run of `up`."""

    def __init__(self, plan: UpPlan, console: Console) -> None:
        self._plan = plan
        self._console = console
        self._board = Board(boards.url_of(plan.settings), began_at=clock.now_ms())
        self._stop = asyncio.Event()

    async def run(self) -> None:
        for number in stop_signals():
            asyncio.get_running_loop().add_signal_handler(number, self._stop_or_hurry)
        async with contextlib.AsyncExitStack() as held:
            settings = await self._unless_stopped(self._opened(held))
            if settings is not None:
                await self._serve(settings)
        _echo("Doubledecker has stopped", err=True)

    async def _opened(self, held: contextlib.AsyncExitStack) -> Settings:
        try:
            return await self._open(held)
        except OSError as error:
            what = f"cannot keep data in {self._plan.data}: {error.strerror}"
            raise SettingInvalid(f"{what}; make room there, or pass another --data") from error

    async def _open(self, held: contextlib.AsyncExitStack) -> Settings:
        """Valkey, if it is ours to run, and a root key; the settings then lead to both."""
        plan, settings = self._plan, self._plan.settings
        if plan.is_embedded:
            server = await self._start_server()
            kept = Kept("valkey", ValkeyLife(server), on_end=self._note_end, grace_s=_VALKEY_GRACE_S)
            held.push_async_callback(kept.stop)
            self._board.kept.append(kept)
            kept.keep()
            # The children go by the server's own bound: it may be more than was asked for, and more after a restart.
            settings = replace(settings, redis_url=server.url, redis_max_mem_bytes=0)
        held.enter_context(folder.announced(plan.data, folder.REDIS_URL, settings.redis_url))
        held.enter_context(folder.announced(plan.data, folder.BUS_URL, self._board.url))
        if not plan.is_key_set:
            settings = replace(settings, root_key=folder.make_root_key(plan.data))
        # A server that does not fit is reported here, once, not by each child again and again.
        try:
            migrate = build.migrating(settings, say=self._say)
            async with build.open_bus(settings, patience_s=_PATIENCE_S, migrate=migrate) as bus:
                bus.headroom.check()
                return settings
        except BusAway as error:
            by = reading.variable("redis_url", os.environ)
            if by is None:
                raise
            raise BusAway(f"{error}; start it, or unset {by}: `up` then runs a server of its own") from error

    async def _start_server(self) -> EmbeddedServer:
        """Valkey, with a bound on its memory: a full memory is then an answer, and not the end of a process."""
        settings = self._plan.settings
        reserve = DiskReserve(_DISK_MIN_FREE_BYTES, self._say)
        reserve.check(self._plan.data)
        asked = settings.redis_max_mem_bytes or int(machine.memory_bytes() * settings.redis_memory_share)
        server = await EmbeddedServer.start(
            self._plan.data,
            durable=settings.durable,
            maxmemory_bytes=asked,
            headroom_bytes=2 * settings.redis_min_free_bytes,
            reserve=reserve,
        )
        if server.maxmemory_bytes > asked:
            allowed = words.size(server.maxmemory_bytes)
            self._say(f"the data takes more than the {words.size(asked)} that Valkey may use; it may use {allowed}")
        return server

    async def _serve(self, settings: Settings) -> None:
        _echo(f"Doubledecker is at {self._board.url}")
        if not self._plan.is_key_set:
            _echo(f"The root key is in {self._plan.data / folder.ROOT_KEY}")
        if not self._plan.logs_here:
            _echo(f"Logs are in {self._plan.data / _LOGS}")
        if self._plan.lacks_spark:
            self._say(f"there is no pipeline, as {pipeline.MISSING}")
        children = self._children(settings)
        self._board.kept.extend(children)
        for child in children:
            child.keep()
        async with asyncio.TaskGroup() as tasks:
            watching = [
                tasks.create_task(boards.follow(self._board, settings)),
                tasks.create_task(boards.follow_readiness(self._board, partial(self._say_ready, settings))),
                tasks.create_task(self._show()),
                tasks.create_task(self._unsubscribe_former_demo(settings)),
            ]
            try:
                await self._stop.wait()
            finally:
                self._board.is_stopping = True
                beside = [child.stop() for child in children if child.name == boards.PIPELINE]
                rest = [child for child in reversed(children) if child.name != boards.PIPELINE]
                await asyncio.gather(_stop_in_turn(rest), *beside)
                for task in watching:
                    task.cancel()

    async def _unsubscribe_former_demo(self, settings: Settings) -> None:
        """End what a demo that was killed left behind, so that nothing is retried where nobody listens."""
        trace = self._plan.data / folder.DEMO
        if self._plan.with_demo:
            with contextlib.suppress(OSError):  # on a full disk the bus goes on
                trace.touch()
        elif trace.exists():
            await demo.unsubscribe(settings)
            trace.unlink(missing_ok=True)

    def _children(self, settings: Settings) -> list[Kept]:
        """In the order of their start, which is the reverse of that of their end."""
        environment = dict(os.environ)
        given = {"redis_url": settings.redis_url, "root_key": settings.root_key, "port": str(settings.port)}
        given["redis_max_mem_bytes"] = str(settings.redis_max_mem_bytes)
        environment |= {PREFIX + name.upper(): value for name, value in given.items()}
        # Web processes read older attempts there.
        environment.setdefault(f"{PREFIX}LAKE", str((self._plan.data / folder.LAKE).resolve()))
        if self._plan.with_demo:
            environment.setdefault(f"{PREFIX}PRIVATE_CALLBACKS", "true")
            # Its mailer fails for seconds at a time; waiting minutes for the next try would be no fun to watch.
            environment.setdefault(f"{PREFIX}BACKOFF_CAP_MS", "3000")
        working_s = settings.shutdown_s + _WORKER_MARGIN_S
        kept = [
            *self._members("worker", settings.worker_processes, environment, grace_s=working_s),
            *self._members("web", settings.web_processes, environment, grace_s=_WEB_GRACE_S),
        ]
        if self._plan.with_demo:
            kept.append(self._child("demo", environment=environment, grace_s=_DEMO_GRACE_S))
        if self._plan.with_pipeline:
            # The folder is named: the sources and settings of Spark in another one are not this bus's.
            words = ("pipeline", "run", "--data", str(self._plan.data))
            kept.append(self._child(*words, environment=environment, grace_s=_PIPELINE_GRACE_S))
        return kept

    def _members(self, kind: str, count: int, environment: Mapping[str, str], *, grace_s: float) -> list[Kept]:
        command = Command([kind], _environment_of(kind, environment))
        return members(command, count or machine.cores(), on_end=self._note_end, grace_s=grace_s, log_of=self._log)

    def _child(self, *words: str, environment: Mapping[str, str], grace_s: float) -> Kept:
        name = words[0]
        command = Command(words, _environment_of(name, environment), self._log(name))
        return Kept(name, ChildLife(command), on_end=self._note_end, grace_s=grace_s)

    def _note_end(self, ended: Ended) -> None:
        log_file = self._log(ended.name)
        # With such an exit code it has written why.
        where = f"; see {log_file}" if log_file and ended.exit_code is not None and ended.exit_code > 0 else ""
        self._say(f"{ended}{where}")

    def _log(self, name: str) -> Path | None:
        return None if self._plan.logs_here else self._plan.data / _LOGS / f"{name}.log"

    async def _show(self) -> None:
        # A terminal that was closed must not keep the bus from stopping in order.
        with contextlib.suppress(OSError):
            if self._plan.is_live:
                await self._show_live()

    async def _show_live(self) -> None:
        foot = f"Ctrl-C stops · logs in {self._plan.data / _LOGS}"
        with Live(console=self._console, screen=True, auto_refresh=False) as shown:
            while True:
                width, height = self._console.size
                now_ms = clock.now_ms()
                screen = live.render(self._board, width=width, height=height, now_ms=now_ms, foot=foot)
                shown.update(screen, refresh=True)
                await asyncio.sleep(boards.LOOK_S)

    def _say(self, message: str) -> None:
        if self._plan.is_live:
            self._board.messages.append(f"{time.strftime('%H:%M:%S')} {message}")
        else:
            _echo(message, err=True)

    async def _say_ready(self, settings: Settings) -> None:
        try:
            link = await dashboard.make_link(settings, self._board.url)
        except BusAway:  # it is back in a moment, and asks for a token
            link = self._board.url + dashboard.PATH
        self._board.hint = f"Dashboard: {link}"
        if not self._plan.is_live:
            _echo(f"Ready. {self._board.hint} (signs in once)")
            _echo(f'Try: curl -u "{self._key()}:" {self._board.url}/subscribers')

    def _key(self) -> str:
        """The root key as a shell finds it."""
        if self._plan.is_key_set:
            return f"${reading.variable('root_key', os.environ)}"
        return f"$(cat {self._plan.data / folder.ROOT_KEY})"

    def _stop_or_hurry(self) -> None:
        """The first signal stops in order; the next one ends everything at once."""
        if self._stop.is_set():
            for kept in self._board.kept:
                kept.kill()
        self._stop.set()

    async def _unless_stopped(self, work: Coroutine[None, None, _Result]) -> _Result | None:
        """The result of the work, or None when a signal came first."""
        async with _running(work) as task, _running(self._stop.wait()) as stopping:
            await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None


async def _stop_in_turn(children: Sequence[Kept]) -> None:
    """Stop one kind of process after the other; those of one kind at the same time."""
    for _, alike in itertools.groupby(children, key=lambda child: child.kind):
        await asyncio.gather(*(child.stop() for child in alike))


@contextlib.asynccontextmanager
async def _running(work: Coroutine[None, None, _Result]) -> AsyncIterator[asyncio.Task[_Result]]:
    """A task that does not outlive the block."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _environment_of(child: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What a child is given: secrets go only to those that use them."""
    hidden = [*(() if child in _ROOT_KEY_USERS else _names("root_key")), *(() if child == "web" else _names("clients"))]
    return {name: value for name, value in environment.items() if name not in hidden}


def _names(name: str) -> tuple[str, str]:
    """The environment variables that may give a setting."""
    return PREFIX + name.upper(), reading.ALIASES[name]


def _echo(message: str, *, err: bool = False) -> None:
    # A reader that left must not end the bus.
    with contextlib.suppress(OSError):
        click.echo(message, err=err)
