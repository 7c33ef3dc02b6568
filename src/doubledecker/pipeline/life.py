"""One event's whole life: when it was accepted, where it waits now, every attempt that carried it, its replays."""

import asyncio

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as columns

from doubledecker.model.errand import Errand
from doubledecker.model.replay import Replay
from doubledecker.pipeline import reading, search
from doubledecker.pipeline.search import Found, Ground
from doubledecker.store import errands, sightings
from doubledecker.store.errands import REPLAYS
from doubledecker.store.sightings import Sighting

# Attempts of one event that are shown; a receiver that is down for a week makes a few hundred.
_ROWS_MAX = 1_000


def look(ground: Ground, id_: str) -> dict[str, Found]:
    """All that is known of one event; the lists are empty when there is none."""

    def find() -> dict[str, Found]:
        everything = search.everything(ground, "events").where(columns.col("id") == id_)
        attempts = search.everything(ground, "attempts").where(columns.array_contains("events", id_)).drop("events")
        accepted = search.first(everything, _ROWS_MAX)
        if not accepted:
            return {"events": [], "attempts": [], "waiting": [], "replays": []}
        seen, kept = asyncio.run(_look(ground, id_))
        return {
            "events": accepted,
            "attempts": search.first(attempts, _ROWS_MAX),
            "waiting": [_row(each) for each in seen],
            "replays": _replays(everything, kept),
        }

    return search.again(find)


def _row(sighting: Sighting) -> dict[str, object]:
    return {name: getattr(sighting, name) for name in ("kind", "name", "id", "attempts", "why", "replay")}


async def _look(ground: Ground, id_: str) -> tuple[list[Sighting], list[Errand]]:
    async with reading.connected(ground.access) as bus:
        seen = [each for partition in bus.all for each in await sightings.find(partition, id_)]
        return seen, await errands.read_all(bus.home, REPLAYS)


def _replays(event: DataFrame, kept: list[Errand]) -> Found:
    """The remembered replays that have sent it: by what was asked for, and how far they have come."""
    found = []
    for errand in kept:
        asked = msgspec.json.decode(errand.asked, type=Replay)
        if asked.dry_run or not errand.done:
            continue
        at = columns.unix_millis("at")
        likely = event.where((at >= asked.from_ms) & (at < min(asked.upto_ms, errand.cursor)))
        narrowed = search.conditions(topic=asked.topic, tenant=asked.tenant, where=asked.where)
        if search.fitting(likely, narrowed).limit(1).count():
            found.append(
                {
                    "id": errand.id,
                    "at": errand.created_at,
                    "state": errand.state,
                    "target": asked.target,
                    "name": asked.name,
                }
            )
    return found
