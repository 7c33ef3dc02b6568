"""One process that pushes, pulls and acks on Valkey directly, and prints what it measured as JSON; run as a child.

Facets are made by tenants: `10` spreads the messages over ten. All of them have messages waiting before anything is
measured. Singles are pushed, and pulled and acked, one by one by 16 loops of the process, batches a hundred at a time
by 4, so that Valkey and Python work side by side as for many clients.
"""

import asyncio
import json
import os
import sys
import time

import uvloop

from doubledecker.assembly import build
from doubledecker.assembly.build import BusParts
from doubledecker.assembly.settings import Settings
from doubledecker.model.event import AcceptedEvent, draft
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.token import Caller
from doubledecker.store.queues import LeasedMessage

_ROOT = Caller("", "root", is_root=True)
_SINGLES, _BATCHES = {"most": 1, "loops": 16}, {"most": 100, "loops": 4}
_QUIET, _QUIET_EACH = 99, 10


async def main() -> None:
    settings = Settings(redis_url=os.environ["BENCH_REDIS_URL"])
    counts = json.loads(sys.argv[1])
    async with build.open_bus(settings) as bus:
        committing = asyncio.create_task(bus.publisher.run())
        token = await bus.registry.clients.create("bench", "bench--secret", now_ms=0)
        figures: dict[str, float] = {}
        if facets := counts.get("facets"):
            figures |= await _rates(bus, token.id, facets, counts)
        else:
            figures |= await _noisy_neighbour(bus, token.id, counts["noisy"])
        committing.cancel()
    print(json.dumps(figures), flush=True)


async def _rates(bus: BusParts, publisher: str, facets: int, counts: dict[str, int]) -> dict[str, float]:
    topic = "facets"
    queue = RegisteredQueue("facets", "", (f".*:{topic}:.*",))
    await bus.registry.register_queue(queue, caller=_ROOT)
    # Valkey rewrites its log on another core now and then: chance would decide in which measurement.
    await bus.partitions.home.command("CONFIG", "SET", "auto-aof-rewrite-percentage", "0")
    tenants = [f"t{n % facets}" for n in range(counts["messages"])]
    singles, batched = counts["singles"], counts["batched"]
    await _push(bus, publisher, topic, tenants, **_BATCHES)
    return {
        f"queues.{facets}.pushed.single_per_s": await _push(bus, publisher, topic, tenants[:singles], **_SINGLES),
        f"queues.{facets}.pushed.batched_per_s": await _push(bus, publisher, topic, tenants[singles:], **_BATCHES),
        f"queues.{facets}.pulled.single_per_s": await _drained(bus, queue, singles, **_SINGLES),
        f"queues.{facets}.pulled.batched_per_s": await _drained(bus, queue, batched, **_BATCHES),
    }


async def _push(bus: BusParts, publisher: str, topic: str, tenants: list[str], *, most: int, loops: int) -> float:
    """Messages pushed a second."""
    starts = iter(range(0, len(tenants), most))

    async def loop() -> None:
        for start in starts:
            events = [
                AcceptedEvent(topic=topic, type="made", url="https://shop.example/orders/1", id=f"{n}", tenant=tenant)
                for n, tenant in enumerate(tenants[start : start + most], start)
            ]
            drafts = [draft(event, is_id_given=False, index=i) for i, event in enumerate(events)]
            assert not await bus.publisher.publish(publisher, drafts)

    started_s = time.perf_counter()
    await asyncio.gather(*(loop() for _ in range(loops)))
    return len(tenants) / (time.perf_counter() - started_s)


async def _drained(bus: BusParts, queue: RegisteredQueue, count: int, *, most: int, loops: int) -> float:
    """Messages pulled and acked a second."""
    left = count

    async def loop() -> None:
        nonlocal left
        while left > 0:
            left -= most
            pull = await bus.rings.pull(queue, most=most)
            held = [LeasedMessage(message.id, message.attempt) for message in pull.messages]
            assert len(await bus.rings.ack(queue, held)) == most

    started_s = time.perf_counter()
    await asyncio.gather(*(loop() for _ in range(loops)))
    return count / (time.perf_counter() - started_s)


async def _noisy_neighbour(bus: BusParts, publisher: str, noisy: int) -> dict[str, float]:
    """NN-100: one tenant with very many messages before 99 with ten each; where is the last quiet one served?"""
    queue = RegisteredQueue("noisy", "", (".*:noisy:.*",))
    await bus.registry.register_queue(queue, caller=_ROOT)
    await _push(bus, publisher, "noisy", ["noisy"] * noisy, **_BATCHES)
    await _push(bus, publisher, "noisy", [f"quiet-{n}" for n in range(_QUIET)] * _QUIET_EACH, **_BATCHES)
    served: list[str] = []
    while len(served) < 2 * (_QUIET + 1) * _QUIET_EACH:
        pull = await bus.rings.pull(queue, most=100)
        served += [message.tenant for message in pull.messages]
        await bus.rings.ack(queue, [LeasedMessage(message.id, message.attempt) for message in pull.messages])
    last = max(at for at, tenant in enumerate(served, 1) if tenant != "noisy")
    shares = [served[: (_QUIET + 1) * _QUIET_EACH].count(tenant) for tenant in set(served)]
    jain = sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))
    return {"queues.noisy.last_position": last, "queues.noisy.jain": jain}


if __name__ == "__main__":
    uvloop.run(main())
