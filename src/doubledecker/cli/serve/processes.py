"""The commands that run processes of the bus until SIGINT or SIGTERM: this one, or several under a supervisor."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from doubledecker import log
from doubledecker.assembly import settings as reading
from doubledecker.assembly.launch import Member, launch
from doubledecker.assembly.settings import Settings
from doubledecker.cli.serve.keep import ChildLife, Command, Ended, Kept, OnEnd
from doubledecker.errors import BusAway, SettingInvalid
from doubledecker.store import machine
from doubledecker.web import listening, server
from doubledecker.worker import process
from doubledecker.worker import watch as watching

# Several processes of one command, supervised in the foreground: `doubledecker web --processes 4`.
#
# The first process is started alone, and the others once it is ready. What keeps every process from starting, such as a
# server that does not fit, is then reported once, and ends the command with the exit code that one process would have.
# Later, a process that dies is started again (cli/serve/keep.py), whatever the reason.

_log = log.get("supervisor")


def members(
    command: Command,
    count: int,
    *,
    on_end: OnEnd,
    grace_s: float,
    log_of: Callable[[str], Path | None] = lambda _: None,
) -> list[Kept]:
    """That many processes of one command, each with a name of its own."""
    kind = command.arguments[0]
    kept = []
    for number in range(1, count + 1):
        member = Member(number, count)
        name, words = member.name(kind), [*command.arguments, "--member", str(member)]
        life = ChildLife(replace(command, arguments=words, log=log_of(name), reports_readiness=True))
        kept.append(Kept(name, life, on_end=on_end, grace_s=grace_s, kind=kind))
    return kept


def stop_signals() -> list[signal.Signals]:
    """The signals that stop a supervisor; a closed terminal does so too, unless that is ignored, as nohup has it."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


def supervise(arguments: Sequence[str], count: int, *, grace_s: float) -> None:
    """Run that many processes of a command until SIGINT or SIGTERM; exits with the code of a start that failed."""
    sys.exit(asyncio.run(_Supervisor(Command(arguments, os.environ), count, grace_s=grace_s).run()))


class _Supervisor:
    """One run of a command with several processes."""

    def __init__(self, command: Command, count: int, *, grace_s: float) -> None:
        self._command = command.arguments[0]
        self._kept = members(command, count, on_end=self._note_end, grace_s=grace_s)
        self._stop = asyncio.Event()
        self._exit_code = 0

    async def run(self) -> int:
        """Start all, keep them running until a signal, then stop all; returns the exit code."""
        for number in stop_signals():
            asyncio.get_running_loop().add_signal_handler(number, self._stop_or_kill)
        _log.info("processes.started", command=self._command, processes=len(self._kept))
        try:
            await self._start(self._kept[:1])
            await self._start(self._kept[1:])
            if not self._stop.is_set():
                _log.info("processes.ready", command=self._command, processes=len(self._kept))
            await self._stop.wait()
        finally:
            await asyncio.gather(*(each.stop() for each in self._kept))
        _log.info("processes.stopped", command=self._command)
        return self._exit_code

    async def _start(self, some: Iterable[Kept]) -> None:
        """Start these and wait until they are ready, or until a signal."""
        if self._stop.is_set():
            return
        ready = []
        for each in some:
            each.keep()
            ready.append(each.was_ready.wait())
        starting = asyncio.gather(*ready)
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        for task in (starting, stopping):
            task.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)

    def _note_end(self, ended: Ended) -> None:
        is_up = any(each.was_ready.is_set() for each in self._kept)
        if not is_up and ended.exit_code is not None and ended.exit_code > 0:
            # It has printed why on stderr; the others would print the same.
            self._exit_code = ended.exit_code
            self._stop.set()
        elif ended.is_crash_loop:
            how, again_s = ended.how, ended.again_s
            _log.error("process.crash_looping", process=ended.name, how=how, deaths=ended.deaths, again_s=again_s)
        else:
            _log.warning("process.ended", process=ended.name, how=ended.how, again_s=ended.again_s)

    def _stop_or_kill(self) -> None:
        """The first signal stops in order; the next one kills."""
        if self._stop.is_set():
            for each in self._kept:
                each.kill()
        self._stop.set()


# What a process takes to end beyond the time that it gives to work under way, on a busy machine.
_MARGIN_S = 5.0
# New objects that begin a collection. Some thirty live as long as a request, and garbage that only a collection finds
# may hold large bodies: more than what requests under way have, and few times Python's own number, which is 700.
_YOUNG_MAX = 2_000


@dataclass(frozen=True)
class Processes:
    """How many processes a command is asked to run, None for what is set; or which of them this is."""

    asked: int | None = None
    member: Member | None = None
    ready_fd: int | None = None

    def count(self, by_settings: int) -> int:
        """How many processes to run from here; one that is a member itself runs none."""
        if self.member is not None:
            return 1
        return (by_settings if self.asked is None else self.asked) or machine.cores()


def web(host: str | None, port: int | None, processes: Processes) -> None:
    """Serve the API."""
    settings = load("web", processes.member)
    settings = replace(settings, host=host or settings.host, port=settings.port if port is None else port)
    if not settings.root_key:
        raise SettingInvalid("DOUBLEDECKER_ROOT_KEY is not set; give it a secret, as of `openssl rand -hex 24`")
    count = processes.count(settings.web_processes)
    if count > 1:
        settings = replace(settings, port=settings.port or machine.free_port())
        with listening.on(settings.host, settings.port, by=listening.reserve):
            words = ["web", "--host", settings.host, "--port", str(settings.port)]
            supervise(words, count, grace_s=server.GRACE_S + _MARGIN_S)
        return
    launched = launch("web", processes.member, ready_fd=processes.ready_fd)
    if processes.member is not None:
        settings = settings.divided(processes.member.count)
    with listening.on(
        settings.host, settings.port, by=listening.share if processes.member else listening.bind
    ) as listener:
        until_stopped(lambda stop: server.run(settings, listener, stop, launched))


def worker(processes: Processes) -> None:
    """Deliver."""
    settings = load("worker", processes.member)
    count = processes.count(settings.worker_processes)
    if count > 1:
        supervise(["worker"], count, grace_s=settings.shutdown_s + _MARGIN_S)
        return
    launched = launch("worker", processes.member, ready_fd=processes.ready_fd)
    until_stopped(lambda stop: process.run(settings, stop, launched))


def watch() -> None:
    """Push what queues hold."""
    settings = load("watch")
    until_stopped(lambda stop: watching.run(settings, stop))


def load(kind: str, member: Member | None = None) -> Settings:
    """Settings from the environment, with logging set up by them; lines of one of several processes name it."""
    settings = reading.read(os.environ)
    process = None if member is None or member.count == 1 else member.name(kind)
    log.configure(level=settings.log_level, as_json=settings.log_json, process=process)
    reading.log_retired(os.environ)
    return settings


def until_stopped(run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run until SIGINT or SIGTERM sets the event."""
    _spare_garbage_collector()
    try:
        uvloop.run(_until_stopped(run))
    except BusAway as error:
        raise BusAway(f"{error}; start it, or set DOUBLEDECKER_REDIS_URL to where it is") from error


def _spare_garbage_collector() -> None:
    """Leave what is imported out of all collections, and collect less often: that took a tenth of a request's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_MAX)


async def _until_stopped(run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run(stop)
