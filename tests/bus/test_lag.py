"""The lag of the lake: the age of the oldest event that has not landed."""

from collections.abc import Sequence

from conftest import Topology
from doubledecker.bus import overview
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.store import journal
from doubledecker.store.partitions import Partition
from feed import a_feed

HOUR_MS = 3_600_000


async def entries(partition: Partition) -> Sequence[str]:
    return [entry.id for entry in await journal.read(partition, "events")]


async def test_an_event_that_has_not_landed_is_a_lag_that_grows_while_nothing_lands(topology: Topology):
    async with a_feed(topology) as feed:
        parts = feed.bus.partitions
        assert (await journal.read_lag(parts, "events", from_ms=0)).age_ms == 0
        await feed.publish(30, call=1)
        young = await journal.read_lag(parts, "events", from_ms=0)
        for part in parts.all:
            part.shift_ms = HOUR_MS
        old = await journal.read_lag(parts, "events", from_ms=0)

    assert 0 < young.age_ms < HOUR_MS <= old.age_ms


async def test_the_oldest_event_that_has_not_landed_tells_the_lag_and_none_is_no_lag(one: Topology):
    async with a_feed(one) as feed:
        home = feed.bus.partitions.home
        await feed.publish(3, call=1)
        ids = await entries(home)
        await journal.register_archive(home, "lake")
        await journal.confirm(home, "events", archive="lake", last_id=ids[0])
        home.shift_ms = HOUR_MS
        some = await journal.read_lag(feed.bus.partitions, "events", from_ms=0)
        now_ms = await home.time_ms()
        await journal.confirm(home, "events", archive="lake", last_id=ids[2])
        none = await journal.read_lag(feed.bus.partitions, "events", from_ms=0)

    second_ms = int(ids[1].split("-")[0])
    assert HOUR_MS <= some.age_ms <= now_ms - second_ms
    assert some.age_ms > 0
    assert none == journal.Lag(0, 1.0)


async def test_the_journal_that_is_furthest_behind_tells_its_age(topology: Topology):
    async with a_feed(topology) as feed:
        parts = feed.bus.partitions
        await feed.publish(30, call=1)
        for part in parts.all:
            await journal.register_archive(part, "lake")
            await journal.confirm(part, "events", archive="lake", last_id=(await entries(part))[-1])
        parts.all[-1].shift_ms = HOUR_MS
        view = await overview.look(parts, {}, now_ms=0, rules=MemoryRules())

    assert view.journal_ages["events"].lag_ms == 0
    assert view.journal_ages["events"].held_ms >= HOUR_MS
