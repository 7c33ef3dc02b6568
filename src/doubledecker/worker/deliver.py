"""Delivering a batch: the job `batch`.

1. Look whether the subscriber's chain would let the call through; if not, the job is put off, and nothing is counted.
2. Ask for a place among the calls to the subscriber; if there is none, the job is parked until one becomes free.
3. Load the batch, which closes it to new events. If it is gone (delivered, dropped, purged), the job is done.
4. Attempt it, decide what to do, and carry that out in one atom: delete the batch, or schedule the next try. After a
   success the same atom gives the slot the next job that is parked for the subscriber.
5. With a next job, keep the place and go on at 3; else free the place, and let parked jobs have it.

A crash before 4 is written leaves the job with its slot, to be scrubbed and attempted again, and so does a crash after
it with the next job; the place ends by itself.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, replace
from itertools import islice

from doubledecker import clock, log
from doubledecker.bus import parking, telemetry, verdict
from doubledecker.bus.registry import LiveRegistry
from doubledecker.bus.verdict import Backoff, Delivered, Verdict
from doubledecker.delivery import record
from doubledecker.delivery.chains import Chains
from doubledecker.errors import CallRejected
from doubledecker.model.job import RETRY
from doubledecker.model.outcome import Outcome
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import batches, jobs, subscribers
from doubledecker.store.batches import Batch, Next, Settled
from doubledecker.store.jobs import Taken
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.store.subscribers import Entry, Left

_log = log.get("worker")

# Jobs that a slot goes on to without asking what else waits: retries, and jobs of others and of other partitions.
_RUN_MAX = 16
# So many when no slot is free and another subscriber's job waits: a little more than three calls a batch.
_RUN_MAX_CROWDED = 4
# Subscribers for whom jobs are parked without asking; more would make every call to take a long one.
_BUSY_MAX = 100


@dataclass(frozen=True)
class DeliveryRules:
    """The numbers that deliveries go by."""

    backoff: Backoff
    lease_ms: int
    heal_points: int
    damage_points: int


class Deliverer:
    """Executes `batch` jobs."""

    def __init__(self, partitions: Partitions, registry: LiveRegistry, chains: Chains, rules: DeliveryRules) -> None:
        self._partitions = partitions
        self._registry = registry
        self._chains = chains
        self._rules = rules
        self._doors: dict[str, asyncio.Lock] = {}
        self._busy: set[str] = set()
        self._run_max = _RUN_MAX
        self._calls: Counter[str] = Counter()
        self._is_crowded = False

    async def deliver(self, taken: Taken) -> Taken | None:
        """Deliver a batch; returns the job that the slot has next, if it got one."""
        bid, token = taken.job.args
        # One at a time asks for a place, in the order of taking, so that what is parked is parked in that order.
        async with self._doors.setdefault(token, asyncio.Lock()):
            subscriber = await self._subscriber(token)
            may_call = subscriber is not None and await self._may_call(taken, subscriber)
        if subscriber is None:
            await jobs.ack(taken)
        elif may_call:
            batch = taken.batch if isinstance(taken, Next) else await batches.open_(taken.partition, bid, token=token)
            self._calls[token] += 1
            if self._is_crowded and self._calls[token] >= subscriber.concurrency:
                self._busy.add(token)
            try:
                return await self._call(taken, subscriber, batch)
            finally:
                self._calls[token] -= 1
        return None

    async def busy(self) -> list[str]:
        """Subscribers for whom first tries are parked without asking, once those that were taken before have asked.

        It is a guess from the last answers, good enough to spare questions: `announce` calls back what it got wrong.
        """
        # Jobs that were just taken come to the door first; then it is passed after all who stand there.
        await asyncio.sleep(0)
        self._busy = {token for token in self._busy if token in self._registry.snapshot.subscribers}
        found = list(islice(self._busy, _BUSY_MAX))
        for token in found:
            async with self._doors[token]:
                pass
        return found

    async def announce(self, partition: Partition, token: str) -> None:
        """Say that jobs were parked because of `busy`."""
        if subscriber := self._registry.snapshot.subscribers.get(token):
            await self.wait(partition, subscriber)

    def count(self, free: int) -> None:
        """Hear how many slots the last look for jobs left free; with none the worker is crowded, and others may wait.

        Then a subscriber with all its calls under way is busy without being asked, so that what comes for it is parked
        and does not stand before those others; and it stays so until places are heard to be free.
        """
        self._is_crowded = free == 0

    def wind_down(self) -> None:
        """Let slots go on to no other job."""
        self._run_max = 0

    async def _may_call(self, taken: Taken, subscriber: Subscriber) -> bool:
        """Get past the subscriber's chain and get a place, or settle the job: put off, parked or done."""
        if taken.run > 0:
            return True
        try:
            self._chains.check(subscriber)
        except CallRejected as rejected:
            await self._put_off(taken, subscriber, rejected.delay_ms)
            # The place that was kept for it is free for one that another process lets through.
            await subscribers.uninvite(self._partitions.home, subscriber.token, int(taken.is_called))
            return False
        return await self._enter(taken, subscriber)

    async def _put_off(self, taken: Taken, subscriber: Subscriber, delay_ms: int) -> None:
        """Not now: a retry comes back when the breaker may be probed; first tries wait parked, as for a place.

        They are not invited back though places may be free: that would bring them here again at once. Whoever next
        gets through to the subscriber invites them, or the repair chore does.
        """
        if taken.queue == RETRY:
            await jobs.nack(taken, delay_ms=delay_ms)
            return
        home, token = self._partitions.home, subscriber.token
        await jobs.park(taken, token=token)
        invited = await subscribers.wait(home, subscriber, partition=taken.partition.index)
        await subscribers.uninvite(home, token, invited.count)

    async def _enter(self, taken: Taken, subscriber: Subscriber) -> bool:
        """Get a place among the calls to the subscriber, or settle the job: parked, or done when there is nobody."""
        entry = await subscribers.enter(
            self._partitions.home,
            subscriber,
            slot=taken.slot,
            lease_ms=self._rules.lease_ms,
            partition=taken.partition.index,
            is_retry=taken.queue == RETRY,
            is_called=taken.is_called,
        )
        if entry is Entry.GONE:
            await jobs.ack(taken)
        elif entry is not Entry.GO:
            self._busy.add(subscriber.token)
            await jobs.park(taken, token=subscriber.token)
            await self._wait(taken.partition, subscriber)
        return entry is Entry.GO

    async def wait(self, partition: Partition, subscriber: Subscriber) -> None:
        """Say that jobs are parked, and put some back if places became free before that was known."""
        # One that was put back and has just been taken asks first, or its place might be given to another.
        await asyncio.sleep(0)
        async with self._doors.setdefault(subscriber.token, asyncio.Lock()):
            await self._wait(partition, subscriber)

    async def _wait(self, partition: Partition, subscriber: Subscriber) -> None:
        invited = await subscribers.wait(self._partitions.home, subscriber, partition=partition.index)
        if invited.count > 0:
            token = subscriber.token
            unparked = await jobs.unpark(partition, token, room=invited.count, called_max=invited.total)
            await subscribers.uninvite(self._partitions.home, token, unparked.spare)
            # If neither, those that were put back before have their places kept anew: there is none for others.
            if unparked.moved + unparked.spare > 0:
                self._busy.discard(token)

    async def _subscriber(self, token: str) -> Subscriber | None:
        """The subscriber as this process knows it; one that it does not know may be new."""
        if token not in self._registry.snapshot.subscribers:
            await self._registry.refresh()
        return self._registry.snapshot.subscribers.get(token)

    async def _call(self, taken: Taken, subscriber: Subscriber, batch: Batch | None) -> Taken | None:
        if batch is None or not batch.messages:
            await jobs.ack(taken)
            await self._leave(taken, subscriber)
            return None
        dialled_at = clock.now_ms()
        try:
            outcome = await self._chains.attempt(subscriber, batch.messages)
        except CallRejected as rejected:
            await self._put_off(taken, subscriber, rejected.delay_ms)
            await self._leave(taken, subscriber)
            return None
        return await self._settle(taken, subscriber, batch, outcome, dialled_at)

    async def _settle(
        self, taken: Taken, subscriber: Subscriber, batch: Batch, outcome: Outcome, dialled_at: int
    ) -> Taken | None:
        what = verdict.decide(
            outcome,
            attempts=batch.attempts + 1,
            backoff=self._rules.backoff,
            chance=random.random(),  # noqa: S311 - jitter, not a secret
        )
        settled = await self._carry_out(what, taken, subscriber, batch, outcome, dialled_at)
        points = self._rules.heal_points if outcome.is_delivered else -self._rules.damage_points
        delay_ms = 0 if isinstance(what, Delivered) else what.delay_ms
        _log_attempt(taken, batch, outcome, delay_ms)
        left = await self._leave(
            taken,
            subscriber,
            points=points,
            delay_ms=delay_ms,
            took_ms=outcome.took_ms,
            lease_ms=self._rules.lease_ms if settled.after else 0,
        )
        # Without its place, as when there are fewer now, it asks again like any job that was put back.
        return settled.after if settled.after is None or left.has_place else replace(settled.after, run=0)

    async def _carry_out(
        self, what: Verdict, taken: Taken, subscriber: Subscriber, batch: Batch, outcome: Outcome, dialled_at: int
    ) -> Settled:
        attempt = record.entry(
            outcome,
            batch=batch.bid,
            subscriber=batch.token,
            attempt=batch.attempts + 1,
            dialled_at=dialled_at,
            events=record.event_ids(batch.messages),
        )
        counts = _counts(batch, outcome, dialled_at)
        if isinstance(what, Delivered):
            places = subscriber.concurrency if taken.run < self._run_max else 0
            yields = taken.run >= _RUN_MAX_CROWDED and self._is_crowded
            return await batches.delivered(taken, batch, attempt=attempt, counts=counts, places=places, yields=yields)
        return await batches.retry(taken, batch, delay_ms=what.delay_ms, attempt=attempt, counts=counts)

    async def _leave(
        self,
        taken: Taken,
        subscriber: Subscriber,
        *,
        points: int = 0,
        delay_ms: int = 0,
        took_ms: int = 0,
        lease_ms: int = 0,
    ) -> Left:
        home = self._partitions.home
        left = await subscribers.leave(
            home, subscriber, slot=taken.slot, points=points, delay_ms=delay_ms, took_ms=took_ms, lease_ms=lease_ms
        )
        if left.failures_before == 0 and left.failures > 0:
            _log.warning("subscriber.failing", subscriber=subscriber.token, callback=subscriber.callback)
        if left.failures_before > 0 and left.failures == 0:
            _log.info("subscriber.recovered", subscriber=subscriber.token, failures=left.failures_before)
        if not left.waiting and not self._is_crowded:
            self._busy.discard(subscriber.token)
        if left.invited.count > 0:
            # After a run of this partition the next one's turn comes.
            count = len(self._partitions.all)
            where = sorted(left.waiting, key=lambda each: (each.partition - taken.partition.index - 1) % count)
            await parking.unpark(self._partitions, subscriber.token, where, invited=left.invited)
        return left


def _counts(batch: Batch, outcome: Outcome, dialled_at: int) -> dict[str, int]:
    counts = record.counts(outcome, subscriber=batch.token, events=len(batch.messages))
    if batch.attempts == 0:
        counts |= telemetry.latency("latency.batches.first_attempt", dialled_at - batch.created_at)
    if outcome.is_delivered:
        counts |= telemetry.latency("latency.batches.last_attempt", dialled_at + outcome.took_ms - batch.created_at)
    return counts


def _log_attempt(taken: Taken, batch: Batch, outcome: Outcome, delay_ms: int) -> None:
    _log.info(
        "delivery.attempted",
        subscriber=batch.token,
        batch=batch.bid,
        partition=taken.partition.index,
        events=len(batch.messages),
        attempt=batch.attempts + 1,
        outcome=outcome.kind.value,
        status=outcome.status,
        detail="" if outcome.is_delivered else outcome.detail,
        took_ms=outcome.took_ms,
        retry_ms=delay_ms,
    )
