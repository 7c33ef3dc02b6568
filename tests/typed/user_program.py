"""A typed user's program, checked by tests/typed/test_typing.py as its author would check it; it is never run.

`assert_type` pins what a type checker must know; a line with `type: ignore` must be an error, and both checkers
say when it is none.
"""

import asyncio
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from typing import Any, assert_type

from doubledecker.client import (
    AsyncBus,
    BlockingMessage,
    Bus,
    Message,
    Published,
    QueueView,
    Reject,
    RetryLater,
    Rule,
)
from doubledecker.queues import consume
from doubledecker.stages import (
    Backoff,
    Batch,
    BlockingBound,
    Bound,
    Breaker,
    Budget,
    Bulkhead,
    Cache,
    Chain,
    Count,
    Event,
    Fallback,
    Fifo,
    Poisson,
    Priority,
    Queue,
    Result,
    Retry,
    Simulated,
    SingleFlight,
    Stage,
    Timeout,
    Waiter,
    WorkerPool,
    simulate,
    value,
)
from doubledecker.stages.errors import CircuitOpen, Rejected, TimedOut

guard = (
    Retry(3, Backoff(0.1, cap_s=5), Budget(0.2), on=(ConnectionError, TimedOut))
    | Breaker(Count(20), probes=1, slow_s=1.0)
    | Bulkhead(workers=32, queue=Fifo(100))
    | Timeout(2.0)
)


@dataclass
class Response:
    status: int
    body: bytes


def is_bad(response: Response) -> bool:
    return response.status >= 500


def is_transient(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == 104


responses = Chain() | Retry(2, on=(TimedOut, is_transient, Result(is_bad))) | Fallback(function=value(None))


@guard
async def deliver(url: str, body: bytes = b"") -> Response:
    return Response(200, body + url.encode())


@(Chain() | Cache(100) | SingleFlight()).keyed(lambda user: f"user-{user}")
async def load(user: int) -> str:
    return f"user {user}"


@guard.in_thread
def read(path: str) -> bytes:
    return path.encode()


@guard.blocking
def fetch(url: str) -> Response:
    return Response(200, url.encode())


@(Chain() | Batch(10)).batched
async def look_up(numbers: list[int]) -> list[str]:
    return [str(number) for number in numbers]


class Client:
    """Methods are guarded as functions are."""

    def __init__(self, base: str) -> None:
        self.base = base

    @guard
    async def ask(self, question: str, *, times: int = 1) -> list[str]:
        return [self.base + question] * times

    @staticmethod
    @guard
    async def open(base: str) -> "Client":
        return Client(base)

    @staticmethod
    @guard.blocking
    def open_plainly(base: str) -> "Client":
        return Client(base)

    @classmethod
    @guard
    async def made(cls, base: str) -> "Client":
        return cls(base)

    @guard.blocking
    def ask_plainly(self, question: str) -> str:
        return self.base + question

    @guard.in_thread
    def read(self, path: str) -> bytes:
        return path.encode()


class Quota(Stage):
    """A technique of one's own."""

    def start(self) -> None:
        self.left = 2

    def admit(self, event: Event) -> None:
        if self.left == 0 and event.priority < 1:
            raise Rejected(self.name, retry_after_s=1.0)
        self.left -= 1

    async def work(self, event: Event) -> object:
        return await self.inner(event)


class Stack(Queue):
    """A queue with a store of its own."""

    def __init__(self, size_max: int | None = None) -> None:
        super().__init__(size_max)
        self._waiters: list[Waiter] = []

    def push(self, waiter: Waiter) -> None:
        self._waiters.append(waiter)

    def pop(self) -> Waiter:
        return self._waiters.pop()

    def discard(self, waiter: Waiter) -> None:
        self._waiters.remove(waiter)


class Two(WorkerPool):
    """A worker pool of one's own."""

    def has_free(self) -> bool:
        return self.busy < 2


async def calls() -> None:
    assert_type(await deliver("http://example.org", b"x"), Response)
    assert_type(await load(7), str)
    assert_type(await read("/tmp/x"), bytes)
    assert_type(await look_up(7), str)
    client = await Client.open("http://example.org")
    assert_type(client, Client)
    assert_type(Client.open_plainly("http://example.org"), Client)
    assert_type(await client.ask("why", times=2), list[str])
    assert_type(await client.read("/tmp/x"), bytes)
    assert_type(client.ask_plainly("why"), str)
    assert_type(fetch("http://example.org"), Response)
    assert_type(deliver.bound(), Bound)
    assert_type(client.ask.bound(), Bound)
    assert_type(fetch.bound(), BlockingBound)

    await deliver(7)  # type: ignore[arg-type]
    await client.ask("why", often=2)  # type: ignore[call-arg]
    fetch()  # type: ignore[call-arg]
    # A known limit, said in docs/stages.md: if a checker gets to know it, this line is no error any more.
    await Client.made("http://example.org")  # type: ignore[call-arg, arg-type]


async def binding() -> None:
    async with (Quota() | Bulkhead(workers=Two(), queue=Stack(5)) | guard).bind(listener=print) as bound:
        assert_type(await bound.call(deliver, "http://example.org"), Response)
        assert_type(await bound.options(priority=1, deadline_s=2.0, key="k").call(load, 7), str)
        bound.stage(Breaker).force_open()
        try:
            await bound.call(load, 7)
        except CircuitOpen as refused:
            print(refused.retry_after_s)
        bound.stage(Breaker).release()
        async with bound.admission() as event:
            assert_type(event, Event)
    with guard.bind_blocking() as blocking:
        assert_type(blocking.call(len, "four"), int)
        assert_type(blocking.options(priority=1).call(len, "four"), int)
        blocking.do(lambda stages: stages.stage(Bulkhead).resize(8))


def rehearse() -> None:
    report = simulate(guard | Simulated(availability=0.9), traffic=Poisson(50), duration=60, seed=7)
    print(report.success.mean, (Chain() | Bulkhead(queue=Priority())).diagram())


async def consuming(url: str, token: str) -> None:
    async with AsyncBus(url, token) as bus:
        assert_type(await bus.publish("orders", "paid", data={"total": 42}), str)
        queue = bus.queue("mail")
        await queue.register(r".*:orders:paid", lease_ms=30_000)

        @queue.handler(concurrency=50)
        async def send(message: Message) -> None:
            if message.attempt > 3:
                raise Reject("too often")
            raise RetryLater(5.0)

        @queue.handler()
        def write(message: BlockingMessage) -> None:
            assert_type(message.ack(), bool)

        run: Coroutine[Any, Any, None] = queue.run()
        await run
        assert_type(await send(Message("1", 1, "acme", (await queue.pull())[0].event, 0)), None)
        async for message in queue.messages():
            assert_type(message, Message)
        messages = await queue.pull(10)
        await queue.nack(messages, attempted=False)


def consuming_plainly(url: str, token: str) -> None:
    with Bus(url, token) as bus:
        assert_type(bus.publish("orders", "paid", data={"total": 42}), str)
        assert_type(bus.publish_many([{"topic": "orders", "type": "paid"}], is_whole=True), Published)
        bus.publish(7, "paid")  # type: ignore[arg-type]
        bus.publish("orders", "paid", datum=42)  # type: ignore[call-arg]
        queue = bus.queue("mail")
        assert_type(queue.register(r".*:orders:paid", lease_ms=30_000), QueueView)
        assert_type(queue.facet("acme").set(weight=2.0, concurrency=None), Rule)
        assert_type(queue.redrive(tenant="acme"), int)
        queue.delete(True)  # type: ignore[call-arg]

        @queue.handler(concurrency=50)
        def send(message: BlockingMessage) -> int:
            return message.attempt

        assert_type(send(queue.pull(10)[0]), int)
        for message in queue.messages():
            assert_type(message, BlockingMessage)


async def consuming_directly(url: str) -> None:
    async with consume.connected(url) as bus:
        queue = await bus.queue("mail")

        @queue.handler()
        async def send(message: Message) -> None:
            print(message.event.data)

        await queue.run()


def both(call: Awaitable[object]) -> Awaitable[object]:
    return asyncio.ensure_future(call)
