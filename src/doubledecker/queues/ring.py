"""One queue over all partitions: pull, ack, nack, extend.

A tenant is whole in one partition. A pull visits every partition, and takes from each according to its share, so that
tenants are served in turn wherever they are. A message's id says where it is.
"""

import asyncio
import contextlib
import heapq
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from doubledecker import log
from doubledecker.background import sleep_until
from doubledecker.errors import BusAway
from doubledecker.model.queue import RegisteredQueue
from doubledecker.queues.call_batching import Acks, Pull, Pulls
from doubledecker.store import queues
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.store.queues import PULL_MAX, SETTLE_MAX, LastAnswer, LeasedMessage, Named, QueueMessage, Returned

# How many messages of a pull come from which partition, so that the partitions' rings turn as one.
#
# Each partition has a ring of its own with its own virtual time. The one whose least tag is lowest is the one furthest
# behind, and a message served there moves it on by its cost over the number of facets that share the turn.


@dataclass(frozen=True)
class RingState:
    """A partition's ring: least tag (None: nothing can be served), mean cost of a message, facets."""

    head: float | None = None
    cost: float = 1.0
    facets: int = 1


def divide(most: int, standings: Sequence[RingState], *, floor: float) -> list[int]:
    """So many from each; all tags below the floor count as the floor."""
    shares = [0] * len(standings)
    turns = [
        (max(standing.head, floor), i, (standing.cost or 1.0) / max(1, standing.facets))
        for i, standing in enumerate(standings)
        if standing.head is not None
    ]
    heapq.heapify(turns)
    for _ in range(most if turns else 0):
        tag, i, step = turns[0]
        shares[i] += 1
        heapq.heapreplace(turns, (tag + step, i, step))
    return shares


def virtual_time(standings: Sequence[RingState], *, before: float) -> float:
    """How far the queue as a whole is: the least tag that waits anywhere; it never falls."""
    heads = [standing.head for standing in standings if standing.head is not None]
    return max(before, min(heads)) if heads else before


# The bell: wakes those who wait for a queue when it has something to serve. One connection a partition, for all.

_PAUSE_S = 0.5

_log = log.get("queues")


class Bell:
    """The pulls that wait in this process, by queue."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._waiting: dict[str, set[asyncio.Event]] = defaultdict(set)
        self.is_stopped = False

    async def run(self) -> None:
        """Listen for as long as the process lives."""
        async with asyncio.TaskGroup() as tasks:
            for partition in self._partitions.all:
                tasks.create_task(self._listen(partition))

    def stop(self) -> None:
        """Wake everyone for good: the process is about to end."""
        self.is_stopped = True
        for waiting in self._waiting.values():
            for rung in waiting:
                rung.set()

    @contextmanager
    def waiting(self, name: str, rung: asyncio.Event) -> Iterator[asyncio.Event]:
        """The event is set whenever the queue may have something; ask the queue after entering, then wait."""
        self._waiting[name].add(rung)
        try:
            yield rung
        finally:
            self._waiting[name].discard(rung)
            if not self._waiting[name]:
                del self._waiting[name]

    async def _listen(self, partition: Partition) -> None:
        last = "0-0"
        while True:
            try:
                last, names = await queues.bell(partition, last)
            except BusAway as error:
                _log.debug("bell.unreachable", partition=partition.index, error=str(error))
                await asyncio.sleep(_PAUSE_S)
                # A server that lost its bell starts counting anew; what rang meanwhile is anyone's guess.
                last, names = "0-0", list(self._waiting)
            for name in names:
                for rung in self._waiting.get(name, ()):
                    rung.set()


# A partition may turn out to have less than was asked of it; after these rounds the rest waits for the next pull.
_ROUNDS_MAX = 4
# However soon something is due, time passes between two looks; and however late, another consumer's lease may have
# begun since the last look, and end before.
_WAIT_S_MIN, _WAIT_S_MAX = 0.001, 1.0
# From here on a message costs as little in a call of its own as in one that is shared.
_LARGE = 50

_N = TypeVar("_N", bound=Named)


class Patience:
    """A wait that can be ended early: a pull that is cancelled might take messages that nobody gets."""

    def __init__(self) -> None:
        self.rung = asyncio.Event()
        self.is_over = False

    def end(self) -> None:
        """The client that waits has gone; the pull returns with what it has."""
        self.is_over = True
        self.rung.set()


@dataclass
class _RingView:
    """How far a queue is, as far as this process knows."""

    standings: list[RingState]
    virtual_time: float = 0.0


class Rings:
    """All queues, as consumers use them."""

    def __init__(self, partitions: Partitions, bell: Bell) -> None:
        self._partitions = partitions
        self._bell = bell
        # As they are written in ids, which are anyone's text: not every number in there can be read.
        self._indexes = {str(partition.index): partition.index for partition in partitions.all}
        self._views: dict[str, _RingView] = {}
        self._pulls = Pulls(self._pull, self._give_back)
        self._acks = Acks()

    async def pull(self, queue: RegisteredQueue, *, most: int, lease_ms: int | None = None) -> Pull:
        """Take up to `most` messages (200 at the most) under a lease."""
        lease_ms = lease_ms or queue.lease_ms
        if 0 < most < _LARGE:
            return await self._pulls.pull(queue, most, lease_ms)
        return await self._pull(queue, [min(most, PULL_MAX)], lease_ms)

    async def pull_waiting(
        self,
        queue: RegisteredQueue,
        *,
        most: int,
        wait_ms: int,
        lease_ms: int | None = None,
        patience: Patience | None = None,
        look_again: Callable[[], RegisteredQueue] | None = None,
    ) -> Pull:
        """Take messages, or wait up to `wait_ms` for the first; end the patience rather than cancel it.

        What may change during a wait is looked at again before anything is taken; whatever that raises ends the wait.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        patience = patience or Patience()
        look = self.pull
        with self._bell.waiting(queue.name, patience.rung) as rung:
            while True:
                rung.clear()
                queue = look_again() if look_again else queue
                pull = await look(queue, most=most, lease_ms=lease_ms)
                left_s = deadline - loop.time()
                if pull.messages or left_s <= 0 or patience.is_over or self._bell.is_stopped:
                    return pull
                due_s = math.inf if pull.wait_ms is None else max(pull.wait_ms / 1000, _WAIT_S_MIN)
                await sleep_until(rung, min(left_s, due_s, _until_look_s(queue, loop.time())))
                look = self._look_again

    async def _look_again(self, queue: RegisteredQueue, *, most: int, lease_ms: int | None = None) -> Pull:
        """Pull for one who waits; all who look at a queue at the same moment share a call, however many they are."""
        return await self._pulls.pull(queue, min(most, PULL_MAX), lease_ms or queue.lease_ms)

    async def ack(self, queue: RegisteredQueue, held: Sequence[Named]) -> list[str]:
        """End messages; returns the ids that were still the caller's."""
        if len(held) < _LARGE:
            return await self._settle(held, lambda at, part: self._acks.ack(at, queue, part))
        return await self._settle(held, lambda at, part: queues.ack(at, queue, part))

    async def nack(
        self,
        queue: RegisteredQueue,
        held: Sequence[Returned],
        *,
        why: str = "given back",
        is_rejected: bool = False,
        answer: LastAnswer | None = None,
    ) -> list[str]:
        """Give messages back, or to the dead letters when rejected; returns the ids that were still the caller's."""
        nack = partial(queues.nack, why=why, is_rejected=is_rejected, answer=answer)
        return await self._settle(held, lambda at, part: nack(at, queue, part))

    async def extend(
        self, queue: RegisteredQueue, held: Sequence[Named], *, lease_ms: int | None = None
    ) -> tuple[int, list[str]]:
        """Hold messages longer; returns until when at least, and the ids that were still the caller's."""
        ends: list[int] = []

        async def call(at: Partition, part: Sequence[Named]) -> list[str]:
            until, ids = await queues.extend(at, queue, part, lease_ms=lease_ms or queue.lease_ms)
            ends.append(until)
            return ids

        kept = await self._settle(held, call)
        return min(ends, default=0), kept

    async def _pull(self, queue: RegisteredQueue, portions: Sequence[int], lease_ms: int) -> Pull:
        if len(self._partitions.all) == 1:
            home, most = self._partitions.home, sum(portions)
            pulled = await queues.pull(home, queue, most=most, lease_ms=lease_ms, portions=portions)
            return Pull(pulled.messages, pulled.wait_ms)
        return await self._pull_all(queue, portions, lease_ms)

    async def _give_back(self, queue: RegisteredQueue, messages: Sequence[QueueMessage]) -> None:
        """Nobody was there to get them: others need not wait for the lease to end, and nothing was tried."""
        with contextlib.suppress(BusAway):  # then their leases end by themselves
            await self.nack(queue, [LeasedMessage(message.id, message.attempt, is_spared=True) for message in messages])

    async def _pull_all(self, queue: RegisteredQueue, portions: Sequence[int], lease_ms: int) -> Pull:
        most = sum(portions)
        view = self._views.setdefault(queue.name, _RingView([RingState()] * len(self._partitions.all)))
        messages: list[QueueMessage] = []
        wait_ms: int | None = None
        for i in range(_ROUNDS_MAX):
            left = most - len(messages)
            # Half by what was known, half by what is seen then: a tenant woken meanwhile is served by this pull.
            shares = divide(left if i else left // 2, view.standings, floor=view.virtual_time)
            found, wait_ms = await self._visit(queue, view, shares, portions, lease_ms)
            messages += found
            if len(messages) >= most or all(standing.head is None for standing in view.standings):
                break
        return Pull(tuple(messages), wait_ms)

    async def _visit(
        self, queue: RegisteredQueue, view: _RingView, shares: Sequence[int], portions: Sequence[int], lease_ms: int
    ) -> tuple[list[QueueMessage], int | None]:
        """Pull its share from every partition, also when that is nothing: each learns how far the others are."""
        busy = {i for i, standing in enumerate(view.standings) if standing.head is not None}
        pulls = await asyncio.gather(
            *(
                queues.pull(
                    partition,
                    queue,
                    most=share,
                    lease_ms=lease_ms,
                    portions=portions,
                    floor=view.virtual_time,
                    is_alone=busy <= {partition.index},
                )
                for partition, share in zip(self._partitions.all, shares, strict=True)
            )
        )
        view.standings = [
            RingState(pulled.head, pulled.cost or before.cost, pulled.facets)
            for pulled, before in zip(pulls, view.standings, strict=True)
        ]
        view.virtual_time = virtual_time(view.standings, before=view.virtual_time)
        waits = [pulled.wait_ms for pulled in pulls if pulled.wait_ms is not None]
        return [message for pulled in pulls for message in pulled.messages], min(waits, default=None)

    async def _settle(
        self, held: Sequence[_N], call: Callable[[Partition, Sequence[_N]], Awaitable[list[str]]]
    ) -> list[str]:
        """Call each partition with what it holds, a bounded number at a time; ids of no partition are nobody's."""
        by_partition: dict[int, list[_N]] = defaultdict(list)
        for each in held:
            index, dash, _ = each.id.partition("-")
            if dash and index in self._indexes:
                by_partition[self._indexes[index]].append(each)
        calls = [
            call(self._partitions.all[index], part[start : start + SETTLE_MAX])
            for index, part in by_partition.items()
            for start in range(0, len(part), SETTLE_MAX)
        ]
        replies = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
        return [id_ for reply in replies for id_ in reply]


def _until_look_s(queue: RegisteredQueue, now_s: float) -> float:
    """How long until those who wait look at a queue: all at the same moment, and each queue has its own."""
    return _WAIT_S_MAX - (now_s + hash(queue.name) % 1_000 / 1_000) % _WAIT_S_MAX
