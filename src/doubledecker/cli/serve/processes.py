"""The commands that run processes of the bus until SIGINT or SIGTERM: this one, or several under a supervisor."""

import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import uvloop

from doubledecker import log
from doubledecker.assembly import settings as reading
from doubledecker.assembly.launch import Member, launch
from doubledecker.assembly.settings import Settings
from doubledecker.cli.serve import supervise
from doubledecker.errors import SettingInvalid
from doubledecker.store import machine, ports
from doubledecker.web import listening, server
from doubledecker.worker import process
from doubledecker.worker import watch as watching

# What a process takes to end beyond the time that it gives to work under way, on a busy machine.
_MARGIN_S = 5.0
# New objects that begin a collection. Some thirty live as long as a request, and garbage that only a collection finds
# may hold large bodies: more than what requests under way have, and few times Python's own number, which is 700.
_YOUNG_MAX = 2_000


@dataclass(frozen=True)
class Processes:
    """How many processes a command is asked to run, None for what the settings say; or which of them this is."""

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
        raise SettingInvalid("DOUBLEDECKER_ROOT_KEY is not set; without it nobody could make tokens")
    count = processes.count(settings.web_processes)
    if count > 1:
        settings = replace(settings, port=settings.port or ports.free_port())
        with listening.on(settings.host, settings.port, by=listening.reserve):
            words = ["web", "--host", settings.host, "--port", str(settings.port)]
            supervise.supervise(words, count, grace_s=server.GRACE_S + _MARGIN_S)
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
        supervise.supervise(["worker"], count, grace_s=settings.shutdown_s + _MARGIN_S)
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
    return settings


def until_stopped(run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run until SIGINT or SIGTERM sets the event."""
    _spare_garbage_collector()
    uvloop.run(_until_stopped(run))


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
