"""Partitions: complete keyspaces of the bus, each whole on one node, so that every script is atomic.

One partition has plain keys (`rm:…`). Several, or any number on a Redis Cluster, carry a hash tag
(`rm:{0}:…`) chosen so that their slots lie evenly over the 16 384: on n equal nodes, n partitions sit one on each.
Partition 0 is *home*: it alone holds the registry (tokens, topics, subscribers) and what is kept per subscriber
over all partitions (health).
"""

import asyncio
import binascii
import contextlib
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import cast

from redis.exceptions import NoScriptError

from doubledecker import log
from doubledecker.errors import BusAway, ServerUnfit
from doubledecker.model.event import DEFAULT_TENANT, EventKind
from doubledecker.store import layout, server_facts, shared_connection
from doubledecker.store.layout import FORMAT, DataLayout
from doubledecker.store.nodes import ANSWER_S_MAX, Guard, Nodes
from doubledecker.store.scripts import Encoded, Packable, Script, Value, load
from doubledecker.store.shared_connection import Packed, Reply, pack

_log = log.get("store")

# What brings data of an older format to ours.
Migrate = Callable[["Partitions"], Awaitable[None]]

SLOTS = 16_384
_COMMAND, _LAYOUT = load("command_run"), load("layout_save")
# Commands in one round trip; some tenths of a millisecond for the server.
_COMMANDS_MAX = 500


class Partition:
    """One keyspace: runs scripts and commands on the node that holds it."""

    def __init__(self, nodes: Nodes, *, index: int, count: int, prefix: str) -> None:
        self.index = index
        # How many there are: what a receiver may have in all is divided by it.
        self.count = count
        self.prefix = prefix
        # Tests move the bus's time with it; production leaves it at zero.
        self.shift_ms = 0
        self._nodes = nodes
        self._slot = slot(prefix)
        self._fronts: dict[str, Packed] = {}

    def key(self, name: str) -> str:
        """The full name of one of this partition's keys."""
        return self.prefix + name

    async def run(self, script: Script, /, *rest: Encoded, **values: Value) -> Reply:
        """Run a script once; a server that lost it (a restart does that) is given it again."""
        arguments = pack(script.arguments(values, rest, prefix=self.prefix, shift_ms=self.shift_ms))
        front = self._fronts.get(script.name) or self._front(script, values)
        try:
            try:
                [reply] = await self._nodes.call(self._slot, [front + arguments])
            except NoScriptError:
                whole = pack(["EVAL", script.text, *script.keys(values, prefix=self.prefix)])
                [reply] = await self._nodes.call(self._slot, [whole + arguments])
        except BusAway as error:
            error.args = (script.located(str(error)),)
            raise
        return reply

    def _front(self, script: Script, values: Mapping[str, Value]) -> Packed:
        """A call up to its arguments; kept for a script that always has the same keys."""
        front = pack(["EVALSHA", script.sha, *script.keys(values, prefix=self.prefix)])
        if not script.placeholders:
            self._fronts[script.name] = front
        return front

    async def command(self, *words: Encoded) -> Reply:
        [reply] = await self._nodes.call(self._slot, [words])
        return reply

    async def write(self, verb: str, key: str, *words: Encoded) -> Reply:
        """Run one plain command that writes a little to a key of this partition, also when memory is full."""
        return await self.run(_COMMAND, *words, verb=verb, name=key.removeprefix(self.prefix))

    async def commands(self, commands: Sequence[Sequence[Encoded]]) -> list[Reply]:
        """Run plain commands, some hundreds in a round trip: what others ask does not wait for all of them."""
        replies: list[Reply] = []
        for first in range(0, len(commands), _COMMANDS_MAX):
            replies += await self._nodes.call(self._slot, commands[first : first + _COMMANDS_MAX])
        return replies

    async def block(self, *words: Encoded, block_s: float) -> Reply:
        """Run a command that waits on the server for up to `block_s`; never cancel it, let it end."""
        return await self._nodes.block(self._slot, words, block_s=block_s)

    async def listen(self, channel: str, on_message: Callable[[bytes], None]) -> None:
        """Call `on_message` with every message of a channel of this partition, until the server is away."""
        await self._nodes.listen(self._slot, self.key(channel), on_message)

    async def everywhere(self, commands: Sequence[Sequence[Encoded]]) -> list[list[Reply]]:
        """Run commands on every server of the bus, and not only on the one that holds this partition."""
        return await self._nodes.everywhere(commands)

    async def time_ms(self) -> int:
        """The time that scripts see."""
        seconds, micros = cast("list[bytes]", await self.command("TIME"))
        return int(seconds) * 1000 + int(micros) // 1000 + self.shift_ms

    @property
    def is_clustered(self) -> bool:
        """Whether there are other servers, of one Redis Cluster."""
        return self._nodes.is_cluster

    @property
    def server(self) -> str:
        """Which server holds it; partitions with the same one share its memory."""
        return self._nodes.url_of(self._slot)


class Partitions:
    def __init__(self, nodes: Nodes, all_: Sequence[Partition], *, namespace: str) -> None:
        self._nodes = nodes
        self._namespace = namespace
        self.all = tuple(all_)
        self.home = self.all[0]

    @classmethod
    async def connect(
        cls, url: str, *, namespace: str, count: int, guard: Guard | None = None, migrate: Migrate | None = None
    ) -> "Partitions":
        """Find the servers and check that they fit: version, eviction policy, format and number of partitions.

        Data of an older format is migrated by `migrate`; without that it is refused.
        """
        nodes = Nodes(url, guard)
        async with contextlib.AsyncExitStack() as held:
            # A process that waits for a server asks it again and again: a try that fails must leave no connection.
            held.push_async_callback(nodes.close)
            await nodes.discover()
            tagged = count > 1 or nodes.is_cluster
            prefixes = [f"{namespace}{{{tag(i, count)}}}:" if tagged else namespace for i in range(count)]
            all_ = [Partition(nodes, index=i, count=count, prefix=prefix) for i, prefix in enumerate(prefixes)]
            partitions = cls(nodes, all_, namespace=namespace)
            await partitions._check_server()
            await partitions._check_layout(migrate)
            held.pop_all()
        return partitions

    def of(self, kind: EventKind, key: str = "") -> Partition:
        """Where an event belongs: with its tenant, else with its key, else with its topic."""
        if len(self.all) == 1:
            return self.home
        anchor = kind.tenant if kind.tenant != DEFAULT_TENANT else key or kind.topic
        return self.all[zlib.crc32(anchor.encode()) % len(self.all)]

    def keeper(self, receiver: str) -> Partition:
        """Where the permits of a queue's receiver are counted: its batches are of all partitions."""
        return self.all[zlib.crc32(receiver.encode()) % len(self.all)]

    def by_server(self) -> list[list[Partition]]:
        """The partitions of each server, which share its memory."""
        found: dict[str, list[Partition]] = {}
        for partition in self.all:
            found.setdefault(partition.server, []).append(partition)
        return list(found.values())

    async def is_durable(self) -> bool:
        """Whether every server has written to disk before it answers."""
        wanted = [[b"appendonly", b"yes"], [b"appendfsync", b"always"]]
        asked = [["CONFIG", "GET", "appendonly"], ["CONFIG", "GET", "appendfsync"]]
        return all([await partition.commands(asked) == wanted for partition in self.all])

    async def layout(self) -> DataLayout:
        """How the data is laid out; where there is none yet, it is from here on as we do."""
        key = self._namespace + "layout"
        [kept] = await self._nodes.call(slot(key), [["HGETALL", key]])
        # Written only when it is missing: a process must be able to start when nothing can be written.
        fields = shared_connection.texts(kept or await self.save_layout(layout.fresh(len(self.all)), is_first=True))
        asked = [partition.command("HGET", partition.key("registry"), "version") for partition in self.all]
        return layout.read(fields, cast("list[bytes | None]", await asyncio.gather(*asked)))

    async def save_layout(self, fields: Sequence[Packable], *, is_first: bool = False) -> list[bytes]:
        """Write how the data is laid out, `is_first` only if there is none; returns all fields with their values."""
        values: dict[str, Value] = {"fields": fields, "is_first": int(is_first)}
        keys = _LAYOUT.keys(values, prefix=self._namespace)
        arguments = _LAYOUT.arguments(values, (), prefix=self._namespace, shift_ms=0)
        call = ["EVAL", _LAYOUT.text, *keys, *arguments]
        [kept] = await self._nodes.call(slot(self._namespace + "layout"), [call])
        return cast("list[bytes]", kept)

    async def close(self) -> None:
        await self._nodes.close()

    async def _check_server(self) -> None:
        for partition in self.all:
            info, policy = await partition.commands([["INFO", "server"], ["CONFIG", "GET", "maxmemory-policy"]])
            fields = dict(line.split(":", 1) for line in cast("bytes", info).decode().splitlines() if ":" in line)
            version = fields.get("valkey_version") or fields["redis_version"]
            least = server_facts.VERSIONS_MIN["Valkey" if "valkey_version" in fields else "Redis"]
            if int(version.split(".")[0]) < least:
                raise ServerUnfit(f"the server is version {version}; Redis 7 or Valkey 8 is the least")
            value = cast("list[bytes]", policy)[1].decode()
            if value != server_facts.POLICY:
                raise ServerUnfit(f"maxmemory-policy is {value!r}: events would vanish; set it to 'noeviction'")

    async def _check_layout(self, migrate: Migrate | None) -> None:
        found = await self.layout()
        found.check(len(self.all))
        if found.format == FORMAT:
            return
        if migrate is None:
            raise ServerUnfit(
                f"this data has format {found.format}, and this version uses {FORMAT}: start `doubledecker up`, `web` "
                "or `worker`, which migrate it; see docs/operations.md on upgrading"
            )
        await migrate(self)


async def kept_count(url: str, *, namespace: str) -> int | None:
    """How many partitions the data at a server has; None when there is none."""
    nodes = Nodes(url)
    key = namespace + "layout"
    try:
        await nodes.discover()
        [kept] = await nodes.call(slot(key), [["HGETALL", key]])
    finally:
        await nodes.close()
    return layout.read(shared_connection.texts(kept), ()).count if kept else None


async def wait_for(
    url: str,
    *,
    namespace: str,
    count: int,
    patience_s: float,
    guard: Guard | None = None,
    stop: asyncio.Event | None = None,
    migrate: Migrate | None = None,
) -> Partitions:
    """Connect, trying again while the server is away, as it is while it starts.

    A process that serves passes its stop event: it then logs that it waits, and waits no longer than until it is set.
    """
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    is_waiting = False
    while True:
        try:
            connected = await Partitions.connect(url, namespace=namespace, count=count, guard=guard, migrate=migrate)
        except BusAway as error:
            waited_s = loop.time() - began_at
            if waited_s >= patience_s or (stop is not None and stop.is_set()):
                raise
            if stop is not None and not is_waiting:
                is_waiting = True
                _log.warning("redis.awaited", error=str(error), waited_s=round(waited_s, 3), patience_s=patience_s)
            await asyncio.sleep(min(ANSWER_S_MAX, 0.1))
        else:
            if is_waiting:
                _log.info("redis.reached")
            return connected


def slot(key: str) -> int:
    """The Redis Cluster slot of a key: of its hash tag, when it has one."""
    start = key.find("{")
    end = key.find("}", start + 1)
    tagged = key[start + 1 : end] if start >= 0 and end > start + 1 else key
    return binascii.crc_hqx(tagged.encode(), 0) % SLOTS


def tag(index: int, count: int) -> str:
    """The first of `0`, `0-1`, `0-2` … whose slot lies in the index-th of `count` equal ranges."""
    low, high = index * SLOTS // count, (index + 1) * SLOTS // count
    candidates = (str(index) if n == 0 else f"{index}-{n}" for n in range(SLOTS))
    return next(candidate for candidate in candidates if low <= slot(candidate) < high)
