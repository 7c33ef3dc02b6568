"""A message whose handler never ran has not been attempted, however its consumer ended."""

import asyncio
import contextlib
import signal
import struct
import threading

import pytest

from client.consuming import QUICK, Place, a_place, is_empty
from client.test_leaving import begun
from conftest import Topology
from doubledecker.client import AsyncBus, BlockingMessage, Message


async def _cancel(run: "asyncio.Task[None]") -> None:
    run.cancel()
    async with asyncio.timeout(20):
        with contextlib.suppress(asyncio.CancelledError):
            await run


async def test_cancelling_a_run_spends_the_one_attempt_that_began(source: str, one: Topology):
    async with a_place(source, one, attempts_max=2) as place:
        has_begun = asyncio.Event()

        @place.consumer.handler(concurrency=5)
        async def work(message: Message) -> None:
            has_begun.set()
            await asyncio.Event().wait()

        await place.publish(1)
        run = asyncio.create_task(place.consumer.run())
        async with asyncio.timeout(20):
            await has_begun.wait()
        await _cancel(run)
        view = await place.queue.get()

        assert (view.waiting, view.in_flight, view.dead) == (1, 0, 0)
        assert (view.counters["pulled"], view.counters["nacked"]) == (1, 1)


async def test_what_the_last_pull_of_a_cancelled_run_brings_was_not_attempted(one: Topology):
    async with a_place("http", one, attempts_max=1) as place:

        @place.consumer.handler()
        async def work(message: Message) -> None:
            """Never called: nothing is published while the consumer takes messages."""

        # The pull waits up to a second for a message; one that ends just as we publish takes nothing, nor does one that
        # has not begun on a busy machine, so once more, and later.
        for tries in range(1, 13):
            run = asyncio.create_task(place.consumer.run())
            await asyncio.sleep(0.5 * tries)
            cancelling = asyncio.create_task(_cancel(run))
            await asyncio.sleep(0)
            await place.publish(1)
            await cancelling
            view = await place.queue.get()
            if view.counters["pulled"]:
                break
            await place.queue.purge()

        assert (view.waiting, view.in_flight, view.dead) == (1, 0, 0)
        assert view.counters["pulled"] > 0, "the pull under way has taken it"


async def test_what_no_thread_has_begun_was_not_attempted(source: str, one: Topology):
    async with a_place(source, one, attempts_max=2) as place:
        handled: list[int] = []
        freed = threading.Event()

        @place.consumer.handler(concurrency=1, grace_s=0)
        def work(message: BlockingMessage) -> None:
            handled.append(message.event.data["n"])
            if len(handled) == 200:  # by then the consumer pulls ahead of its one thread
                freed.wait(30)

        await place.publish(1_000)
        run = asyncio.create_task(place.consumer.run())
        await place.until(lambda view: len(handled) == 200 and view.in_flight > 1)
        await _cancel(run)
        freed.set()
        left = await _pull_all(place)

        assert len(handled) == 200, "what was given back is not begun afterwards"
        assert await place.queue.nack(left, attempted=True) == []
        assert (await place.queue.get()).dead == 1, "only the one that began had an attempt before"


async def _pull_all(place: Place) -> list[Message]:
    left: list[Message] = []
    while pulled := await place.queue.pull(200):
        left += pulled
    return left


@pytest.mark.parametrize("attempts_max", [1, 2])
async def test_a_lease_that_ended_before_its_message_was_read_costs_no_attempt(one: Topology, attempts_max: int):
    async with a_place("http", one, lease_ms=QUICK, attempts_max=attempts_max) as place:
        blocked, freed = threading.Event(), threading.Event()
        handled: list[int] = []

        async def program() -> None:
            # On a loop of its own: the bus must not be blocked.
            async with AsyncBus(place.bus.url, place.http._calls.token) as bus:
                queue = bus.queue("jobs")

                @queue.handler(concurrency=2)
                async def work(message: Message) -> None:
                    number = message.event.data["n"]
                    handled.append(number)
                    if number == 0:
                        # The pull for the second slot is under way by then.
                        await asyncio.sleep(0.05)
                        blocked.set()
                        freed.wait(30)
                    else:
                        queue.stop()

                await queue.run()

        running = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(program())))
        await place.publish(1)
        await asyncio.to_thread(blocked.wait, 30)
        await place.publish(1, first=1)
        await place.until(lambda view: view.in_flight == 2)
        # Whoever pulls next ends the lease: the message is dead, or another consumer's, who fails.
        others = await _pull_when_due(place, attempts_max)
        freed.set()
        if others:
            await _until_forgiven(place, others[0])
            await place.queue.nack(others)
        async with asyncio.timeout(20):
            await running

        assert handled == [0, 1]
        assert (await place.queue.get()).dead == 0
        assert is_empty(await place.queue.get())


async def _until_forgiven(place: Place, message: Message) -> None:
    """Wait until the bus has heard that an attempt of the message never began."""
    home = place.bus.partitions.home
    async with asyncio.timeout(20):
        while True:
            [record] = await home.commands([["HGET", home.key("queue:tried:jobs"), message.id]])
            assert isinstance(record, bytes)
            if struct.unpack_from("<III", record)[2] == 1:
                return
            await asyncio.sleep(0.02)


async def _pull_when_due(place: Place, attempts_max: int) -> list[Message]:
    if attempts_max > 1:
        return await place.queue.pull(wait_ms=10_000, lease_ms=60_000)
    async with asyncio.timeout(20):
        while not (await place.queue.get()).dead:
            assert await place.queue.pull(wait_ms=100) == []
    return []


async def test_a_killed_consumer_has_attempted_only_what_it_had_begun(one: Topology):
    async with a_place("http", one, attempts_max=1) as place:
        await place.publish(3)
        async with begun(place, "run-blocked") as process:
            await place.until(lambda view: view.in_flight == 3)
            process.send_signal(signal.SIGKILL)
            view = await place.until(lambda view: not view.in_flight)

        assert (view.waiting, view.dead) == (2, 1)
        assert [letter.why for letter in await place.queue.dead()] == ["the consumer died"]


async def test_what_waits_for_its_handler_for_too_long_is_given_back_unattempted(one: Topology):
    async with a_place("http", one, attempts_max=1, lease_ms=QUICK) as place:
        blocked, freed = threading.Event(), threading.Event()

        async def program() -> None:
            async with AsyncBus(place.bus.url, place.http._calls.token) as bus:
                queue = bus.queue("jobs")

                @queue.handler(concurrency=2, work_s_max=0.1)
                async def work(message: Message) -> None:
                    blocked.set()
                    freed.wait(30)
                    queue.stop()

                await queue.run()

        await place.publish(2)
        running = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(program())))
        await asyncio.to_thread(blocked.wait, 30)
        [other] = await place.queue.pull(wait_ms=10_000, lease_ms=60_000)
        freed.set()
        async with asyncio.timeout(20):
            await running

        assert other.event.data["n"] == 1
        assert await place.queue.ack([other]) == []


async def test_a_report_that_comes_twice_counts_once(one: Topology):
    async with a_place("http", one, attempts_max=2) as place:
        await place.publish(1)
        for _ in range(3):
            messages = await place.queue.pull()
            await place.queue.nack(messages, attempted=False)
            await place.queue.nack(messages, attempted=False)
        for _ in range(2):
            await place.queue.nack(await place.queue.pull())

        assert (await place.queue.get()).dead == 1
