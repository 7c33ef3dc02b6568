"""Deliver, the last of Watch, Receive, Deliver: post a batch of a queue's messages, and settle each of them.

1. Attempt the batch (delivery/deliver.py).
2. Give the permit back, and write the attempt down: the receiver's state, the journal and the counters, in one step.
3. Delivered: ack the messages, but give back those that the receiver names as failed, each after a delay of its own.
   Not delivered: give all back. When any other message would have met the same end they keep their places and the
   attempt does not count against them; otherwise each waits by its own attempts.

A crash before 3 leaves leases that end by themselves: another process pulls the messages again.
"""

import asyncio
import random
from collections.abc import Sequence

import msgspec

from doubledecker import clock, log
from doubledecker.delivery import verdict
from doubledecker.delivery.deliver import Attempted, Deliverer, DeliveryLoad
from doubledecker.delivery.verdict import Fates
from doubledecker.errors import BusAway
from doubledecker.model import dead_letter
from doubledecker.model.outcome import Outcome
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.uid import made_at, repeatable_uid, uid
from doubledecker.queues.ring import Rings
from doubledecker.store import receivers
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.store.queues import LastAnswer, QueueMessage
from doubledecker.store.receivers import Permit
from doubledecker.worker.deliver import PROBE_SHARE
from doubledecker.worker.journal_growth import JournalGrowth
from doubledecker.worker.room import HeldBytes

# Between two tries to settle while Redis is away.
_PAUSE_S = 0.2

_log = log.get("watch")


class CallSlots:
    """Calls to queues' callbacks that a process makes at a time; failing receivers together get a share of them."""

    def __init__(self, count: int) -> None:
        self._all = asyncio.Semaphore(count)
        self._failing = asyncio.Semaphore(max(1, int(count * PROBE_SHARE)))

    def slot(self, *, is_failing: bool) -> "Slot":
        """A slot that is yet to be taken."""
        return Slot([self._failing, self._all] if is_failing else [self._all])


class Slot:
    """A place among the calls of a process, for the watch that has waited longest."""

    def __init__(self, places: Sequence[asyncio.Semaphore]) -> None:
        self._places = places
        self._held: list[asyncio.Semaphore] = []

    async def take(self) -> None:
        """Wait for the slot, unless it is taken already."""
        for place in self._places[len(self._held) :]:
            await place.acquire()
            self._held.append(place)

    def free(self) -> None:
        """Leave the slot to others, if it is taken."""
        while self._held:
            self._held.pop().release()


class _Origin(msgspec.Struct, gc=False):
    """What an event says of its acceptance."""

    id: str = ""
    replay: str = ""
    redriven: int = 0


_decode = msgspec.json.Decoder(_Origin).decode


class Pusher:
    """Posts batches of any queue; leases are renewed for as long as their process lives."""

    def __init__(
        self,
        partitions: Partitions,
        rings: Rings,
        deliverer: Deliverer,
        *,
        slots: int,
        lease_ms: int,
        growth: JournalGrowth,
    ) -> None:
        self.slots = CallSlots(slots)
        self.lease_ms = lease_ms
        self.held = HeldBytes()
        self._partitions = partitions
        self._rings = rings
        self._deliverer = deliverer
        self._growth = growth

    def keeper(self, queue: RegisteredQueue) -> Partition:
        """Where the permits of a queue's receiver are counted."""
        return self._partitions.keeper(queue.receiver.token)

    async def push(self, queue: RegisteredQueue, messages: Sequence[QueueMessage], permit: Permit) -> bool:
        """Attempt a batch and settle it; returns whether it was delivered."""
        load = DeliveryLoad(
            receiver=queue.receiver,
            batch=uid(),
            parts=[message.event for message in messages],
            events=len(messages),
            # The messages of a batch may differ in this; the one that was tried most speaks for all.
            attempts=max(message.tries for message in messages) - 1,
            failures=permit.failures,
            accepted_at=accepted_at([message.event for message in messages], now_ms=clock.now_ms()),
            partition=self.keeper(queue).index,
            is_timed=False,
            message=_message_id(queue, messages) if queue.signing else "",
        )
        attempted = await self._deliverer.attempt(load)
        chance = random.random()  # noqa: S311 - jitter, not a secret
        ends = verdict.fates(
            attempted.outcome,
            messages,
            attempted.ids,
            backoff=self._deliverer.backoff,
            chance=chance,
            retry=queue.retry,
        )
        await self._persist(queue, attempted, ends, permit)
        return attempted.outcome.is_delivered

    async def _persist(self, queue: RegisteredQueue, attempted: Attempted, ends: Fates, permit: Permit) -> None:
        """Write it down and settle; while Redis is away again and again, for as long as the messages may be ours."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.lease_ms / 1000
        is_written = False
        while True:
            try:
                if not is_written:
                    await self._write(queue, attempted, ends, permit)
                    is_written = True
                await self._rings.ack(queue, ends.acked)
                await self._rings.nack(queue, ends.given_back, why=ends.why, answer=_last(attempted.outcome))
            except BusAway as error:
                if loop.time() > deadline:
                    # The leases have ended or soon will, and the messages are delivered again.
                    batch, token = attempted.load.batch, queue.receiver.token
                    _log.warning("batch.unsettled", subscriber=token, batch=batch, error=str(error))
                    return
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    async def _write(self, queue: RegisteredQueue, attempted: Attempted, ends: Fates, permit: Permit) -> None:
        attempt = attempted.entry
        await self._growth.add(len(attempt))
        before, after = await receivers.settle(
            self.keeper(queue),
            queue.receiver.token,
            permit,
            attempted.settlement,
            why=attempted.why,
            attempt=attempt,
            counts=attempted.counts,
        )
        self._deliverer.conclude(attempted, before=before, after=after, failed=len(ends.given_back))


def _last(outcome: Outcome) -> LastAnswer:
    """What a message that dies of this attempt keeps of it."""
    return LastAnswer(outcome.status or 0, outcome.answer_headers, dead_letter.text(outcome.answer))


def _message_id(queue: RegisteredQueue, messages: Sequence[QueueMessage]) -> str:
    """What names these very messages: a batch is made anew for each attempt, and others may be in it then."""
    return repeatable_uid(queue.receiver.token, str(queue.since), *(message.id for message in messages))


def accepted_at(events: Sequence[bytes], *, now_ms: int) -> int:
    """When the oldest of some events was accepted, by those ids that the bus made; 0 if there are none.

    An event that is replayed or redriven has its old id, and came only now. An id from later than now is none of ours.
    """
    made = [made_at(each.id) for each in map(_decode, events) if not (each.replay or each.redriven)]
    return min((at for at in made if at is not None and at <= now_ms), default=0)
