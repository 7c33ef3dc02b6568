"""The demo's traffic: a stream of events that swells and ebbs, from tenants of uneven size."""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable

from doubledecker.client.bus import Publication

TENANTS = {"acme": 50, "globex": 25, "initech": 14, "umbrella": 8, "hooli": 3}
TOPICS = {"demo_orders": 5, "demo_customers": 3, "demo_invoices": 2}
TYPES = {"create": 3, "update": 6, "delete": 1}
_MEAN_PER_S, _SWING_PER_S, _PERIOD_S = 200.0, 120.0, 45.0
_TICK_S = 0.1
# Things that events are about; few enough that the same one comes up again.
_THINGS = 500

_chance = random.Random()  # noqa: S311 - a demo's chance needs no secrecy


async def publish_forever(publish: Callable[[list[Publication]], Awaitable[None]]) -> None:
    """Publish small arrays, ten times a second; ends when `publish` raises."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    owed = 0.0
    while True:
        owed += per_second(loop.time() - began_s) * _TICK_S
        count, owed = int(owed), owed % 1
        await publish([an_event(_chance) for _ in range(count)])
        await asyncio.sleep(_TICK_S)


def per_second(at_s: float) -> float:
    """How many events a second are due: a sine wave with a little noise."""
    wave = _MEAN_PER_S + _SWING_PER_S * math.sin(2 * math.pi * at_s / _PERIOD_S)
    return wave * _chance.uniform(0.85, 1.15)


def an_event(chance: random.Random) -> Publication:
    """One event about one of a tenant's things."""
    tenant, topic, type_ = (_pick(chance, shares) for shares in (TENANTS, TOPICS, TYPES))
    number = chance.randrange(_THINGS)
    return {
        "topic": topic,
        "type": type_,
        "tenant": tenant,
        "key": f"{topic}-{number}",
        "url": f"https://{tenant}.example/{topic}/{number}",
        "data": {"number": number, "amount": round(chance.uniform(1, 500), 2), "currency": "EUR"},
    }


def _pick(chance: random.Random, shares: dict[str, int]) -> str:
    return chance.choices(list(shares), weights=list(shares.values()))[0]
