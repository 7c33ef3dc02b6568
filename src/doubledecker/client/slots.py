"""Slots: where handlers run, each one message at a time; tasks for async functions, threads for plain ones.

A slot that finds its next message ready goes on with it at once. So a handler that does not wait costs no task and no
turn of the loop, and many of them are acked together.
"""

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from queue import Empty, SimpleQueue
from typing import Protocol

from doubledecker.client.ack_buffer import AckBuffer
from doubledecker.client.backoff import Backoff
from doubledecker.client.blocking import BlockingMessage
from doubledecker.client.errors import ClientError, Reject, RetryLater
from doubledecker.client.lease_keeper_process import WHY_UNBEGUN
from doubledecker.client.message import Message
from doubledecker.client.prefetch import Prefetch

# No handler can end a slot; should one end all the same, the crash watch ends the consumer.


class CrashWatch:
    """Learns of a slot that died, which would hold its messages and handle no more."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._torn = asyncio.Event()
        self._error: BaseException | None = None

    def tear(self, error: BaseException) -> None:
        self._error = self._error or error
        self._torn.set()

    async def torn(self) -> bool:
        """Wait until a slot dies."""
        return await self._torn.wait()

    def check(self) -> None:
        """Raise what a slot died of, if one did."""
        if self._error is not None:
            raise ClientError(f"a slot of queue {self._name!r} died of {type(self._error).__name__}") from self._error


# After this long a slot that never waits lets pulls and acks have their turn.
_TURN_S = 0.002
# When not even the backoff can be asked.
_AGAIN_MS = 1_000
_WHY_STOPPED = "the consumer stopped"

_log = logging.getLogger("doubledecker.client")


class Slots(Protocol):
    """Handlers at work."""

    def start(self) -> None: ...

    def wake(self) -> None: ...

    async def end(self) -> None: ...


class Verdicts:
    """How a message whose handler failed is settled."""

    def __init__(self, name: str, ack_buffer: AckBuffer, backoff: Backoff) -> None:
        self._name = name
        self._ack_buffer = ack_buffer
        self._backoff = backoff

    def failed(self, message: Message, error: BaseException) -> None:
        """Give it back for later, or for good, whatever the error is; what the handler settled itself stays settled."""
        try:
            self._judge(message, error)
        except Exception as trouble:  # noqa: BLE001 - the user's classes
            # A verdict or a backoff of the user's own class may lack what ours have.
            _log.warning("message.failed queue=%s message=%s", self._name, message.id, exc_info=trouble)
            if not message.is_settled:
                self._ack_buffer.nack(message, delay_ms=_AGAIN_MS, why=_text_of(error))

    def _judge(self, message: Message, error: BaseException) -> None:
        if isinstance(error, RetryLater | Reject):
            if message.is_settled:
                return
            if isinstance(error, Reject):
                self._ack_buffer.reject(message, why=_text(error.why))
            else:
                self._ack_buffer.nack(message, delay_ms=round(error.delay_s * 1000), why=_text(error.why))
            return
        delay_s = self._backoff.delay_s(message.attempt)
        _log.warning(
            "message.failed queue=%s message=%s event=%s attempt=%d again_s=%.1f",
            self._name,
            message.id,
            message.event.id,
            message.attempt,
            delay_s,
            exc_info=error,
        )
        if not message.is_settled:
            self._ack_buffer.nack(message, delay_ms=round(delay_s * 1000), why=_text_of(error))


def _text_of(error: BaseException) -> str:
    """An error as a reason, also one that cannot say what it is."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # noqa: BLE001 - the same
        return name


def _text(why: object) -> str:
    """A reason as text; who raises `Reject(error)` means what the error says."""
    if isinstance(why, BaseException):
        return _text_of(why)
    try:
        return str(why)
    except Exception:  # noqa: BLE001 - the same
        return type(why).__name__


class TaskSlots:
    """Slots for an async handler: one task each."""

    def __init__(
        self,
        prefetch: Prefetch,
        ack_buffer: AckBuffer,
        verdicts: Verdicts,
        work: Callable[[Message], Awaitable[object]],
        crash_watch: CrashWatch,
        *,
        concurrency: int,
    ) -> None:
        self._prefetch = prefetch
        self._ack_buffer = ack_buffer
        self._verdicts = verdicts
        self._work = work
        self._crash_watch = crash_watch
        self._is_ending = False
        self._concurrency = concurrency
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._slot()) for _ in range(self._concurrency)]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def wake(self, count: int = 1) -> None:
        """Wake one slot, then two, then four: the first may have done everything before the others are up."""
        idle, ready = self._idle, self._prefetch.ready
        for _ in range(min(count, len(idle), len(ready))):
            sleeper = idle.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
        if idle and ready:
            asyncio.get_running_loop().call_soon(self.wake, count * 2)

    async def end(self) -> None:
        """Interrupt what is still at work, and give it back."""
        self._is_ending = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not self._is_ending:
            error = asyncio.CancelledError("somebody cancelled its task") if task.cancelled() else task.exception()
            self._crash_watch.tear(error or RuntimeError("it returned"))

    async def _slot(self) -> None:
        prefetch, ready, begin = self._prefetch, self._prefetch.ready, self._ack_buffer.begin
        loop = asyncio.get_running_loop()
        now_s = loop.time
        while True:
            turn_ends_s = now_s() + _TURN_S
            while ready:
                message = prefetch.start_one(now_s())
                begin(message)
                try:
                    await self._handle(message)
                finally:
                    ended_s = now_s()
                    prefetch.finish_one(ended_s)
                if ended_s > turn_ends_s:
                    await asyncio.sleep(0)
                    turn_ends_s = now_s() + _TURN_S
            sleeper = loop.create_future()
            self._idle.append(sleeper)
            await sleeper

    async def _handle(self, message: Message) -> None:
        try:
            await self._work(message)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                if not message.is_settled:
                    self._ack_buffer.nack(message, delay_ms=0, why=_WHY_STOPPED)
                raise
            # Somebody cancelled what the handler was waiting for; that is a failure like others.
            self._verdicts.failed(message, error)
        # Also what is no Exception, as GeneratorExit: it would end the slot, and nobody would handle its share.
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                # Ctrl-C came while the handler ran: it is for the program.
                if not message.is_settled:
                    self._ack_buffer.nack(message, delay_ms=0, why=_WHY_STOPPED)
                raise
            self._verdicts.failed(message, error)
        else:
            if not message.is_settled:
                self._ack_buffer.ack(message)


class ThreadSlots:
    """Slots for a plain function: one thread each. What they have handled comes back to the loop, many at a time."""

    def __init__(
        self,
        prefetch: Prefetch,
        ack_buffer: AckBuffer,
        verdicts: Verdicts,
        work: Callable[[BlockingMessage], object],
        crash_watch: CrashWatch,
        *,
        concurrency: int,
    ) -> None:
        self._prefetch = prefetch
        self._ack_buffer = ack_buffer
        self._verdicts = verdicts
        self._work = work
        self._crash_watch = crash_watch
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[Message | None] = SimpleQueue()
        self._done: deque[tuple[Message, BaseException | None]] = deque()
        self._is_told = False
        # A thread that is done finds its next message in the inbox, without waiting for the loop.
        self._inbox_max = 2 * concurrency
        self._at_work: set[Message] = set()
        self._is_ending = False
        self._begin_lock = threading.Lock()
        self._threads = [threading.Thread(target=self._slot, daemon=True) for _ in range(concurrency)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        prefetch = self._prefetch
        while prefetch.ready and prefetch.running < self._inbox_max and not self._is_ending:
            message = prefetch.start_one(self._loop.time())
            self._at_work.add(message)
            self._inbox.put(message)

    async def end(self) -> None:
        """Give back what is still at work. A thread cannot be interrupted: its message may be handled twice."""
        self._is_ending = True
        unbegun = self._emptied()
        for _ in self._threads:
            self._inbox.put(None)
        self._collect()
        for message in unbegun:
            self._ack_buffer.nack(message, delay_ms=0, why=WHY_UNBEGUN)
        for message in self._at_work.difference(unbegun):
            if not message.is_settled:
                # A thread has it, and may be about to begin.
                message.is_begun = True
                self._ack_buffer.nack(message, delay_ms=0, why=_WHY_STOPPED)

    def _emptied(self) -> list[Message]:
        """What no thread has taken yet, and none will."""
        left: list[Message] = []
        with contextlib.suppress(Empty):
            while (message := self._inbox.get_nowait()) is not None:
                left.append(message)
        return left

    def _slot(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001 - the crash watch raises it
            self._loop.call_soon_threadsafe(self._crash_watch.tear, error)

    def _serve(self) -> None:
        while (message := self._inbox.get()) is not None:
            failure = self._attempt(message)
            self._done.append((message, failure))
            if not self._is_told:
                self._is_told = True
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:
                    return  # the loop has ended; what we had was given back

    def _attempt(self, message: Message) -> BaseException | None:
        """Call the function; returns how it failed. Whatever it raises ends its message, not the thread."""
        with self._begin_lock:
            self._ack_buffer.begin(message)
        try:
            outcome = self._work(BlockingMessage(message, self._loop))
        except BaseException as error:  # noqa: BLE001 - no signal is raised in a thread
            return error
        if asyncio.iscoroutine(outcome):
            outcome.close()
            return TypeError("the handler returned a coroutine; declare it with `async def`")
        return None

    def _collect(self) -> None:
        # Before looking: what is added from here on rings again.
        self._is_told = False
        now_s = self._loop.time()
        while self._done:
            message, failure = self._done.popleft()
            self._at_work.discard(message)
            self._prefetch.finish_one(now_s)
            if failure is not None:
                self._verdicts.failed(message, failure)
            elif not message.is_settled:
                self._ack_buffer.ack(message)
        self.wake()
