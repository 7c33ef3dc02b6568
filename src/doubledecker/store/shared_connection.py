"""One connection that many calls share: what is asked in one turn of the loop goes out together, replies come in order.

A large command goes out at once. It keeps the server busy for a while, in which this process can do something else;
waiting for the turn to end, the two would take turns instead of working side by side.

A call that is given up, because its caller went away, only leaves its place: its reply is read and dropped. When the
connection breaks, every call that waits on it fails, and the line is closed for good.

A server that does not answer is given up after some ticks of a timer, not at a time on the clock. While this process is
busy, replies wait in the socket, and a wait measured by the clock would blame the server. However late a tick comes, it
counts once, and between two ticks the loop reads what has arrived: so only time in which a reply was looked for counts.

redis-py connects, as it knows of addresses, TLS and credentials. From then on the line reads by itself: each reply
would else pass through a stream, a task and a dozen calls on its way to who waits for it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import hiredis
import msgspec
import redis.asyncio as redis
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from doubledecker.store.scripts import Encoded

# An ack of a hundred messages is above, one of ten is below.
LARGE_BYTES = 1_000
# Enough for the loop to read a reply and wake its caller several times over, and cheap: a line has one timer.
TICKS = 10

_INCOMPLETE = object()

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
        """Take one reply; returns whether it was the last."""
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


class SharedConnection(asyncio.Protocol):
    """A connected line; made by `open_line`. Its calls raise TimeoutError when no reply comes within `answer_s_max`."""

    def __init__(self, connection: redis.Connection, *, answer_s_max: float) -> None:
        self._connection = connection
        self._replies = hiredis.Reader(RedisConnectionError, BaseParser.parse_error, notEnoughData=_INCOMPLETE)
        self._tick_s = answer_s_max / TICKS
        self._ticks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._calls: deque[_Call] = deque()
        self._outgoing: list[bytes] = []
        self._is_flush_due = False
        writer = connection._writer  # noqa: SLF001 - there is no other way to what it has connected
        assert writer is not None
        self._transport = writer.transport
        self._transport.set_protocol(self)

    @property
    def is_open(self) -> bool:
        return self._error is None

    async def call(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands and wait for their replies; an error reply to any of them raises after all have come."""
        if self._error is not None:
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
        """Hang up; callers that still wait get an error."""
        self._end(RedisConnectionError("the connection was closed"))

    def data_received(self, data: bytes) -> None:
        """Give the replies that are complete to the calls that wait for them."""
        self._replies.feed(data)
        try:
            while (reply := self._replies.gets()) is not _INCOMPLETE:
                self._take(reply)
        except RedisConnectionError as broken:
            self._end(broken)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or RedisConnectionError("the server closed the connection"))

    def _tick(self) -> None:
        """Give the server up when the oldest call has waited for too long; no calls, no timer."""
        self._ticks += 1
        self._timer = None
        if not self._calls:
            return
        # A call may be sent just before a tick, so that one more has to pass.
        if self._ticks - self._calls[0].sent_tick > TICKS:
            self._end(TimeoutError())
        else:
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _flush(self) -> None:
        self._is_flush_due = False
        outgoing, self._outgoing = self._outgoing, []
        # Callers that wait on a closing connection get an error when it is lost.
        if outgoing and not self._transport.is_closing():
            self._transport.writelines(outgoing)

    def _take(self, reply: Reply | RedisError) -> None:
        if isinstance(reply, RedisConnectionError):
            raise reply
        is_last = self._calls[0].add(None, reply) if isinstance(reply, RedisError) else self._calls[0].add(reply, None)
        if is_last:
            self._calls.popleft()

    def _end(self, error: Exception) -> None:
        """Close for good, once; every call that still waits fails with the error."""
        if self._error is not None:
            return
        self._error = error
        self._connection._close()  # type: ignore[no-untyped-call] # noqa: SLF001 - the other way has to be awaited
        for call in self._calls:
            if not call.done.done():
                call.done.set_exception(error)
        self._calls.clear()
        if self._timer is not None:
            self._timer.cancel()


def pack(words: Sequence[Encoded]) -> Packed:
    """Words as they go over the wire; redis-py's own way takes several times as long."""
    coded = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return Packed(len(coded), (b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in coded]),))


def _wire(command: Command) -> tuple[bytes, ...]:
    packed = command if isinstance(command, Packed) else pack(command)
    return (b"*%d\r\n" % packed.count, *packed.parts)


async def open_line(connection: redis.Connection, *, answer_s_max: float) -> SharedConnection:
    await connection.connect()  # type: ignore[no-untyped-call]
    return SharedConnection(connection, answer_s_max=answer_s_max)


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
