"""What publishing knows of the servers' memory."""

from conftest import Topology
from doubledecker.bus.headroom import Headroom
from doubledecker.bus.relief import MemoryRules
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
