"""What waits in queues is sampled, and tells with what was served how fair a queue was."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from conftest import Topology
from doubledecker.model import moment
from doubledecker.model.queue import Queue, Rule
from doubledecker.model.summary import Serving
from doubledecker.model.token import Caller
from doubledecker.pipeline import files, measures, sampling, summing
from doubledecker.pipeline.reading import Access
from doubledecker.store import facets
from feed import Feed, a_feed

ROOT = Caller("", "root", is_root=True)
JOBS = Queue("jobs", "", (".*:orders:.*",), charge="count")
INTERVAL_MS = 30_000


async def sample(feed: Feed, root: Path, *, is_active: bool = False) -> None:
    access = Access(feed.topology.url, "rm:", feed.topology.partitions)
    work = lambda: sampling.sample(access, str(root), interval_ms=INTERVAL_MS, is_active=is_active)  # noqa: E731
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
            await facets.set_rule(partition, JOBS, "big", Rule(weight=2.5))
            await facets.set_rule(partition, JOBS, "held", Rule(paused=True))
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


def serve(root: Path, feed_now_ms: int, pulled: dict[str, int]) -> None:
    """As if a round had measured these, in this minute."""
    measure, table = measures.MEASURES["settlements"], measures.table_of(str(root), "settlements")
    at = moment.from_ms(feed_now_ms).replace(second=0, microsecond=0)
    nothing = dict.fromkeys(measure.sums, 0)
    rows = [
        {**nothing, "span": "minute", "at": at, "queue": "jobs", "tenant": tenant, "pulled": count}
        for tenant, count in pulled.items()
    ]
    table.commit(table.open(), files.write(table, [pa.RecordBatch.from_pylist(rows, schema=measure.schema)]), {})


async def serving(feed: Feed, root: Path, pulled: dict[str, int]) -> Serving:
    now_ms = await feed.bus.partitions.home.time_ms()
    serve(root, now_ms, pulled)
    now, hour = moment.from_ms(now_ms), timedelta(hours=1)
    [found] = summing.summarize(str(root), span="minute", since=now - hour, until=now + hour).queues
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
