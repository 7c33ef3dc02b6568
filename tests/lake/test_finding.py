"""The quick test of the lake: what reads it is imported when the test runs, not when it is collected."""

from pathlib import Path

from conftest import Topology
from feed import a_feed


async def test_an_event_and_its_life_are_found_before_and_after_it_lands(one: Topology, tmp_path: Path):
    from lakes import a_plain_lake

    async with a_feed(one) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        await feed.publish(20, call=10)
        fresh, life = await mine.find(), await mine.life(feed.ids[0])
        await mine.land()

        assert await mine.find() == fresh
        assert await mine.life(feed.ids[0]) == life
    assert sorted(str(row["id"]) for row in fresh) == feed.ids
    assert [row["id"] for row in life.events] == feed.ids[:1]
