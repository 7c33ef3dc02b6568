"""From settings to working objects: connections, registry, publisher, dialer; made here, and closed here."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from doubledecker.assembly.settings import Settings
from doubledecker.bus.commit import JournalBound
from doubledecker.bus.notify import Notify
from doubledecker.bus.publish import Publisher
from doubledecker.bus.registry import LiveRegistry
from doubledecker.delivery.attempt import Dialer, DialLimits
from doubledecker.errors import ServerUnfit
from doubledecker.queues.bell import Bell
from doubledecker.queues.ring import Rings
from doubledecker.store import partitions as store
from doubledecker.store.partitions import Partitions

# How long a starting process waits for its Redis.
PATIENCE_S = 30.0


@dataclass(frozen=True)
class Bus:
    """What every process of the bus works with."""

    partitions: Partitions
    registry: LiveRegistry
    publisher: Publisher
    bell: Bell
    rings: Rings


@asynccontextmanager
async def open_bus(settings: Settings, *, patience_s: float = PATIENCE_S) -> AsyncIterator[Bus]:
    """A connected bus with a fresh registry; closed on the way out."""
    partitions = await store.wait_for(
        settings.redis_url, namespace=settings.namespace, count=settings.partitions, patience_s=patience_s
    )
    try:
        if settings.durable and not await partitions.is_durable():
            raise ServerUnfit("DOUBLEDECKER_DURABLE is set, but the server does not run with `appendfsync always`")
        registry = LiveRegistry(partitions)
        await registry.refresh()
        bound = JournalBound(settings.journal_bytes_max, is_refusing=settings.journal_full == "refuse")
        bell = Bell(partitions)
        publisher = Publisher(partitions, registry, bound, Notify(settings.notify))
        yield Bus(partitions, registry, publisher, bell, Rings(partitions, bell))
    finally:
        await partitions.close()


@asynccontextmanager
async def open_dialer(settings: Settings) -> AsyncIterator[Dialer]:
    """A dialer; its connections are closed on the way out."""
    dialer = Dialer(DialLimits(settings.connect_timeout_s, settings.delivery_timeout_s, settings.ssl_verify))
    try:
        yield dialer
    finally:
        await dialer.close()
