"""Extras: how fast one worker process drains a backlog whose deliveries carry more than the plain ones.

Each is measured as in `drain`, in batches of a hundred, beside a plain one of the same run.
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
    return {
        "extras.plain.events_per_s": plain,
        "extras.signed.events_per_s": signed,
        "extras.signed.times": signed / plain,
    }


async def _per_s(scale: Scale, *, is_signed: bool = False, **fields: object) -> float:
    async with a_receiver(is_open=False) as receiver, a_bus() as bus:
        await bus.subscribe(1, receiver.url, max=_SIZE, **fields)
        if is_signed:
            await _ask_for_secret(bus)
        await bus.fill(scale.backlog)
        counted = scale.backlog - drain.CONCURRENCY * _SIZE
        drained = await drain.deliver(bus, receiver, counted, held=drain.CONCURRENCY, within_s=scale.patience_s)
    return drained.events / drained.seconds


async def _ask_for_secret(bus: Bus) -> None:
    """Have the only subscriber signed."""
    headers = {"Authorization": aiohttp.encode_basic_auth(ROOT_KEY, "x")}
    async with bus.http.get(f"{bus.url}/subscribers", headers=headers) as answer:
        [subscriber] = await answer.json()
    path = f"/subscribers/{subscriber['subscriber']}/rotate-secret"
    async with bus.http.post(bus.url + path, json={}, headers=headers) as answer:
        answer.raise_for_status()
