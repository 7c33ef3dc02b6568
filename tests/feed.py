"""Events on a real bus without the web in between: published by the same publisher, and remembered."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from msgspec import Raw

from conftest import Topology
from doubledecker import clock
from doubledecker.assembly import build
from doubledecker.assembly.build import BusParts
from doubledecker.model.event import AcceptedEvent, draft
from doubledecker.model.uid import event_id
from doubledecker.store import journal
from harness import quick_settings

TOPICS = ("orders", "users", "clicks")


@dataclass
class Feed:
    """A client of a bus, and what it has published."""

    bus: BusParts
    topology: Topology
    publisher: str
    events: list[AcceptedEvent] = field(default_factory=list)

    async def publish(self, count: int, *, call: int = 50, data_bytes: int = 0, **fields: str) -> list[AcceptedEvent]:
        """Publish so many events, `call` at a time, over three topics and five tenants unless fields say otherwise.

        The data of each is at least so many bytes, which shrink to a half when they are compressed.
        """
        # Spark may have held this loop for long: let the calls that timed out meanwhile be over first.
        await asyncio.sleep(0.05)
        made = [self._event(len(self.events) + i, fields, data_bytes) for i in range(count)]
        for first in range(0, count, call):
            drafts = [draft(event, is_id_given=False, index=i) for i, event in enumerate(made[first : first + call])]
            refused = await self.bus.publisher.publish(self.publisher, drafts)
            assert refused == {}
        self.events += made
        return made

    async def halve(self) -> int:
        """Cut the older half of the first partition's journal; returns how many entries an archive lost by it."""
        home, lost = self.bus.partitions.home, 0
        bytes_max = int((await journal.state(home))["events_bytes"]) // 2
        while (trimmed := await journal.trim(home, "events", bytes_max=bytes_max)).removed:
            lost += trimmed.lost
        return lost

    @property
    def options(self) -> dict[str, str]:
        """What Spark needs to find this bus."""
        return {"redisUrl": self.topology.url, "partitions": str(self.topology.partitions)}

    @property
    def ids(self) -> list[str]:
        return sorted(event.id for event in self.events)

    def _event(self, number: int, fields: dict[str, str], data_bytes: int) -> AcceptedEvent:
        given = {"topic": TOPICS[number % 3], "type": "update", "tenant": f"tenant-{number % 5}"}
        given |= {"id": event_id(clock.now_ms()), **fields}
        return AcceptedEvent(
            **given,
            t=number,
            key=f"key-{number % 11}",
            url=f"https://example.org/{number}",
            data=Raw(b'{"number":%d,"text":"\xc3\xa4 \\n b%s"}' % (number, _text(number, data_bytes))),
        )


def _text(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size).hex()[:size].encode()


@asynccontextmanager
async def a_feed(topology: Topology) -> AsyncIterator[Feed]:
    """A client on an emptied bus."""
    await topology.clear()
    async with build.open_bus(quick_settings(topology)) as bus:
        token = await bus.registry.clients.create("feed", "secret-of-the-feed", now_ms=clock.now_ms())
        committing = asyncio.create_task(bus.publisher.run())
        try:
            yield Feed(bus, topology, token.id)
        finally:
            committing.cancel()
            await asyncio.gather(committing, return_exceptions=True)
