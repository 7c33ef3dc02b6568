"""One connection that many calls share: what is asked in one turn of the loop goes out together, replies come in order.

A large command goes out at once. It keeps the server busy for a while, in which this process can do something else;
waiting for the turn to end, the two would take turns instead of working side by side.

A call that is given up, because its caller went away, only leaves its place: its reply is read and dropped. When the
connection breaks, every call that waits on it fails, and the line is closed for good.

A server that does not answer is given up after some ticks of a timer, not at a time on the clock. While this process is
busy, replies wait in the socket, and a wait measured by the clock would blame the server. However late a tick comes, it
counts once, and between two ticks the loop reads what has arrived: so only time in which a reply was looked for counts.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import msgspec
import redis.asyncio as redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from doubledecker.store.scripts import Encoded

# An ack of a hundred messages is above, one of ten is below.
LARGE_BYTES = 1_000
# Enough for the loop to read a reply and wake its caller several times over, and cheap: a line has one timer.
TICKS = 10

_T = TypeVar("_T")

Reply = None | int | bytes | Sequence["Reply"]


def words(reply: Reply) -> list[str]:
    """A reply that is a list of names."""
    return [word.decode() for word in cast("list[bytes]", reply)]


def fields(reply: Reply) -> dict[str, bytes]:
    """A reply that is names and values in turn, as that of HGETALL."""
    flat = cast("list[bytes]", reply)
    return {name.decode(): value for name, value in zip(flat[0::2], flat[1::2], strict=True)}


def texts(reply: Reply) -> dict[str, str]:
    """The same where values are text."""
    return {name: value.decode() for name, value in fields(reply).items()}


def numbers(reply: Reply) -> dict[str, int]:
    """The same where values are whole numbers, or replies that are numbers already."""
    return {name: int(value) for name, value in fields(reply).items()}


class Packed(msgspec.Struct, frozen=True, gc=False):
    """Words of a command as they go over the wire, so that those that every call has are packed once."""

    count: int
    parts: tuple[bytes, ...]

    def __add__(self, more: "Packed") -> "Packed":
        return Packed(self.count + more.count, self.parts + more.parts)


Command = Sequence[Encoded] | Packed


@dataclass
class _Call:
    """Commands on their way, and what came back of them so far."""

    count: int
    sent_tick: int
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
    """A connected line; made by `open_line`. Its calls raise TimeoutError when no reply comes within `answer_s_max`."""

    def __init__(self, connection: redis.Connection, *, answer_s_max: float) -> None:
        self._connection = connection
        self._tick_s = answer_s_max / TICKS
        self._ticks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception = RedisConnectionError("the connection was closed")
        self._calls: deque[_Call] = deque()
        self._outgoing: list[bytes] = []
        self._is_flush_due = False
        self._reading = asyncio.create_task(self._read_forever())

    @property
    def is_open(self) -> bool:
        return not self._reading.done()

    async def call(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands and wait for their replies; an error reply to any of them raises after all have come."""
        if not self.is_open:
            # It may have closed after the caller looked; nobody would ever end the wait.
            raise self._error
        loop = asyncio.get_running_loop()
        call = _Call(len(commands), self._ticks, loop.create_future())
        wire = [part for command in commands for part in _wire(command)]
        self._outgoing += wire
        self._calls.append(call)
        if self._timer is None:
            self._timer = loop.call_later(self._tick_s, self._tick)
        if sum(map(len, wire)) >= LARGE_BYTES:
            self._flush()
        elif not self._is_flush_due:
            self._is_flush_due = True
            loop.call_soon(self._flush)
        return await call.done

    async def close(self) -> None:
        """Hang up; whoever still waits is told so."""
        self._reading.cancel()
        await asyncio.wait([self._reading])

    def _tick(self) -> None:
        """Give the server up when the oldest call has waited for too long; no calls, no timer."""
        self._ticks += 1
        self._timer = None
        if not self._calls:
            return
        # A call may be sent just before a tick, so that one more has to pass.
        if self._ticks - self._calls[0].sent_tick > TICKS:
            self._error = TimeoutError()
            self._reading.cancel()
        else:
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _flush(self) -> None:
        self._is_flush_due = False
        outgoing, self._outgoing = self._outgoing, []
        writer = self._connection._writer  # noqa: SLF001 - its own method waits for each command to drain
        # Whoever waits on a connection that is closing is told so by the reading task.
        if outgoing and writer is not None and self.is_open and not writer.is_closing():
            writer.writelines(outgoing)

    async def _read_forever(self) -> None:
        """Match replies with calls until the connection ends; then fail what still waits."""
        try:
            while True:
                await self._read_one()
        except (RedisConnectionError, OSError) as broken:
            self._error = broken
        finally:
            # Calls may be added until this task has ended, so failing them comes last.
            try:
                await self._connection.disconnect(nowait=True)
            finally:
                self._fail_all()

    def _fail_all(self) -> None:
        for call in self._calls:
            if not call.done.done():
                call.done.set_exception(self._error)
        self._calls.clear()
        if self._timer is not None:
            self._timer.cancel()

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


def pack(words: Sequence[Encoded]) -> Packed:
    """Words as they go over the wire; redis-py's own way takes several times as long."""
    coded = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return Packed(len(coded), (b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in coded]),))


def _wire(command: Command) -> tuple[bytes, ...]:
    packed = command if isinstance(command, Packed) else pack(command)
    return (b"*%d\r\n" % packed.count, *packed.parts)


async def open_line(connection: redis.Connection, *, answer_s_max: float) -> Line:
    await connection.connect()  # type: ignore[no-untyped-call]
    return Line(connection, answer_s_max=answer_s_max)


async def patiently(awaitable: Awaitable[_T], s_max: float) -> _T:
    """What it gives; raises TimeoutError after so long, in ticks as above."""
    task = asyncio.ensure_future(awaitable)
    try:
        for _ in range(TICKS):
            if (await asyncio.wait([task], timeout=s_max / TICKS))[0]:
                return task.result()
    finally:
        task.cancel()
    raise TimeoutError
