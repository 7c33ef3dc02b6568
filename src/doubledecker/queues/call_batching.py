"""Gathering: small pulls of a queue share a call to the server, and so do small acks.

A call costs the server some 50 µs before it has looked at a message, and a message a few. So a process has at most one
such call of a kind under way for a queue, and what is asked meanwhile goes together in the next, as in group commit.
Nobody waits while none is under way; the busier the consumers are, the more of them share a call.

The first to ask is served first, and gets no more than it asked for. The script is given who asked for how many, so
that time is charged as if each had pulled alone. A call that fails fails for all who share it.

A call is nobody's own: a caller that goes away, because it was cancelled, leaves it to the others. What was pulled for
one who has gone is for those who wait for the next call, and the rest is given back: no lease has to end for it. What
such a caller wanted to ack is acked all the same, as its work is done.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from doubledecker.model.queue import RegisteredQueue
from doubledecker.store import queues
from doubledecker.store.partitions import Partition
from doubledecker.store.queues import PULL_MAX, SETTLE_MAX, Named, QueueMessage

_K = TypeVar("_K")
_Q = TypeVar("_Q")
_A = TypeVar("_A")
# A question and its answer, which is done when it was given, or when the one who asked has gone.
_Ask = tuple[_Q, asyncio.Future[_A]]


@dataclass(frozen=True)
class Pull:
    """Messages, and how long until more may be due (None: nobody knows; wait for the bell)."""

    messages: tuple[QueueMessage, ...]
    wait_ms: int | None


class _Gathering(Generic[_K, _Q, _A]):
    """Calls of one kind, of which those with the same key can share one; a key is here while a call is under way."""

    def __init__(self) -> None:
        self._waiting: dict[_K, deque[_Ask[_Q, _A]]] = {}
        self._under_way: dict[_K, list[_Ask[_Q, _A]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def _ask(self, key: _K, question: _Q) -> "asyncio.Future[_A]":
        """Ask with the next call; the first begins with the next turn of the loop, with all who ask in this turn."""
        answer: asyncio.Future[_A] = asyncio.get_running_loop().create_future()
        if key not in self._waiting:
            self._waiting[key] = deque()
            self._begin(key)
        self._waiting[key].append((question, answer))
        return answer

    def _begin(self, key: _K) -> None:
        self._start(self._go_on(key)).add_done_callback(partial(self._finish, key))

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _go_on(self, key: _K) -> None:
        """Make calls for as long as somebody waits."""
        while asks := self._take(self._waiting[key]):
            self._under_way[key] = asks
            await self._serve(key, asks)
        del self._waiting[key]

    def _finish(self, key: _K, task: "asyncio.Task[None]") -> None:
        """A call that failed fails for those who share it, and those who wait go on."""
        asks = self._under_way.pop(key, [])
        if task.cancelled():  # so is everything: the process ends
            for _, answer in (*asks, *self._waiting.pop(key)):
                answer.cancel()
        elif error := task.exception():
            for _, answer in asks:
                if not answer.done():
                    answer.set_exception(error)
            self._begin(key)

    def _take(self, waiting: deque[_Ask[_Q, _A]]) -> list[_Ask[_Q, _A]]:
        """Those who share the next call."""
        raise NotImplementedError

    async def _serve(self, key: _K, asks: list[_Ask[_Q, _A]]) -> None:
        """Make one call, and answer all who are still there."""
        raise NotImplementedError


_Same = tuple[RegisteredQueue, int]
_AskPull = _Ask[int, Pull]


class Pulls(_Gathering[_Same, int, Pull]):
    """Pulls of the same queue, with the same settings, and for the same lease."""

    def __init__(
        self,
        pull: Callable[[RegisteredQueue, Sequence[int], int], Awaitable[Pull]],
        give_back: Callable[[RegisteredQueue, Sequence[QueueMessage]], Coroutine[Any, Any, None]],
    ) -> None:
        super().__init__()
        self._pull = pull
        self._give_back = give_back

    async def pull(self, queue: RegisteredQueue, most: int, lease_ms: int) -> Pull:
        """Take up to `most` messages; cancelled, it leaves none in nobody's hands."""
        answer = self._ask((queue, lease_ms), most)
        try:
            return await answer
        except asyncio.CancelledError:
            # The answer may have come before the caller could go on.
            if not answer.cancelled() and answer.exception() is None:
                self._pass_on((queue, lease_ms), answer.result())
            raise

    def _take(self, waiting: deque[_AskPull]) -> list[_AskPull]:
        """Everyone: a call that finds nothing answers also those for whom it has no room."""
        asks = [ask for ask in waiting if not ask[1].done()]
        waiting.clear()
        return asks

    async def _serve(self, key: _Same, asks: list[_AskPull]) -> None:
        queue, lease_ms = key
        portions = _portions(asks)
        pulled = left = await self._pull(queue, portions, lease_ms)
        for ask in asks[: len(portions)]:
            left = _served(ask, left)
        if pulled.messages:
            self._waiting[key].extendleft(reversed(asks[len(portions) :]))
        else:
            for ask in asks[len(portions) :]:
                _served(ask, left)
        self._pass_on(key, left)

    def _pass_on(self, key: _Same, left: Pull) -> None:
        waiting = self._waiting.get(key)
        while left.messages and waiting:
            left = _served(waiting.popleft(), left)
        if left.messages:
            self._start(self._give_back(key[0], left.messages))


def _portions(asks: Sequence[_AskPull]) -> list[int]:
    """What those ask for who have room in one call, in order; the first always has."""
    portions, room = [asks[0][0]], PULL_MAX - asks[0][0]
    for most, _ in asks[1:]:
        room -= most
        if room < 0:
            break
        portions.append(most)
    return portions


def _served(ask: _AskPull, pull: Pull) -> Pull:
    """Answer a pull, unless its caller has gone; returns what is left for others."""
    most, answer = ask
    if answer.done():
        return pull
    answer.set_result(Pull(pull.messages[:most], pull.wait_ms))
    return Pull(pull.messages[most:], pull.wait_ms)


_AskAck = _Ask[Sequence[Named], list[str]]


class Acks(_Gathering[tuple[Partition, RegisteredQueue], Sequence[Named], list[str]]):
    """Acks of the same queue in one partition: if one server is away, only acks of its messages fail."""

    async def ack(self, partition: Partition, queue: RegisteredQueue, held: Sequence[Named]) -> list[str]:
        """End messages; returns the ids that were still the caller's."""
        return await self._ask((partition, queue), held)

    def _take(self, waiting: deque[_AskAck]) -> list[_AskAck]:
        """A request that names a message which another named before waits for the next call, in which it is gone."""
        asks: list[_AskAck] = []
        named: set[str] = set()
        while waiting:
            ids = {each.id for each in waiting[0][0]}
            if asks and (len(named) + len(ids) > SETTLE_MAX or not named.isdisjoint(ids)):
                break
            named |= ids
            asks.append(waiting.popleft())
        return asks

    async def _serve(self, key: tuple[Partition, RegisteredQueue], asks: list[_AskAck]) -> None:
        kept = set(await queues.ack(*key, [each for held, _ in asks for each in held]))
        for held, answer in asks:
            if not answer.done():
                answer.set_result([id_ for id_ in dict.fromkeys(each.id for each in held) if id_ in kept])
