"""What publishing knows of the servers' memory."""

import asyncio
from pathlib import Path

import pytest

from cluster import ClusterOfThree
from conftest import Topology
from doubledecker.bus.headroom import Headroom
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.errors import BusAway, MemoryFull
from doubledecker.store import journal
from doubledecker.store.partitions import Partitions


async def test_a_partition_that_a_failed_look_did_not_reach_is_looked_at_when_it_is_published_to(one: Topology):
    partitions = await Partitions.connect(one.url, namespace="headroom:", count=2)
    try:
        headroom = Headroom(partitions, MemoryRules(journal_bytes_max=1_000, journal_refuses=True))
        reached, other = partitions.all
        await headroom._look([reached])

        assert (await headroom.admit(other)).journal_bytes_max == 1_000
    finally:
        await partitions.close()


async def test_publishes_that_are_refused_share_a_look_at_the_servers(plain: Partitions):
    headroom = Headroom(plain, MemoryRules(bytes_max=1))
    await headroom.refresh()
    before = await looks(plain)
    for _ in range(100):
        with pytest.raises(MemoryFull):
            await headroom.admit(plain.home)

    assert await looks(plain) - before < 100


async def test_a_commit_does_not_look_at_the_servers_however_old_the_last_look_is(plain: Partitions):
    headroom = Headroom(plain, MemoryRules(journal_bytes_max=1_000))
    await headroom.refresh()
    make_old(headroom)
    before = await looks(plain)
    await headroom.admit(plain.home)
    await headroom.tidy(plain.home, 1_000)

    assert await looks(plain) - before == 1


async def test_a_journal_is_cut_by_a_bound_that_holds_now(plain: Partitions):
    headroom = Headroom(plain, MemoryRules(journal_bytes_max=1_000))
    await fill_attempts(plain, 900)
    await headroom.refresh()
    await fill_attempts(plain, 0)
    make_old(headroom)
    before = await looks(plain)
    await headroom.tidy(plain.home, 500)

    assert await looks(plain) - before == 2
    assert int((await journal.state(plain.home)).get("events_lost", 0)) == 0


async def test_the_background_task_looks_while_something_is_published(plain: Partitions):
    headroom = Headroom(plain, MemoryRules(journal_bytes_max=1_000, journal_refuses=True))
    running = asyncio.create_task(headroom.run())
    try:
        assert (await headroom.admit(plain.home)).journal_bytes_max == 1_000
        await fill_attempts(plain, 900)
        async with asyncio.timeout(30):
            while (await headroom.admit(plain.home)).journal_bytes_max != 100:
                await asyncio.sleep(0.01)
    finally:
        running.cancel()


@pytest.mark.slow
async def test_a_server_that_is_away_keeps_no_other_from_being_looked_at(tmp_path: Path):
    started = await ClusterOfThree.start(tmp_path)
    try:
        partitions = await Partitions.connect(started.url, namespace="away:", count=3)
        headroom = Headroom(partitions, MemoryRules(journal_bytes_max=1_000, journal_refuses=True))
        away = next(node for node in started.nodes if node.url == partitions.home.server)
        away.kill()
        with pytest.raises(BusAway):
            await headroom.refresh()

        limits = [await headroom.admit(partition) for partition in partitions.all[1:]]
        assert [limit.journal_bytes_max for limit in limits] == [1_000, 1_000]
        with pytest.raises(BusAway):
            await headroom.admit(partitions.home)
        await partitions.close()
    finally:
        await started.stop()


def make_old(headroom: Headroom) -> None:
    """As if this process had not looked at the servers for hours."""
    headroom._looked_s = dict.fromkeys(headroom._looked_s, float("-inf"))


async def fill_attempts(partitions: Partitions, size: int) -> None:
    """Have the journal of attempts take so many bytes."""
    await partitions.home.command("HSET", partitions.home.key("journal"), "attempts_bytes", size)


async def looks(partitions: Partitions) -> int:
    """How often the server was asked for its memory; the question itself counts too."""
    stats = str(await partitions.home.command("INFO", "commandstats"))
    return int(stats.partition("cmdstat_info:calls=")[2].partition(",")[0] or 0)
