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
    """One tenant's line inside a queue."""

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
        """Change what is given, from the tenant's next message on; None ends a cap or a rate."""
        change = self._facet.set(weight=weight, concurrency=concurrency, rate_per_s=rate_per_s, paused=paused)
        return self._portal.call(change)

    def get(self) -> FacetView:
        """How it stands."""
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
        """How it stands, facets included."""
        return self._portal.call(self._queue.get())

    def facet(self, tenant: str) -> SyncFacet:
        """One tenant's line in it."""
        return SyncFacet(self._queue.facet(tenant), self._portal)

    def pull(self, max: int = 1, *, wait_ms: int = 0, lease_ms: int | None = None) -> list[BlockingMessage]:  # noqa: A002
        """Take up to `max` messages, waiting up to `wait_ms` for the first. Their leases are yours to extend."""
        pulled = self._portal.call(self._queue.pull(max, wait_ms=wait_ms, lease_ms=lease_ms))
        return [BlockingMessage(message, self._portal.loop) for message in pulled]

    def ack(self, messages: Sequence[BlockingMessage]) -> list[BlockingMessage]:
        """End messages; returns those that were no longer ours, and are delivered again."""
        return _those(messages, self._portal.call(self._queue.ack(_held(messages))))

    def nack(
        self,
        messages: Sequence[BlockingMessage],
        delay_s: float = 0.0,
        why: str = "given back",
        *,
        attempted: bool = True,
    ) -> list[BlockingMessage]:
        """Give messages back; returns those that were no longer ours. What was not attempted does not count."""
        lost = self._portal.call(self._queue.nack(_held(messages), delay_s, why, attempted=attempted))
        return _those(messages, lost)

    def reject(self, messages: Sequence[BlockingMessage], why: str = "rejected") -> list[BlockingMessage]:
        """Send messages to the dead letters; returns those that were no longer ours."""
        return _those(messages, self._portal.call(self._queue.reject(_held(messages), why)))

    def extend(self, messages: Sequence[BlockingMessage], lease_ms: int | None = None) -> list[BlockingMessage]:
        """Hold messages for another lease; returns those that were no longer ours."""
        return _those(messages, self._portal.call(self._queue.extend(_held(messages), lease_ms)))

    def messages(
        self, *, lease_ms: int | None = None, work_s_max: float = Rules.work_s_max, backoff: Backoff = Rules.backoff
    ) -> Iterator[BlockingMessage]:
        """One message after the other, their leases extended meanwhile.

        A message is acked when the loop asks for the next one. A loop that is left, by an exception or otherwise, gives
        its message back, to be delivered again after the backoff; `message.ack()` before a `break` keeps it done.
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
        """The next waiting messages of a tenant, without taking them."""
        return self._portal.call(self._queue.peek(tenant, limit=limit))

    def dead(self, *, tenant: str | None = None, limit: int = 100) -> list[DeadLetter]:
        """Dead letters, oldest first."""
        return self._portal.call(self._queue.dead(tenant=tenant, limit=limit))

    def redrive(self, ids: Sequence[str] | None = None, *, tenant: str | None = None) -> int:
        """Bring dead letters back to their lines, as if never tried; returns how many."""
        return self._portal.call(self._queue.redrive(ids, tenant=tenant))

    def purge_dead(self, ids: Sequence[str] | None = None, *, tenant: str | None = None) -> int:
        """Destroy dead letters; returns how many."""
        return self._portal.call(self._queue.purge_dead(ids, tenant=tenant))

    def purge(self, *, tenant: str | None = None) -> int:
        """Destroy what waits, of all or of one tenant; returns how many."""
        return self._portal.call(self._queue.purge(tenant=tenant))

    def delete(self, *, discard: bool = False) -> None:
        """Forget it; raises Conflict while it holds messages, unless they may be discarded."""
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
        """Hang up, and end the thread; the next call starts anew."""
        self._portal.call(self._bus.close())
        self._portal.close()

    def publish(self, topic: str, type: str, **options: Unpack[EventOptions]) -> str:  # noqa: A002
        """Publish one event; returns its id once the bus has it. Raises Refused with what is wrong."""
        return self._portal.call(self._bus.publish(topic, type, **options))

    def publish_many(
        self, events: Sequence[Publication] | Sequence[Mapping[str, Any]], *, is_whole: bool = False
    ) -> Published:
        """Publish several; those refused are returned. When none can be published, EventsRefused is raised."""
        return self._portal.call(self._bus.publish_many(events, is_whole=is_whole))

    def subscribe(self, topics: Sequence[str], callback: str, **options: Unpack[SubscriptionOptions]) -> None:
        """Have the events of these topics posted to a callback; replaces this client's former subscription."""
        self._portal.call(self._bus.subscribe(topics, callback, **options))

    def unsubscribe(self) -> None:
        """End this client's subscription, and what waits for it."""
        self._portal.call(self._bus.unsubscribe())

    def queue(self, name: str) -> Queue:
        """The queue of that name; the same object each time."""
        return self._queues.setdefault(name, Queue(self._bus.queue(name), self._portal))

    def queues(self) -> list[QueueView]:
        """The queues of this client; all of them for root."""
        return self._portal.call(self._bus.queues())

    def run(self) -> None:
        """Call the handlers of all queues until `stop`, SIGTERM or SIGINT; then finish or give back what is in hand."""
        with _stopped_by_signals(self.stop):
            self._portal.call(self._bus.run())

    def stop(self) -> None:
        """Let `run` end in good order; from any thread."""
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
