"""The core of every delivery, by a worker, a watch, or a Spark task.

1. The caller has a permit, and a *load*: what goes to which receiver, and how often it was tried before.
2. `attempt` posts it and decides its settlement (delivery/verdict.py).
3. The caller writes that settlement, with the attempt's journal entry and counts, by its own script.
4. `conclude` logs the attempt and notes it for the receiver's health, once it is known to have counted.

A crash before 3 repeats the attempt; one before 4 loses a line of the log and a point of health.
"""

import contextlib
import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

import msgspec

from doubledecker import clock, log
from doubledecker.bus import telemetry
from doubledecker.bus.receiver_states import ReceiverStates
from doubledecker.bus.telemetry import counter
from doubledecker.delivery import formats, headers, verdict
from doubledecker.delivery.attempt import Dialer
from doubledecker.delivery.health import Health
from doubledecker.delivery.tracing import DeliverySpans
from doubledecker.delivery.verdict import RetrySchedule, Tried
from doubledecker.errors import BusAway, Conflict, OutOfDescriptors
from doubledecker.model.outcome import Outcome, OutcomeKind, failed_ids
from doubledecker.model.reserved import is_reserved
from doubledecker.model.settlement import DELIVERED, PATH, Settlement
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import journal

# That there are no descriptors is logged so often, however many calls could not be made.
_OUT_LOGGED_MS = 60_000
_NONE: Collection[str] = ()
# What is kept of a reason, which may quote what a receiver sent.
_DETAIL_MAX = 200


class _Identified(msgspec.Struct, gc=False):
    """The only part of a stored event that a delivery looks at."""

    id: str = ""
    url: str = ""


class _Topical(msgspec.Struct, gc=False):
    """What says whether an event is a notification of the bus."""

    topic: str = ""


_TOPICAL = msgspec.json.Decoder(list[_Topical])
_IDENTIFIED = msgspec.json.Decoder(list[_Identified])


@dataclass(frozen=True)
class DeliveryLoad:
    """What one call carries: events as lines, or each by itself, of a batch that was tried `attempts` times before.

    `failures` are those of the receiver when the permit was given. `accepted_at` is when the first of its events was
    accepted, 0 if that is not known; what waits by the rules of a queue is not `timed` by it. `message` names these
    very events, as often as they are sent; where it is empty, the batch does.
    """

    receiver: Subscriber
    batch: str
    parts: Sequence[bytes]
    events: int
    attempts: int
    failures: int
    accepted_at: int
    partition: int
    headers: Mapping[str, str] = field(default_factory=dict)
    is_timed: bool = True
    message: str = ""

    @property
    def message_id(self) -> str:
        """The id of a signed request; a dot would end it there."""
        return self.message or self.batch.replace(PATH, "-")

    @property
    def body(self) -> bytes:
        """The events as they are stored, as a JSON array; no event holds a line break of its own."""
        return b"[%b]" % b",".join(self.parts).replace(b"\n", b",")

    @property
    def bytes(self) -> int:
        """How long the events are as they are stored."""
        return sum(map(len, self.parts)) + len(self.parts) + 1


@dataclass(frozen=True)
class Attempted:
    """A load that was posted, its outcome, and its settlement."""

    load: DeliveryLoad
    ids: Sequence[str]
    dialled_at: int
    outcome: Outcome
    settlement: Settlement
    # The ids of those that its receiver named as failed in a 2xx.
    failed: Collection[str] = ()
    # Of the body that was posted.
    size: int = 0

    @property
    def detail(self) -> str:
        """The error, or how many events of a 2xx it named as failed."""
        if self.failed:
            return f"{self.named} of {self.load.events} named as failed"
        return "" if self.outcome.is_delivered else self.outcome.detail

    @property
    def named(self) -> int:
        """How many events its receiver named as failed."""
        return _count(self.ids, self.failed)

    @property
    def entry(self) -> bytes:
        load, outcome = self.load, self.outcome
        kept = journal.AttemptRecord(
            batch=load.batch,
            subscriber=load.receiver.token,
            attempt=load.attempts + 1,
            outcome=outcome.kind.value,
            took_ms=outcome.took_ms,
            at=self.dialled_at,
            events=self.ids,
            status=outcome.status,
            accepted_at=load.accepted_at,
            bytes=self.size,
            detail=self.detail[:_DETAIL_MAX],
            retry_ms=self._retry_ms,
            owner=load.receiver.owner or "",
        )
        return journal.pack(kept)

    @property
    def _retry_ms(self) -> int | None:
        """Messages of a queue return one by one, each at a time of its own."""
        if self.outcome.is_delivered or not self.load.is_timed:
            return None
        return self.settlement.probe_ms if self.settlement.retry_ms < 0 else self.settlement.retry_ms

    @property
    def why(self) -> str:
        """What went wrong, for the receiver's owner; empty when nothing did, or when all that was sent are notices."""
        outcome = self.outcome
        if outcome.is_delivered or all(is_reserved(each.topic) for each in _TOPICAL.decode(self.load.body)):
            return ""
        return f"{outcome.kind.value} {outcome.status or 0}"

    @property
    def counts(self) -> dict[str, int]:
        load, outcome, dialled_at = self.load, self.outcome, self.dialled_at
        batches, events, time = _counters(load.receiver.token, outcome.kind.value)
        found = {batches: 1, time: outcome.took_ms}
        # Those that its receiver named were not taken, though the attempt was.
        named = self.named
        if named:
            found[_counters(load.receiver.token, OutcomeKind.REFUSED.value)[1]] = named
        if named < load.events:
            found[events] = load.events - named
        accepted_at = load.accepted_at if load.is_timed else 0
        if accepted_at and load.attempts == 0:
            found |= telemetry.latency("latency.batches.first_attempt", dialled_at - accepted_at)
        if accepted_at and outcome.is_delivered:
            found |= telemetry.latency("latency.batches.last_attempt", dialled_at + outcome.took_ms - accepted_at)
        return found


def _count(ids: Sequence[str], failed: Collection[str]) -> int:
    """How many events have one of these ids, which may stand in a batch twice."""
    return sum(each in failed for each in ids) if failed else 0


# As many as a busy process has receivers; names are made of text, and an attempt needs three.
@lru_cache(maxsize=10_000)
def _counters(subscriber: str, outcome: str) -> tuple[str, str, str]:
    names = ("delivery.batches", "delivery.events", "delivery.time")
    batches, events, time = (counter(name, subscriber=subscriber, outcome=outcome) for name in names)
    return batches, events, time


class Deliverer:
    """Makes attempts at receivers, for one part of the product."""

    def __init__(
        self,
        dialer: Dialer,
        health: Health,
        states: ReceiverStates,
        backoff: RetrySchedule,
        *,
        part: str,
        spans: DeliverySpans | None = None,
    ) -> None:
        self.backoff = backoff
        self._spans = spans
        self._dialer = dialer
        self._health = health
        self._states = states
        self._log = log.get(part)
        self._log_attempt = log.line(part, "delivery.attempted")
        self._out_at = -math.inf

    async def attempt(self, load: DeliveryLoad) -> Attempted:
        """Post a load, and decide its settlement; raises OutOfDescriptors when nobody could be called."""
        body, dialled_at = load.body, clock.now_ms()
        events = _IDENTIFIED.decode(body)
        try:
            message = load.message_id if load.receiver.signing else ""
            more = headers.traced(load.headers, load.parts[0], body)
            have_urls = all(each.url for each in events)
            request = await formats.formatted(load.receiver.format, body, load.parts, have_urls=have_urls)
            outcome = await self._dialer.attempt(load.receiver, request, more, message)
        except OutOfDescriptors as error:
            if dialled_at - self._out_at >= _OUT_LOGGED_MS:
                self._out_at = dialled_at
                self._log.error("descriptors.exhausted", error=str(error))
            raise
        if outcome.is_gone:
            await self._disable(load.receiver, outcome)
        ids = [each.id for each in events]
        failed = failed_ids(outcome.answer).intersection(ids) if outcome.is_delivered and outcome.answer else _NONE
        settlement = self._settlement(load, outcome, _count(ids, failed))
        return Attempted(load, ids, dialled_at, outcome, settlement, failed, len(request.body))

    def _settlement(self, load: DeliveryLoad, outcome: Outcome, failed: int) -> Settlement:
        """The settlement of a load; its receiver may have named some of its events as failed."""
        if outcome.is_delivered and not failed:
            return DELIVERED
        chance = random.random()  # noqa: S311 - jitter, not a secret
        events, age_ms = failed or load.events, clock.now_ms() - load.accepted_at if load.accepted_at else 0
        tried = Tried(
            load.batch, events, load.attempts + 1, load.failures, age_ms, load.receiver.ordered, bytes=load.bytes
        )
        named = partial(verdict.decide_named, is_all=failed == load.events)
        decide = named if failed else partial(verdict.decide, outcome)
        return decide(tried, backoff=self.backoff, chance=chance, retry=load.receiver.retry)

    async def _disable(self, receiver: Subscriber, outcome: Outcome) -> None:
        """Have nobody call it again. Where that fails its next answer is a 410 too, and does it."""
        with contextlib.suppress(BusAway, Conflict):
            await self._states.disable(receiver, why=f"{outcome.status} {outcome.detail}".strip(), at=clock.now_ms())

    def conclude(self, attempted: Attempted, *, before: int, after: int, **more: int) -> None:
        """Log an attempt that counted; `before` and `after` are the receiver's failures in a row."""
        load, outcome = attempted.load, attempted.outcome
        token = load.receiver.token
        self._health.note(token, is_delivered=outcome.is_delivered, at=attempted.dialled_at)
        self._log_attempt(
            subscriber=token,
            batch=load.batch,
            partition=load.partition,
            events=load.events,
            attempt=load.attempts + 1,
            outcome=outcome.kind.value,
            status=outcome.status,
            detail=attempted.detail,
            took_ms=outcome.took_ms,
            retry_ms=max(0, attempted.settlement.retry_ms),
            **more,
        )
        if self._spans is not None:
            traces = headers.traces(load.body)
            self._spans.add(
                load.receiver, outcome, traces, at=attempted.dialled_at, batch=load.batch, events=load.events
            )
        if before == 0 and after > 0:
            self._log.warning("subscriber.failing", subscriber=token, callback=load.receiver.callback)
        if before > 0 and after == 0:
            self._log.info("subscriber.recovered", subscriber=token, failures=before)
