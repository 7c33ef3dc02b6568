"""`async for message in queue.messages()`, and pulling by hand."""

import asyncio
import time
from contextlib import aclosing

import pytest

from client.consuming import QUICK, a_place, is_empty
from conftest import Topology
from doubledecker.client import Backoff, NotFound


async def test_a_message_is_acked_when_the_loop_goes_on(source: str, one: Topology):
    async with a_place(source, one) as place:
        await place.publish(5)
        numbers = []
        async with aclosing(place.consumer.messages()) as messages:
            async for message in messages:
                numbers.append(message.event.data["n"])
                if len(numbers) == 5:
                    await message.ack()
                    break
        view = await place.queue.get()

        assert numbers == [0, 1, 2, 3, 4]
        assert (is_empty(view), view.counters["acked"]) == (True, 5)


async def test_a_loop_left_by_an_exception_gives_its_message_back(source: str, one: Topology):
    async with a_place(source, one) as place:
        await place.publish(1)

        async def fail() -> None:
            async for _ in place.consumer.messages(backoff=Backoff(base_s=0.2)):
                raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await fail()
        await place.until(lambda view: view.delayed == 1)

        [message] = await place.consumer.pull(wait_ms=5_000)
        assert message.attempt == 2


async def test_a_loop_left_early_gives_back_what_was_not_acked(source: str, one: Topology):
    async with a_place(source, one) as place:
        await place.publish(3)
        async with aclosing(place.consumer.messages()) as messages:
            async for message in messages:
                if message.event.data["n"] == 1:
                    break
        view = await place.queue.get()

        assert view.counters["acked"] == 1
        assert (view.in_flight, view.waiting + view.delayed) == (0, 2)


async def test_the_lease_of_the_message_in_the_body_is_extended(source: str, one: Topology):
    async with a_place(source, one, lease_ms=QUICK) as place:
        await place.publish(1)
        async with aclosing(place.consumer.messages()) as messages:
            async for message in messages:
                await asyncio.sleep(5 * QUICK / 1000)
                others = await place.queue.pull()
                was_ours = await message.ack()
                break

        assert (others, was_ours) == ([], True)
        assert (await place.queue.get()).counters["expired"] == 0


async def test_a_loop_over_a_queue_that_is_not_there_says_so(one: Topology):
    async with a_place("http", one) as place:
        with pytest.raises(NotFound, match="no queue named 'missing'"):
            async for _ in place.http.queue("missing").messages():
                pass


async def test_pulling_by_hand(source: str, topology: Topology):
    async with a_place(source, topology) as place:
        await place.publish(6, tenants=3)
        first = await place.consumer.pull(2)
        second = await place.consumer.pull(4, wait_ms=1_000, lease_ms=60_000)

        assert len(first + second) == 6
        assert await place.consumer.ack(first) == []
        assert await place.consumer.ack(first) == first, "they are ours no more"
        assert await place.consumer.extend(second) == []
        assert await place.consumer.nack(second[:1], delay_s=30, why="later") == []
        assert await second[1].nack(30)
        assert await place.consumer.reject(second[2:3], "never") == []
        assert await second[3].ack()
        view = await place.queue.get()
        assert (view.waiting, view.in_flight, view.delayed, view.dead) == (0, 0, 2, 1)


async def test_a_pull_waits_as_long_as_asked(source: str, one: Topology):
    async with a_place(source, one) as place:
        began_s = time.monotonic()
        nothing = await place.consumer.pull(wait_ms=300)

        assert nothing == []
        assert time.monotonic() - began_s >= 0.3


async def test_a_lease_that_ended_is_nobodys(source: str, one: Topology):
    async with a_place(source, one, lease_ms=QUICK) as place:
        await place.publish(1)
        [message] = await place.consumer.pull()
        await asyncio.sleep(QUICK / 1000)
        [again] = await place.consumer.pull(wait_ms=5_000)

        assert not await message.ack()
        assert again.attempt == 2
        assert await again.ack()
