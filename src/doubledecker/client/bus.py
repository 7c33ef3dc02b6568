"""A bus over HTTP, for async programs: publishing, subscribing, queues."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack

import msgspec

from doubledecker.client.calls import Calls, path
from doubledecker.client.consumer import run_together, stopped_by_signals
from doubledecker.client.errors import ClientError, Refusal
from doubledecker.client.queue import AsyncQueue
from doubledecker.client.views import QueueView

PATIENCE_S = 10.0


class EventOptions(TypedDict, total=False):
    """Optional fields of an event; docs/http-api.md describes them."""

    url: str
    tenant: str | int
    key: str
    id: str
    timestamp: int
    data: Any
    traceparent: str


class Publication(EventOptions, total=False):
    """One event to publish; topic and type are required."""

    topic: str
    type: str


class SubscriptionOptions(TypedDict, total=False):
    """Optional fields of a subscription; docs/http-api.md describes them."""

    uuid: str
    timeout: int
    max: int
    max_bytes: int
    concurrency: int
    tier: Literal["live", "bulk"]


class Published(msgspec.Struct, frozen=True):
    """The ids of the events that the bus accepted, in order, and the refused ones with their reasons."""

    ids: tuple[str, ...]
    refused: tuple[Refusal, ...] = ()


class AsyncBus:
    """A bus at a URL, used with a client's token; `async with` closes its connections.

    While the bus is unreachable, the client retries a call for up to `patience_s`. That is safe: a publish carries an
    idempotency key, and all other calls are idempotent. Only pulls are never retried.
    """

    def __init__(self, url: str, token: str, *, patience_s: float = PATIENCE_S) -> None:
        self._calls = Calls(url, token, patience_s=patience_s)
        self._queues: dict[str, AsyncQueue] = {}
        self._stop: asyncio.Event | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End message loops and runs, nack the messages that they hold, and close the connections.

        The next call opens new ones.
        """
        for queue in self._queues.values():
            await queue.leave()
        await self._calls.close()

    async def publish(self, topic: str, type: str, **options: Unpack[EventOptions]) -> str:  # noqa: A002
        """Publish one event; returns its id once the bus has stored it. Raises Refused with the bus's reason."""
        event = {"topic": topic, "type": type, **options}
        return (await self._publish(event, path("events"))).ids[0]

    async def publish_many(
        self, events: Sequence[Publication] | Sequence[Mapping[str, Any]], *, is_whole: bool = False
    ) -> Published:
        """Publish several events; returns ids and refusals. Raises EventsRefused when the bus refuses all.

        With `is_whole` one refusal refuses all.
        """
        return await self._publish(list(events), path("events", all=1 if is_whole else None))

    async def subscribe(self, topics: Sequence[str], callback: str, **options: Unpack[SubscriptionOptions]) -> None:
        """Have the bus post the events of these topics to a callback; replaces this client's subscription."""
        body = {"topics": list(topics), "callback": callback, **options}
        await self._calls.ask("POST", path("subscription"), body, kind=type(None))

    async def unsubscribe(self) -> None:
        """End this client's subscription and delete its waiting events."""
        await self._calls.ask("DELETE", path("subscriber"), kind=type(None))

    def queue(self, name: str) -> AsyncQueue:
        """The queue of that name; the same object each time."""
        return self._queues.setdefault(name, AsyncQueue(self._calls, name))

    async def queues(self) -> list[QueueView]:
        """The queues of this client; for root, all queues."""
        return await self._calls.ask("GET", path("queues"), kind=list[QueueView])

    async def run(self) -> None:
        """Call the handlers of all queues until `stop`, SIGTERM or SIGINT; then finish or nack what they hold."""
        at_work = [queue for queue in self._queues.values() if queue.has_handlers]
        if not at_work:
            raise ClientError("no queue has a handler; decorate a function with @bus.queue(name).handler()")
        self._stop = stop = asyncio.Event()
        with stopped_by_signals(stop):
            await run_together([queue.run_until(stop) for queue in at_work], stop)

    def stop(self) -> None:
        """End `run` cleanly."""
        if self._stop is not None:
            self._stop.set()

    async def _publish(self, body: object, at: str) -> Published:
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return await self._calls.ask("POST", at, body, kind=Published, headers=headers)
