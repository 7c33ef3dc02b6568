"""Turns: heavy work of requests runs a piece at a time, so that one client's does not hold up the others' requests.

The event loop serves everyone, and so does the connection to Redis. A piece of heavy work keeps one of them busy for
some milliseconds. Many clients' pieces, or many of one client's, would add up to seconds in which nobody is answered.
Here one piece runs at a time, the loop goes round between two, and each client has one place in the line, however many
of its requests wait.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class ClientLocks:
    """A lock for each client: so much of a kind of work as one request makes is under way for it, and no more."""

    def __init__(self) -> None:
        # A lock lives for as long as a request holds it or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, client: str) -> asyncio.Lock:
        return self._locks.setdefault(client, asyncio.Lock())


class Turns:
    """A line for pieces of heavy work."""

    def __init__(self) -> None:
        self._all = asyncio.Lock()
        self._clients = ClientLocks()

    @asynccontextmanager
    async def taken(self, client: str) -> AsyncIterator[None]:
        """Run the block when it is the client's turn."""
        async with self._clients.of(client), self._all:
            yield
            # Whatever else is ready goes first; the one who holds a lock could take it again without waiting.
            await asyncio.sleep(0)


class TurnLine:
    """A line of those who each want a turn of the event loop: one has its turn in each round."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Callable[[], None], None] = OrderedDict()
        self._is_due = False

    def join(self, turn: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Stand in line; one that does keeps its place."""
        self._waiting[turn] = None
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._give, loop)

    def _give(self, loop: asyncio.AbstractEventLoop) -> None:
        turn, _ = self._waiting.popitem(last=False)
        self._is_due = bool(self._waiting)
        if self._is_due:
            loop.call_soon(self._give, loop)
        turn()
