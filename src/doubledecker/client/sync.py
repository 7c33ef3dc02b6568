"""The client for plain programs: the async one on a loop in a thread of its own, each call waited for.

There is one implementation. What is here only passes on and waits, so that both variants can never differ.
"""

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, Never, Self, TypeVar, Unpack, cast

import msgspec

from doubledecker.client.blocking import BlockingMessage, end_others, wait_for
from doubledecker.client.bus import (
    PATIENCE_S,
    AsyncBus,
    EventOptions,
    Publication,
    Published,
    SubscriptionOptions,
)
from doubledecker.client.holding import Rules
from doubledecker.client.message import Message
from doubledecker.client.pausing import Backoff
from doubledecker.client.queue import AsyncQueue, Facet, QueueOptions
from doubledecker.client.views import DeadLetter, FacetView, QueueView, Rule, Waiting

# Five seconds in all; then what it held is given back when the program ends.
_CLOSE_TRIES_MAX, _CLOSE_PAUSE_S = 500, 0.01

T = TypeVar("T")
_W = TypeVar("_W", bound=Callable[..., object])


class _Portal:
    """A loop in a daemon thread; started by the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="doubledecker", daemon=True)
                self._thread.start()
            return self._loop

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return wait_for(work, self.loop)

    def close(self) -> None:
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            wait_for(loop.shutdown_asyncgens(), loop)
            wait_for(end_others(), loop)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


class SyncFacet:
    """One tenant's messages in a queue."""

    def __init__(self, facet: Facet, portal: _Portal) -> None:
        self._facet = facet
        self._portal = portal

    def set(
        self,
        *,
        weight: float | None = None,
        concurrency: int | msgspec.UnsetType | None = msgspec.UNSET,
        rate_per_s: float | msgspec.UnsetType | None = msgspec.UNSET,
        paused: bool | None = None,
    ) -> Rule:
        """Change the rules that are given, from the tenant's next message on; None removes a concurrency or a rate."""
        change = self._facet.set(weight=weight, concurrency=concurrency, rate_per_s=rate_per_s, paused=paused)
        return self._portal.call(change)

    def get(self) -> FacetView:
        """Its counts and rules."""
        return self._portal.call(self._facet.get())


class Queue:
    """One queue, by name; it need not be registered yet."""

    def __init__(self, queue: AsyncQueue, portal: _Portal) -> None:
        self.name = queue.name
        self._queue = queue
        self._portal = portal

    def register(self, pattern: str | Sequence[str], **options: Unpack[QueueOptions]) -> QueueView:
        """Create or replace it: it gets every event whose `tenant:topic:type` matches a pattern in full."""
        return self._portal.call(self._queue.register(pattern, **options))

    def get(self) -> QueueView:
        """Its counts and its facets, those with the most waiting messages first."""
        return self._portal.call(self._queue.get())

    def facet(self, tenant: str) -> SyncFacet:
        """One tenant's messages in it."""
        return SyncFacet(self._queue.facet(tenant), self._portal)

    def pull(self, max: int = 1, *, wait_ms: int = 0, lease_ms: int | None = None) -> list[BlockingMessage]:  # noqa: A002
        """Pull up to `max` messages, waiting up to `wait_ms` for the first. The caller extends their leases."""
        pulled = self._portal.call(self._queue.pull(max, wait_ms=wait_ms, lease_ms=lease_ms))
        return [BlockingMessage(message, self._portal.loop) for message in pulled]

    def ack(self, messages: Sequence[BlockingMessage]) -> list[BlockingMessage]:
        """Ack messages; returns those whose leases had expired, which are delivered again."""
        return _those(messages, self._portal.call(self._queue.ack(_held(messages))))

    def nack(
        self,
        messages: Sequence[BlockingMessage],
        delay_s: float = 0.0,
        why: str = "given back",
        *,
        attempted: bool = True,
    ) -> list[BlockingMessage]:
        """Nack messages; returns those whose leases had expired. Without `attempted` the attempt does not count."""
        lost = self._portal.call(self._queue.nack(_held(messages), delay_s, why, attempted=attempted))
        return _those(messages, lost)

    def reject(self, messages: Sequence[BlockingMessage], why: str = "rejected") -> list[BlockingMessage]:
        """Make messages dead letters; returns those whose leases had expired."""
        return _those(messages, self._portal.call(self._queue.reject(_held(messages), why)))

    def extend(self, messages: Sequence[BlockingMessage], lease_ms: int | None = None) -> list[BlockingMessage]:
        """Extend the leases of messages; returns those whose leases had expired."""
        return _those(messages, self._portal.call(self._queue.extend(_held(messages), lease_ms)))

    def messages(
        self, *, lease_ms: int | None = None, work_s_max: float = Rules.work_s_max, backoff: Backoff = Rules.backoff
    ) -> Iterator[BlockingMessage]:
        """Iterate over messages; the lease keeper extends their leases.

        The iterator acks a message when the loop asks for the next one. When the loop ends, by an exception or
        otherwise, it nacks the last message with backoff; `message.ack()` before a `break` avoids that.
        """
        source = self._queue.messages(lease_ms=lease_ms, work_s_max=work_s_max, backoff=backoff)
        stream = cast("AsyncGenerator[Message, None]", source)
        try:
            while True:
                try:
                    message = self._portal.call(anext(stream))
                except StopAsyncIteration:
                    return
                yield BlockingMessage(message, self._portal.loop)
        finally:
            self._portal.call(_close(stream))

    def handler(
        self,
        *misplaced: Never,
        concurrency: int = Rules.concurrency,
        lease_ms: int | None = None,
        work_s_max: float = Rules.work_s_max,
        grace_s: float = Rules.grace_s,
        backoff: Backoff = Rules.backoff,
    ) -> Callable[[_W], _W]:
        """Have `Bus.run` call the decorated function with each message, in so many threads."""
        return self._queue.handler(
            *misplaced,
            concurrency=concurrency,
            lease_ms=lease_ms,
            work_s_max=work_s_max,
            grace_s=grace_s,
            backoff=backoff,
        )

    def peek(self, tenant: str = "default", *, limit: int = 100) -> list[Waiting]:
        """The next waiting messages of a tenant, without pulling them."""
        return self._portal.call(self._queue.peek(tenant, limit=limit))

    def dead(self, *, tenant: str | None = None, limit: int = 100) -> list[DeadLetter]:
        """Dead letters, oldest first."""
        return self._portal.call(self._queue.dead(tenant=tenant, limit=limit))

    def redrive(self, ids: Sequence[str] | None = None, *, tenant: str | None = None) -> int:
        """Return dead letters to the queue with new attempts: all, by id, or a tenant's; returns how many."""
        return self._portal.call(self._queue.redrive(ids, tenant=tenant))

    def purge_dead(self, ids: Sequence[str] | None = None, *, tenant: str | None = None) -> int:
        """Delete dead letters; returns how many."""
        return self._portal.call(self._queue.purge_dead(ids, tenant=tenant))

    def purge(self, *, tenant: str | None = None) -> int:
        """Delete waiting messages, of all tenants or of one, but not leased ones; returns how many."""
        return self._portal.call(self._queue.purge(tenant=tenant))

    def delete(self, *, discard: bool = False) -> None:
        """Delete the queue; raises Conflict while it holds messages, unless `discard` is set."""
        self._portal.call(self._queue.delete(discard=discard))


class Bus:
    """A bus at a URL, used with a client's token; `with` closes its connections."""

    def __init__(self, url: str, token: str, *, patience_s: float = PATIENCE_S) -> None:
        self._bus = AsyncBus(url, token, patience_s=patience_s)
        self._portal = _Portal()
        self._queues: dict[str, Queue] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread; the next call opens and starts new ones."""
        self._portal.call(self._bus.close())
        self._portal.close()

    def publish(self, topic: str, type: str, **options: Unpack[EventOptions]) -> str:  # noqa: A002
        """Publish one event; returns its id once the bus has stored it. Raises Refused with the bus's reason."""
        return self._portal.call(self._bus.publish(topic, type, **options))

    def publish_many(
        self, events: Sequence[Publication] | Sequence[Mapping[str, Any]], *, is_whole: bool = False
    ) -> Published:
        """Publish several events; returns ids and refusals. Raises EventsRefused when the bus refuses all."""
        return self._portal.call(self._bus.publish_many(events, is_whole=is_whole))

    def subscribe(self, topics: Sequence[str], callback: str, **options: Unpack[SubscriptionOptions]) -> None:
        """Have the bus post the events of these topics to a callback; replaces this client's subscription."""
        self._portal.call(self._bus.subscribe(topics, callback, **options))

    def unsubscribe(self) -> None:
        """End this client's subscription and delete its waiting events."""
        self._portal.call(self._bus.unsubscribe())

    def queue(self, name: str) -> Queue:
        """The queue of that name; the same object each time."""
        return self._queues.setdefault(name, Queue(self._bus.queue(name), self._portal))

    def queues(self) -> list[QueueView]:
        """The queues of this client; for root, all queues."""
        return self._portal.call(self._bus.queues())

    def run(self) -> None:
        """Call the handlers of all queues until `stop`, SIGTERM or SIGINT; then finish or nack what they hold."""
        with _stopped_by_signals(self.stop):
            self._portal.call(self._bus.run())

    def stop(self) -> None:
        """End `run` cleanly; from any thread."""
        self._portal.loop.call_soon_threadsafe(self._bus.stop)


async def _close(stream: AsyncGenerator[Message, None]) -> None:
    """Close it; a step that Ctrl-C interrupted may have to end first."""
    for _ in range(_CLOSE_TRIES_MAX):
        try:
            await stream.aclose()
        except RuntimeError:
            await asyncio.sleep(_CLOSE_PAUSE_S)
        else:
            return


def _held(messages: Sequence[BlockingMessage]) -> list[Message]:
    return [message.held for message in messages]


def _those(messages: Sequence[BlockingMessage], lost: Sequence[Message]) -> list[BlockingMessage]:
    return [message for message in messages if message.held in lost]


@contextlib.contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM and SIGINT; only the main thread may ask for that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, _frame: FrameType | None) -> None:
        # The second of its kind is not waited for.
        signal.signal(number, former[signal.Signals(number)])
        stop()

    former = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
