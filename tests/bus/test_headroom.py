"""What publishing knows of the servers' memory."""

import pytest

from conftest import Topology
from doubledecker.bus.headroom import Headroom
from doubledecker.bus.relief import MemoryRules
from doubledecker.errors import MemoryFull
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


async def test_publishes_that_are_refused_share_a_look_at_the_servers(one: Topology):
    partitions = await Partitions.connect(one.url, namespace="full:", count=1)
    try:
        headroom = Headroom(partitions, MemoryRules(bytes_max=1))
        await headroom.refresh()
        before = await looks(partitions)
        for _ in range(100):
            with pytest.raises(MemoryFull):
                await headroom.admit(partitions.home)

        assert await looks(partitions) - before < 100
    finally:
        await partitions.close()


async def looks(partitions: Partitions) -> int:
    """How often the server was asked for its memory; the question itself counts too."""
    stats = str(await partitions.home.command("INFO", "commandstats"))
    return int(stats.partition("cmdstat_info:calls=")[2].partition(",")[0] or 0)
