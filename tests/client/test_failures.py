"""Handlers that fail in odd ways: whatever they raise, their message is given back and the slot goes on."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from client.consuming import Place, a_place, is_empty
from conftest import Topology
from doubledecker.client import AsyncBus, Backoff, BlockingMessage, Bus, ClientError, Message, Reject, RetryLater

AT_ONCE = Backoff(base_s=0.01, cap_s=0.02)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Bare(Reject):
    def __init__(self) -> None:
        """Without what a Reject has."""


# What a handler raises, and the reason that is kept of it.
ODD: dict[str, tuple[Callable[[], BaseException], str]] = {
    "reject-error": (lambda: Reject(KeyError("x")), "KeyError: 'x'"),  # type: ignore[arg-type]
    "reject-mute": (lambda: Reject(Mute()), "Mute"),  # type: ignore[arg-type]
    "reject-none": (lambda: Reject(None), "None"),  # type: ignore[arg-type]
    "reject-bare": (Bare, "Bare: "),
    "retry-error": (lambda: RetryLater(0, ValueError("x")), "ValueError: x"),  # type: ignore[arg-type]
    "mute": (Mute, "Mute"),
    "generator-exit": (GeneratorExit, "GeneratorExit: "),
    "cancelled": (asyncio.CancelledError, "CancelledError: "),
    "exit": (lambda: SystemExit(3), "SystemExit: 3"),
    "group": (
        lambda: BaseExceptionGroup("both", [GeneratorExit(), KeyError("x")]),
        "BaseExceptionGroup: both (2 sub-exceptions)",
    ),
}


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
@pytest.mark.parametrize("odd", ODD)
async def test_whatever_a_handler_raises_its_message_ends_and_the_slot_goes_on(one: Topology, odd: str, is_async: bool):
    error, why = ODD[odd]
    async with a_place("http", one, attempts_max=1) as place:
        _raise(place, error, is_async=is_async)

        await place.publish(3)
        async with place.running():
            view = await place.until(lambda view: view.dead == 1 and is_empty(view))

        assert view.counters["acked"] == 2
        assert [letter.why for letter in await place.queue.dead()] == [why]


async def test_an_interrupt_raised_in_a_thread_is_a_failure_like_others(one: Topology):
    async with a_place("http", one, attempts_max=1) as place:
        _raise(place, KeyboardInterrupt, is_async=False)

        await place.publish(3)
        async with place.running():
            await place.until(lambda view: view.dead == 1 and is_empty(view))

        assert [letter.why for letter in await place.queue.dead()] == ["KeyboardInterrupt: "]


async def test_a_reason_that_is_no_text_settles_all_the_same(one: Topology):
    async with a_place("http", one) as place:

        @place.consumer.handler(concurrency=1)
        async def work(message: Message) -> None:
            await message.reject(ValueError("x"))  # type: ignore[arg-type]

        await place.publish(2)
        async with place.running():
            await place.until(lambda view: view.dead == 2 and is_empty(view))

        assert {letter.why for letter in await place.queue.dead()} == {"x"}


async def test_a_reason_that_cannot_be_encoded_is_mended_and_unsettles_nobody(source: str, one: Topology):
    async with a_place(source, one) as place:
        attempts: list[int] = []

        @place.consumer.handler(concurrency=5)
        async def work(message: Message) -> None:
            attempts.append(message.attempt)
            if message.event.data["n"] == 0:
                raise Reject("no file \udcff")

        await place.publish(10)
        async with place.running():
            view = await place.until(lambda view: view.dead == 1 and is_empty(view))
        await place.publish(1)
        [message] = await place.consumer.pull()
        await place.consumer.reject([message], "by hand \udcff")

        assert (attempts, view.counters["acked"]) == ([1] * 10, 9)
        assert [letter.why for letter in await place.queue.dead()] == ["no file ?", "by hand ?"]


async def test_a_slot_that_dies_ends_the_runner(one: Topology):
    async with a_place("http", one) as place:

        @place.consumer.handler(concurrency=2)
        async def work(message: Message) -> None:
            if message.event.data["n"] == 0:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(5)

        await place.publish(2)
        async with asyncio.timeout(10):
            with pytest.raises(ClientError, match="a slot of queue 'jobs' died of CancelledError"):
                await place.consumer.run()
        view = await place.queue.get()

        assert (view.in_flight, view.waiting) == (0, 1)


async def test_a_runner_that_is_cancelled_is(source: str, one: Topology):
    async with a_place(source, one) as place:

        @place.consumer.handler()
        async def work(_message: Message) -> None:
            await asyncio.sleep(60)

        await place.publish(1)
        running = asyncio.create_task(place.consumer.run())
        await place.until(lambda view: view.in_flight == 1)
        running.cancel()
        async with asyncio.timeout(10):
            with pytest.raises(asyncio.CancelledError):
                await running
        view = await place.queue.get()

        assert (view.in_flight, view.waiting) == (0, 1), "given back before run() ends"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"concurrency": 0}, "concurrency is 0; it must be a whole number, and the least is 1"),
        ({"concurrency": 1.5}, "concurrency is 1.5; it must be a whole number"),
        ({"lease_ms": -1}, "lease_ms is -1; it must be a whole number from 100 to 43200000"),
        ({"lease_ms": 500.5}, "lease_ms is 500.5; it must be a whole number"),
        ({"work_s_max": -1}, "work_s_max is -1; it must be a number of seconds"),
        ({"work_s_max": float("inf")}, "work_s_max is inf; it must be a number of seconds"),
        ({"grace_s": "5"}, "grace_s is '5'; it must be a number of seconds"),
        ({"backoff": 5}, r"backoff is 5; it must be a Backoff, like Backoff\("),
    ],
)
def test_an_option_that_cannot_be_is_refused_when_the_handler_is_made(options: dict[str, Any], says: str):
    for bus in (AsyncBus("http://127.0.0.1:1", "x"), Bus("http://127.0.0.1:1", "x")):
        with pytest.raises(ValueError, match=says):
            bus.queue("jobs").handler(**options)


def test_a_backoff_that_cannot_be_is_refused():
    for spans in (("a", 1), (1, -1), (float("nan"), 1)):
        with pytest.raises(ValueError, match="it must be a number of seconds, 0 or more"):
            Backoff(*spans)  # type: ignore[arg-type]


def test_a_decorator_without_parentheses_or_on_a_generator_says_so():
    def work(_message: Message) -> None: ...

    def parts(_message: Message) -> Iterator[int]:
        yield 1

    for bus in (AsyncBus("http://127.0.0.1:1", "x"), Bus("http://127.0.0.1:1", "x")):
        with pytest.raises(TypeError, match=r"with parentheses: @queue.handler\(\)"):
            bus.queue("jobs").handler(work)
        with pytest.raises(TypeError, match="without `yield`"):
            bus.queue("jobs").handler()(parts)


def _raise(place: Place, error: Callable[[], BaseException], *, is_async: bool) -> None:
    """Have the first message fail like this, in the only slot there is."""

    def plain(message: BlockingMessage | Message) -> None:
        if message.event.data["n"] == 0:
            raise error()

    async def work(message: Message) -> None:
        plain(message)

    place.consumer.handler(concurrency=1, backoff=AT_ONCE)(work if is_async else plain)
