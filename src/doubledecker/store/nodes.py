"""Connections to the servers: one Redis, or the nodes of a Redis Cluster, found by slot.

Every exchange has a deadline and is tried once: a script that timed out may have run, and only its caller
knows whether it may run again. A connection that failed in any way is closed, never reused, because a
late reply would be taken for the next one's.
"""

import asyncio
from collections.abc import Sequence
from typing import cast

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)

from doubledecker.errors import BusAway
from doubledecker.store.scripts import Encoded

Reply = None | int | bytes | Sequence["Reply"]

# Longer than any script takes, shorter than a publisher's patience.
ANSWER_S_MAX = 1.0
# A blocked read is answered by the server after its own timeout; this only notices a dead peer.
BLOCK_S_MAX = 5.0
_AWAY = (
    RedisConnectionError,
    RedisTimeoutError,
    BusyLoadingError,
    ClusterDownError,
    ReadOnlyError,
    OutOfMemoryError,
    OSError,
    TimeoutError,
)


class Node:
    """One server, and the connections to it that are not in use."""

    def __init__(self, url: str) -> None:
        self.url = url
        retry = Retry(NoBackoff(), 0)
        self._pool = redis.ConnectionPool.from_url(
            url, protocol=2, retry=retry, socket_connect_timeout=ANSWER_S_MAX, socket_timeout=None
        )
        self._idle: list[redis.Connection] = []

    async def call(self, commands: Sequence[Sequence[Encoded]], *, answer_s_max: float = ANSWER_S_MAX) -> list[Reply]:
        """Send commands in one round trip; an error reply to any of them raises after all were read."""
        try:
            return await self._exchange(commands, answer_s_max)
        except AuthenticationError as error:
            raise BusAway(f"Redis refused the credentials of {_shown(self.url)}") from error
        except _AWAY as error:
            # What broke this connection, a restart most often, broke its idle siblings too.
            await self.close(nowait=True)
            raise BusAway(f"Redis at {_shown(self.url)}: {str(error) or type(error).__name__}") from error
        except (NoScriptError, MovedError):
            raise
        except RedisError as error:
            raise BusAway(f"Redis at {_shown(self.url)} refused a command: {error}") from error

    async def _exchange(self, commands: Sequence[Sequence[Encoded]], answer_s_max: float) -> list[Reply]:
        connection = await self._take()
        is_clean = False
        try:
            async with asyncio.timeout(answer_s_max):
                if not connection.is_connected:
                    await connection.connect()  # type: ignore[no-untyped-call]
                packed = connection.pack_commands(commands)
                await connection.send_packed_command(packed, check_health=False)
                replies, failure = await self._read(connection, len(commands))
            is_clean = True
        finally:
            if is_clean:
                self._idle.append(connection)
            else:
                await connection.disconnect(nowait=True)
        if failure is not None:
            raise failure
        return replies

    async def _take(self) -> redis.Connection:
        """An idle connection that the server has not closed meanwhile, else a new one."""
        while self._idle:
            connection = self._idle.pop()
            reader = connection._reader  # noqa: SLF001 - redis-py offers only a check that costs a system call
            if reader is not None and not reader.at_eof():
                return connection
            await connection.disconnect(nowait=True)
        return self._pool.make_connection()  # type: ignore[no-untyped-call, no-any-return]

    @staticmethod
    async def _read(connection: redis.Connection, count: int) -> tuple[list[Reply], RedisError | None]:
        replies: list[Reply] = []
        failure: RedisError | None = None
        for _ in range(count):
            try:
                replies.append(await connection.read_response(disconnect_on_error=False))
            except (RedisConnectionError, RedisTimeoutError):
                raise
            except RedisError as error:
                failure = failure or error
        return replies, failure

    async def close(self, *, nowait: bool = False) -> None:
        """Close what is idle; what is in use closes itself when it fails."""
        while self._idle:
            await self._idle.pop().disconnect(nowait=nowait)


class Nodes:
    """The node that holds a slot: always the same one, unless this is a Redis Cluster."""

    def __init__(self, url: str) -> None:
        self._seeds = [part.strip() for part in url.split(",")]
        self._nodes = {self._seeds[0]: Node(self._seeds[0])}
        self._ranges: list[tuple[int, int, str]] = []
        self.is_cluster = False

    @property
    def first(self) -> Node:
        return self._nodes[self._seeds[0]]

    @property
    def urls(self) -> list[str]:
        """The servers that hold slots."""
        return sorted({url for _, _, url in self._ranges}) or [self._seeds[0]]

    async def discover(self) -> None:
        """Ask whether this is a cluster, and if so who holds which slots."""
        [info] = await self._ask([["INFO", "cluster"]])
        self.is_cluster = b"cluster_enabled:1" in cast("bytes", info)
        if self.is_cluster:
            await self._locate()

    async def call(
        self, slot: int, commands: Sequence[Sequence[Encoded]], *, answer_s_max: float = ANSWER_S_MAX
    ) -> list[Reply]:
        """Send commands to the node of a slot; when the slot has moved, nothing has run, so ask again there."""
        try:
            return await self._of(slot).call(commands, answer_s_max=answer_s_max)
        except MovedError:
            await self._locate()
            return await self._of(slot).call(commands, answer_s_max=answer_s_max)
        except BusAway:
            if self.is_cluster:
                await self._relocate_quietly()
            raise

    def url_of(self, slot: int) -> str:
        """The server that holds a slot."""
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
        url = self.url_of(slot)
        return self._nodes.setdefault(url, Node(url)) if url not in self._nodes else self._nodes[url]

    async def _relocate_quietly(self) -> None:
        try:
            await self._locate()
        except BusAway:
            return  # nobody to ask; the caller is about to hear that the bus is away

    async def _locate(self) -> None:
        [slots] = await self._ask([["CLUSTER", "SLOTS"]])
        scheme = self._seeds[0].split("://", 1)[0]
        credentials = self._seeds[0].split("://", 1)[1].rpartition("@")[0]
        at = f"{credentials}@" if credentials else ""
        ranges = []
        for row in cast("list[list[Reply]]", slots):
            host, port = cast("tuple[bytes, int]", cast("list[Reply]", row[2])[:2])
            url = f"{scheme}://{at}{host.decode()}:{port}/0"
            ranges.append((cast("int", row[0]), cast("int", row[1]), url))
        self._ranges = ranges

    async def _ask(self, commands: Sequence[Sequence[Encoded]]) -> list[Reply]:
        """Ask any node that answers: the known ones first, then the seeds."""
        failure: BusAway | None = None
        for url in dict.fromkeys([*self.urls, *self._seeds]):
            try:
                return await self._nodes.setdefault(url, Node(url)).call(commands)
            except BusAway as error:
                failure = error
        assert failure is not None
        raise failure


def _shown(url: str) -> str:
    """The address without the password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
