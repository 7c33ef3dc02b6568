"""What one client's queues cost another's publish, where that is the most: time to the answer, and CPU.

python -m bench.strangers

`new`: requests of 100 events, each of a tenant never seen before, over one connection, with catch-all queues of
strangers, 16 each; the publisher has no other receiver. Every round measures all rows, so that a busy machine is busy
for each of them alike; the ratio is the median over the rounds of a row's cost over that of the first in its round.

`own`: one event at a time over one connection, on a topic without receivers, while another client publishes to
a thousand queues of its own over four connections, so many events a request; over what it takes beside the same
requests on a topic that no queue matches. A worker runs.
"""

import asyncio
import contextlib
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from bench import children, events
from bench.bus import Bus, a_bus

_ROUNDS = 3
_EVENTS = 100
_REQUESTS = 20
_OWN_QUEUES = 1000
_OWN_CONNECTIONS = 4
_OWN_REQUESTS = 50
_FULL_LENGTH = 200
# Strangers' queues, and how long each may be.
_KEPT_LENGTH = 1_000_000
_COUNTS = (1, 2, 4, 16, 64)
_NEW = ((0, 0), *((count, length) for length in (_KEPT_LENGTH, _FULL_LENGTH) for count in _COUNTS))
_EACH = 16  # queues of one stranger, as many as `client_copies_max` lets get an event

_numbers = itertools.count()


@dataclass(frozen=True)
class Cost:
    """What a request took: its median time, and CPU of web and of Valkey."""

    wall_ms: float
    web_ms: float
    valkey_ms: float


async def main() -> None:
    """Print a row for each number of queues, then one for each kind of neighbour."""
    print(f"{'':>24} {'time ms':>8} {'web ms':>8} {'valkey':>8} {'time':>6} {'CPU':>6}")
    async with a_bus() as bus, bus.a_worker():
        strangers = [await bus.authorization(f"stranger-{n}") for n in range(max(_COUNTS) // _EACH)]
        rounds = [[await _new(bus, strangers, *row) for row in _NEW] for _ in range(_ROUNDS + 1)][1:]
    for i, (count, length) in enumerate(_NEW):
        _print(f"new: {count} {'full' if length == _FULL_LENGTH else ''}", i, rounds)
    for count in (1, _EVENTS):
        async with a_bus() as bus, bus.a_worker():
            owner = await bus.authorization("owner")
            for n in range(_OWN_QUEUES):
                await _put_queue(bus, owner, n, _KEPT_LENGTH, ".*:mine:.*")
            alone = [await _own(bus) for _ in range(_ROUNDS)]
            async with _flood(bus, owner, count, "nobodys"):
                without = [await _own(bus) for _ in range(_ROUNDS)]
            async with _flood(bus, owner, count, "mine"):
                beside = [await _own(bus) for _ in range(_ROUNDS)]
        rounds = list(zip(without, beside, alone, strict=True))
        for i, name in enumerate(("no queues", f"{_OWN_QUEUES} queues", "no neighbour")):
            _print(f"own: {count}, {name}", i, rounds)


def _print(name: str, i: int, rounds: Sequence[Sequence[Cost]]) -> None:
    wall, web, valkey = (
        statistics.median(getattr(each[i], field) for each in rounds) for field in ("wall_ms", "web_ms", "valkey_ms")
    )
    time_ratio = statistics.median(each[i].wall_ms / each[0].wall_ms for each in rounds)
    cpu = [[cost.web_ms + cost.valkey_ms for cost in each] for each in rounds]
    cpu_ratio = statistics.median(each[i] / each[0] for each in cpu)
    print(f"{name:>24} {wall:>8.2f} {web:>8.2f} {valkey:>8.2f} {time_ratio:>5.2f}x {cpu_ratio:>5.2f}x", flush=True)


async def _new(bus: Bus, strangers: Sequence[str], count: int, length: int) -> Cost:
    for n in range(count):
        await _put_queue(bus, strangers[n // _EACH], n, length, ".*")
    bodies = []
    for _ in range(_REQUESTS):
        some = [events.event(0) for _ in range(_EVENTS)]
        bodies.append(events.encode([{**event, "tenant": f"tenant-{next(_numbers)}"} for event in some]))
    cost = await _measure(bus, bus.publisher, bodies)
    for n in range(count):
        headers = {"Authorization": strangers[n // _EACH]}
        async with bus.http.delete(f"{bus.url}/queues/q{n}?discard=1", headers=headers) as answer:
            answer.raise_for_status()
    return cost


async def _own(bus: Bus) -> Cost:
    return await _measure(bus, bus.publisher, [events.encode([events.event(n)]) for n in range(_OWN_REQUESTS)])


@contextlib.asynccontextmanager
async def _flood(bus: Bus, owner: str, count: int, topic: str) -> AsyncIterator[None]:
    """Another client publishes on a topic for as long as it lasts."""

    async def flood() -> None:
        while True:
            body = [{**events.event(next(_numbers)), "topic": topic} for _ in range(count)]
            await _post(bus, owner, events.encode(body))

    # What is under way when it ends is not waited for.
    async with asyncio.TaskGroup() as tasks:
        floods = [tasks.create_task(flood()) for _ in range(_OWN_CONNECTIONS)]
        yield
        for each in floods:
            each.cancel()


async def _measure(bus: Bus, authorization: str, bodies: Sequence[bytes]) -> Cost:
    before = {name: children.cpu_s(pid) for name, pid in bus.pids.items()}
    took = []
    for body in bodies:
        started_s = time.perf_counter()
        await _post(bus, authorization, body)
        took.append(time.perf_counter() - started_s)
    used = {name: (children.cpu_s(pid) - before[name]) / len(bodies) * 1000 for name, pid in bus.pids.items()}
    return Cost(statistics.median(took) * 1000, used["web"], used["valkey"])


async def _post(bus: Bus, authorization: str, body: bytes) -> None:
    headers = {"Authorization": authorization, "Content-Type": "application/json"}
    async with bus.http.post(f"{bus.url}/events", data=body, headers=headers) as answer:
        await answer.read()


async def _put_queue(bus: Bus, authorization: str, number: int, length: int, pattern: str) -> None:
    body = {"pattern": pattern, "max_length": length}
    async with bus.http.put(
        f"{bus.url}/queues/q{number}", json=body, headers={"Authorization": authorization}
    ) as answer:
        answer.raise_for_status()


if __name__ == "__main__":
    asyncio.run(main())
