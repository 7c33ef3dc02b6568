"""Subscribers: what a batch costs the worker and Valkey when one, a hundred or ten thousand have something waiting.

As many batches of one event wait in each case, and the worker has as many slots, all of which find work: one subscriber
allows as many calls at a time as there are slots. Fewer batches are delivered than wait, so that ten thousand have
something waiting to the end. Subscribers are written to the store directly: by HTTP that takes minutes.
"""

import asyncio
import string
from collections.abc import Awaitable, Callable
from functools import partial

from bench import drain
from bench.bus import Bus, a_bus
from bench.children import a_receiver
from bench.scale import Scale
from doubledecker.assembly import build
from doubledecker.assembly.settings import Settings
from doubledecker.model import token as tokens
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import registry, subscribers

SLOTS = 16
_WAITING_EACH = 2  # of the most subscribers
_TOPIC_SUBSCRIBERS = 1_000  # few enough that the publish script writes all copies of an event itself
_COPIES_PER_REQUEST = 1_000


async def measure(scale: Scale) -> dict[str, float]:
    figures: dict[str, float] = {}
    for count in (1, 100, scale.subscribers):
        figures |= await _delivered(count, scale)
    for who in ("worker", "valkey"):
        few = figures[f"subscribers.1.{who}_cpu_us"]
        for count in (100, scale.subscribers):
            figures[f"subscribers.{count}.{who}_cost"] = figures[f"subscribers.{count}.{who}_cpu_us"] / few
    return figures


async def _delivered(count: int, scale: Scale) -> dict[str, float]:
    batches = max(scale.subscribers, scale.singles // _WAITING_EACH) * _WAITING_EACH
    async with a_receiver(is_open=False) as receiver, a_bus(seed=seeded(count, receiver.url)) as bus:
        await fill(bus, count, batches // count)
        # Those under way when the gate opens are not counted: let one round pass without ending a line.
        drained = await drain.deliver(
            *(bus, receiver, batches // _WAITING_EACH - SLOTS),
            held=SLOTS,
            within_s=scale.patience_s,
            worker_threads=SLOTS,
        )
    return {
        f"subscribers.{count}.worker_cpu_us": drained.worker_s / drained.batches * 1e6,
        f"subscribers.{count}.valkey_cpu_us": drained.valkey_s / drained.batches * 1e6,
        f"subscribers.{count}.calls_per_batch": drained.calls / drained.batches,
    }


def seeded(count: int, callback: str) -> Callable[[str], Awaitable[None]]:
    """What writes so many subscribers to a server."""
    return partial(_seed, count, callback)


async def _seed(count: int, callback: str, url: str) -> None:
    async with build.open_bus(Settings(redis_url=url)) as bus:
        made, home = [_subscriber(number, callback) for number in range(count)], bus.partitions.home
        version = await registry.version(home)
        for each in made:
            token = tokens.make(each.token, each.token, each.token, now_ms=0)
            version = await registry.save_token(home, token, seen=version)
        for first in range(0, count, _COPIES_PER_REQUEST):
            some = made[first : first + _COPIES_PER_REQUEST]
            versions = await asyncio.gather(*(subscribers.save(home, each, seen=version) for each in some))
            assert all(versions), "each has a token"


def _subscriber(number: int, callback: str) -> Subscriber:
    return Subscriber(
        token=f"subscriber-{number}",
        callback=callback,
        uuid=f"uuid-{number}",
        topics=(_topic(number),),
        timeout_ms=0,
        max_events=1,
        concurrency=SLOTS,
    )


def _topic(number: int) -> str:
    return f"topic_{string.ascii_lowercase[number // _TOPIC_SUBSCRIBERS]}"


async def fill(bus: Bus, count: int, each: int) -> None:
    """Let so many batches of one event wait for each of the seeded subscribers."""
    per_request = max(1, _COPIES_PER_REQUEST // count)
    for topic in sorted({_topic(number) for number in range(count)}):
        await bus.publish(topic, each, per_request=min(100, per_request))
