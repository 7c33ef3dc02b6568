"""The servers: one Redis, or the nodes of a Redis Cluster, found by slot.

Every call has a deadline and is made once: a script that timed out may have run, and only its caller knows whether it
may run again. A process may lead its calls through a guard, one for each server, that fails at once what would fail
late; calls that block are not guarded.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, MovedError, NoScriptError, OutOfMemoryError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from doubledecker.errors import BusAway, BusSilent, MemoryFull, SettingInvalid
from doubledecker.store import layout
from doubledecker.store.scripts import Encoded
from doubledecker.store.shared_connection import Command, Reply, SharedConnection, open_line, patiently

Commands = Sequence[Command]
Call = Callable[[Commands], Awaitable[list[Reply]]]
# From a server's address and the call to it, to the call as it is made.
Guard = Callable[[str, Call], Call]

# Longer than any script takes, shorter than a publisher's patience; counted while this process looks for the reply.
ANSWER_S_MAX = 1.0
# A blocked read is answered by the server after its own timeout; this only notices a dead peer.
BLOCK_S_MAX = 5.0


class Node:
    """One server: a line that calls share, and a connection of its own for each that blocks."""

    def __init__(self, url: str, guard: Guard | None = None) -> None:
        self.url = url
        self.call = guard(shown(url), self._call) if guard else self._call
        self._pool = _pool(url)
        self._line: SharedConnection | None = None
        self._idle: list[redis.Connection] = []
        self._opening = asyncio.Lock()

    async def _call(self, commands: Commands) -> list[Reply]:
        """Send commands in one round trip; an error reply to any of them raises after all were read."""
        line = self._line
        try:
            if line is None or not line.is_open:
                line = await patiently(self._reopen(), ANSWER_S_MAX)
            return await line.call(commands)
        except TimeoutError as error:
            # What comes after a reply that is not coming would not come either.
            if self._line is line:
                await self.close()
            raise BusSilent(f"Redis at {shown(self.url)} did not answer within {ANSWER_S_MAX} s") from error
        except (RedisError, OSError) as error:
            raise self._translated(error) from error

    async def block(self, words: Sequence[Encoded], *, block_s: float) -> Reply:
        """Send a command that waits on the server, on a connection of its own."""
        connection = self._idle.pop() if self._idle else self._make_connection()
        is_clean = False
        try:
            async with asyncio.timeout(block_s + BLOCK_S_MAX):
                await _send(connection, words)
                reply: Reply = await connection.read_response(disconnect_on_error=False)
            is_clean = True
        except (RedisError, OSError, TimeoutError) as error:
            raise self._translated(error) from error
        finally:
            # One that failed in any way is never used again: a late reply would be taken for the next one's.
            if is_clean:
                self._idle.append(connection)
            else:
                await connection.disconnect(nowait=True)
        return reply

    async def listen(self, channel: str, on_message: Callable[[bytes], None]) -> None:
        """Call `on_message` with every message of a channel; raises when the server is away.

        It is first called with an empty one, when the channel is subscribed to: what was published before is missed.
        """
        connection = self._make_connection()
        try:
            async with asyncio.timeout(BLOCK_S_MAX):
                await _send(connection, ["SUBSCRIBE", channel])
            while True:
                try:
                    reply = await _next_reply(connection)
                except TimeoutError:
                    # A peer that has vanished says nothing either: one that is there answers this.
                    await _send(connection, ["PING"])
                    reply = await _next_reply(connection)
                if reply[0] != b"pong":
                    on_message(reply[2] if reply[0] == b"message" else b"")
        except (RedisError, OSError, TimeoutError) as error:
            raise self._translated(error) from error
        finally:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Hang up; the next call connects anew."""
        line, self._line = self._line, None
        if line is not None:
            await line.close()
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)

    async def _reopen(self) -> SharedConnection:
        async with self._opening:
            if self._line is None or not self._line.is_open:
                self._line = await open_line(self._make_connection(), answer_s_max=ANSWER_S_MAX)
            return self._line

    def _make_connection(self) -> redis.Connection:
        return self._pool.make_connection()  # type: ignore[no-untyped-call, no-any-return]

    def _translated(self, error: Exception) -> Exception:
        """What a caller gets: that the bus is away, unless it is something that the store can mend."""
        if isinstance(error, NoScriptError | MovedError):
            return error
        if isinstance(error, OutOfMemoryError):
            return MemoryFull()
        if isinstance(error, AuthenticationError):
            return BusAway(f"Redis refused the credentials of {shown(self.url)}")
        kind = BusSilent if isinstance(error, RedisConnectionError | OSError) else BusAway
        return kind(f"Redis at {shown(self.url)}: {_reason(error)}")


class Nodes:
    """The node that holds a slot: always the same one, unless this is a Redis Cluster."""

    def __init__(self, url: str, guard: Guard | None = None) -> None:
        self._guard = guard
        self._seeds = [part.strip() for part in url.split(",")]
        self._nodes = {self._seeds[0]: Node(self._seeds[0], guard)}
        self._ranges: list[tuple[int, int, str]] = []
        self.is_cluster = False

    @property
    def first(self) -> Node:
        return self._nodes[self._seeds[0]]

    @property
    def urls(self) -> list[str]:
        return sorted({url for _, _, url in self._ranges}) or [self._seeds[0]]

    async def discover(self) -> None:
        """Ask whether this is a cluster, and if so who holds which slots."""
        [info] = await self._ask([["INFO", "cluster"]])
        self.is_cluster = b"cluster_enabled:1" in cast("bytes", info)
        if self.is_cluster:
            await self._locate()

    async def call(self, slot: int, commands: Commands) -> list[Reply]:
        """Send commands to the node of a slot; when the slot has moved, nothing has run, so ask again there."""
        try:
            try:
                return await self._of(slot).call(commands)
            except MovedError:
                await self._locate()
                return await self._of(slot).call(commands)
        except MovedError as error:
            raise BusAway("the slot has moved to another node, and on") from error
        except BusAway:
            if self.is_cluster:
                # With nobody to ask, the caller is about to get that the bus is away.
                with contextlib.suppress(BusAway):
                    await self._locate()
            raise

    async def block(self, slot: int, words: Sequence[Encoded], *, block_s: float) -> Reply:
        """Send a command that waits on the server to the node of a slot."""
        try:
            return await self._of(slot).block(words, block_s=block_s)
        except MovedError as error:
            with contextlib.suppress(BusAway):
                await self._locate()
            raise BusAway("the slot has moved to another node") from error

    async def listen(self, slot: int, channel: str, on_message: Callable[[bytes], None]) -> None:
        """Follow a channel of the node that holds a slot: scripts publish where their keys are."""
        await self._of(slot).listen(channel, on_message)

    async def everywhere(self, commands: Commands) -> list[list[Reply]]:
        return await asyncio.gather(*(self._at(url).call(commands) for url in self.urls))

    def url_of(self, slot: int) -> str:
        for first, last, url in self._ranges:
            if first <= slot <= last:
                return url
        if self.is_cluster:
            raise BusAway(f"no node of the cluster holds slot {slot}")
        return self._seeds[0]

    async def close(self) -> None:
        for node in self._nodes.values():
            await node.close()

    def _of(self, slot: int) -> Node:
        return self._at(self.url_of(slot))

    def _at(self, url: str) -> Node:
        if url not in self._nodes:
            self._nodes[url] = Node(url, self._guard)
        return self._nodes[url]

    async def _locate(self) -> None:
        [slots] = await self._ask([["CLUSTER", "SLOTS"]])
        scheme, _, rest = self._seeds[0].partition("://")
        credentials, at, _ = rest.rpartition("@")
        ranges = []
        for row in cast("list[list[Reply]]", slots):
            host, port = cast("tuple[bytes, int]", cast("list[Reply]", row[2])[:2])
            url = f"{scheme}://{credentials}{at}{host.decode()}:{port}/0"
            ranges.append((cast("int", row[0]), cast("int", row[1]), url))
        self._ranges = ranges

    async def _ask(self, commands: Commands) -> list[Reply]:
        """Ask any node that answers: the known ones first, then the seeds."""
        failure: BusAway | None = None
        for url in dict.fromkeys([*self.urls, *self._seeds]):
            try:
                return await self._at(url).call(commands)
            except BusAway as error:
                failure = error
        assert failure is not None
        raise failure


async def _send(connection: redis.Connection, words: Sequence[Encoded]) -> None:
    if not connection.is_connected:
        await connection.connect()  # type: ignore[no-untyped-call]
    await connection.send_packed_command(connection.pack_commands([words]), check_health=False)


async def _next_reply(connection: redis.Connection) -> Sequence[bytes]:
    async with asyncio.timeout(BLOCK_S_MAX):
        return cast("list[bytes]", await connection.read_response(disconnect_on_error=False))


def check_url(url: str) -> None:
    """Raise SettingInvalid unless it is a Redis URL, before anything is begun that would need one."""
    _pool(url)


def _pool(url: str) -> redis.ConnectionPool:
    try:
        return redis.ConnectionPool.from_url(
            url,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=None,
            socket_timeout=None,
            driver_info=layout.DRIVER,
        )
    except ValueError as error:
        raise SettingInvalid(
            f"cannot use the Redis URL {shown(url)[:80]!r}; it must be like redis://127.0.0.1:6379/0, or begin with "
            "rediss:// or unix://"
        ) from error


def _reason(error: Exception) -> str:
    """What went wrong: of a failed connection what the system says, without redis-py's words around it."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno)
    return str(error) or type(error).__name__


def shown(url: str) -> str:
    """The address without the password."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"
