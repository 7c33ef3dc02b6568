"""Events that are sent again are admitted like a publish of the receiver's owner."""

import pytest

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.bus.headroom import Headroom
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.bus.publish_rate import Pacer
from doubledecker.bus.resending import Resender
from doubledecker.errors import MemoryFull, NotFound, QuotaExceeded
from doubledecker.model.event import AcceptedEvent
from harness import quick_settings
from store.test_deliveries import a_receiver

EVENT = AcceptedEvent(topic="widgets", type="update", t=1, id="e1")


async def test_nothing_is_sent_again_while_too_much_waits_for_the_receivers_owner_whoever_asks(one: Topology):
    async with build.open_bus(quick_settings(one)) as bus:
        bus.registry.overfull = {"ann": 9}
        resender = Resender(bus.partitions, bus.registry, bus.headroom, Pacer(bus.partitions, bus.registry))

        for caller in ("ann", "root"):
            with pytest.raises(QuotaExceeded):
                await resender.send([EVENT], a_receiver("ann"), caller=caller, key="")
        with pytest.raises(NotFound):
            await resender.send([EVENT], a_receiver("bob"), caller="bob", key="")


async def test_nothing_is_sent_again_while_memory_is_full(one: Topology):
    async with build.open_bus(quick_settings(one)) as bus:
        full = Headroom(bus.partitions, MemoryRules(bytes_max=1))
        resender = Resender(bus.partitions, bus.registry, full, Pacer(bus.partitions, bus.registry))

        with pytest.raises(MemoryFull):
            await resender.send([EVENT], a_receiver("ann"), caller="ann", key="")
