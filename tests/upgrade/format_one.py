"""Data of format 1, written by plain commands, and what it must be in format 2.

A `World` has subscribers whose batches are in every state that format 1 had. The order in which they were accepted is
the order in which they are made here; many of them in the same millisecond.
"""

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import redis.asyncio as redis

from doubledecker.store import receivers
from doubledecker.store.partitions import Partition, Partitions, slot, tag

HOUR_MS = 3_600_000
# Nobody has a clock by which these are not long ago.
CREATED_AT = 1_700_000_000_000
# How old and new name the keys that a migration may leave in a partition, but for queues, journals and the like.
KEPT = re.compile(
    r"registry|subscribers?(:.+)?|queues|receivers(:ring|:probes|:wake)?|batch:.+|batches:.+|workers|watchers"
    r"|jobs:(scheduled|instant|index):aux|jobs:pending:(index:)?aux(:.+)?"
    r"|jobs:scheduled:main|jobs:instant:main:.+|jobs:pending:main:dead-.+"
)


@dataclass
class Share:
    """What one partition has."""

    index: int
    batches: dict[str, list[str]] = field(default_factory=dict)
    created: dict[str, int] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)
    scheduled: dict[str, int] = field(default_factory=dict)
    retired: list[str] = field(default_factory=list)


@dataclass
class World:
    """A bus of format 1, and how it has to be in format 2."""

    count: int
    now_ms: int
    shares: list[Share] = field(default_factory=list)
    subscribers: dict[str, dict[str, int]] = field(default_factory=dict)


class Writer:
    """Writes one partition of format 1 over one connection."""

    def __init__(self, pipe: Any, prefix: str, world: World, share: Share) -> None:
        self._pipe = pipe
        self._prefix = prefix
        self._world = world
        self._share = share
        self._numbers = itertools.count()

    def key(self, name: str) -> str:
        return self._prefix + name

    def batch(self, token: str, *, at: int, attempts: int = 0, events: int = 2, is_retired: bool = False) -> str:
        """A batch; its UID says nothing of the order, as chance does not."""
        number = next(self._numbers)
        bid = f"{(number * 7919 + 13) % 100_003:08d}-{self._share.index}-{number:08d}"[:20].ljust(20, "x")
        messages = [json.dumps({"topic": "t", "id": f"{bid}-{n}"}) for n in range(events)]
        created_at = CREATED_AT + at
        self._pipe.rpush(self.key(f"batch:{bid}"), token, created_at, attempts, *messages)
        self._pipe.zadd(self.key("batches:index"), {bid: created_at})
        index = f"batches:retired:{'r' * 20}" if is_retired else f"batches:index:{token}"
        self._pipe.zadd(self.key(index), {bid: created_at})
        self._pipe.hset(self.key("batches:bytes"), bid, sum(map(len, messages)))
        self._pipe.hincrby(self.key("batches:gauges:batch"), token, 1)
        self._pipe.hincrby(self.key("batches:gauges:event"), token, events)
        self._share.batches[bid] = [token, str(created_at), str(attempts), str(events), "\n".join(messages)]
        self._share.created[bid] = created_at
        if is_retired:
            self._share.retired.append(bid)
        return bid

    def listed(self, name: str, queue: str, bids: Sequence[tuple[str, str]]) -> None:
        """Put jobs of batches into a list, the next one first."""
        for bid, token in bids:
            self._pipe.lpush(self.key(name), self._job(queue, bid, token))

    def timed(self, queue: str, bid: str, token: str, at: int) -> None:
        self._pipe.zadd(self.key(f"jobs:scheduled:{queue}"), {self._job(queue, bid, token): at})

    def _job(self, queue: str, bid: str, token: str) -> bytes:
        job = msgspec.msgpack.encode(["batch", [bid, token]])
        self._pipe.sadd(self.key(f"jobs:index:{queue}"), job)
        return job

    def expect(self, token: str, bids: Sequence[str]) -> None:
        self._share.lines[token] = list(bids)

    def fill(self, *, size: int) -> None:
        """Every state that there was, `size` batches of each."""
        self._steady(size)
        self._busy(size)
        self._lazy(size)
        self._failing(size)
        self._recovering(size)
        self._gone(size)
        self._aux()
        for name in ("jobs:bell",):
            self._pipe.xadd(self.key(name), {"rung": 1})

    def _steady(self, size: int) -> None:
        """Only what waits for a slot; and one batch whose job was lost."""
        token = "steady-00000000"
        bids = [self.batch(token, at=n // 5) for n in range(size)]
        self.listed("jobs:instant:main", "main", [(bid, token) for bid in bids])
        lost = self.batch(token, at=size)
        self.expect(token, [*bids, lost])

    def _busy(self, size: int) -> None:
        """One in a dead slot's hands, some put back, some parked, some untouched; all of one millisecond."""
        token = "busy-00000000"
        bids = [self.batch(token, at=7) for _ in range(4 * size)]
        jobs = [(bid, token) for bid in bids]
        self.listed("jobs:pending:main:dead-main", "main", jobs[:1])
        self._pipe.sadd(self.key("jobs:pending:index:main"), "dead-main", "dead-idle")
        self.listed("jobs:called:main", "main", jobs[1:size])
        self._pipe.hset(self.key("jobs:called:index"), token, size - 1)
        self.listed(f"jobs:parked:main:{token}", "main", jobs[size : 2 * size])
        self._pipe.sadd(self.key("jobs:parked:index"), token)
        self.listed("jobs:instant:main", "main", jobs[2 * size :])
        self.expect(token, bids)

    def _lazy(self, size: int) -> None:
        """Full batches, and a current one that is not due for an hour."""
        token = "lazy-00000000"
        bids = [self.batch(token, at=3, events=5) for _ in range(size)]
        self.listed("jobs:instant:main", "main", [(bid, token) for bid in bids])
        current = self.batch(token, at=4, events=1)
        self._pipe.sadd(self.key(f"batches:current:{token}"), current)
        self.timed("main", current, token, self._world.now_ms + HOUR_MS)
        self._share.scheduled[f"{current} {token}"] = self._world.now_ms + HOUR_MS
        self.expect(token, bids)

    def _failing(self, size: int) -> None:
        """Retries that are not due for an hour; all else is parked."""
        token = "failing-00000000"
        for n in range(size):
            bid = self.batch(token, at=1, attempts=n + 1)
            self.timed("retry", bid, token, self._world.now_ms + HOUR_MS + n)
            self._share.scheduled[f"{bid} {token}"] = self._world.now_ms + HOUR_MS + n
        bids = [self.batch(token, at=2) for _ in range(size)]
        self.listed(f"jobs:parked:main:{token}", "main", [(bid, token) for bid in bids])
        self._pipe.sadd(self.key("jobs:parked:index"), token)
        self.expect(token, bids)

    def _recovering(self, size: int) -> None:
        """Retries that are overdue: scheduled, in a dead slot's hands, parked, put back, or waiting for a slot."""
        token = "recovering-00000000"
        bids = [self.batch(token, at=n, attempts=2) for n in range(4 * size + 1)]
        jobs = [(bid, token) for bid in bids]
        for n, bid in enumerate(bids[:size]):
            self.timed("retry", bid, token, CREATED_AT + 1000 + n)
        self.listed("jobs:pending:retry:dead-retry", "retry", jobs[size : size + 1])
        self._pipe.sadd(self.key("jobs:pending:index:retry"), "dead-retry")
        self.listed("jobs:called:retry", "retry", jobs[size + 1 : 2 * size])
        self.listed(f"jobs:parked:retry:{token}", "retry", jobs[2 * size : 3 * size])
        self.listed("jobs:instant:retry", "retry", jobs[3 * size : 4 * size])
        # A first try that was due when the last worker died.
        self.timed("main", bids[-1], token, CREATED_AT + 1000)
        self.expect(token, bids)

    def _gone(self, size: int) -> None:
        """What waits to be purged, with jobs that nobody took; and a job of a batch that was dropped."""
        token = "gone-00000000"
        bids = [self.batch(token, at=5, is_retired=True) for _ in range(size)]
        self.listed("jobs:instant:main", "main", [(bid, token) for bid in bids])
        self.listed("jobs:instant:main", "main", [("d" * 20, "steady-00000000")])

    def _aux(self) -> None:
        for n, name in enumerate(("instant", "pending", "scheduled")):
            job = msgspec.msgpack.encode(["purge", [f"gone-{n}", "r" * 20]])
            self._pipe.sadd(self.key("jobs:index:aux"), job)
            if name == "instant":
                self._pipe.lpush(self.key("jobs:instant:aux"), job)
            elif name == "pending":
                self._pipe.lpush(self.key("jobs:pending:aux:dead-aux"), job)
                self._pipe.sadd(self.key("jobs:pending:index:aux"), "dead-aux")
            else:
                self._pipe.zadd(self.key("jobs:scheduled:aux"), {job: CREATED_AT})


SUBSCRIBERS: dict[str, dict[str, int]] = {
    "steady-00000000": {"concurrency": 4},
    "busy-00000000": {"concurrency": 1},
    "lazy-00000000": {"concurrency": 7, "failures": 0},
    "failing-00000000": {"concurrency": 5, "failures": 3, "failing_since": CREATED_AT + 5},
    # 0.1.0 did not keep since when one was failing.
    "recovering-00000000": {"concurrency": 2, "failures": 1, "retry_at": CREATED_AT, "last_attempted_at": CREATED_AT},
    # It has nothing waiting.
    "quiet-00000000": {"concurrency": 3, "failures": 2, "retry_at": CREATED_AT, "failing_since": CREATED_AT},
    "bulk-00000000": {"concurrency": 3},
}


async def write(url: str, count: int, *, size: int, is_cluster: bool = False, beat_at: int = CREATED_AT) -> World:
    """Fill an empty store."""
    async with redis.from_url(url) as client:
        seconds, micros = await client.time()
    world = World(count, now_ms=seconds * 1000 + micros // 1000)
    world.subscribers = {token: dict(fields) for token, fields in SUBSCRIBERS.items()}
    world.subscribers["failing-00000000"]["retry_at"] = world.now_ms + HOUR_MS
    is_tagged = count > 1 or is_cluster
    kind = redis.RedisCluster if is_cluster else redis.Redis
    async with kind.from_url(url) as client:
        for index in range(count):
            prefix = f"rm:{{{tag(index, count)}}}:" if is_tagged else "rm:"
            share = Share(index)
            world.shares.append(share)
            pipe = client.pipeline(transaction=False)
            writer = Writer(pipe, prefix, world, share)
            writer.fill(size=size)
            for name in ("main", "retry", "aux", "idle"):
                pipe.hset(writer.key("workers"), f"dead-{name}", beat_at)
            pipe.hset(writer.key("registry"), "version", 20 + index)
            if index == 0:
                _write_home(pipe, writer, world, beat_at)
            await pipe.execute()
        await client.hset("rm:layout", "partitions", count)
    return world


def _write_home(pipe: Any, writer: Writer, world: World, beat_at: int) -> None:
    for token, fields in world.subscribers.items():
        pipe.sadd(writer.key("subscribers"), token)
        asked = {"callback": "http://127.0.0.1:9/", "uuid": token, "timeout": 0, "max_events": 2, "max_bytes": 10_000}
        pipe.hset(writer.key(f"subscriber:{token}"), mapping={**asked, "tier": "live", "health_points": 90, **fields})
    pipe.zadd(writer.key("holds:busy-00000000"), {"dead-main": CREATED_AT})
    pipe.zadd(writer.key("holds:@hooks"), {"w" * 20: CREATED_AT})
    pipe.zadd(writer.key("invitations:busy-00000000"), {"i": CREATED_AT})
    pipe.hset(writer.key("waiting:busy-00000000"), "0", "mark")
    pipe.hset(writer.key("chains"), "dead-main", b"\x92")
    pipe.zadd(writer.key("watchers"), {"dead-watch": beat_at})
    hooks = {"name": "hooks", "owner": "o", "patterns": [".*"], "callback": "http://127.0.0.1:9/", "concurrency": 6}
    pipe.hset(writer.key("queues"), "hooks", json.dumps(hooks))
    failing = {"callback": "http://127.0.0.1:9/", "failures": 4, "retry_at": CREATED_AT, "failing_since": CREATED_AT}
    pipe.hset(writer.key("subscriber:@hooks"), mapping=failing)


async def check(partitions: Partitions, world: World) -> None:
    """Everything is there once, in the order in which it was accepted, and nothing of format 1 is left."""
    found = await partitions.layout()
    assert (found.format, found.count, found.was_migrated) == (2, world.count, True)
    for partition, share in zip(partitions.all, world.shares, strict=True):
        await _check_batches(partition, share)
        await _check_jobs(partition, share)
        await _check_receivers(partitions, partition, world, share)
        names = {key.removeprefix(partition.prefix) for key in await keys(partition)} - {"layout"}
        left = {name for name in names if not KEPT.fullmatch(name)}
        assert left == set()
        registry = await texts(partition, "HGETALL", "registry")
        assert registry == ["version", "format 2", "routing_version", str(20 + share.index)]
    for token in (*world.subscribers, "@hooks"):
        fields = await texts(partitions.home, "HKEYS", f"subscriber:{token}")
        assert not {"failures", "retry_at", "failing_since"} & {*fields}


async def _check_batches(partition: Partition, share: Share) -> None:
    for bid, parts in share.batches.items():
        assert await texts(partition, "LRANGE", f"batch:{bid}", 0, -1) == parts
    assert len(await texts(partition, "ZRANGE", "batches:index", 0, -1)) == len(share.batches)
    assert {*await texts(partition, "ZRANGE", f"batches:retired:{'r' * 20}", 0, -1)} == {*share.retired}


async def _check_jobs(partition: Partition, share: Share) -> None:
    """Each batch that waits for somebody has one job: in a line, or by its time."""
    lines = {
        key.removeprefix(partition.prefix).removeprefix("jobs:instant:main:")
        for key in await keys(partition)
        if "jobs:instant:main:" in key
    }
    assert lines == {*share.lines}
    for token, bids in share.lines.items():
        assert list(reversed(await texts(partition, "LRANGE", f"jobs:instant:main:{token}", 0, -1))) == bids, token
    flat = await texts(partition, "ZRANGE", "jobs:scheduled:main", 0, -1, "WITHSCORES")
    assert dict(zip(flat[0::2], map(int, flat[1::2]), strict=True)) == share.scheduled
    jobs = [*itertools.chain.from_iterable(share.lines.values()), *(job.split()[0] for job in share.scheduled)]
    assert sorted(jobs) == sorted({*share.batches} - {*share.retired})
    aux = [f"jobs:{where}" for where in ("instant:aux", "pending:aux:dead-aux")]
    assert [await partition.command("LLEN", partition.key(name)) for name in aux] == [1, 1]
    assert await partition.command("ZCARD", partition.key("jobs:scheduled:aux")) == 1
    assert await partition.command("SCARD", partition.key("jobs:index:aux")) == 3


async def _check_receivers(partitions: Partitions, partition: Partition, world: World, share: Share) -> None:
    """Permits are divided, failures are kept, and each one is where it may be called from."""
    known = await receivers.states(partition, [*world.subscribers, "@hooks", "gone-00000000"])
    packed = await texts(partition, "HKEYS", "receivers")
    failing = {token for token, fields in world.subscribers.items() if fields.get("failures")}
    hooks = {"@hooks"} if partitions.keeper("@hooks") is partition else set()
    assert {*packed} == {*share.lines} | failing | hooks
    for token in {*share.lines} | failing:
        fields, state = world.subscribers[token], known[token]
        assert state.limit == receivers.permits(fields["concurrency"], partition)
        assert (state.held, state.leased, state.refusals, state.prober) == (0, 0, 0, "")
        assert state.failures == fields.get("failures", 0)
        assert state.retry_at == (fields["retry_at"] if state.failures else 0)
        assert state.failing_since == (fields.get("failing_since") or CREATED_AT if state.failures else 0)
    if hooks:
        assert (known["@hooks"].limit, known["@hooks"].failures, known["@hooks"].seat) == (6, 4, 0)
    ring, probes, waiting = [await texts(partition, "ZRANGE", f"receivers:{name}", 0, -1) for name in SEATS]
    assert sorted(ring) == ["busy-00000000", "lazy-00000000", "steady-00000000"]
    assert (probes, waiting) == (["recovering-00000000"], ["failing-00000000"])


SEATS = ("ring", "probes", "wake")


async def jobs_of(partition: Partition) -> list[str]:
    """The batches that have a job, each as often as it has one."""
    lines = [key for key in await keys(partition) if "jobs:instant:main:" in key]
    found = [
        bid for key in lines for bid in await texts(partition, "LRANGE", key.removeprefix(partition.prefix), 0, -1)
    ]
    return found + [job.split()[0] for job in await texts(partition, "ZRANGE", "jobs:scheduled:main", 0, -1)]


async def keys(partition: Partition) -> list[str]:
    """All keys of a partition."""
    found: set[str] = set()
    cursor = b"0"
    while True:
        cursor, some = await partition.command("SCAN", cursor, "COUNT", 1000, "MATCH", f"{partition.prefix}*")
        found |= {key.decode() for key in some}
        if cursor == b"0":
            return sorted(found)


async def texts(partition: Partition, verb: str, name: str, *words: str | int) -> list[str]:
    return [each.decode() for each in await partition.command(verb, partition.key(name), *words)]


async def everything(partitions: Partitions) -> dict[str, bytes]:
    """All that the store holds, to compare."""
    found = {}
    for partition in partitions.all:
        for key in await keys(partition):
            if slot(key) == slot(partition.prefix) or not partition.is_clustered:
                found[key] = await partition.command("DUMP", key)
    return found
