"""From settings to working objects: connections, registry, publisher, deliverer; made here, and closed here."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, fields
from functools import partial

from doubledecker.assembly.settings import Settings
from doubledecker.bus.headroom import Headroom
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.bus.notify import Notify
from doubledecker.bus.publish import Publisher
from doubledecker.bus.receiver_states import ReceiverStates
from doubledecker.bus.registry import LiveRegistry
from doubledecker.delivery.attempt import Dialer, DialLimits
from doubledecker.delivery.deliver import Deliverer
from doubledecker.delivery.health import Health, Points
from doubledecker.delivery.tracing import delivery_spans
from doubledecker.delivery.verdict import RetrySchedule
from doubledecker.errors import BusAway, ServerUnfit
from doubledecker.model.quota import Quotas
from doubledecker.queues.ring import Bell, Rings
from doubledecker.store import migration
from doubledecker.store import partitions as store
from doubledecker.store import registry as topics
from doubledecker.store.nodes import Guard
from doubledecker.store.partitions import Migrate, Partitions

# How long a starting process waits for its Redis.
PATIENCE_S = 30.0


@dataclass(frozen=True)
class BusParts:
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
    migrate: Migrate | None = None,
) -> AsyncIterator[BusParts]:
    """A connected bus with a fresh registry; closed on the way out. Its calls to Redis go through the guard.

    With `stop` it logs that it waits for Redis, and ends the wait when that is set. Those that serve the bus pass
    `migrating` as `migrate`: for others, data of an older version is not there.
    """
    partitions = await store.wait_for(
        settings.redis_url,
        namespace=settings.namespace,
        count=settings.partitions,
        patience_s=patience_s,
        guard=guard,
        stop=stop,
        migrate=migrate,
    )
    try:
        if settings.durable and not await partitions.is_durable():
            raise ServerUnfit("DOUBLEDECKER_DURABLE is set, but the server does not run with `appendfsync always`")
        registry = LiveRegistry(partitions, quotas(settings))
        await topics.index_topics(partitions.home)
        await registry.refresh()
        await migration.adopt_letters(partitions, registry.snapshot.queues)
        await registry.look_at_backlogs()
        bell = Bell(partitions)
        headroom = Headroom(partitions, memory_rules(settings), tenants_max=settings.queue_tenants_max)
        await headroom.refresh()
        publisher = Publisher(partitions, registry, headroom, Notify(settings.notify))
        with closing(registry):
            yield BusParts(partitions, registry, headroom, publisher, bell, Rings(partitions, bell))
            with suppress(BusAway):
                await registry.skips.flush()
    finally:
        await partitions.close()


def migrating(settings: Settings, stop: asyncio.Event | None = None, say: migration.Say = lambda _: None) -> Migrate:
    """What migrates data of an older version, until `stop` is set; `say` gets its progress."""
    return partial(migration.run, dead_s=settings.worker_dead_s, stop=stop, say=say)


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
async def open_dialer(settings: Settings) -> AsyncIterator[Dialer]:
    """What calls receivers; its connections are closed on the way out."""
    limits = DialLimits(
        settings.connect_timeout_s,
        settings.delivery_timeout_s,
        settings.ssl_verify,
        settings.dial_guard,
        settings.proxy,
    )
    dialer = Dialer(limits)
    try:
        yield dialer
    finally:
        await dialer.close()


@asynccontextmanager
async def open_deliverer(settings: Settings, partitions: Partitions, *, part: str) -> AsyncIterator[Deliverer]:
    """What makes attempts at receivers, for one part of the product; connections are closed on the way out."""
    health = Health(partitions.home, Points(settings.hp_heal_rate, settings.hp_damage_rate))
    backoff = RetrySchedule(settings.backoff_base_ms, settings.backoff_cap_ms)
    async with open_dialer(settings) as dialer, health.written(), delivery_spans(os.environ) as spans:
        yield Deliverer(dialer, health, ReceiverStates(partitions), backoff, part=part, spans=spans)
