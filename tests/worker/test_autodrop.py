"""Autodrop on a server with little memory: whoever fills it, no healthy receiver loses, and publishing goes on."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.bus import overview
from doubledecker.bus.memory_relief import DropMessages, DroppingQueue, MemoryRules
from doubledecker.errors import SettingInvalid
from doubledecker.store import batches, counters, journal, memory
from doubledecker.store.partitions import Partition
from doubledecker.store.receivers import ReceiverRecord
from doubledecker.worker import process
from doubledecker.worker.autodrop import Autodrop, _Run
from harness import TestBus, a_bus, an_event, quick_settings
from letters import a_letter, keep
from receiver import Receiver
from small_memory import a_small_server, ask, publish_all, publish_until_full, pull, settle

DEAD_URL = "http://127.0.0.1:9/"
MAXMEMORY_BYTES = 12_000_000
# 20 MB of events: twice what the server can hold.
CALLS = 200
# One client fills it all, which the bound on what waits for a client would forbid.
QUICK = {
    "redis_min_free_bytes": 3_000_000,
    "autodrop_interval_s": 0.1,
    "autodrop_after_s": 0.0,
    "client_waiting_bytes_max": 0,
}


async def totals(bus: TestBus) -> dict[str, int]:
    """Counters of what was dropped, by their names alone."""
    found: dict[str, int] = {}
    for partition in bus.partitions.all:
        for field, value in (await counters.read(partition)).items():
            name = field.partition(":")[0]
            found[name] = found.get(name, 0) + value
    return found


async def test_when_the_journal_fills_memory_a_healthy_receiver_gets_everything(data_dir: Path):
    async with (
        a_small_server(data_dir, maxmemory_bytes=MAXMEMORY_BYTES) as topology,
        a_bus(topology, **QUICK) as bus,
        Receiver() as receiver,
    ):
        await bus.subscribe(await bus.token("mail"), receiver.url, "widgets", timeout=100)

        accepted = await publish_all(bus, await bus.token("shop"), CALLS)
        await receiver.until_events(len(accepted), within_s=60)

        assert sorted(receiver.ids) == sorted(accepted)
        assert "events.autodropped" not in await totals(bus)


async def test_a_journal_within_its_bound_that_nobody_archives_is_not_touched(one: Topology):
    async with a_bus(one, workers=0) as bus, build.open_bus(bus.settings) as other:
        await bus.publish(await bus.token("shop"), [an_event(1)])
        autodrop, home = Autodrop(other.partitions, other.registry, other.headroom.rules), other.partitions.home
        before = await scripts_run(home)
        await autodrop.trim_journals()
        untouched = await scripts_run(home)
        await journal.register_archive(home, "lake")
        registered = await scripts_run(home)
        await autodrop.trim_journals()

        assert untouched == before
        assert await scripts_run(home) == registered + len(journal.NAMES)


async def scripts_run(home: Partition) -> int:
    stats = (await home.command("INFO", "commandstats")).decode()
    return int(stats.partition("cmdstat_evalsha:calls=")[2].partition(",")[0])


async def test_when_a_queue_that_nobody_consumes_fills_memory_it_drops_its_oldest_and_nobody_else_loses(data_dir: Path):
    async with (
        a_small_server(data_dir, maxmemory_bytes=MAXMEMORY_BYTES) as topology,
        a_bus(topology, **QUICK) as bus,
        Receiver() as receiver,
    ):
        publisher = await bus.token("shop")
        await bus.subscribe(await bus.token("mail"), receiver.url, "widgets", timeout=0)
        await ask(bus, "PUT", "/queues/jobs", publisher, {"pattern": ".*"})

        accepted = await publish_all(bus, publisher, CALLS)
        await receiver.until_events(len(accepted), within_s=60)

        pages: list[list[str]] = []
        while held := await pull(bus, publisher, most=100):
            await settle(bus, publisher, "ack", held)
            pages.append([message["event"]["id"] for message in held])
        found = await totals(bus)
        assert sorted(receiver.ids) == sorted(accepted)
        assert "events.autodropped" not in found
        assert found["queue.dropped"] > 0
        assert found["queue.dropped"] == len(accepted) - sum(map(len, pages))
        # What waits is always the newest, without a gap. Between two pulls more may be dropped, on a slow machine all.
        for page in pages:
            first = accepted.index(page[0])
            assert page == accepted[first : first + len(page)]


async def test_when_a_dead_receiver_fills_memory_it_loses_its_oldest_and_nobody_else_does(data_dir: Path):
    async with (
        a_small_server(data_dir, maxmemory_bytes=MAXMEMORY_BYTES) as topology,
        a_bus(topology, **QUICK) as bus,
        Receiver() as receiver,
    ):
        await bus.subscribe(await bus.token("dead"), DEAD_URL, "widgets", timeout=0, max=10)
        await bus.subscribe(await bus.token("mail"), receiver.url, "widgets", timeout=0)

        accepted = await publish_all(bus, await bus.token("shop"), CALLS)
        await receiver.until_events(len(accepted), within_s=60)

        assert sorted(receiver.ids) == sorted(accepted)
        found = await counters.read(bus.partitions.home)
        [dropped] = [field for field in found if field.startswith("events.autodropped:")]
        assert dropped.startswith("events.autodropped:subscriber=dead-")
        answer = await bus.get("/readyz")
        assert answer["memory"].startswith("short")  # type: ignore[index]


@pytest.mark.parametrize(("delivered_ago_ms", "is_dropped"), [(1_000, False), (600_000, True)])
async def test_who_fails_in_one_partition_and_is_served_in_another_loses_nothing(
    topology: Topology, delivered_ago_ms: int, *, is_dropped: bool
):
    async with a_bus(topology, workers=0) as bus, build.open_bus(bus.settings) as other:
        mail = await bus.token("mail")
        await bus.subscribe(mail, DEAD_URL, "widgets", timeout=0)
        await bus.publish(await bus.token("shop"), [an_event(n, tenant=f"t{n}") for n in range(30)])
        [token] = (await batches.gauges(other.partitions.home))[0]
        *_, last = other.partitions.all
        now_ms = await last.time_ms()
        for partition in other.partitions.all:
            state = ReceiverRecord(limit=1, failures=3, failing_since=now_ms - 400_000)
            if partition is last:
                state = ReceiverRecord(limit=1, delivered_at=now_ms - delivered_ago_ms)
            await partition.write("HSET", partition.key("receivers"), token, msgspec.msgpack.encode(state))

        await Autodrop(other.partitions, other.registry, MemoryRules(bytes_max=1)).run()

        is_failing_somewhere = len(other.partitions.all) > 1
        assert ("events.autodropped" in await totals(bus)) == (is_dropped and is_failing_somewhere)


@pytest.mark.parametrize(("answer", "after_s"), [("hang", 0.0), (500, 300.0)], ids=["slow", "failing since a moment"])
async def test_who_is_served_or_fails_since_a_moment_keeps_all_and_publishing_is_refused(
    data_dir: Path, answer: int | str, after_s: float
):
    rules = {"redis_min_free_bytes": 1_000_000, "autodrop_interval_s": 0.1, "autodrop_after_s": after_s}
    async with (
        a_small_server(data_dir) as topology,
        a_bus(topology, **rules) as bus,
        Receiver(plan=lambda _: answer) as receiver,
    ):
        publisher = await bus.token("shop")
        await bus.subscribe(await bus.token("mail"), receiver.url, "widgets", timeout=0, max=10)
        accepted: list[str] = []
        async with asyncio.timeout(60):
            while not str((await bus.get("/readyz"))["memory"]).startswith("full"):  # type: ignore[index]
                accepted += await publish_until_full(bus, publisher)
                await asyncio.sleep(0.05)

        events, _ = await batches.gauges(bus.partitions.home)
        assert sum(events.values()) == len(accepted)
        assert "events.autodropped" not in await totals(bus)
        async with build.open_bus(bus.settings) as other:
            view = await overview.look(other.partitions, {}, now_ms=0, rules=other.headroom.rules)
        assert view.memory_state == "full"
        assert view.memory[0].limit_bytes == 8_000_000


async def test_paused_tenants_and_queues_that_refuse_lose_nothing(data_dir: Path):
    async with a_small_server(data_dir) as topology, a_bus(topology, workers=0, redis_min_free_bytes=0) as bus:
        publisher = await bus.token("shop")
        await ask(bus, "PUT", "/queues/jobs", publisher, {"pattern": ".*"})
        await ask(bus, "PUT", "/queues/strict", publisher, {"pattern": ".*", "overflow": "refuse"})
        await ask(bus, "PATCH", "/queues/jobs/facets/paused", publisher, {"paused": True})
        await bus.publish(publisher, [an_event(n, tenant=("paused", "other")[n % 2]) for n in range(40)])

        async with build.open_bus(bus.settings) as other:
            await Autodrop(other.partitions, other.registry, MemoryRules(bytes_max=1)).run()

        held = {name: await bus.get(f"/queues/{name}", publisher) for name in ("jobs", "strict")}
        assert held["jobs"]["waiting"] == 20  # type: ignore[index]
        assert held["strict"]["waiting"] == 40  # type: ignore[index]
        tenants = [facet["tenant"] for facet in held["jobs"]["facets"] if facet["waiting"]]  # type: ignore[index]
        assert tenants == ["paused"]


async def test_dead_letters_go_before_what_waits(one: Topology):
    async with a_bus(one, workers=0) as bus, build.open_bus(bus.settings) as other:
        publisher = await bus.token("shop")
        await ask(bus, "PUT", "/queues/jobs", publisher, {"pattern": ".*"})
        await bus.publish(publisher, [an_event(n, data="x" * 10_000) for n in range(60)])
        await settle(bus, publisher, "nack", await pull(bus, publisher, most=30), reject=True)
        await Autodrop(other.partitions, other.registry, MemoryRules(journal_bytes_max=0)).trim_journals()
        used = (await memory.usage(other.partitions.home)).used_bytes

        await Autodrop(other.partitions, other.registry, MemoryRules(bytes_max=used - 100_000)).run()

        held = await bus.get("/queues/jobs", publisher)
        assert held["waiting"] == 30  # type: ignore[index]
        assert 0 < held["dead"] < 30  # type: ignore[index]


async def test_letters_of_a_subscriber_leave_a_queue_of_its_name_alone(one: Topology):
    async with a_bus(one, workers=0) as bus, build.open_bus(bus.settings) as other:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        await bus.subscribe(ann, DEAD_URL, "nothing")
        [row] = await bus.get("/subscribers", ann)
        await ask(bus, "PUT", f"/queues/{row['subscriber']}", bob, {"pattern": ".*", "overflow": "refuse"})
        await bus.publish(bob, [an_event(n) for n in range(3)])
        await keep(bus.partitions.home, [a_letter(1)], receiver=row["subscriber"])
        await other.registry.refresh()
        autodrop = Autodrop(other.partitions, other.registry, MemoryRules())
        run = _Run(other.partitions.all, 10**6)

        [held] = (await autodrop._look(other.partitions.all)).queues
        freed = await autodrop._carry_out(run, DropMessages(held, 10**6))

        assert (held.receiver, freed) == (row["subscriber"], held.bytes)
        assert (await bus.get(f"/queues/{row['subscriber']}", bob))["waiting"] == 3  # type: ignore[call-overload]


async def test_the_archive_loses_only_when_the_journal_is_set_to_trim(data_dir: Path):
    async with a_small_server(data_dir) as topology, a_bus(topology, workers=0, redis_min_free_bytes=0) as bus:
        home = bus.partitions.home
        await journal.register_archive(home, "lake")
        await bus.publish(await bus.token("shop"), [an_event(n) for n in range(40)])
        async with build.open_bus(bus.settings) as other:
            for refuses, lost in ((True, None), (False, "1")):
                rules = MemoryRules(bytes_max=1, journal_refuses=refuses)
                await Autodrop(other.partitions, other.registry, rules).run()

                assert (await journal.state(home)).get("events_lost") == lost


async def test_journals_of_all_partitions_share_one_bound(topology: Topology):
    async with a_bus(topology, workers=0) as bus, build.open_bus(quick_settings(topology)) as other:
        publisher = await bus.token("shop")
        for n in range(60):
            await bus.publish(publisher, [an_event(n, tenant=f"t{n % 7}", data="x" * 1_000)])
        servers = len(other.partitions.by_server())
        rules = MemoryRules(journal_bytes_max=12_000)

        await Autodrop(other.partitions, other.registry, rules).trim_journals()

        states = [await journal.state(partition) for partition in bus.partitions.all]
        left = sum(int(state.get(f"{name}_bytes", 0)) for state in states for name in journal.NAMES)
        assert left <= 12_000 * servers
        assert left > 12_000 - 4_000


async def test_what_is_dropped_is_no_more_than_is_needed(one: Topology):
    async with a_bus(one, workers=0) as bus, build.open_bus(bus.settings) as other:
        publisher = await bus.token("shop")
        await ask(bus, "PUT", "/queues/jobs", publisher, {"pattern": ".*"})
        for n in range(0, 100, 10):
            await bus.publish(publisher, [an_event(m, data="x" * 10_000) for m in range(n, n + 10)])
        home = other.partitions.home
        await Autodrop(other.partitions, other.registry, MemoryRules(journal_bytes_max=0)).trim_journals()
        used = (await memory.usage(home)).used_bytes

        await Autodrop(other.partitions, other.registry, MemoryRules(bytes_max=used - 200_000)).run()

        waiting = (await bus.get("/queues/jobs", publisher))["waiting"]  # type: ignore[index]
        assert 100 - waiting in range(15, 45)
        first = await pull(bus, publisher, most=1)
        assert first[0]["event"]["url"].endswith(f"/{100 - waiting}")


async def test_a_reserve_that_leaves_too_little_of_the_servers_limit_is_refused_at_start(data_dir: Path):
    async with a_small_server(data_dir) as topology:
        settings = quick_settings(topology, redis_min_free_bytes=3_000_000)

        with pytest.raises(SettingInvalid, match="3000000 of them free: at least 6291456 must be left") as refused:
            await process.run(settings, asyncio.Event())
        assert "DOUBLEDECKER_REDIS_MAX_MEM_BYTES" in str(refused.value)
        assert "DOUBLEDECKER_REDIS_MIN_FREE_BYTES" in str(refused.value)


async def test_memory_that_is_used_beyond_its_bound_is_logged_at_start(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
):
    async with a_small_server(data_dir) as topology:
        settings = quick_settings(topology, redis_min_free_bytes=1_500_000)
        async with Redis.from_url(topology.url) as client:
            for n in range(56):
                await client.set(f"another program's {n}", "x" * 100_000)

        async with build.open_bus(settings) as bus:
            bus.headroom.check()

        [line] = [line for line in capsys.readouterr().out.splitlines() if "memory.exceeded" in line]
        assert "redis_max_mem_bytes, redis_min_free_bytes" in line
        assert "limit_bytes=8000000" in line


async def test_a_queue_that_is_deleted_while_memory_is_freed_gives_nothing(one: Topology):
    async with build.open_bus(quick_settings(one)) as bus:
        autodrop = Autodrop(bus.partitions, bus.registry, MemoryRules())
        gone = DroppingQueue(partition=0, receiver="@gone", bytes=1_000, is_served=False)

        freed = await autodrop._carry_out(_Run(bus.partitions.all, 1_000), DropMessages(gone, 1_000))

        assert freed == 0
