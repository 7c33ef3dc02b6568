"""Lists of many: whole unless a page is asked for, and from a snapshot when there are very many."""

import asyncio

from conftest import Topology
from doubledecker.bus.snapshots import ROWS_MAX
from doubledecker.model.queue import Queue
from doubledecker.store import registry
from harness import a_bus
from web.asking import ask

COUNT = ROWS_MAX + 100


async def test_lists_of_many_are_whole_and_in_pages_when_asked(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        home = bus.partitions.home
        names = [f"q{n:04}" for n in range(COUNT)]
        for name in names:
            await registry.save_queue(home, Queue(name, "ann-1", ("no:no:no",)), former=None)
        await registry.claim_topics(home, names, publisher="ann-1")
        for path in ("/queues", "/topics"):
            whole = await bus.get(path)
            first = await bus.get(f"{path}?limit=400")
            second = await bus.get(f"{path}?limit=400&after={first[-1]['name']}")

            assert [row["name"] for row in whole] == names
            assert first + second == whole
        text = (await ask(bus, "GET", "/metrics")).body.decode()
        assert text.count('doubledecker_queue_messages{queue="q0') == 4 * COUNT


async def test_a_page_that_cannot_be_is_refused(one: Topology):
    async with a_bus(one, workers=0) as bus:
        for query in ("limit=0", "limit=many", "limit=100000", "after=a"):
            for path in ("/queues", "/topics"):
                assert (await ask(bus, "GET", f"{path}?{query}")).status == 400


async def test_few_queues_are_shown_as_they_are_now(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("ann")
        await ask(bus, "PUT", "/queues/jobs", secret, json={"pattern": ".*"})
        counts = []
        for _ in range(3):
            await bus.publish(secret, [{"topic": "pages", "type": "view"}])
            [row], [topic] = await asyncio.gather(bus.get("/queues"), bus.get("/topics"))
            counts.append((row["waiting"], topic["events"]))

        assert counts == [(1, 1), (2, 2), (3, 3)]
