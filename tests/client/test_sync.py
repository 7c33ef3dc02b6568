"""The plain variant: the same against a real bus, called from a thread that may wait."""

import asyncio
import inspect
import threading
from collections.abc import Callable

import pytest

from client.consuming import QUICK, Place, a_place, is_empty
from conftest import Topology
from doubledecker.client import AsyncBus, AsyncQueue, BlockingMessage, Bus, Conflict, Facet, NotFound, Reject
from doubledecker.client.dead_letters import AsyncDeadLetters
from doubledecker.client.pipeline_jobs import AsyncErasures, AsyncReplays
from doubledecker.client.sync import Queue, SyncDeadLetters, SyncErasures, SyncFacet, SyncReplays


async def in_thread(place: Place, work: Callable[[Bus], object]) -> None:
    """Run a plain program beside the bus."""

    def program() -> None:
        with Bus(place.bus.url, place.http._calls.token) as bus:
            work(bus)

    await asyncio.to_thread(program)


@pytest.mark.parametrize(
    ("async_", "plain"),
    [
        (AsyncBus, Bus),
        (AsyncQueue, Queue),
        (Facet, SyncFacet),
        (AsyncDeadLetters, SyncDeadLetters),
        (AsyncReplays, SyncReplays),
        (AsyncErasures, SyncErasures),
    ],
)
def test_the_plain_variant_has_the_methods_of_the_async_one_with_their_arguments_and_docstrings(
    async_: type, plain: type
):
    # What a runner asks of a consumer; for plain programs `Bus` runs and stops, and a bus is closed by `with`.
    inner = {"leave", "run_until", "settle_ack", "settle_nack", "settle_reject", "has_handlers"}
    inner |= {"run", "stop"} if plain is Queue else set()
    methods = {name: each for name, each in inspect.getmembers(async_) if not name.startswith("_")}

    assert methods.keys() - vars(plain).keys() == inner & methods.keys()
    for name in methods.keys() - inner:
        mine, theirs = getattr(plain, name), methods[name]
        assert list(inspect.signature(mine).parameters) == list(inspect.signature(theirs).parameters)
        assert inspect.getdoc(mine)
        assert not inspect.iscoroutinefunction(mine)


async def test_everything_is_there_without_async(one: Topology):
    async with a_place("http", one, attempts_max=1) as place:

        def program(bus: Bus) -> None:
            queue = bus.queue("plain")
            assert queue.register([".*:letters:.*"], attempts_max=1).attempts_max == 1
            id_ = bus.publish("letters", "write", data=1)
            assert bus.publish_many([{"topic": "letters", "type": "write"}]).refused == ()
            assert queue.facet("default").set(weight=2).weight == 2
            assert queue.facet("default").get().waiting == 2
            assert queue.peek()[0].event.id == id_
            first, second = queue.pull(2)
            assert queue.extend([first, second], 60_000) == []
            assert queue.ack([first]) == []
            assert queue.ack([first]) == [first]
            assert queue.nack([second]) == []
            assert [letter.id for letter in queue.dead()] == [second.id]
            assert queue.redrive() == 1
            assert queue.reject(queue.pull(1), "never") == []
            assert queue.purge_dead() == 1
            assert queue.purge() == 0
            assert {view.name for view in bus.queues()} == {"jobs", "plain"}
            bus.publish("letters", "write")
            with pytest.raises(Conflict):
                queue.delete()
            queue.delete(discard=True)
            with pytest.raises(NotFound):
                queue.get()

        await in_thread(place, program)


async def test_a_plain_loop_acks_as_it_goes_and_gives_back_when_it_fails(one: Topology):
    async with a_place("http", one) as place:
        numbers: list[int] = []

        def program(bus: Bus) -> None:
            for message in bus.queue("jobs").messages():
                numbers.append(message.event.data["n"])
                if len(numbers) == 3:
                    raise ValueError("no")

        await place.publish(4)
        with pytest.raises(ValueError, match="no"):
            await in_thread(place, program)
        view = await place.queue.get()

        assert numbers == [0, 1, 2]
        assert (view.counters["acked"], view.in_flight, view.waiting + view.delayed) == (2, 0, 2)


async def test_plain_handlers_run_until_they_are_stopped(one: Topology):
    async with a_place("http", one, lease_ms=QUICK) as place:
        seen: list[int] = []
        threads: set[int] = set()

        def program(bus: Bus) -> None:
            @bus.queue("jobs").handler(concurrency=3)
            def work(message: BlockingMessage) -> None:
                threads.add(threading.get_ident())
                if message.event.data["n"] == 5:
                    raise Reject("five")
                if message.event.data["n"] == 6:
                    threading.Event().wait(4 * QUICK / 1000)
                seen.append(message.event.data["n"])
                if len(seen) == 9:
                    bus.stop()

            bus.run()

        await place.publish(10)
        async with asyncio.timeout(30):
            await in_thread(place, program)
        view = await place.queue.get()

        assert sorted(seen) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        assert (is_empty(view), view.dead, view.counters["expired"]) == (True, 1, 0)
        assert 1 <= len(threads) <= 3
        assert threading.main_thread().ident not in threads
