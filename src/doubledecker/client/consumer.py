"""Consuming a queue: message by message, in a loop, or with handlers that a runner calls."""

import asyncio
import contextlib
import inspect
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Never, TypeVar, cast

from doubledecker.client.ack_buffer import PULL_S_MAX
from doubledecker.client.backoff import Backoff
from doubledecker.client.blocking import BlockingMessage
from doubledecker.client.errors import ClientError
from doubledecker.client.message import Back, Message, MessageSource, Terms, encodable
from doubledecker.client.session import ConsumerSession, Rules, asked, open_session
from doubledecker.client.slots import CrashWatch, Slots, TaskSlots, ThreadSlots, Verdicts

# A loop over a queue's messages, from its first to its end.
#
# A loop that is left by `break` or an exception is a generator that nobody closes: Python does so when it finds it,
# which may be after its bus was closed. So the bus knows its loops, and leaves them before it hangs up.

_WHY_LEFT = "the loop was left"


class Loop:
    """One message after the other: acked when the next is asked for, given back when the loop is left."""

    def __init__(self, source: MessageSource, rules: Rules) -> None:
        self._source = source
        self._rules = rules
        self._stack = contextlib.AsyncExitStack()
        self._lock = asyncio.Lock()
        self._held: ConsumerSession | None = None
        self._message: Message | None = None
        self._is_left = False

    async def next(self) -> Message | None:
        """The next message; None when the loop was left. Raises what ended the pulling, if something did."""
        if self._held is None and not self._is_left:
            terms = await asked(self._source)
            self._held = await self._stack.enter_async_context(open_session(self._source, self._rules, terms))
        held = self._held
        if held is None or self._is_left:
            return None
        self._end(held)
        if not await _has_ready(held) or self._is_left:
            return None
        self._message = held.prefetch.start_one(asyncio.get_running_loop().time())
        held.ack_buffer.begin(self._message)
        return self._message

    async def leave(self) -> None:
        """Give back what is in hand, and end; who comes second waits for the first."""
        self._is_left = True
        async with self._lock:
            held, self._held = self._held, None
            if held is None:
                return
            try:
                held.stop()
                self._end(held)
            finally:
                await self._stack.aclose()

    def _end(self, held: ConsumerSession) -> None:
        """Settle the message that the loop had, unless it did so itself."""
        message, self._message = self._message, None
        if message is None:
            return
        held.prefetch.finish_one(asyncio.get_running_loop().time())
        if message.is_settled:
            return
        if self._is_left:
            delay_ms = round(self._rules.backoff.delay_s(message.attempt) * 1000)
            held.ack_buffer.nack(message, delay_ms=delay_ms, why=_WHY_LEFT)
        else:
            held.ack_buffer.ack(message)


async def _has_ready(held: ConsumerSession) -> bool:
    """Wait for a message; raises what ended the pulling, if something did."""
    while not held.prefetch.ready:
        arrived = asyncio.Event()
        held.prefetch.on_arrival = arrived.set
        waiting = asyncio.create_task(arrived.wait())
        try:
            await held.until_over(waiting)
        finally:
            waiting.cancel()
        if held.is_over and not held.prefetch.ready:
            held.check()
            return False
    return True


Work = Callable[[Message], Awaitable[object]] | Callable[[BlockingMessage], object]
_W = TypeVar("_W", bound=Callable[..., object])


@dataclass(frozen=True)
class _Handler:
    work: Work
    rules: Rules
    is_async: bool


class Consumer:
    """A queue from which messages are pulled and settled."""

    def __init__(self, source: MessageSource) -> None:
        self.name = source.name
        self._source = source
        self._handlers: list[_Handler] = []
        self._stop: asyncio.Event | None = None
        self._loops: set[Loop] = set()
        self._runs: set[asyncio.Task[object]] = set()

    async def pull(self, max: int = 1, *, wait_ms: int = 0, lease_ms: int | None = None) -> list[Message]:  # noqa: A002
        """Pull up to `max` messages, waiting up to `wait_ms` for the first. The caller extends their leases."""
        messages = await self._source.pull(most=max, wait_ms=wait_ms, lease_ms=lease_ms)
        for message in messages:
            message.belong_to(self)
        return messages

    async def ack(self, messages: Sequence[Message]) -> list[Message]:
        """Ack messages; returns those whose leases had expired, which are delivered again."""
        lost = await self._source.ack(messages)
        return _settled(messages, lost)

    async def nack(
        self, messages: Sequence[Message], delay_s: float = 0.0, why: str = "given back", *, attempted: bool = True
    ) -> list[Message]:
        """Nack messages; returns those whose leases had expired. Without `attempted` the attempt does not count."""
        delay_ms = round(delay_s * 1000)
        backs = [Back(message.id, message.attempt, delay_ms, attempted) for message in messages]
        return _settled(messages, await self._source.nack(backs, why=encodable(why)))

    async def reject(self, messages: Sequence[Message], why: str = "rejected") -> list[Message]:
        """Make messages dead letters; returns those whose leases had expired."""
        backs = [Back(message.id, message.attempt) for message in messages]
        return _settled(messages, await self._source.reject(backs, why=encodable(why)))

    async def extend(self, messages: Sequence[Message], lease_ms: int | None = None) -> list[Message]:
        """Extend the leases of messages; returns those whose leases had expired."""
        lost = await self._source.extend(messages, lease_ms=lease_ms)
        return [message for message in messages if message.id in lost]

    async def settle_ack(self, message: Message) -> bool:
        return not await self.ack([message])

    async def settle_nack(self, message: Message, *, delay_ms: int, why: str) -> bool:
        return not await self.nack([message], delay_ms / 1000, why)

    async def settle_reject(self, message: Message, *, why: str) -> bool:
        return not await self.reject([message], why)

    async def messages(
        self, *, lease_ms: int | None = None, work_s_max: float = Rules.work_s_max, backoff: Backoff = Rules.backoff
    ) -> AsyncIterator[Message]:
        """Iterate over messages; the lease keeper extends their leases.

        The iterator acks a message when the loop asks for the next one. When the loop ends, by an exception or
        otherwise, it nacks the last message with backoff; `await message.ack()` before a `break` avoids that.
        """
        loop = Loop(self._source, Rules(concurrency=1, lease_ms=lease_ms, work_s_max=work_s_max, backoff=backoff))
        self._loops.add(loop)
        try:
            while (message := await loop.next()) is not None:
                yield message
        finally:
            await loop.leave()
            self._loops.discard(loop)

    def handler(
        self,
        *misplaced: Never,
        concurrency: int = Rules.concurrency,
        lease_ms: int | None = None,
        work_s_max: float = Rules.work_s_max,
        grace_s: float = Rules.grace_s,
        backoff: Backoff = Rules.backoff,
    ) -> Callable[[_W], _W]:
        """Have `run` call the decorated function with each message, `concurrency` at a time.

        A plain function runs in threads. Its message is acked when the function returns, and nacked with backoff when
        it raises. `work_s_max` is how long a lease is extended; `grace_s` is how long a stop waits for handlers.
        """
        if misplaced:
            raise TypeError("decorate a handler with parentheses: @queue.handler(), or @queue.handler(concurrency=…)")
        rules = Rules(concurrency, lease_ms, work_s_max, grace_s, backoff)

        def register(work: _W) -> _W:
            _check_work(work)
            is_async = inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(
                getattr(work, "__call__", None)  # noqa: B004 - an object may have an async __call__
            )
            self._handlers.append(_Handler(cast("Work", work), rules, is_async))
            return work

        return register

    @property
    def has_handlers(self) -> bool:
        return bool(self._handlers)

    async def run(self) -> None:
        """Call the handlers until `stop`, SIGTERM or SIGINT; then wait for them, or nack their messages."""
        if not self._handlers:
            raise ClientError(f"queue {self.name!r} has no handler; decorate a function with @queue.handler()")
        self._stop = asyncio.Event()
        with stopped_by_signals(self._stop):
            await self.run_until(self._stop)

    def stop(self) -> None:
        """End `run` cleanly."""
        if self._stop is not None:
            self._stop.set()

    async def run_until(self, stop: asyncio.Event) -> None:
        """Call the handlers until the event is set."""
        run = asyncio.current_task()
        assert run is not None
        self._runs.add(run)
        try:
            await run_together([self._run_one(each, stop) for each in self._handlers], stop)
        finally:
            self._runs.discard(run)

    async def leave(self) -> None:
        """End loops and runs that are under way, and give back what they have in hand; before the connection closes."""
        for loop in list(self._loops):
            await loop.leave()
        runs = self._runs - {asyncio.current_task()}
        for run in runs:
            # Who cancelled it before must not be cut short.
            if not run.cancelling():
                run.cancel()
        if runs:
            await asyncio.wait(runs)

    async def _run_one(self, handler: _Handler, stop: asyncio.Event) -> None:
        rules = handler.rules
        terms = await self._terms(stop)
        if terms is None:
            return
        async with open_session(self._source, rules, terms) as held:
            crash_watch = CrashWatch(self.name)
            slots = self._slots(handler, held, crash_watch)
            held.prefetch.on_arrival = slots.wake
            slots.start()
            slots.wake()
            stopping, tearing = asyncio.create_task(stop.wait()), asyncio.create_task(crash_watch.torn())
            try:
                await held.until_over(stopping, tearing)
                held.stop()
                await self._finish(held, rules)
            finally:
                stopping.cancel()
                tearing.cancel()
                # Also when we are cancelled: a pull under way must not bring back what the slots give back.
                held.stop()
                await slots.end()
        held.check()
        crash_watch.check()

    async def _terms(self, stop: asyncio.Event) -> Terms | None:
        """What the bus answers of the queue; None when we are stopped before it does."""
        asking, stopping = asyncio.create_task(asked(self._source)), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([asking, stopping], return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            asking.cancel()
            stopping.cancel()
            await asyncio.gather(asking, stopping, return_exceptions=True)

    async def _finish(self, held: ConsumerSession, rules: Rules) -> None:
        """Let what is in hand be worked off, for as long as the grace lasts."""
        deadline_s = asyncio.get_running_loop().time() + rules.grace_s
        # First of all the pull: it might bring back at once what is given back while it waits.
        await asyncio.wait([held.pulling], timeout=max(rules.grace_s, PULL_S_MAX))
        while held.prefetch.running or held.prefetch.ready:
            left_s = deadline_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                return
            await asyncio.sleep(min(left_s, 0.01))

    def _slots(self, handler: _Handler, held: ConsumerSession, crash_watch: CrashWatch) -> Slots:
        verdicts = Verdicts(self.name, held.ack_buffer, handler.rules.backoff)
        concurrency = handler.rules.concurrency
        if handler.is_async:
            work = cast("Callable[[Message], Awaitable[object]]", handler.work)
            return TaskSlots(held.prefetch, held.ack_buffer, verdicts, work, crash_watch, concurrency=concurrency)
        plain = cast("Callable[[BlockingMessage], object]", handler.work)
        return ThreadSlots(held.prefetch, held.ack_buffer, verdicts, plain, crash_watch, concurrency=concurrency)


async def run_together(runs: Sequence[Coroutine[object, object, None]], stop: asyncio.Event) -> None:
    """Run all until they end; when one fails the others are stopped in good order, and its error is raised."""
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        stop.set()
        await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        task.result()


def _check_work(work: object) -> None:
    if not callable(work) or inspect.isgeneratorfunction(work) or inspect.isasyncgenfunction(work):
        raise TypeError(f"the handler is {work!r}; it must be a function, async or plain, without `yield`")


def _settled(messages: Sequence[Message], lost: set[str]) -> list[Message]:
    for message in messages:
        message.is_settled = True
    return [message for message in messages if message.id in lost]


@contextlib.contextmanager
def stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set the event on SIGTERM and SIGINT; signals reach the main thread alone, so elsewhere nothing is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def on_signal(number: int) -> None:
        # The second of its kind is not waited for.
        loop.remove_signal_handler(number)
        stop.set()

    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
