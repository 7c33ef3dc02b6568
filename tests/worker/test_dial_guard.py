"""A receiver at an address that may not be called: nobody is dialled, it is failing, and nothing of it is lost."""

import asyncio
from dataclasses import replace

import pytest

from conftest import Topology
from doubledecker.worker import process
from harness import TestBus, a_bus, an_event, basic
from receiver import Receiver
from worker.test_deliver import _attempts, _until


async def _subscribed(bus: TestBus, callback: str) -> str:
    secret = await bus.token("s")
    await bus.subscribe(secret, callback, "widgets", timeout=0, max=1)
    return secret


async def _queued(bus: TestBus, callback: str) -> str:
    secret = await bus.token("s")
    body = {"pattern": ".*:widgets:.*", "callback": callback, "timeout": 0, "max": 1}
    async with bus.http.put(f"{bus.url}/queues/jobs", json=body, headers=basic(secret)) as answer:
        assert answer.status == 201
    return secret


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("register", [_subscribed, _queued])
async def test_a_trap_is_never_dialled_and_its_events_are_delivered_once_it_is_allowed(one: Topology, host, register):
    async with a_bus(one, workers=0) as bus, Receiver() as trap:
        secret = await register(bus, trap.url.replace("127.0.0.1", host))
        await bus.publish(await bus.token("publisher"), [an_event(n) for n in range(3)])
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(process.run(replace(bus.settings, private_callbacks=False), stop))
            path = "/subscribers" if register is _subscribed else "/queues/jobs"
            await _until(lambda: bus.get(path, secret), lambda seen: _failures(seen) >= 3)
            stop.set()

        assert (trap.attempts, len(trap._runner.server.connections)) == (0, 0)
        # As if nobody were there: that blames no batch.
        assert {each.outcome for each in await _attempts(bus.partitions)} == {"unreachable"}
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(process.run(replace(bus.settings, callback_allow="127.0.0.0/8,localhost"), stop))
            await trap.until_events(3, within_s=20)
            stop.set()
        assert len(set(trap.ids)) == 3


def _failures(seen: object) -> int:
    row = seen[0] if isinstance(seen, list) else seen
    return int(row["failures"])
