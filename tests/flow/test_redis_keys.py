"""docs/redis-keys.md against a live server: every key is documented, and every documented key is real."""

import asyncio
import hashlib
import re
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import redis.asyncio as redis

from conftest import Topology
from doubledecker.bus.headroom import ROOM_BYTES_MIN
from doubledecker.delivery import parts
from doubledecker.model import audit as records
from doubledecker.model import token as tokens
from doubledecker.model.dead_letter import DeadLetter
from doubledecker.model.event import EventKind
from doubledecker.model.job import Job
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.settlement import DELIVERED, RETURNED, Settlement
from doubledecker.model.step import RunReport
from doubledecker.model.summary import Moment, Summary
from doubledecker.model.token import Caller
from doubledecker.model.uid import uid
from doubledecker.store import (
    audit,
    bulk,
    dead_letters,
    deliveries,
    events,
    jobs,
    journal,
    losses,
    pipeline,
    pipeline_jobs,
    queues,
    quotas,
    receivers,
    registry,
    sessions,
    write_offsets,
)
from doubledecker.store.deliveries import Settled
from doubledecker.store.events import PublishLimits
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.store.queues import LeasedMessage
from doubledecker.store.shared_connection import words
from doubledecker.store.write_offsets import Fence, RowRefusal, Write
from doubledecker.worker import process
from harness import ROOT_KEY, TestBus, a_bus, an_event, basic
from letters import a_letter
from receiver import Receiver
from signing_in import a_browser
from watching import watching

PAGE = Path(__file__).parents[2] / "docs" / "redis-keys.md"
PLACEHOLDERS = {
    # A name may hold a colon; none here does, so that each key has one reading.
    "token": r"[a-z0-9_-]+-[0-9a-f]{8}",
    "publisher": r"(?:doubledecker\.root|(?:doubledecker\.)?[a-z0-9_-]+-[0-9a-f]{8})",
    "name": r"[a-z_.]+",
    "kind": r"(?:tests|changes)",
    "who": r"(?:address:[0-9a-f.:]+|token:[0-9a-f]{16})",
    "ring": r"(?:seconds|tens|minutes)",
    "digest": r"[0-9a-f]{64}",
    "q": r"(?:main|aux)",
    "bid": r"[A-Za-z0-9_-]{20}(?:\.[01]+)?",
    "slot": r"(?:aux-)?[A-Za-z0-9_-]{20}",
    "fid": r"[A-Za-z0-9_-]{20}",
    "line": r"(?:own|others|batches):(?:doubledecker\.)?(?:root|[a-z0-9_-]+-[0-9a-f]{8})",
    "rid": r"[A-Za-z0-9_-]{20}",
    "nonce": r"[0-9a-f]+",
    "queue": r"[a-z0-9_.-]+",
    "facet": r"[A-Za-z0-9_.-]+",
    "task": r"[0-9a-f]{32}",
    "write": r"[0-9a-f]{32}",
    "lane": r"[A-Za-z0-9_.-]+[/:][A-Za-z0-9_.-]+",
    "receiver": r"(?:[a-z0-9_-]+-[0-9a-f]{8}|@[a-z0-9_.-]+)",
    "field": r"(?:topic|tenant|reason|status)",
    "value": r"[A-Za-z0-9_.-]+",
}
DELIVERY = rf"{PLACEHOLDERS['bid']} {PLACEHOLDERS['token']}"
TIMED = (
    "batches:index",
    "batches:index:{token}",
    "batches:retired:{rid}",
    "jobs:scheduled:main",
    "jobs:scheduled:aux",
    "receivers:wake",
    "permits:{token}",
    "ids:{publisher}",
    "queue:pending:{queue}",
    "queue:scheduled:{queue}",
    "queue:wake:{queue}",
    "permits:@{queue}",
    "permits:settled:{token}",
    "permits:settled:@{queue}",
    "watchers",
    "processes",
    "streams:{token}",
)
AN_HOUR_MS = 3_600_000
# What the second part of the walk brings about.
LATER = frozenset(
    (
        "topics:deleted",
        "pipeline",
        "measures",
        "fence:{task}",
        "refused:{task}",
        "write:{write}",
        "replays",
        "erasures",
        "replay:pace:{rid}",
        "replay:ledger:{rid}",
        "journal:gaps",
        "jobs:pending:aux:{slot}",
        "jobs:scheduled:aux",
        "receivers:probes",
        "receivers:wake",
        "notices",
        "order:held:{token}",
        "order:holders:{token}",
        "order:behind:{token}:{lane}",
        "order:let_go:{token}",
        "order:waiting:{token}:{lane}",
    )
)
# Receivers of an event of this size are more than one publish call may write to.
WIDE_RECEIVERS = 20
WIDE_BYTES = 60_000


@dataclass(frozen=True)
class Row:
    """A key as the page describes it."""

    pattern: str
    type: str
    where: str
    holds: str

    @property
    def is_match(self) -> re.Pattern[str]:
        parts = re.split(r"\{(\w+)\}", self.pattern)
        return re.compile("".join(PLACEHOLDERS[p] if i % 2 else re.escape(p) for i, p in enumerate(parts)))

    @property
    def fields(self) -> set[str]:
        """The hash fields that it names."""
        return set(re.findall(r"`([a-z_]+)`", self.holds))


@dataclass(frozen=True)
class Found:
    """A key as it was met on a server."""

    name: str
    type: str
    where: str
    value: Any


@cache
def documented(title: str = "Keys") -> list[Row]:
    section = PAGE.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines() if "`" in line]
    return [Row(pattern.strip("`| "), type_, where, holds) for pattern, type_, where, holds, *_ in rows]


@cache
def row_of(name: str) -> Row:
    """The one row that describes a key."""
    matches = [row for row in documented() if row.is_match.fullmatch(name)]
    assert len(matches) == 1, f"{name} is described by {[row.pattern for row in matches]}"
    return matches[0]


def unseen(keys: Iterable[Found]) -> set[str]:
    """What the page describes and nobody has met."""
    return {row.pattern for row in documented()} - {row_of(key.name).pattern for key in keys}


async def keys_of(topology: Topology, partitions: Partitions) -> list[Found]:
    """Everything on the servers, with the namespace and the partition's tag cut off."""
    found = []
    for url in topology.node_urls:
        async with redis.from_url(url, protocol=2) as client:
            async for key in client.scan_iter(count=1000):
                type_ = (await client.type(key)).decode()
                value = await _value(client, key, type_)
                if value:  # it may have gone between the two commands
                    found.append(_found(key.decode(), type_, value, partitions))
    return found


def _found(key: str, type_: str, value: Any, partitions: Partitions) -> Found:
    assert key.startswith("rm:")
    if key == "rm:layout":
        return Found("layout", type_, "outside", value)
    partition = next(partition for partition in partitions.all if key.startswith(partition.prefix))
    where = "home" if partition is partitions.home else "elsewhere"
    return Found(key.removeprefix(partition.prefix), type_, where, value)


async def _value(client: redis.Redis, key: bytes, type_: str) -> Any:
    read = {
        "hash": client.hgetall,
        "zset": lambda name: client.zrange(name, 0, -1, withscores=True),
        "list": lambda name: client.lrange(name, 0, -1),
        "set": client.smembers,
        "stream": client.xrange,
        "string": client.get,
    }
    return await read[type_](key) if type_ in read else None


async def walk(bus: TestBus, topology: Topology, good: Receiver, bad: Receiver, stuck: Receiver) -> list[Found]:
    """A flow that meets every kind of key; first without a worker, so that what waits can be seen waiting."""
    await fill(bus, good, bad, stuck)
    seen = await keys_of(topology, bus.partitions)

    slow = {"backoff_base_ms": 60_000, "backoff_cap_ms": 60_000}
    async with a_worker(bus, **slow, monitor_interval_s=0.1), watching(bus.settings):
        await stuck.until_attempts(1)
        await bad.until_attempts(1)
        # The wide event, and what else the good one gets: its own, and what came with an idempotency key.
        await good.until_events(WIDE_RECEIVERS + 6 * 3 + 1)
        async with asyncio.timeout(10):
            while not unseen(seen) <= LATER:
                seen += await keys_of(topology, bus.partitions)
    await jobs.push(bus.partitions.home, Job("repair"))
    await jobs.take(bus.partitions.home, [uid()], process="none")
    await jobs.push(bus.partitions.home, Job("repair", ("later",)), delay_ms=AN_HOUR_MS)
    await make_failing(bus)
    await hold_keys(bus)
    seen += await keys_of(topology, bus.partitions)
    await have_probes_due(bus.partitions.home)
    await registry.claim_topics(bus.partitions.home, ["ended"], publisher="lazy-01234567")
    await registry.delete_topic(bus.partitions.home, "ended", publisher="")
    seen += await keys_of(topology, bus.partitions)
    for partition in bus.partitions.all:
        fence = Fence("0" * 32, batch=0, first=0, last=0, digest="", barred={RowRefusal("topic", "users"): [0]})
        await events.publish(partition, [], version=await version_of(partition), limits=PublishLimits(), fence=fence)
    await write_offsets.complete(bus.partitions.home, Write("0" * 32, batch=0), tasks=1)
    await ask_for_jobs(bus)
    await pipeline.report_run(bus.partitions.home, RunReport("running", at=0, began_at=0))
    await pipeline.tell_measures(bus.partitions.home, Summary("minute", 0, 0, 0, Moment(0), [], [], [], [], []))
    for partition in bus.partitions.all:
        await journal.register_archive(partition, "lake")
        await journal.trim(partition, "events", bytes_max=1)
    async with a_worker(bus, redis_max_mem_bytes=ROOM_BYTES_MIN, redis_min_free_bytes=0):
        async with asyncio.timeout(10):
            while not any(key.name == "memory" for key in await keys_of(topology, bus.partitions)):
                await asyncio.sleep(0.05)
    return seen + await keys_of(topology, bus.partitions)


async def fill(bus: TestBus, good: Receiver, bad: Receiver, stuck: Receiver) -> None:
    """Subscribers of every kind, and something that waits for each."""
    publisher = await bus.token("publisher")
    await bus.subscribe(await bus.token("good"), good.url, "widgets", timeout=0, max=2)
    await bus.subscribe(await bus.token("lazy"), good.url, "gadgets", timeout=AN_HOUR_MS)
    await bus.subscribe(await bus.token("bad"), bad.url, "gizmos", timeout=0)
    await bus.subscribe(await bus.token("stuck"), stuck.url, "gears", timeout=0, max=1, concurrency=1)
    await bus.subscribe(await bus.token("bulk"), good.url, "widgets", tier="bulk")
    gone = await bus.token("gone")
    await bus.subscribe(gone, good.url, "gadgets", timeout=AN_HOUR_MS)
    for n in range(WIDE_RECEIVERS):
        await bus.subscribe(await bus.token(f"wide-{n}"), good.url, "wide", timeout=0)
    for tenant in ("t0", "t1", "t2", "t3", "t4", "t5"):
        for topic in ("widgets", "gadgets", "gizmos", "gears"):
            mine = [an_event(n, topic, tenant=tenant, id=f"{tenant}-{topic}-{n}") for n in range(3)]
            await bus.publish(publisher, mine)
    await bus.publish(publisher, [an_event(0, "wide", data="x" * WIDE_BYTES)])
    for partition in bus.partitions.all:
        await dead_letters.add(partition, "lazy-01234567", [a_letter(1)])
        # As 0.1.0 left it.
        await partition.write(
            "RPUSH", partition.key(f"fanout:{uid()}"), msgspec.json.encode(an_event()), "gone-01234567"
        )
    await lose_some(bus)
    await publish_with_key(bus, publisher)
    await ask_with_digest(bus, "publisher", publisher)
    await unsubscribe(bus, gone)
    await delete_queue(bus, publisher)
    await use_queues(bus, publisher)
    await hold_key_of_queue(bus)
    await sign_in(bus, publisher)
    begun = records.begun("r", 2**53, "queue.changed", Caller("shop-01234567", "shop"))
    await audit.begin(bus.partitions.home, begun)
    await quotas.pay(bus.partitions.home, "tester-00000000", kind="tests", minute_max=1)
    await quotas.enter(bus.partitions.home, "listener-00000000", "stream", most=0)


async def sign_in(bus: TestBus, secret: str) -> None:
    """Begin a session of the dashboard, and keep a code for another."""
    await sessions.keep_code(bus.partitions.home, "code")
    async with a_browser(bus, secret):
        pass


async def lose_some(bus: TestBus) -> None:
    """A subscriber for which more waits than it lets wait."""
    [token] = [row["subscriber"] for row in await bus.get("/subscribers") if row["subscriber"].startswith("stuck-")]
    for partition in bus.partitions.all:
        await losses.drop_oldest(partition, token, bytes_enough=1, created_max=None)


async def ask_for_jobs(bus: TestBus) -> None:
    for path, body in (("replays", {"to_queue": "tasks"}), ("erasures", {"tenant": "t0"})):
        async with bus.http.post(f"{bus.url}/{path}", json=body, headers=basic(ROOT_KEY)) as response:
            assert response.status == 202, await response.text()
            id_ = (await response.json())["id"]
    await pipeline_jobs.keep_turn(bus.partitions.home, id_, count=100, rate=10)
    await bulk.open_ledger(bus.partitions, f"replay:ledger:{id_}")


async def delete_queue(bus: TestBus, secret: str) -> None:
    """A queue that had messages."""
    url, headers = f"{bus.url}/queues/gone", basic(ROOT_KEY)
    async with bus.http.put(url, json={"pattern": ".*:errands:.*"}, headers=headers) as response:
        assert response.status == 201, await response.text()
    await bus.publish(secret, [an_event(n, "errands", key=f"k{n}") for n in range(20)])
    async with bus.http.delete(f"{url}?discard=1", headers=headers) as response:
        assert response.status == 204, await response.text()


async def use_queues(bus: TestBus, secret: str) -> None:
    """A queue in every state at once: its facets in each place, its messages in each hand."""
    body = {"pattern": ".*:jobs:.*", "attempts_max": 2, "callback": "http://127.0.0.1:9/", "charge": "count"}
    await send(bus, "PUT", "", body)
    for tenant, rule in (("parked", {"paused": True}), ("woken", {"rate_per_s": 0.01}), ("served", {"weight": 2})):
        await send(bus, "PATCH", f"/facets/{tenant}", rule)
    tenants = ["parked", "served", "woken", "dead", "later", "held", "idle"]
    await bus.publish(secret, [an_event(n, "jobs", tenant=tenant) for n in range(2) for tenant in tenants])
    pulled: dict[str, dict[str, Any]] = {}
    async with asyncio.timeout(10):
        while pulled.keys() != {"served", "woken", "dead", "later", "held", "idle"}:
            for message in (await send(bus, "POST", "/pull", {"max": 1}))["messages"]:
                pulled[message["tenant"]] = {"id": message["id"], "attempt": message["attempt"]}
    await send(bus, "POST", "/nack", {"messages": [pulled["dead"]]})
    await send(bus, "POST", "/nack", {"messages": [pulled["later"]], "delay_ms": AN_HOUR_MS})
    again = await send(bus, "POST", "/pull", {"max": 20})
    in_hand = {tenant: [each for each in again["messages"] if each["tenant"] == tenant] for tenant in ("dead", "idle")}
    named = {
        tenant: [{"id": each["id"], "attempt": each["attempt"]} for each in messages]
        for tenant, messages in in_hand.items()
    }
    await send(bus, "POST", "/nack", {"messages": named["dead"]})
    await redrive(bus)
    await send(bus, "POST", "/ack", {"messages": [pulled["idle"], *named["idle"]]})
    await use_permits(bus, RegisteredQueue("tasks", "", (), callback="http://127.0.0.1:9/").receiver.token)
    # More than the head of a line holds.
    await bus.publish(secret, [an_event(n, "jobs", tenant="served") for n in range(20)])


async def hold_key_of_queue(bus: TestBus) -> None:
    """An ordered queue, of which a message was dropped that others of its key wait for."""
    home, queue = bus.partitions.home, RegisteredQueue("orderly", "", (".*:chores:.*",), ordered=True)
    body = {"pattern": list(queue.patterns), "ordered": True}
    async with bus.http.put(f"{bus.url}/queues/orderly", json=body, headers=basic(ROOT_KEY)) as response:
        assert response.status == 201, await response.text()
    while bus.partitions.of(EventKind("chores", "update", tenant := uuid.uuid4().hex)) is not home:
        pass
    await bus.publish(await bus.token("chore-maker"), [an_event(n, "chores", tenant=tenant, key="a") for n in range(3)])
    [first] = (await queues.pull(home, queue, most=9, lease_ms=AN_HOUR_MS)).messages
    await queues.nack(home, queue, [LeasedMessage(first.id, first.attempt)], why="")
    await queues.drop_oldest(home, queue, messages_max=1, bytes_enough=1)


async def redrive(bus: TestBus) -> None:
    """A job of which a first letter is done, in each partition, and which is yet to go on."""
    await dead_letters.add(bus.partitions.home, "@tasks", [a_letter(n, topic="none") for n in (8, 9)])
    asked = await send(bus, "POST", "/dead/purge", {"rate_per_s": 0.01, "topic": "none"})
    for partition in bus.partitions.all:
        letter = a_letter(7, id=f"{partition.index}-7")
        await dead_letters.add(partition, "lazy-01234567", [letter])
        await dead_letters.purge(
            partition, "lazy-01234567", [letter.id], version=await version_of(partition), job=asked["id"]
        )


async def version_of(partition: Partition) -> int:
    return int(await partition.command("HGET", partition.key("registry"), "routing_version"))


async def use_permits(bus: TestBus, queue: str) -> None:
    """A Spark task that has called a subscriber and does so again, and a watch that does so with a queue's receiver."""
    [token] = [row["subscriber"] for row in await bus.get("/subscribers") if row["subscriber"].startswith("bulk-")]
    taken = {"limit": 4, "version": await version_of(bus.partitions.home), "lease_ms": AN_HOUR_MS}
    permit = await receivers.take_permit(bus.partitions.home, token, lease="of-spark", **taken)
    await receivers.settle(bus.partitions.home, token, permit, DELIVERED)
    await receivers.take_permit(bus.partitions.home, token, lease="of-spark-again", **taken)
    keeper = bus.partitions.keeper(queue)
    permit = await receivers.take_permit(keeper, queue, lease="of-watch", **taken)
    await receivers.settle(keeper, queue, permit, DELIVERED, attempt="{}")
    await receivers.take_permit(keeper, queue, lease="again", **taken)


async def make_failing(bus: TestBus) -> None:
    """A receiver that is left alone for a while."""
    home = bus.partitions.home
    await bus.subscribe(await bus.token("failing"), "http://127.0.0.1:9/", "flywheels", timeout=0, max=1)
    while bus.partitions.of(EventKind("flywheels", "update", tenant := uuid.uuid4().hex)) is not home:
        pass
    await bus.publish(await bus.token("maker"), [an_event(0, "flywheels", tenant=tenant)])
    slots = [uid() for _ in range(50)]
    given = (await deliveries.turn(home, [], slots, process="none", probes_max=0)).jobs
    failed = Settlement("failed", raises=True, probe_ms=60_000)
    how = {"why": "refused 500", "anew_since": await version_of(home)}
    ended = [Settled(job, failed, **how) if "failing-" in job.held else Settled(job, RETURNED) for job in given]
    await deliveries.turn(home, ended, [], process="none", probes_max=0)


async def hold_keys(bus: TestBus) -> None:
    """An ordered subscriber that holds keys, of which one was let go and is served, and another was let go.

    Two dead letters hold one of them.
    """
    home = bus.partitions.home
    await bus.subscribe(await bus.token("ordered"), "http://127.0.0.1:9/", "axles", timeout=0, max=1, ordered=True)
    maker = await bus.token("axle-maker")
    while bus.partitions.of(EventKind("axles", "update", tenant := uuid.uuid4().hex)) is not home:
        pass

    async def publish(*keys: str) -> None:
        for key in keys:
            await bus.publish(maker, [an_event(0, "axles", tenant=tenant, key=key)])

    async def work(what: Settlement, lane: str = "", letters: Sequence[DeadLetter] = ()) -> None:
        """Settle what comes next for it; of others, what they have is given back."""
        turn = await deliveries.turn(home, [], [uid() for _ in range(50)], process="none", probes_max=0)
        ended = []
        for job in turn.jobs:
            division = parts.division(job.batch.chunks, job.lanes) if job.batch else None
            is_meant = "ordered-" in job.held and division is None
            meant = Settled(job, what, lane=lane, letters=letters, blocked=[lane] * len(letters))
            ended.append(meant if is_meant else Settled(job, RETURNED, division=division))
        await deliveries.turn(home, ended, [], process="none", probes_max=0)

    async def be_due(key: str) -> None:
        """What holds its lane is tried again now."""
        [holder] = words([await home.command("HGET", home.key(f"order:held:{token}"), f"{tenant}/{key}")])
        await home.command("ZADD", home.key("jobs:scheduled:main"), 0, f"{holder} {token}")

    [token] = [row["subscriber"] for row in await bus.get("/subscribers") if row["subscriber"].startswith("ordered-")]
    for key in ("a", "b", "c"):
        await publish(key)
        await work(Settlement("refused", retry_ms=AN_HOUR_MS), lane=f"{tenant}/{key}")
    await publish("d")
    await work(Settlement("refused"), lane=f"{tenant}/d", letters=[a_letter(2), a_letter(3)])
    await publish("a", "a", "b")
    for _ in range(3):
        await work(RETURNED)
    await be_due("a")
    await work(DELIVERED)
    # In slots' hands.
    await deliveries.turn(home, [], [uid() for _ in range(50)], process="none", probes_max=0)
    await losses.drop_oldest(home, token, bytes_enough=1, created_max=None)
    await be_due("b")
    await deliveries.turn(home, [], [], process="none", probes_max=0)


async def have_probes_due(home: Partition) -> None:
    """The while is over, but no slot may probe."""
    home.shift_ms = 61_000
    await deliveries.turn(home, [], [], process="none", probes_max=0)
    home.shift_ms = 0


async def send(bus: TestBus, method: str, path: str, body: object) -> dict[str, Any]:
    url = f"{bus.url}/queues/tasks{path}"
    async with bus.http.request(method, url, json=body, headers=basic(ROOT_KEY)) as response:
        assert response.status < 300, await response.text()
        return await response.json()


@asynccontextmanager
async def a_worker(bus: TestBus, **changes: Any) -> AsyncIterator[None]:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(process.run(replace(bus.settings, shutdown_s=0.0, **changes), stop))
        try:
            yield
        finally:
            stop.set()


async def publish_with_key(bus: TestBus, secret: str) -> None:
    headers = basic(secret) | {"Idempotency-Key": "once"}
    async with bus.http.post(f"{bus.url}/events", json=[an_event()], headers=headers) as response:
        assert response.status == 202


async def unsubscribe(bus: TestBus, secret: str) -> None:
    async with bus.http.delete(f"{bus.url}/subscriber", headers=basic(secret)) as response:
        assert response.status == 204


async def ask_with_digest(bus: TestBus, name: str, secret: str) -> None:
    async with bus.http.get(f"{bus.url}/topics") as response:
        challenges = ", ".join(response.headers.getall("WWW-Authenticate"))
    nonce = re.search(r'nonce="([^"]+)"', challenges)[1]
    ha2 = hashlib.sha256(b"GET:/topics").hexdigest()
    proof = hashlib.sha256(f"{tokens.ha1(name, secret)}:{nonce}:00000001:chance:auth:{ha2}".encode()).hexdigest()
    answer = (
        f'Digest username="{name}", realm="{tokens.REALM}", nonce="{nonce}", uri="/topics", qop=auth, nc=00000001, '
        f'cnonce="chance", response="{proof}", algorithm=SHA-256'
    )
    async with bus.http.get(f"{bus.url}/topics", headers={"Authorization": answer}) as response:
        assert response.status == 200, await response.text()


async def test_every_key_is_documented_and_every_documented_key_is_real(topology: Topology):
    async with (
        Receiver() as good,
        Receiver(plan=lambda _: 500) as bad,
        Receiver(plan=lambda _: "hang") as stuck,
        a_bus(topology, workers=0, clients="imported--token") as bus,
    ):
        seen = await walk(bus, topology, good, bad, stuck)

    assert unseen(seen) == set()
    for key in seen:
        _check(key, row_of(key.name))


def _check(key: Found, row: Row) -> None:
    assert key.type == row.type, key.name
    assert row.where in {"each", key.where}, f"{key.name} is {key.where}"
    if row.pattern in {"layout", "registry", "topic:{name}", "subscriber:{token}", "journal", "queue:state:{queue}"}:
        assert {field.decode() for field in key.value} <= row.fields, key.name
    if row.pattern in TIMED:
        assert all(_is_time(score) for _, score in key.value), key.name
    if row.pattern == "batch:{bid}":
        assert re.fullmatch(PLACEHOLDERS["token"], key.value[0].decode())
        assert _is_time(float(key.value[1]))
        assert key.value[1].isdigit()
        assert key.value[2].isdigit()
        assert key.value[3].isdigit()
        lines = [line for chunk in key.value[4:] for line in chunk.split(b"\n")]
        assert all(msgspec.json.decode(line)["id"] for line in lines)
        assert len(lines) == int(key.value[3])
    if row.pattern == "receivers":
        assert all(len(msgspec.msgpack.decode(packed)) == 22 for packed in key.value.values())
    if row.pattern == "batches:current:{token}":
        assert len(key.value) == 1
    if row.pattern.startswith("jobs:"):
        _check_jobs(key, row)


def _check_jobs(key: Found, row: Row) -> None:
    if key.name.startswith(("jobs:index:aux", "jobs:instant:aux", "jobs:scheduled:aux", "jobs:pending:aux:")):
        for member in key.value:
            _check_job(member[0] if key.type == "zset" else member)
    if key.name == "jobs:scheduled:main":
        assert all(re.fullmatch(DELIVERY, member.decode()) for member, _ in key.value)
    if row.pattern == "jobs:instant:main:{token}":
        assert all(re.fullmatch(PLACEHOLDERS["bid"], bid.decode()) for bid in key.value)
    if row.pattern == "jobs:pending:main":
        held = rf"(?:{DELIVERY} [0-9]+ [01])?"
        assert all(re.fullmatch(rf"{held}\n{held}", value.decode()) for value in key.value.values())
    if row.pattern == "jobs:pending:aux:{slot}":
        assert len(key.value) == 1


def _check_job(packed: bytes) -> None:
    """MessagePack of an array of two, a name and an array of texts, and no other spelling of it."""
    name, args = msgspec.msgpack.decode(packed, type=tuple[str, list[str]])
    assert msgspec.msgpack.encode([name, args]) == packed


def _is_time(score: float) -> bool:
    """Whole milliseconds since 1970, within a day of now."""
    return score == int(score) and abs(score - time.time() * 1000) < 24 * AN_HOUR_MS


def test_the_page_names_every_key_of_the_scripts():
    """A script's header gives each of its keys; placeholders may have other names there."""
    from doubledecker.store import scripts

    def shape(pattern: str) -> str:
        return re.sub(r"@?<\w+>|@?\{\w+\}", "*", pattern)

    declared = {
        shape(template)
        for name in scripts.all_names()
        for _, template in (*scripts.load(name).header.keys, *scripts.load(name).header.families)
    }
    page = {shape(row.pattern) for row in (*documented(), *documented("While data is migrated"))}
    # The drop script gets the index to look into.
    declared.discard("*")
    # A channel.
    declared.discard("bell:*")
    # The queue that these scripts get is always `aux`.
    of_aux = r"^jobs:(index|instant|scheduled|hungry|pending:index|pending)(?=:\*(:\*)?$):\*"
    declared = {re.sub(of_aux, r"jobs:\1:aux", each) for each in declared}
    declared = {re.sub(r"^journal:\*$", "journal:events", each) for each in declared}
    # The receiver of a queue is `@` and its name.
    declared = {each if each in page else each.replace(":@*", ":*") for each in declared}

    assert declared - page == set()
