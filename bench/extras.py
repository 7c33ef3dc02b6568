"""Extras: how fast one worker process drains a backlog whose deliveries carry more than the plain ones.

Each is measured as in `drain`, in batches of a hundred, beside a plain one of the same run; an ordered one, of which a
single batch is in flight at a time, beside a plain one with one call at a time. The dial guard is in all of them.
"""

import aiohttp

from bench import drain
from bench.bus import ROOT_KEY, Bus, a_bus
from bench.children import a_receiver
from bench.scale import Scale

_SIZE = 100
_HEADERS = {"X-Key": "s3cret", "X-Receiver": "mail"}


async def measure(scale: Scale) -> dict[str, float]:
    plain, signed = await _per_s(scale), await _per_s(scale, is_signed=True, headers=_HEADERS)
    single = await _per_s(scale, calls=1)
    ordered = await _per_s(scale, calls=1, ordered=True)
    together = await _per_s(scale, calls=1, ordered=True, is_signed=True, headers=_HEADERS)
    return {
        "extras.plain.events_per_s": plain,
        "extras.signed.events_per_s": signed,
        "extras.signed.times": signed / plain,
        "extras.single.events_per_s": single,
        "extras.ordered.events_per_s": ordered,
        "extras.ordered.times": ordered / single,
        "extras.together.events_per_s": together,
        "extras.together.times": together / single,
    }


async def _per_s(scale: Scale, *, calls: int = drain.CONCURRENCY, is_signed: bool = False, **fields: object) -> float:
    async with a_receiver(is_open=False) as receiver, a_bus() as bus:
        await bus.subscribe(1, receiver.url, max=_SIZE, concurrency=calls, **fields)
        if is_signed:
            await _ask_for_secret(bus)
        await bus.fill(scale.backlog)
        counted = scale.backlog - calls * _SIZE
        drained = await drain.deliver(bus, receiver, counted, held=calls, within_s=scale.patience_s)
    return drained.events / drained.seconds


async def _ask_for_secret(bus: Bus) -> None:
    """Have the only subscriber signed."""
    headers = {"Authorization": aiohttp.encode_basic_auth(ROOT_KEY, "x")}
    async with bus.http.get(f"{bus.url}/subscribers", headers=headers) as answer:
        [subscriber] = await answer.json()
    path = f"/subscribers/{subscriber['subscriber']}/rotate-secret"
    async with bus.http.post(bus.url + path, json={}, headers=headers) as answer:
        answer.raise_for_status()
