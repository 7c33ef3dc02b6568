"""Turns: heavy work of requests runs a piece at a time, so that one client's does not hold up the others' requests.

The event loop serves everyone, and so does the connection to Redis. A piece of heavy work keeps one of them busy for
some milliseconds. Many clients' pieces, or many of one client's, would add up to seconds in which nobody is answered.
Here one piece runs at a time, the loop goes round between two, and each client has one place in the line, however many
of its requests wait.
"""

import asyncio
from collections.abc import AsyncIterator
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
