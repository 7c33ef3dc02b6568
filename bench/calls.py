"""Calls to Valkey: what processes send it, not what scripts run inside.

Under load they are counted by kind, which costs nothing: scripts, blocking reads and subscriptions to bells are all
that matters there. Of one process among others they are counted by MONITOR, which slows Valkey down, so only at light
load.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

_KINDS = ("evalsha", "evalsha_ro", "eval", "fcall", "subscribe", "xread", "blpop", "bzpopmin")


async def count(redis: Redis) -> int:
    """Scripts, blocking reads and subscriptions so far, of all processes."""
    found = await redis.info("commandstats")
    return sum(found.get(f"cmdstat_{kind}", {"calls": 0})["calls"] for kind in _KINDS)


@dataclass
class Watch:
    """How many calls one process has made since it is watched."""

    calls: int = 0


@contextlib.asynccontextmanager
async def watched(redis: Redis, pid: int) -> AsyncIterator[Watch]:
    """Count the calls of one process, by the ports of its connections."""
    watch, ports = Watch(), _ports(pid)

    async def follow() -> None:
        async with redis.monitor() as monitor:
            is_open.set()
            async for command in monitor.listen():
                watch.calls += command["client_type"] == "tcp" and int(command["client_port"]) in ports

    is_open = asyncio.Event()
    following = asyncio.create_task(follow())
    try:
        async with asyncio.timeout(10):
            await is_open.wait()
        yield watch
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following


def _ports(pid: int) -> set[int]:
    """The local ports of a process's TCP connections over IPv4."""
    sockets = {target[8:-1] for target in _open_files(pid) if target.startswith("socket:[")}
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[9] in sockets}


def _open_files(pid: int) -> list[str]:
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(str(path.readlink()))
    return found
