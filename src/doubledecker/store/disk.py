"""The disk of the embedded server: a reserve of space, and flushing the append-only file from outside the server.

Valkey does not wait for its append-only file to take a write, unless it runs with `appendfsync always`: when the disk
is full, the last writes were acknowledged and are in memory alone, and the end of the server loses them. So writes are
refused while there is still room for those that were acknowledged.

With `appendfsync everysec` Valkey answers before it has written: while an fsync is under way it holds writes back for
up to two seconds, and a SIGKILL then loses what was acknowledged. With `appendfsync no` it always writes before it
answers, so the death of the process loses nothing; what is missing is the fsync, which any process that can open the
file may do.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from doubledecker.background import beside
from doubledecker.errors import SettingInvalid

GLANCE_S = 0.25  # a server that writes 100 MB a second takes three quarters of the reserve's default in this time
FLUSH_S = 1.0
_ANSWER_S_MAX = 1.0
# One replica more than an embedded server has: it then refuses every command that writes, before it has any effect.
_REFUSING, _TAKING = 1, 0


def free_bytes(directory: Path) -> int:
    """How much space is left to us on the disk of a directory."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


@dataclass(frozen=True)
class DiskReserve:
    """How much space has to be left for writes to be taken, and whom to tell when that changes."""

    bytes: int
    tell: Callable[[str], None] = lambda _: None
    free_bytes: Callable[[Path], int] = free_bytes

    def check(self, directory: Path) -> None:
        """Raise SettingInvalid when a server that starts now could not take a single write."""
        if self._is_short(directory):
            raise SettingInvalid(
                f"the disk of {directory} has {self.free_bytes(directory)} bytes left, and "
                f"DOUBLEDECKER_DISK_MIN_FREE_BYTES keeps {self.bytes} free: make room, lower it, or pass another --data"
            )

    def keeping(self, directory: Path, url: str) -> AbstractAsyncContextManager[None]:
        """Look at the disk while the block runs, and have the server at this URL refuse writes while it is short."""
        return beside(self._look_forever(directory, url))

    async def _look_forever(self, directory: Path, url: str) -> None:
        is_refusing = False
        while True:
            is_short = self._is_short(directory)
            # Said again each time: a server that was restarted meanwhile has forgotten it.
            if (is_short or is_refusing) and await _say(url, _REFUSING if is_short else _TAKING):
                if is_short != is_refusing:
                    self.tell(self._news(directory, is_short=is_short))
                is_refusing = is_short
            await asyncio.sleep(GLANCE_S)

    def _is_short(self, directory: Path) -> bool:
        try:
            return self.free_bytes(directory) < self.bytes
        except OSError:
            return False  # a disk that does not tell is none that we can judge

    def _news(self, directory: Path, *, is_short: bool) -> str:
        if is_short:
            return f"the disk of {directory} has under {self.bytes} bytes left; nothing is accepted until it has more"
        return f"the disk of {directory} has room again; events are accepted"


async def _say(url: str, replicas_min: int) -> bool:
    """Tell the server; says whether it heard."""
    try:
        async with asyncio.timeout(_ANSWER_S_MAX), Redis.from_url(url) as client:
            await client.config_set("min-replicas-to-write", replicas_min)
    except (RedisError, OSError):
        return False
    return True


def flushing(directory: Path) -> AbstractAsyncContextManager[None]:
    """Flush a server's append-only file once a second while the block runs."""
    return beside(_flush_forever(directory))


async def _flush_forever(directory: Path) -> None:
    while True:
        await asyncio.sleep(FLUSH_S)
        # A disk that fails once, or a process that has no descriptor left, may do better the next time.
        with contextlib.suppress(OSError):
            await asyncio.to_thread(flush, directory)


def flush(directory: Path) -> None:
    """Flush the parts of the append-only file that still grow; a part that a rewrite just removed needs it no more."""
    for part in directory.glob("appendonlydir/*.incr.aof"):
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(part, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
