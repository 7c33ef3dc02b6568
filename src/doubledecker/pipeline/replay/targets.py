"""Replays' targets, as the driver sees them: whether one is there, and how much more it can take just now."""

import asyncio
from dataclasses import dataclass

from doubledecker.assembly import build
from doubledecker.assembly.build import BusParts
from doubledecker.assembly.settings import Settings
from doubledecker.errors import NotFound
from doubledecker.model.replay import Replay
from doubledecker.queues import view
from doubledecker.store import batches, registry

# Nothing of a topic waits as such: who listens there has bounds of its own, and the rate holds. Nor does anything of a
# direct replay.
_ANY = 1_000_000_000


@dataclass(frozen=True)
class TargetRoom:
    """How many events a target takes now, and why it takes none."""

    events: int
    note: str = ""


def check(settings: Settings, replay: Replay) -> None:
    """Raise NotFound when there is no such target."""
    asyncio.run(_room(settings, replay))


def room(settings: Settings, replay: Replay) -> TargetRoom:
    """How much the target takes now; raises NotFound when it is gone."""
    return asyncio.run(_room(settings, replay))


async def _room(settings: Settings, replay: Replay) -> TargetRoom:
    async with build.open_bus(settings, patience_s=15.0) as bus:
        if replay.target == "topic":
            await _check_owner(bus, replay)
            return TargetRoom(_ANY)
        if replay.direct and replay.name in bus.registry.snapshot.subscribers:
            return TargetRoom(_ANY)
        waiting, most = await _waiting(bus, replay, settings.replay_backlog_max)
    note = f"{waiting} events wait for {replay.target} {replay.name!r} already; it goes on below {most}"
    return TargetRoom(most - waiting, note if waiting >= most else "")


async def _check_owner(bus: BusParts, replay: Replay) -> None:
    [owner] = await registry.topic_owners(bus.partitions.home, [replay.name])
    if owner != replay.publisher or owner not in bus.registry.snapshot.tokens:
        raise NotFound(f"topic {replay.name!r} is not that of {replay.publisher!r} any more")


async def _waiting(bus: BusParts, replay: Replay, most: int) -> tuple[int, int]:
    """What waits for a receiver, and the most that may."""
    if replay.target == "subscriber":
        if replay.name not in bus.registry.snapshot.subscribers:
            raise NotFound(f"there is no subscriber {replay.name!r}")
        gauges = [(await batches.gauges(partition))[0] for partition in bus.partitions.all]
        return sum(gauge.get(replay.name, 0) for gauge in gauges), most
    queue = bus.registry.snapshot.queues.get(replay.name)
    if queue is None:
        raise NotFound(f"there is no queue {replay.name!r}")
    seen = await view.look(bus.partitions, queue)
    # What would not fit would be dropped by the next event, or refused.
    bounds = [most, queue.max_length, *([queue.facet_max_length] if queue.facet_max_length else [])]
    return seen.waiting + seen.in_flight + seen.delayed, min(bounds)
