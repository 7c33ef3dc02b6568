"""Bytes that wait for a client: measured beside the traffic, and bounded for each client alone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.assembly.build import BusParts
from doubledecker.bus.exactly_once import ExactlyOnceWriter, PublishedRow
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.bus.notify import Notifier, Notify
from doubledecker.bus.publish_rate import Pacer
from doubledecker.model.event import EventKind
from doubledecker.store import backlogs, shared_connection
from doubledecker.store.partitions import Partition
from doubledecker.worker.backlogs import BacklogMeter
from harness import ROOT_KEY, TestBus, a_bus, an_event
from web.asking import Answer, ask

NOBODY = "http://127.0.0.1:9/"
DATA = "x" * 1_000
MOST = 20_000


@asynccontextmanager
async def a_measured_bus(topology: Topology, **changes: object) -> AsyncIterator[tuple[TestBus, BusParts]]:
    """A bus without a worker, and a process that measures when it is told to."""
    changes = {"client_waiting_bytes_max": MOST, **changes}
    async with a_bus(topology, workers=0, **changes) as bus, build.open_bus(bus.settings) as other:
        yield bus, other


async def measure(bus: BusParts) -> dict[str, int]:
    """What waits for every client that has anything waiting."""
    await BacklogMeter(bus.partitions, bus.registry, bus.headroom.rules).measure()
    home = bus.partitions.home
    sizes = shared_connection.numbers(await home.command("ZRANGE", home.key("clients:waiting"), 0, -1, "WITHSCORES"))
    return {client: size for client, size in sizes.items() if size > 0}


async def put(bus: TestBus, secret: str, name: str, pattern: str = ".*", **fields: object) -> Answer:
    return await ask(bus, "PUT", f"/queues/{name}", secret, json={"pattern": pattern, **fields})


async def ids(bus: TestBus) -> dict[str, str]:
    return {token["name"]: token["token"] for token in await bus.get("/api_tokens")}


def events(count: int, topic: str = "widgets") -> list[dict[str, object]]:
    return [an_event(n, topic, tenant=f"t{n}", data=DATA) for n in range(count)]


async def messages_in(partition: Partition) -> int:
    """How many messages all queues hold."""
    keys = await partition.command("KEYS", partition.key("queue:data:*"))
    return sum(await partition.commands([["HLEN", key] for key in keys]))


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await is_so():
            await asyncio.sleep(0.02)


class TestMeasuring:
    async def test_messages_dead_letters_and_batches_count_for_whose_they_are(self, topology: Topology):
        async with a_measured_bus(topology) as (bus, other):
            ann, bob, eve = [await bus.token(name) for name in ("ann", "bob", "eve")]
            await put(bus, ann, "anns", attempts_max=1)
            await put(bus, ROOT_KEY, "roots")
            await bus.subscribe(bob, NOBODY, "widgets", max=3)
            await bus.publish(eve, events(30))
            before = await measure(other)
            pulled = await ask(bus, "POST", "/queues/anns/pull", ann, json={"max": 30})
            named = [{"id": each["id"], "attempt": each["attempt"]} for each in pulled.json["messages"]]
            await ask(bus, "POST", "/queues/anns/nack", ann, json={"messages": named, "why": "no"})
            dead = await measure(other)
            await ask(bus, "POST", "/queues/anns/dead/purge", ann, json={})
            after = await measure(other)
            known = await ids(bus)

            assert before.keys() == {known["ann"], known["bob"]}
            assert all(30 * len(DATA) < size < 90 * len(DATA) for size in before.values())
            assert (await bus.get("/queues/anns"))["counters"]["dead"] == len(named) == 30
            assert 30 * len(DATA) < dead[known["ann"]] < 90 * len(DATA)
            assert after.get(known["ann"], 0) < len(DATA)
            assert after[known["bob"]] == before[known["bob"]]

    async def test_many_batches_are_estimated_from_some(self, one: Topology):
        async with a_measured_bus(one) as (bus, other):
            ann, bob = await bus.token("ann"), await bus.token("bob")
            await bus.subscribe(bob, NOBODY, "widgets", max=1)
            await bus.publish(ann, [an_event(n + 1_000, id=f"{n:04}", data=DATA) for n in range(300)])
            sizes = await other.partitions.home.command("HVALS", other.partitions.home.key("batches:bytes"))
            found = await measure(other)

            assert len(sizes) == 300
            assert found == {(await ids(bus))["bob"]: sum(map(int, sizes))}

    async def test_copies_that_are_yet_to_be_made_count_for_whose_they_will_be(self, topology: Topology):
        """Own ones for the publisher, others' for the owner of the queue."""
        async with a_measured_bus(topology, client_waiting_bytes_max=0) as (bus, other):
            ann, bob, eve = [await bus.token(name) for name in ("ann", "bob", "eve")]
            for n in range(20):
                await put(bus, ann, f"anns-{n}", ".*:mine:.*")
            for n in range(6):
                await put(bus, eve, f"eves-{n}", ".*:widgets:.*")
            await bus.publish(ann, events(40, "mine"))
            await bus.publish(bob, events(40))
            found = await measure(other)
            known = await ids(bus)
            messages = sum([await messages_in(partition) for partition in other.partitions.all])

            assert messages == 0
            assert found.keys() == {known["ann"], known["eve"]}
            for client, queues in (("ann", 20), ("eve", 6)):
                size = queues * 40 * len(DATA)
                assert size < found[known[client]] < 1.3 * size

    def test_the_bound_is_at_most_a_share_of_the_memory_of_all_servers(self):
        rules = MemoryRules(reserve_bytes=100)

        assert rules.client_bytes_max([1_100, 2_100], 10_000) == 1_500
        assert rules.client_bytes_max([1_100, 2_100], 1_000) == 1_000
        assert rules.client_bytes_max([1_100, 0], 10_000) == 10_000
        assert rules.client_bytes_max([1_100], 0) == 0
        assert rules.client_bytes_max([50], 10_000) == 1

    async def test_what_was_measured_ends_when_nobody_measures_any_more(self, one: Topology):
        async with a_measured_bus(one) as (bus, other):
            await put(bus, await bus.token("ann"), "anns")
            await bus.publish(await bus.token("eve"), events(30))
            await measure(other)
            home = other.partitions.home

            assert 0 < await home.command("PTTL", home.key("clients:waiting")) <= backlogs.KEPT_MS


class TestTooMuch:
    async def test_a_client_for_whom_too_much_waits_gets_no_more_until_it_has_taken_some(self, topology: Topology):
        async with a_measured_bus(topology) as (bus, other):
            ann, bob = await bus.token("ann"), await bus.token("bob")
            await put(bus, ann, "anns")
            await put(bus, bob, "bobs")
            await bus.subscribe(ann, NOBODY, "widgets")
            await bus.publish(ann, events(1, "own"))
            await bus.publish(bob, events(40))
            await ask(bus, "POST", "/queues/bobs/purge", bob, json={})
            await measure(other)
            await until(lambda: is_refused(bus, ann))
            refused = await ask(bus, "POST", "/events", ann, json=events(1, "own"))
            another = await put(bus, ann, "another")
            same = await put(bus, ann, "anns", lease_ms=5_000)
            await bus.publish(bob, events(5))

            for answer in (refused, another):
                assert answer.status == 429
                assert answer.json["title"] == "Quota exceeded"
                assert f"at most {MOST} are allowed (DOUBLEDECKER_CLIENT_WAITING_BYTES_MAX)" in answer.detail
                assert int(answer.headers["Retry-After"]) > 0
            assert same.status == 200
            # Others' events do not enter its queues, and go everywhere else.
            await until(lambda: has_skipped(bus, "anns", 5))
            assert (await bus.get("/queues/anns"))["waiting"] == 41
            [subscriber] = await bus.get("/subscribers")
            assert subscriber["events"]["queued"] == 45

            pulled = await ask(bus, "POST", "/queues/anns/pull", ann, json={"max": 100})
            named = [{"id": each["id"], "attempt": each["attempt"]} for each in pulled.json["messages"]]
            acked = await ask(bus, "POST", "/queues/anns/ack", ann, json={"messages": named})
            assert len(acked.json["ids"]) == 41
            await ask(bus, "DELETE", "/subscriber", ann)
            await measure(other)
            await until(lambda: is_accepted(bus, ann))
            await bus.publish(bob, events(3))
            assert (await bus.get("/queues/anns"))["waiting"] == 4

    async def test_a_worker_measures_by_itself_and_it_is_shown(self, one: Topology):
        async with a_bus(one, workers=1, client_waiting_bytes_max=MOST) as bus:
            ann, bob = await bus.token("ann"), await bus.token("bob")
            await put(bus, ann, "anns")
            await bus.publish(bob, events(40))
            await until(lambda: is_refused(bus, ann))
            text = (await ask(bus, "GET", "/metrics")).body.decode()
            client = (await ids(bus))["ann"]
            labels = f'client="{client}",quota="client_waiting_bytes_max"'
            [line] = [line for line in text.splitlines() if labels in line]

            assert float(line.rpartition(" ")[2]) > MOST
            assert f'doubledecker_quota_max{{quota="client_waiting_bytes_max"}} {float(MOST)}' in text

    async def test_zero_is_no_bound(self, one: Topology):
        async with a_measured_bus(one, client_waiting_bytes_max=0) as (bus, other):
            ann = await bus.token("ann")
            await put(bus, ann, "anns")
            await bus.publish(ann, events(40))
            await measure(other)
            await other.registry.look_at_backlogs()

            assert other.registry.overfull == {}
            await bus.publish(ann, events(1))

    async def test_rows_of_a_spark_task_wait_instead_of_failing(self, one: Topology):
        async with a_measured_bus(one) as (bus, other):
            ann = await bus.token("ann")
            await put(bus, ann, "anns")
            await bus.publish(ann, events(40))
            await measure(other)
            client = (await ids(bus))["ann"]
            async with build.open_bus(bus.settings) as task:
                assert client in task.registry.overfull
                publisher = ExactlyOnceWriter(
                    task.partitions.home,
                    task.registry,
                    task.headroom,
                    Notifier(task.partitions.home, Notify.NEVER),
                    publisher=client,
                    task="t",
                    batch=0,
                    pacer=Pacer(task.partitions, task.registry),
                )
                message = b'{"topic":"widgets","type":"view","id":"1"}'
                row = PublishedRow(EventKind("widgets", "view", "acme"), "", message, b"m", "", 0)
                publishing = asyncio.create_task(publisher.publish([row]))
                await asyncio.sleep(0)
                assert not publishing.done()
                await ask(bus, "POST", "/queues/anns/purge", ann, json={})
                await measure(other)
                async with asyncio.timeout(20):
                    await publishing

            assert (publisher.tally.published, publisher.tally.refused) == (1, {})


async def is_refused(bus: TestBus, secret: str) -> bool:
    """Whether a further queue is; each that is not matches nothing."""
    count = len(await bus.get("/queues", secret))
    return (await put(bus, secret, f"probe{count}", "no:no:no")).status == 429


async def is_accepted(bus: TestBus, secret: str) -> bool:
    return (await ask(bus, "POST", "/events", secret, json=events(1, "own"))).status == 202


async def has_skipped(bus: TestBus, queue: str, count: int) -> bool:
    return (await bus.get(f"/queues/{queue}"))["counters"]["skipped"] == count
