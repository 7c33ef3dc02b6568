"""From settings to working objects: connections, registry, publisher, chains; made here, and closed here."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, fields

from doubledecker.assembly.settings import Settings
from doubledecker.bus.headroom import Headroom
from doubledecker.bus.notify import Notify
from doubledecker.bus.publish import Publisher
from doubledecker.bus.registry import LiveRegistry
from doubledecker.bus.relief import MemoryRules
from doubledecker.delivery.attempt import Dialer, DialLimits
from doubledecker.delivery.chains import ChainRules, Chains
from doubledecker.errors import BusAway, ServerUnfit
from doubledecker.model.quota import Quotas
from doubledecker.queues.bell import Bell
from doubledecker.queues.ring import Rings
from doubledecker.store import partitions as store
from doubledecker.store.nodes import Guard
from doubledecker.store.partitions import Partitions

# How long a starting process waits for its Redis.
PATIENCE_S = 30.0


@dataclass(frozen=True)
class Bus:
    """What every process of the bus works with."""

    partitions: Partitions
    registry: LiveRegistry
    headroom: Headroom
    publisher: Publisher
    bell: Bell
    rings: Rings


@asynccontextmanager
async def open_bus(
    settings: Settings,
    *,
    patience_s: float = PATIENCE_S,
    guard: Guard | None = None,
    stop: asyncio.Event | None = None,
) -> AsyncIterator[Bus]:
    """A connected bus with a fresh registry; closed on the way out. Its calls to Redis go through the guard.

    With `stop` it logs that it waits for Redis, and ends the wait when that is set.
    """
    partitions = await store.wait_for(
        settings.redis_url,
        namespace=settings.namespace,
        count=settings.partitions,
        patience_s=patience_s,
        guard=guard,
        stop=stop,
    )
    try:
        if settings.durable and not await partitions.is_durable():
            raise ServerUnfit("DOUBLEDECKER_DURABLE is set, but the server does not run with `appendfsync always`")
        registry = LiveRegistry(partitions, quotas(settings))
        await registry.index_topics()
        await registry.refresh()
        await registry.look_at_backlogs()
        bell = Bell(partitions)
        headroom = Headroom(partitions, memory_rules(settings), tenants_max=settings.queue_tenants_max)
        await headroom.refresh()
        publisher = Publisher(partitions, registry, headroom, Notify(settings.notify))
        with closing(registry):
            yield Bus(partitions, registry, headroom, publisher, bell, Rings(partitions, bell))
            with suppress(BusAway):
                await registry.skips.flush()
    finally:
        await partitions.close()


def quotas(settings: Settings) -> Quotas:
    """What a client may have."""
    return Quotas(**{bound.name: getattr(settings, bound.name) for bound in fields(Quotas)})


def memory_rules(settings: Settings) -> MemoryRules:
    """What the settings say of memory."""
    return MemoryRules(
        bytes_max=settings.redis_max_mem_bytes,
        reserve_bytes=settings.redis_min_free_bytes,
        journal_bytes_max=settings.journal_bytes_max,
        journal_refuses=settings.journal_full == "refuse",
        stalled_ms=round(settings.autodrop_after_s * 1000),
        look_ms=round(settings.autodrop_interval_s * 1000),
    )


@asynccontextmanager
async def open_chains(settings: Settings) -> AsyncIterator[Chains]:
    """The way to call receivers; connections are closed on the way out."""
    chains = Chains(Dialer(DialLimits(settings.connect_timeout_s, settings.ssl_verify)), chain_rules(settings))
    try:
        yield chains
    finally:
        await chains.close()


def chain_rules(settings: Settings) -> ChainRules:
    """What the settings say of receivers' chains."""
    return ChainRules(
        timeout_s=settings.delivery_timeout_s,
        calls=settings.breaker_calls,
        threshold=settings.breaker_threshold,
        open_s=settings.breaker_open_s,
    )
