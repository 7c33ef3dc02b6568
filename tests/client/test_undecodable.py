"""Events that no consumer can decode, left by an older version: each costs its consumers that event alone."""

from contextlib import aclosing

from client.consuming import Place, a_place, is_empty
from conftest import Topology
from doubledecker.client import Message, Undecoded
from unreadable import FAR, LONG, publish_unchecked

WHY = "Number out of range - at `$.data[...]`"
FAR_WHY = f"data cannot be decoded: {WHY}"


async def spoil(place: Place, *data: bytes) -> list[str]:
    return await publish_unchecked(place.bus, "jobs", data)


async def test_a_pull_brings_the_others_and_rejects_what_cannot_be_decoded(source: str, topology: Topology):
    async with a_place(source, topology) as place:
        ids = await spoil(place, b"0", FAR, b"1", LONG, b"2")
        pulled = await place.consumer.pull(200)
        lost = await place.consumer.ack(pulled)
        letters = {letter.event.id: letter for letter in await place.queue.dead()}

        assert [message.event.data for message in pulled] == [0, 1, 2]
        assert lost == []
        assert set(letters) == {ids[1], ids[3]}
        assert letters[ids[1]].why == FAR_WHY
        assert letters[ids[3]].why.startswith("data cannot be decoded: Integer value out of range")
        assert is_empty(await place.queue.get())


async def test_a_pull_of_nothing_else_brings_what_comes_behind(source: str, one: Topology):
    async with a_place(source, one) as place:
        await spoil(place, FAR, FAR, LONG, b"7")
        pulled = await place.consumer.pull(1)

        assert [message.event.data for message in pulled] == [7]
        assert len(await place.queue.dead()) == 3


async def test_handlers_get_the_others(source: str, one: Topology):
    async with a_place(source, one) as place:
        handled: list[int] = []

        @place.consumer.handler(concurrency=3)
        async def handle(message: Message) -> None:
            handled.append(message.event.data)

        await spoil(place, *(FAR if n % 3 == 1 else b"%d" % n for n in range(30)))
        async with place.running():
            view = await place.until(lambda view: is_empty(view) and view.dead == 10)

        assert sorted(handled) == [n for n in range(30) if n % 3 != 1]
        assert view.counters["acked"] == 20
        assert {letter.why for letter in await place.queue.dead()} == {FAR_WHY}


async def test_a_loop_gets_the_others(source: str, one: Topology):
    async with a_place(source, one) as place:
        await spoil(place, FAR, b"1", FAR, b"2")
        numbers = []
        async with aclosing(place.consumer.messages()) as messages:
            async for message in messages:
                numbers.append(message.event.data)
                if len(numbers) == 2:
                    await message.ack()
                    break

        assert numbers == [1, 2]


async def test_what_waits_and_what_died_is_listed_with_its_json(one: Topology):
    async with a_place("http", one) as place:
        await spoil(place, b"0", FAR)
        waiting = [each.event.data for each in await place.queue.peek()]
        [zero] = await place.queue.pull(2)
        await zero.reject("no")
        dead = [each.event.data for each in await place.queue.dead()]

        undecoded = Undecoded(FAR, WHY)
        assert waiting == [0, undecoded]
        assert sorted(dead, key=str) == sorted([0, undecoded], key=str)


async def test_a_redriven_message_that_still_cannot_be_decoded_dies_again(one: Topology):
    async with a_place("http", one) as place:
        await spoil(place, FAR)
        first = await place.queue.pull()
        redriven = await place.queue.redrive()
        second = await place.queue.pull()

        assert (first, redriven, second) == ([], 1, [])
        assert [letter.why for letter in await place.queue.dead()] == [FAR_WHY]
