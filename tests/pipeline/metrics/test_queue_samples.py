"""What waits in queues is sampled, and tells with what was served how fair a queue was."""

import asyncio
from datetime import timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from conftest import Topology
from doubledecker.model import moment
from doubledecker.model.queue import FacetRule, RegisteredQueue
from doubledecker.model.summary import Serving
from doubledecker.model.token import Caller
from doubledecker.pipeline.lake import files
from doubledecker.pipeline.land.journal_reader import Access
from doubledecker.pipeline.metrics import measures, queue_samples, summaries
from doubledecker.pipeline.metrics.measures import Measure
from doubledecker.store import facets
from feed import Feed, a_feed

pytestmark = pytest.mark.slow

ROOT = Caller("", "root", is_root=True)
JOBS = RegisteredQueue("jobs", "", (".*:orders:.*",), charge="count")
INTERVAL_MS = 30_000


async def sample(feed: Feed, root: Path, *, is_active: bool = False) -> None:
    access = Access(feed.topology.url, "rm:", feed.topology.partitions)
    work = lambda: queue_samples.sample(access, str(root), interval_ms=INTERVAL_MS, is_active=is_active)  # noqa: E731
    await asyncio.to_thread(work)


def sampled(root: Path, span: str) -> dict[str, tuple[int, int, int]]:
    """Of each tenant: time waited, time observed, weight; nothing when there is no table."""
    if not DeltaTable.is_deltatable(str(root / "measures" / "waiting")):
        return {}
    rows = pa.table(DeltaTable(root / "measures" / "waiting").scan()).to_pylist()
    names = ("waited_ms", "observed_ms", "weighted_ms")
    return {row["tenant"]: tuple(row[name] for name in names) for row in rows if row["span"] == span}


async def test_what_waits_is_added_as_time_waited_and_who_is_held_back_by_a_rule_does_not_count(
    topology: Topology, tmp_path: Path
):
    async with a_feed(topology) as feed:
        await feed.bus.registry.register_queue(JOBS, caller=ROOT)
        for tenant, count in (("acme", 7), ("big", 3), ("held", 5)):
            await feed.publish(count, topic="orders", tenant=tenant)
        for partition in feed.bus.partitions.all:
            await facets.set_rule(partition, JOBS, "big", FacetRule(weight=2.5))
            await facets.set_rule(partition, JOBS, "held", FacetRule(paused=True))
        await sample(feed, tmp_path)

    for span in measures.SPANS:
        assert sampled(tmp_path, span) == {
            measures.OBSERVED: (0, INTERVAL_MS, 0),
            "acme": (7 * INTERVAL_MS, INTERVAL_MS, INTERVAL_MS),
            "big": (3 * INTERVAL_MS, INTERVAL_MS, 2.5 * INTERVAL_MS),
        }


async def test_a_bus_on_which_nothing_waits_and_nothing_is_served_leaves_no_trace(one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        await feed.bus.registry.register_queue(JOBS, caller=ROOT)
        await sample(feed, tmp_path)

    assert sampled(tmp_path, "minute") == {}


def serve(root: Path, feed_now_ms: int, pulled: dict[str, int], took_ms: dict[str, int]) -> None:
    """As if a round had measured these, in this minute; all that was pulled was acked, each after so long."""
    measure, table = measures.MEASURES["settlements"], measures.table_of(str(root), "settlements")
    at = moment.from_ms(feed_now_ms).replace(second=0, microsecond=0)
    nothing = dict.fromkeys(measure.sums, 0)
    rows = [
        {**nothing, "span": "minute", "at": at, "queue": "jobs", "tenant": tenant}
        | {"pulled": count, "acked": count, "took_ms": count * took_ms.get(tenant, 0)}
        for tenant, count in pulled.items()
    ]
    table.commit(table.open(), files.write(table, [pa.RecordBatch.from_pylist(rows, schema=measure.schema)]), {})


async def serving(feed: Feed, root: Path, pulled: dict[str, int], took_ms: dict[str, int] | None = None) -> Serving:
    now_ms = await feed.bus.partitions.home.time_ms()
    serve(root, now_ms, pulled, took_ms or {})
    now, hour = moment.from_ms(now_ms), timedelta(hours=1)
    [found] = summaries.summarize(str(root), span="minute", since=now - hour, until=now + hour).queues
    return found


async def test_a_queue_that_serves_all_that_is_asked_is_fair_and_one_that_starves_a_tenant_is_not(
    one: Topology, tmp_path: Path
):
    async with a_feed(one) as feed:
        await feed.bus.registry.register_queue(JOBS, caller=ROOT)
        unknown = await serving(feed, tmp_path / "unknown", {"acme": 90, "small": 10})
        await feed.publish(60, topic="orders", tenant="acme")
        await sample(feed, tmp_path / "fair", is_active=True)
        fair = await serving(feed, tmp_path / "fair", {"acme": 90, "small": 10})
        await feed.publish(60, topic="orders", tenant="starved")
        await sample(feed, tmp_path / "unfair", is_active=True)
        unfair = await serving(feed, tmp_path / "unfair", {"acme": 120})

    assert (unknown.jain, unknown.waits) == (None, {})
    assert fair.jain == 1.0
    assert fair.waits == {"acme": 60 * INTERVAL_MS / 90, "small": 0.0}
    assert unfair.jain == 0.5
    assert unfair.shares == {"acme": 1.0, "starved": 0.0}
    assert unfair.waits == {"acme": 60 * INTERVAL_MS / 120, "starved": None}


@pytest.mark.parametrize(("charge", "callback", "index"), [("time", "", 1.0), ("count", "", 0.6), ("time", "x", 0.6)])
async def test_messages_that_take_ten_times_as_long_are_served_fairly_by_what_the_queue_charges(
    charge: str, callback: str, index: float, one: Topology, tmp_path: Path
):
    """Two tenants with a backlog had ten seconds each. What is pushed to a callback is charged by count anyway."""
    url = "https://127.0.0.1:1/jobs" if callback else ""
    async with a_feed(one) as feed:
        queue = msgspec.structs.replace(JOBS, charge=charge, callback=url)
        await feed.bus.registry.register_queue(queue, caller=ROOT)
        for tenant in ("slow", "quick"):
            await feed.publish(500, topic="orders", tenant=tenant)
        await sample(feed, tmp_path, is_active=True)
        found = await serving(feed, tmp_path, {"slow": 100, "quick": 1000}, {"slow": 100, "quick": 10})

    assert found.charge == ("time" if index == 1.0 else "count")
    assert found.jain == pytest.approx(index, abs=0.01)
    assert [each for each in found.jains if each is not None] == [found.jain]


async def test_a_tenant_that_gets_less_time_than_it_asks_for_is_served_unfairly(one: Topology, tmp_path: Path):
    """By messages these two would be alike. Of the one that was never served, the others' time is the best guess."""
    async with a_feed(one) as feed:
        await feed.bus.registry.register_queue(msgspec.structs.replace(JOBS, charge="time"), caller=ROOT)
        for tenant in ("slow", "quick"):
            await feed.publish(500, topic="orders", tenant=tenant)
        await sample(feed, tmp_path / "uneven", is_active=True)
        uneven = await serving(feed, tmp_path / "uneven", {"slow": 100, "quick": 100}, {"slow": 90, "quick": 30})
        await sample(feed, tmp_path / "starved", is_active=True)
        starved = await serving(feed, tmp_path / "starved", {"quick": 100}, {"quick": 30})

    assert uneven.jain == pytest.approx(0.8)
    assert starved.jain == pytest.approx(0.5)


async def test_messages_that_take_no_time_at_all_count_as_a_millisecond_each(one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        await feed.bus.registry.register_queue(msgspec.structs.replace(JOBS, charge="time"), caller=ROOT)
        for tenant in ("acme", "small"):
            await feed.publish(500, topic="orders", tenant=tenant)
        await sample(feed, tmp_path, is_active=True)
        found = await serving(feed, tmp_path, {"acme": 300, "small": 100})

    assert found.jain == pytest.approx(0.8)


async def test_samples_without_the_charge_are_read_by_count(
    one: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    old = Measure("waiting", "", ("queue", "tenant"), ("waited_ms", "observed_ms", "weighted_ms"))
    async with a_feed(one) as feed:
        await feed.bus.registry.register_queue(msgspec.structs.replace(JOBS, charge="time"), caller=ROOT)
        for tenant in ("acme", "small"):
            await feed.publish(500, topic="orders", tenant=tenant)
        with monkeypatch.context() as patch:
            patch.setattr(measures, "WAITING", old)
            patch.setitem(measures.TABLES, "waiting", old)
            await sample(feed, tmp_path, is_active=True)
        only_old = await serving(feed, tmp_path, {"acme": 300, "small": 100})
        await sample(feed, tmp_path)
        both = await serving(feed, tmp_path, {"acme": 300, "small": 100})

    assert (only_old.charge, both.charge) == ("count", "count")
    assert only_old.jain == pytest.approx(0.8)
