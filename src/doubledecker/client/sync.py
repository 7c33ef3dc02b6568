"""The client for plain programs: the async one on a loop in a thread of its own, each call waited for.

There is one implementation. A method that takes and returns the same in both variants is derived from the async one by
`_waits`: arguments, types and docstring are written once. The others only exchange messages for plain ones.
"""

import asyncio
import contextlib
import functools
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from doubledecker.client.backoff import Backoff
from doubledecker.client.blocking import BlockingMessage, end_others, wait_for
from doubledecker.client.bus import PATIENCE_S, AsyncBus
from doubledecker.client.dead_letters import AsyncDeadLetters
from doubledecker.client.message import Message
from doubledecker.client.pipeline_jobs import AsyncErasures, AsyncReplays
from doubledecker.client.queue import AsyncQueue, Facet
from doubledecker.client.session import Rules

# Five seconds in all; then what it held is given back when the program ends.
_CLOSE_TRIES_MAX, _CLOSE_PAUSE_S = 500, 0.01

T = TypeVar("T")
_P = ParamSpec("_P")
_Async_co = TypeVar("_Async_co", covariant=True)


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


class _Plain(Generic[_Async_co]):
    """A plain object: the async one that does its work, and the loop on which it does so."""

    def __init__(self, inner: _Async_co, portal: _Portal) -> None:
        self._async = inner
        self._portal = portal


def _waits(
    call: Callable[Concatenate[_Async_co, _P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Plain[_Async_co], _P], T]:
    """An async method as a plain one: the same in all but that it returns when the work is done."""

    @functools.wraps(call)
    def wait(self: _Plain[_Async_co], /, *args: _P.args, **kwargs: _P.kwargs) -> T:
        return self._portal.call(call(self._async, *args, **kwargs))

    return wait


def _passes(call: Callable[Concatenate[_Async_co, _P], T]) -> Callable[Concatenate[_Plain[_Async_co], _P], T]:
    """A method of the async one that does not wait, as it is."""

    @functools.wraps(call)
    def pass_on(self: _Plain[_Async_co], /, *args: _P.args, **kwargs: _P.kwargs) -> T:
        return call(self._async, *args, **kwargs)

    return pass_on


def _iterates(
    call: Callable[Concatenate[_Async_co, _P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[_Plain[_Async_co], _P], Generator[T, None, None]]:
    """An async generator as a plain one."""

    @functools.wraps(call)
    def iterate(self: _Plain[_Async_co], /, *args: _P.args, **kwargs: _P.kwargs) -> Generator[T, None, None]:
        return _items(self._portal, call(self._async, *args, **kwargs))

    return iterate


class SyncFacet(_Plain[Facet]):
    """One tenant's line inside a queue."""

    set = _waits(Facet.set)
    get = _waits(Facet.get)


class SyncDeadLetters(_Plain[AsyncDeadLetters]):
    """The dead letters of one receiver."""

    each = _iterates(AsyncDeadLetters.each)
    show = _waits(AsyncDeadLetters.show)
    count = _waits(AsyncDeadLetters.count)
    meant = _waits(AsyncDeadLetters.meant)
    redrive = _waits(AsyncDeadLetters.redrive)
    purge = _waits(AsyncDeadLetters.purge)
    begin = _waits(AsyncDeadLetters.begin)
    jobs = _waits(AsyncDeadLetters.jobs)
    job = _waits(AsyncDeadLetters.job)
    cancel = _waits(AsyncDeadLetters.cancel)


class SyncReplays(_Plain[AsyncReplays]):
    """Replays, for plain programs."""

    begin = _waits(AsyncReplays.begin)
    list = _waits(AsyncReplays.list)
    show = _waits(AsyncReplays.show)
    cancel = _waits(AsyncReplays.cancel)


class SyncErasures(_Plain[AsyncErasures]):
    """Erasures, for plain programs."""

    begin = _waits(AsyncErasures.begin)
    list = _waits(AsyncErasures.list)
    show = _waits(AsyncErasures.show)


class Queue(_Plain[AsyncQueue]):
    """One queue, by name; it need not be registered yet."""

    def __init__(self, queue: AsyncQueue, portal: _Portal) -> None:
        super().__init__(queue, portal)
        self.name = queue.name

    register = _waits(AsyncQueue.register)
    get = _waits(AsyncQueue.get)
    peek = _waits(AsyncQueue.peek)
    dead = _waits(AsyncQueue.dead)
    redrive = _waits(AsyncQueue.redrive)
    purge_dead = _waits(AsyncQueue.purge_dead)
    purge = _waits(AsyncQueue.purge)
    delete = _waits(AsyncQueue.delete)
    handler = _passes(AsyncQueue.handler)

    def facet(self, tenant: str) -> SyncFacet:
        """One tenant's line in it."""
        return SyncFacet(self._async.facet(tenant), self._portal)

    def pull(self, max: int = 1, *, wait_ms: int = 0, lease_ms: int | None = None) -> list[BlockingMessage]:  # noqa: A002
        """Take up to `max` messages, waiting up to `wait_ms` for the first. Their leases are yours to extend."""
        pulled = self._portal.call(self._async.pull(max, wait_ms=wait_ms, lease_ms=lease_ms))
        return [BlockingMessage(message, self._portal.loop) for message in pulled]

    def ack(self, messages: Sequence[BlockingMessage]) -> list[BlockingMessage]:
        """End messages; returns those that were no longer ours, and are delivered again."""
        return _those(messages, self._portal.call(self._async.ack(_held(messages))))

    def nack(
        self,
        messages: Sequence[BlockingMessage],
        delay_s: float = 0.0,
        why: str = "given back",
        *,
        attempted: bool = True,
    ) -> list[BlockingMessage]:
        """Give messages back; returns those that were no longer ours. What was not attempted does not count."""
        lost = self._portal.call(self._async.nack(_held(messages), delay_s, why, attempted=attempted))
        return _those(messages, lost)

    def reject(self, messages: Sequence[BlockingMessage], why: str = "rejected") -> list[BlockingMessage]:
        """Send messages to the dead letters; returns those that were no longer ours."""
        return _those(messages, self._portal.call(self._async.reject(_held(messages), why)))

    def extend(self, messages: Sequence[BlockingMessage], lease_ms: int | None = None) -> list[BlockingMessage]:
        """Hold messages for another lease; returns those that were no longer ours."""
        return _those(messages, self._portal.call(self._async.extend(_held(messages), lease_ms)))

    def messages(
        self, *, lease_ms: int | None = None, work_s_max: float = Rules.work_s_max, backoff: Backoff = Rules.backoff
    ) -> Iterator[BlockingMessage]:
        """One message after the other, their leases extended meanwhile.

        A message is acked when the loop asks for the next one. A loop that is left, by an exception or otherwise, gives
        its message back, to be delivered again after the backoff; `message.ack()` before a `break` keeps it done.
        """
        source = self._async.messages(lease_ms=lease_ms, work_s_max=work_s_max, backoff=backoff)
        stream = cast("AsyncGenerator[Message, None]", source)
        with contextlib.closing(_items(self._portal, stream)) as messages:
            for message in messages:
                yield BlockingMessage(message, self._portal.loop)


class Bus(_Plain[AsyncBus]):
    """A bus at a URL, used with a client's token; `with` closes its connections."""

    def __init__(self, url: str, token: str, *, patience_s: float = PATIENCE_S) -> None:
        super().__init__(AsyncBus(url, token, patience_s=patience_s), _Portal())
        self._queues: dict[str, Queue] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up, and end the thread; the next call starts anew."""
        self._portal.call(self._async.close())
        self._portal.close()

    publish = _waits(AsyncBus.publish)
    publish_many = _waits(AsyncBus.publish_many)
    subscribe = _waits(AsyncBus.subscribe)
    unsubscribe = _waits(AsyncBus.unsubscribe)
    subscriptions = _waits(AsyncBus.subscriptions)
    subscription = _waits(AsyncBus.subscription)
    put_subscription = _waits(AsyncBus.put_subscription)
    change_subscription = _waits(AsyncBus.change_subscription)
    delete_subscription = _waits(AsyncBus.delete_subscription)
    give_subscription = _waits(AsyncBus.give_subscription)
    pause = _waits(AsyncBus.pause)
    resume = _waits(AsyncBus.resume)
    enable = _waits(AsyncBus.enable)
    attempts = _waits(AsyncBus.attempts)
    audit = _waits(AsyncBus.audit)
    resend = _waits(AsyncBus.resend)
    rotate_secret = _waits(AsyncBus.rotate_secret)
    test = _waits(AsyncBus.test)
    test_filter = _waits(AsyncBus.test_filter)
    stream = _iterates(AsyncBus.stream)
    topics = _waits(AsyncBus.topics)
    topic = _waits(AsyncBus.topic)
    set_topic = _waits(AsyncBus.set_topic)
    give_topic = _waits(AsyncBus.give_topic)
    delete_topic = _waits(AsyncBus.delete_topic)
    tokens = _waits(AsyncBus.tokens)
    create_token = _waits(AsyncBus.create_token)
    update_token = _waits(AsyncBus.update_token)
    rotate_token = _waits(AsyncBus.rotate_token)
    revoke_token = _waits(AsyncBus.revoke_token)
    portal_token = _waits(AsyncBus.portal_token)
    queues = _waits(AsyncBus.queues)
    is_ready = _waits(AsyncBus.is_ready)
    request = _waits(AsyncBus.request)

    def dead_letters(self, receiver: str | None = None) -> SyncDeadLetters:
        """The dead letters of a receiver, named as in `pause`."""
        return SyncDeadLetters(self._async.dead_letters(receiver), self._portal)

    def replays(self) -> SyncReplays:
        """Past events sent again by the pipeline: begun, listed, cancelled."""
        return SyncReplays(self._async.replays(), self._portal)

    def erasures(self) -> SyncErasures:
        """Past events erased from the lake by the pipeline, as root or an admin."""
        return SyncErasures(self._async.erasures(), self._portal)

    def queue(self, name: str) -> Queue:
        """The queue of that name; the same object each time."""
        return self._queues.setdefault(name, Queue(self._async.queue(name), self._portal))

    def run(self) -> None:
        """Call the handlers of all queues until `stop`, SIGTERM or SIGINT; then finish or give back what is in hand."""
        with _stopped_by_signals(self.stop):
            self._portal.call(self._async.run())

    def stop(self) -> None:
        """Let `run` end in good order; from any thread."""
        self._portal.loop.call_soon_threadsafe(self._async.stop)


def _items(portal: _Portal, stream: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """What an async generator yields; closed with this one."""
    try:
        while True:
            try:
                item = portal.call(anext(stream))
            except StopAsyncIteration:
                return
            yield item
    finally:
        portal.call(_close(stream))


async def _close(stream: AsyncGenerator[T, None]) -> None:
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
