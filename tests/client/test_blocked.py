"""A handler that blocks the loop: what the pull under way brings is another's by the time it is read."""

import asyncio
import threading

from client.consuming import QUICK, a_place, is_empty
from conftest import Topology
from doubledecker.client import AsyncBus, Message


async def test_what_arrives_when_its_lease_is_over_is_not_handled(one: Topology):
    async with a_place("http", one, lease_ms=QUICK) as place:
        blocked, freed = threading.Event(), threading.Event()
        handled: list[int] = []

        async def program() -> None:
            # On a loop of its own: the bus must not be blocked.
            async with AsyncBus(place.bus.url, place.http._calls.token) as bus:
                queue = bus.queue("jobs")

                @queue.handler(concurrency=2)
                async def work(message: Message) -> None:
                    handled.append(message.event.data["n"])
                    if message.event.data["n"] == 0:
                        # The pull for the second slot is under way by then.
                        await asyncio.sleep(0.05)
                        blocked.set()
                        freed.wait(30)
                    if message.event.data["n"] == 2:
                        queue.stop()

                await queue.run()

        running = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(program())))
        await place.publish(1)
        await asyncio.to_thread(blocked.wait, 30)
        await place.publish(1, first=1)
        await place.until(lambda view: view.in_flight == 2)
        [other] = await place.queue.pull(wait_ms=5_000)
        await other.ack()
        freed.set()
        await place.publish(1, first=2)
        async with asyncio.timeout(20):
            await running

        assert (other.event.data["n"], other.attempt) == (1, 2)
        assert handled == [0, 2]
        assert is_empty(await place.queue.get())


async def test_a_pull_that_waited_longer_than_a_lease_brings_what_is_ours(source: str, one: Topology):
    async with a_place(source, one, lease_ms=QUICK) as place:
        attempts: list[int] = []

        @place.consumer.handler()
        async def work(message: Message) -> None:
            attempts.append(message.attempt)

        async with place.running():
            for n in range(3):
                await asyncio.sleep(2 * QUICK / 1000)
                await place.publish(1, first=n)
            view = await place.until(lambda view: view.counters["acked"] == 3)

        assert attempts == [1, 1, 1]
        assert view.counters["expired"] == 0
