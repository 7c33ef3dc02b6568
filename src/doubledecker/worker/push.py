"""Deliver, the last of Watch, Receive, Deliver: post a batch of a queue's messages, and settle each of them.

1. Attempt the batch through the receiver's chain, and write the attempt down in the journal and the counters.
2. Delivered: ack the messages, but give back those that the receiver names as failed, each after a delay of its own.
3. Not delivered: give all back. When any other message would have met the same end (nobody there, or patience asked
   for) they keep their places and the attempt does not count against them; otherwise each waits by its own attempts.
4. Free the place. After a failure the receiver is left alone for a while that grows with its failures in a row.

A crash before 2 or 3 leaves leases that end by themselves: another process pulls the messages again.
"""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from doubledecker import clock, log
from doubledecker.bus import verdict
from doubledecker.bus.verdict import Backoff, Retry
from doubledecker.delivery import record
from doubledecker.delivery.chains import Chains
from doubledecker.errors import BusAway, CallRejected
from doubledecker.model.outcome import Outcome, failed_ids
from doubledecker.model.queue import Queue
from doubledecker.model.uid import uid
from doubledecker.queues.ring import Rings
from doubledecker.store import receivers, subscribers
from doubledecker.store.partitions import Partition
from doubledecker.store.queues import Held, Message

# Between two tries to settle while Redis is away.
_PAUSE_S = 0.2

_log = log.get("watch")


@dataclass(frozen=True)
class PushRules:
    """The numbers that pushing goes by; a lease is renewed for as long as its process lives."""

    backoff: Backoff
    lease_ms: int
    heal_points: int
    damage_points: int


@dataclass(frozen=True)
class _Attempted:
    """One attempt, and what is to become of it."""

    batch: str
    queue: Queue
    slot: str
    attempt: int
    dialled_at: int
    outcome: Outcome
    events: Sequence[str]
    fates: "_Fates"
    delay_ms: int


@dataclass(frozen=True)
class _Fates:
    """Which messages are done, which come back and when, and what a dead letter would say."""

    acked: Sequence[Held]
    given_back: Sequence[Held]
    why: str


class Pusher:
    """Posts batches of any queue."""

    def __init__(self, home: Partition, rings: Rings, receivers: Chains, rules: PushRules) -> None:
        self.rules = rules
        self._home = home
        self._rings = rings
        self._receivers = receivers

    async def push(self, queue: Queue, messages: Sequence[Message], *, slot: str, failures: int) -> bool:
        """Deliver and settle a batch, and free its place; says whether it was delivered.

        `failures` is how often the receiver failed in a row before.
        """
        dialled_at = clock.now_ms()
        texts = [message.event for message in messages]
        try:
            outcome = await self._receivers.attempt(queue.receiver, texts)
        except CallRejected:
            await self._take_back(queue, messages, slot)
            return False
        ids = record.event_ids(texts)
        chance = random.random()  # noqa: S311 - jitter, not a secret
        what = verdict.decide(outcome, attempts=failures + 1, backoff=self.rules.backoff, chance=chance)
        attempted = _Attempted(
            batch=uid(),
            queue=queue,
            slot=slot,
            # The messages of a batch may differ in this; the one that was tried most speaks for all.
            attempt=max(message.attempt for message in messages),
            dialled_at=dialled_at,
            outcome=outcome,
            events=ids,
            fates=fates(outcome, messages, ids, backoff=self.rules.backoff, chance=chance),
            delay_ms=what.delay_ms if isinstance(what, Retry) else 0,
        )
        await self._persist(attempted)
        _log_attempt(attempted)
        return outcome.is_delivered

    def refusal_ms(self, queue: Queue) -> int:
        """How long the receiver's chain would not let a call through, as far as it knows; 0 when it would."""
        try:
            self._receivers.check(queue.receiver)
        except CallRejected as rejected:
            return rejected.delay_ms
        return 0

    async def _take_back(self, queue: Queue, messages: Sequence[Message], slot: str) -> None:
        """The chain did not let the call through: nobody was called, so nothing is counted."""
        held = [Held(message.id, message.attempt, is_spared=True) for message in messages]
        with contextlib.suppress(BusAway):  # then leases and place end by themselves
            await self._rings.nack(queue, held, why="never sent")
            await subscribers.leave(self._home, queue.receiver, slot=slot, points=0)

    async def _persist(self, attempted: _Attempted) -> None:
        """Write it down and settle; while Redis is away again and again, for as long as the messages may be ours."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.rules.lease_ms / 1000
        is_noted = False
        while True:
            try:
                if not is_noted:
                    await self._note(attempted)
                    is_noted = True
                await asyncio.gather(self._settle(attempted), self._leave(attempted))
            except BusAway as error:
                if loop.time() > deadline:
                    # The leases have ended or soon will, and the messages are delivered again.
                    token = attempted.queue.receiver.token
                    _log.warning("batch.unsettled", subscriber=token, batch=attempted.batch, error=str(error))
                    return
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    async def _note(self, attempted: _Attempted) -> None:
        outcome, token = attempted.outcome, attempted.queue.receiver.token
        entry = record.entry(
            outcome,
            batch=attempted.batch,
            subscriber=token,
            attempt=attempted.attempt,
            dialled_at=attempted.dialled_at,
            events=attempted.events,
        )
        counts = record.counts(outcome, subscriber=token, events=len(attempted.events))
        await receivers.note(self._home, attempt=entry, counts=counts)

    async def _settle(self, attempted: _Attempted) -> None:
        queue, ends = attempted.queue, attempted.fates
        await self._rings.ack(queue, ends.acked)
        await self._rings.nack(queue, ends.given_back, why=ends.why)

    async def _leave(self, attempted: _Attempted) -> None:
        points = self.rules.heal_points if attempted.outcome.is_delivered else -self.rules.damage_points
        receiver = attempted.queue.receiver
        left = await subscribers.leave(
            self._home,
            receiver,
            slot=attempted.slot,
            points=points,
            delay_ms=attempted.delay_ms,
            took_ms=attempted.outcome.took_ms,
        )
        if left.failures_before == 0 and left.failures > 0:
            _log.warning("subscriber.failing", subscriber=receiver.token, callback=receiver.callback)
        if left.failures_before > 0 and left.failures == 0:
            _log.info("subscriber.recovered", subscriber=receiver.token, failures=left.failures_before)


def fates(
    outcome: Outcome, messages: Sequence[Message], ids: Sequence[str], *, backoff: Backoff, chance: float
) -> _Fates:
    """What becomes of each message; pure. One chance serves all, so that those of equal attempts keep their order."""

    def later(message: Message) -> Held:
        return Held(message.id, message.attempt, verdict.delay_after(message.tries, backoff=backoff, chance=chance))

    if outcome.is_delivered:
        failed = failed_ids(outcome.answer)
        pairs = list(zip(messages, ids, strict=True))
        acked = [Held(message.id, message.attempt) for message, id_ in pairs if id_ not in failed]
        return _Fates(acked, [later(message) for message, id_ in pairs if id_ in failed], "failed by the receiver")
    why = f"{outcome.kind.value}: {outcome.detail if outcome.status is None else outcome.status}"
    if outcome.blames_nobody:
        return _Fates([], [Held(message.id, message.attempt, is_spared=True) for message in messages], why)
    return _Fates([], [later(message) for message in messages], why)


def _log_attempt(attempted: _Attempted) -> None:
    outcome = attempted.outcome
    _log.info(
        "delivery.attempted",
        subscriber=attempted.queue.receiver.token,
        batch=attempted.batch,
        events=len(attempted.events),
        attempt=attempted.attempt,
        outcome=outcome.kind.value,
        status=outcome.status,
        detail="" if outcome.is_delivered else outcome.detail,
        took_ms=outcome.took_ms,
        retry_ms=attempted.delay_ms,
        failed=len(attempted.fates.given_back),
    )
