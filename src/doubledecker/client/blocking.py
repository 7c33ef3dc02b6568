"""Messages for plain functions: the same fields, and methods that wait for their answer."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from doubledecker.client.message import Event, Message

# A task that does not end when cancelled is not waited for.
_END_S_MAX = 5.0

T = TypeVar("T")


def wait_for(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """Have a loop that runs in another thread do it, and wait for the outcome."""
    outcome = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return outcome.result()
    finally:
        # After Ctrl-C nobody wants the outcome any more; one that is there cannot be cancelled.
        outcome.cancel()


async def end_others() -> None:
    """End what else the loop does, so that it can be closed."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_END_S_MAX)


class BlockingMessage:
    """One leased message, for a plain function."""

    __slots__ = ("_loop", "held")

    def __init__(self, held: Message, loop: asyncio.AbstractEventLoop) -> None:
        self.held = held
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self.held)

    @property
    def id(self) -> str:
        return self.held.id

    @property
    def attempt(self) -> int:
        return self.held.attempt

    @property
    def tenant(self) -> str:
        return self.held.tenant

    @property
    def event(self) -> Event:
        return self.held.event

    @property
    def lease_until(self) -> int:
        return self.held.lease_until

    def ack(self) -> bool:
        """Report it done; False when its lease had expired, so it is or will be delivered again."""
        return wait_for(self.held.ack(), self._loop)

    def nack(self, delay_s: float = 0.0, why: str = "given back") -> bool:
        """Return it to the queue, to be delivered again after the delay; False when its lease had expired."""
        return wait_for(self.held.nack(delay_s, why), self._loop)

    def reject(self, why: str = "rejected") -> bool:
        """Make it a dead letter at once; False when its lease had expired."""
        return wait_for(self.held.reject(why), self._loop)
