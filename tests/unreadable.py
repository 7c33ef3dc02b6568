"""Events with numbers that no reader can hold, as versions before the check of numbers accepted them."""

import asyncio
from collections.abc import Sequence

from msgspec import Raw

from doubledecker import clock
from doubledecker.assembly import build
from doubledecker.model.event import AcceptedEvent, draft
from doubledecker.model.uid import event_id
from harness import TestBus

FAR = b'{"n":1e999}'
LONG = b'{"n":[' + b"7" * 60_000 + b"]}"


def some_events(topic: str, data: Sequence[bytes]) -> list[AcceptedEvent]:
    """An event of each of these JSON texts."""
    return [AcceptedEvent(topic, "run", t=n, data=Raw(text), id=event_id(n)) for n, text in enumerate(data)]


async def publish_unchecked(bus: TestBus, topic: str, data: Sequence[bytes]) -> list[str]:
    """Publish an event of each of these JSON texts as a client of its own; returns their ids."""
    async with build.open_bus(bus.settings) as own:
        token = await own.registry.clients.create("stranger", "secret-of-the-stranger", now_ms=clock.now_ms())
        committing = asyncio.create_task(own.publisher.run())
        events = some_events(topic, data)
        try:
            refused = await own.publisher.publish(
                token.id, [draft(event, is_id_given=False, index=i) for i, event in enumerate(events)]
            )
        finally:
            committing.cancel()
            await asyncio.gather(committing, return_exceptions=True)
    assert refused == {}
    return [event.id for event in events]
