"""What pages say of a queue's tenants."""

from collections import Counter

from conftest import Topology
from doubledecker.dashboard import fairness
from doubledecker.model.queue import FacetRule, RegisteredQueue
from doubledecker.queues.service import ServiceWindow
from doubledecker.queues.view import FacetShare, QueueOverview
from harness import a_bus, an_event
from web.asking import ask

QUEUE = QueueOverview(RegisteredQueue("jobs", "", (".*",)), 0, 0, 0, 0, {})


def test_a_tenant_asked_for_what_it_got_and_what_waits():
    facets = [FacetShare("acme", 60, 0, None, FacetRule(), 1.0)]
    found = fairness.weigh(QUEUE, Counter(acme=20, globex=20), facets)

    assert [(each.tenant, each.served, each.offered) for each in found.tenants] == [
        ("acme", 0.5, 0.8),
        ("globex", 0.5, 0.2),
    ]
    assert found.jain == 1.0
    assert found.widest == 0.8


async def test_what_was_handed_out_in_the_last_minute_is_counted_once(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("shop")
        await ask(bus, "PUT", "/queues/jobs", secret, json={"pattern": ".*"})
        for tenant, count in (("acme", 3), ("globex", 2)):
            await bus.publish(secret, [an_event(n, tenant=tenant) for n in range(count)])
        window = ServiceWindow(bus.partitions)
        before = await window.look()
        await ask(bus, "POST", "/queues/jobs/pull", secret, json={"max": 10})
        seen = [await window.look() for _ in range(2)]
        bus.partitions.home.shift_ms = 61_000
        later = await window.look()

    assert before == {}
    assert seen == [{"jobs": Counter(acme=3, globex=2)}] * 2
    assert later == {}
