"""What tests of queues share: putting messages on a queue, pulling and settling them, and measuring fairness."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count

import msgspec

from doubledecker.model.event import AcceptedEvent, encode
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.routing import Route
from doubledecker.model.token import Caller
from doubledecker.queues.ring import Bell, Rings
from doubledecker.store import events
from doubledecker.store.events import PublishLimits, RoutedEvent
from doubledecker.store.partitions import Partitions
from doubledecker.store.queues import LeasedMessage, QueueMessage

ROOT = Caller(id="", name="root", is_root=True)

_numbers = count()


def a_queue(name: str = "work", *patterns: str, **fields: object) -> RegisteredQueue:
    queue = RegisteredQueue(name=name, owner="", patterns=patterns or (".*",))
    return msgspec.structs.replace(queue, **fields)


def an_offer(tenant: str, *queues: RegisteredQueue, topic: str = "widgets", id_: str = "") -> RoutedEvent:
    number = next(_numbers)
    event = AcceptedEvent(topic=topic, type="update", t=number, id=id_ or str(number), tenant=tenant)
    return RoutedEvent(Route(event.kind, (), queues), encode(event), "ann", id_)


async def push(partitions: Partitions, queue: RegisteredQueue, tenants: Sequence[str]) -> None:
    """Put a message on the queue for each of these tenants, in order."""
    by_partition: dict[int, list[RoutedEvent]] = {}
    for tenant in tenants:
        offer = an_offer(tenant, queue)
        by_partition.setdefault(partitions.of(offer.route.kind).index, []).append(offer)
    for index, offers in by_partition.items():
        for start in range(0, len(offers), 1000):
            part = offers[start : start + 1000]
            await events.publish(partitions.all[index], part, version=10**9, limits=PublishLimits())


def held(messages: Sequence[QueueMessage], *, delay_ms: int = 0) -> list[LeasedMessage]:
    return [LeasedMessage(message.id, message.attempt, delay_ms) for message in messages]


async def drain(rings: Rings, queue: RegisteredQueue, *, most: int = 100, count_max: int = 10**9) -> list[QueueMessage]:
    """Pull and ack until nothing is left; returns what was served, in order."""
    served: list[QueueMessage] = []
    while len(served) < count_max:
        pull = await rings.pull(queue, most=min(most, count_max - len(served)))
        if not pull.messages:
            break
        served += pull.messages
        assert len(await rings.ack(queue, held(pull.messages))) == len(pull.messages)
    return served


def pass_time(partitions: Partitions, ms: int) -> None:
    for partition in partitions.all:
        partition.shift_ms += ms


def jain(shares: Sequence[float]) -> float:
    """One when all have the same, 1/n when one has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def shares_of(messages: Sequence[QueueMessage]) -> Counter[str]:
    return Counter(message.tenant for message in messages)


@asynccontextmanager
async def rings_with_bell(partitions: Partitions) -> AsyncIterator[Rings]:
    """Rings whose waiting pulls are woken, as in a process of the bus."""
    bell = Bell(partitions)
    listening = asyncio.create_task(bell.run())
    try:
        yield Rings(partitions, bell)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


def quiet_rings(partitions: Partitions) -> Rings:
    """Rings for those who do not wait."""
    return Rings(partitions, Bell(partitions))
