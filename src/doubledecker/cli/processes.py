"""The commands that run one process of the bus in the foreground, until SIGINT or SIGTERM."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace

import uvloop

from doubledecker import log
from doubledecker.assembly import settings as reading
from doubledecker.assembly.settings import Settings
from doubledecker.errors import SettingInvalid
from doubledecker.web import server
from doubledecker.worker import process
from doubledecker.worker import watch as watching


def web(host: str | None, port: int | None) -> None:
    """Serve the API."""
    settings = load()
    settings = replace(settings, host=host or settings.host, port=settings.port if port is None else port)
    if not settings.root_key:
        raise SettingInvalid("DOUBLEDECKER_ROOT_KEY is not set; without it nobody could make tokens")
    try:
        listener = server.bind(settings.host, settings.port)
    except OSError as error:
        raise SettingInvalid(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from error
    with listener:
        until_stopped(lambda stop: server.run(settings, listener, stop))


def worker() -> None:
    """Deliver."""
    settings = load()
    until_stopped(lambda stop: process.run(settings, stop))


def watch() -> None:
    """Push what queues hold."""
    settings = load()
    until_stopped(lambda stop: watching.run(settings, stop))


def load() -> Settings:
    """Settings from the environment, with logging set up by them."""
    settings = reading.read(os.environ)
    log.configure(level=settings.log_level, as_json=settings.log_json)
    return settings


def until_stopped(run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run until SIGINT or SIGTERM sets the event."""
    uvloop.run(_until_stopped(run))


async def _until_stopped(run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run(stop)
