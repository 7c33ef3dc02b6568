"""One connection that many calls share: what is asked in one turn of the loop goes out together, replies come in order.

A large command goes out at once. It keeps the server busy for a while, in which this process can do something else;
waiting for the turn to end, the two would take turns instead of working side by side.

A call that is given up, because its caller went away, only leaves its place: its reply is read and dropped. When the
connection breaks, every call that waits on it fails, and the line is closed for good.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import redis.asyncio as redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from doubledecker.store.scripts import Encoded

# An ack of a hundred messages is above, one of ten is below.
LARGE_BYTES = 1_000

Reply = None | int | bytes | Sequence["Reply"]


@dataclass
class _Call:
    """Commands on their way, and what came back of them so far."""

    count: int
    done: "asyncio.Future[list[Reply]]"
    replies: list[Reply] = field(default_factory=list)
    failure: RedisError | None = None

    def add(self, reply: Reply, failure: RedisError | None) -> bool:
        """Take one reply; says whether it was the last."""
        self.replies.append(reply)
        self.failure = self.failure or failure
        if len(self.replies) < self.count:
            return False
        if not self.done.done():
            if self.failure is None:
                self.done.set_result(self.replies)
            else:
                self.done.set_exception(self.failure)
        return True


class Line:
    """A connected line; made by `open_line`."""

    def __init__(self, connection: redis.Connection) -> None:
        self._connection = connection
        self._calls: deque[_Call] = deque()
        self._outgoing: list[bytes] = []
        self._is_flush_due = False
        self._reading = asyncio.create_task(self._read_forever())

    @property
    def is_open(self) -> bool:
        return not self._reading.done()

    async def call(self, commands: Sequence[Sequence[Encoded]]) -> list[Reply]:
        """Send commands and wait for their replies; an error reply to any of them raises after all have come."""
        loop = asyncio.get_running_loop()
        call = _Call(len(commands), loop.create_future())
        packed = list(map(_packed, commands))
        self._outgoing += packed
        self._calls.append(call)
        if sum(map(len, packed)) >= LARGE_BYTES:
            self._flush()
        elif not self._is_flush_due:
            self._is_flush_due = True
            loop.call_soon(self._flush)
        return await call.done

    async def close(self) -> None:
        """Hang up; whoever still waits is told so."""
        self._reading.cancel()
        await asyncio.wait([self._reading])

    def _flush(self) -> None:
        self._is_flush_due = False
        outgoing, self._outgoing = self._outgoing, []
        writer = self._connection._writer  # noqa: SLF001 - its own method waits for each command to drain
        # Whoever waits on a connection that is closing is told so by the reading task.
        if outgoing and writer is not None and self.is_open and not writer.is_closing():
            writer.writelines(outgoing)

    async def _read_forever(self) -> None:
        """Match replies with calls until the connection ends; then fail what still waits."""
        error: Exception = RedisConnectionError("the connection was closed")
        try:
            while True:
                await self._read_one()
        except (RedisConnectionError, OSError) as broken:
            error = broken
        finally:
            for call in self._calls:
                if not call.done.done():
                    call.done.set_exception(error)
            self._calls.clear()
            await self._connection.disconnect(nowait=True)

    async def _read_one(self) -> None:
        reply: Reply = None
        failure: RedisError | None = None
        try:
            reply = await self._connection.read_response(disconnect_on_error=False)
        except RedisConnectionError:
            raise
        except RedisError as refused:
            failure = refused
        if self._calls[0].add(reply, failure):
            self._calls.popleft()


def _packed(command: Sequence[Encoded]) -> bytes:
    """A command as it goes over the wire; redis-py's own way takes several times as long."""
    words = [word if isinstance(word, bytes) else str(word).encode() for word in command]
    return b"*%d\r\n%b" % (len(words), b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words]))


async def open_line(connection: redis.Connection) -> Line:
    """Connect, and start to listen."""
    await connection.connect()  # type: ignore[no-untyped-call]
    return Line(connection)
