"""Flushing the append-only file to disk once a second, from outside the server.

With `appendfsync everysec` Valkey answers before it has written: while an fsync is under way it holds writes back for
up to two seconds, and a SIGKILL then loses what was acknowledged. With `appendfsync no` it always writes before it
answers, so the death of the process loses nothing; what is missing is the fsync, which any process that can open the
file may do.
"""

import asyncio
import contextlib
import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from doubledecker.background import beside

EVERY_S = 1.0


def flushing(directory: Path) -> AbstractAsyncContextManager[None]:
    """Flush a server's append-only file once a second while the block runs."""
    return beside(_flush_forever(directory))


async def _flush_forever(directory: Path) -> None:
    while True:
        await asyncio.sleep(EVERY_S)
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
