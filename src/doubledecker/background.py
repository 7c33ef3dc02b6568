"""Work that goes on beside a block of code and ends with it, and sleep that an event ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine


@contextlib.asynccontextmanager
async def beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run work that has no end while the block runs; cancel it, and wait for that, when the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def sleep_until(event: asyncio.Event, s_max: float) -> None:
    """Sleep until the event is set, or for so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(s_max):
            await event.wait()
