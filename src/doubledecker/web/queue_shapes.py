"""How queues and what they hold look in answers."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from doubledecker.model.event import Tenant
from doubledecker.model.queue import (
    Attempts,
    Charge,
    FacetLength,
    FacetRule,
    LeaseMs,
    Length,
    Ordered,
    Overflow,
    QueueName,
    RegisteredQueue,
)
from doubledecker.model.retry import Retry
from doubledecker.model.schema import Count, Shape
from doubledecker.model.subscriber import BytesMax, Concurrency, EventsMax, Format, RatePerS, TimeoutMs
from doubledecker.model.token import ROOT_NAME, Caller
from doubledecker.queues.call_batching import Pull
from doubledecker.queues.view import FacetShare, QueueOverview
from doubledecker.store.queues import LeasedMessage
from doubledecker.store.subscribers import Condition
from doubledecker.web import shapes
from doubledecker.web.shapes import (
    DisabledSince,
    FilterShown,
    Health,
    NewSecret,
    OwnHeadersShown,
    OwnUuid,
    Paused,
    SecretRotatedAt,
    SecretSet,
    UuidSet,
)

_COUNTED = ("pulled", "acked", "nacked", "expired", "dead", "dropped", "skipped", "purged", "redriven")

_OTHERS = Caller(id="", name="")


_Event = Annotated[Raw, Meta(description="The event, as it is delivered", extra_json_schema={"type": "object"})]


class QueueDefined(Shape, kw_only=True):
    """A queue as it was registered."""

    name: QueueName
    owner: Annotated[str, Meta(description="A token's id, or root")]
    pattern: tuple[str, ...]
    lease_ms: LeaseMs
    attempts_max: Attempts
    charge: Charge
    max_length: Length
    facet_max_length: FacetLength
    overflow: Overflow
    ordered: Ordered
    refuse_clients: tuple[str, ...]
    filter: FilterShown
    # Of one with a callback alone.
    callback: str | UnsetType = UNSET
    uuid_set: UuidSet | UnsetType = UNSET
    timeout: TimeoutMs | UnsetType = UNSET
    max: EventsMax | UnsetType = UNSET
    max_bytes: BytesMax | UnsetType = UNSET
    concurrency: Concurrency | UnsetType = UNSET
    uuid: OwnUuid | UnsetType = UNSET
    paused: Paused | UnsetType = UNSET
    disabled: DisabledSince | UnsetType = UNSET
    retry: Retry | UnsetType | None = UNSET
    rate_per_s: RatePerS | UnsetType = UNSET
    format: Format | UnsetType = UNSET
    headers: OwnHeadersShown | UnsetType = UNSET
    secret_set: SecretSet | UnsetType = UNSET
    secret_rotated_at: SecretRotatedAt | UnsetType = UNSET


class QueueMade(QueueDefined, kw_only=True):
    """A queue as it was just registered; its callback is new if there is a secret."""

    secret: NewSecret | UnsetType = UNSET


class QueueListed(QueueDefined, kw_only=True):
    """A queue with what it holds."""

    waiting: Count
    in_flight: Count
    delayed: Count
    dead: Count
    counters: dict[str, Count]


class RuleAnswer(Shape):
    """What holds for a facet; null is no bound."""

    weight: float
    concurrency: Count | None
    rate_per_s: float | None
    paused: bool


class FacetAnswer(RuleAnswer, kw_only=True):
    """One tenant's line."""

    tenant: Tenant
    waiting: Count
    in_flight: Count
    oldest: Annotated[Count, Meta(description="Age in milliseconds of the oldest waiting event, by its own time")]
    share: Annotated[float, Meta(description="The part of the service that it is due among those that wait")]


class QueueAnswer(QueueListed, kw_only=True):
    """A queue with its facets."""

    oldest: Annotated[Count, Meta(description="Age in milliseconds of the oldest waiting event, by its own time")]
    facets: list[FacetAnswer]
    health: Health | UnsetType = UNSET
    failures: Count | UnsetType = UNSET
    refusals: Count | UnsetType = UNSET
    last_attempted_at: Count | UnsetType | None = UNSET


class PulledMessage(Shape):
    """A message as a consumer gets it."""

    id: str
    attempt: Annotated[int, Meta(ge=1)]
    tenant: Tenant
    event: _Event
    lease_until: Count


class PulledAnswer(Shape):
    messages: list[PulledMessage]
    wait_ms: Annotated[Count, Meta(description="When more may be due; null if only a new event can change that")] | None


class SettledAnswer(Shape):
    ids: Annotated[list[str], Meta(description="Were still the caller's")]
    lost: list[str]
    lease_until: Count | UnsetType = UNSET


class PeekedMessage(Shape):
    """A message that waits."""

    id: str
    tenant: Tenant
    event: _Event


class Peeked(Shape):
    messages: list[PeekedMessage]


class Counted(Shape):
    messages: Count
    dry_run: bool


class EncodedQueue(msgspec.Struct, frozen=True, gc=False):
    """A queue with what it holds in JSON, as its owner sees it and as root does. A struct, because many are kept."""

    name: str
    owner: str
    for_owner: bytes
    for_others: bytes

    def of(self, caller: Caller) -> bytes:
        """What a caller sees; that it may see the queue is another's to check."""
        return self.for_owner if (self.owner or ROOT_NAME) == caller.id else self.for_others


def encoded(seen: QueueOverview) -> EncodedQueue:
    """A queue encoded once for all who may ask."""
    queue, owner = seen.queue, seen.queue.owner or ROOT_NAME
    for_others = msgspec.json.encode(listed(seen, _OTHERS))
    # Only a queue with a callback has what its owner alone may see.
    for_owner = msgspec.json.encode(listed(seen, Caller(owner, owner))) if queue.callback else for_others
    return EncodedQueue(queue.name, queue.owner, for_owner, for_others)


def made(queue: RegisteredQueue, caller: Caller, secret: str | None) -> QueueMade:
    """A queue as it was just registered, with the secret that was made for it if one was."""
    return QueueMade(**_defined(queue, caller), secret=secret or UNSET)


def listed(seen: QueueOverview, caller: Caller) -> QueueListed:
    """A queue with what it holds."""
    return QueueListed(**_defined(seen.queue, caller), **_numbers(seen))


def shown(
    seen: QueueOverview, facets: Sequence[FacetShare], condition: Condition | None, caller: Caller, now_ms: int
) -> QueueAnswer:
    """A queue with its facets, and how its callback fares if it has one."""
    ages = [now_ms - facet.oldest_at for facet in facets if facet.oldest_at is not None]
    return QueueAnswer(
        **_defined(seen.queue, caller),
        **_numbers(seen),
        oldest=max(0, *ages, 0),
        facets=[facet(each, now_ms) for each in facets],
        health=UNSET if condition is None else condition.health,
        failures=UNSET if condition is None else condition.failures,
        refusals=UNSET if condition is None else condition.refusals,
        last_attempted_at=UNSET if condition is None else condition.last_attempted_at,
    )


def _defined(queue: RegisteredQueue, caller: Caller) -> dict[str, Any]:
    """The fields of a queue as it was registered; its uuid and headers are shown to its owner alone."""
    is_own = (queue.owner or ROOT_NAME) == caller.id
    fields: dict[str, Any] = {
        "name": queue.name,
        "owner": queue.owner or ROOT_NAME,
        "pattern": queue.patterns,
        "lease_ms": queue.lease_ms,
        "attempts_max": queue.attempts_max,
        "charge": queue.charge,
        "max_length": queue.max_length,
        "facet_max_length": queue.facet_max_length,
        "overflow": queue.overflow,
        "ordered": queue.ordered,
        "refuse_clients": queue.refuse_clients or (),
        "filter": shapes.event_filter(queue.filter),
    }
    if not queue.callback:
        return fields
    return fields | {
        "callback": queue.callback,
        "uuid_set": queue.receiver.has_secret_uuid,
        "timeout": queue.timeout_ms,
        "max": queue.max_events,
        "max_bytes": queue.max_bytes,
        "concurrency": queue.concurrency,
        "uuid": queue.receiver.uuid if is_own else UNSET,
        "paused": queue.paused,
        "disabled": shapes.disabled(queue.receiver),
        "retry": queue.retry.shown if queue.retry else None,
        "rate_per_s": queue.rate_per_s,
        "format": queue.format,
        "headers": dict(queue.headers) if is_own else UNSET,
        "secret_set": queue.signing is not None,
        "secret_rotated_at": queue.signing.rotated_at if queue.signing else None,
    }


def _numbers(seen: QueueOverview) -> dict[str, Any]:
    """The fields of what a queue holds."""
    return {
        "waiting": seen.waiting,
        "in_flight": seen.in_flight,
        "delayed": seen.delayed,
        "dead": seen.dead,
        "counters": {name: seen.counters.get(name, 0) for name in _COUNTED},
    }


def facet(seen: FacetShare, now_ms: int) -> FacetAnswer:
    """One tenant's line; `oldest` is an age by the event's own time."""
    return FacetAnswer(
        tenant=seen.tenant,
        waiting=seen.waiting,
        in_flight=seen.in_flight,
        oldest=0 if seen.oldest_at is None else max(0, now_ms - seen.oldest_at),
        share=seen.share,
        weight=seen.rule.weight,
        concurrency=seen.rule.concurrency or None,
        rate_per_s=seen.rule.rate_per_s or None,
        paused=seen.rule.paused,
    )


def rule(seen: FacetRule) -> RuleAnswer:
    """What holds for a facet."""
    return RuleAnswer(seen.weight, seen.concurrency or None, seen.rate_per_s or None, seen.paused)


def pulled(pull: Pull) -> PulledAnswer:
    """What a pull answers; the bytes of events are passed on unread."""
    rows = [PulledMessage(m.id, m.attempt, m.tenant, Raw(m.event), m.lease_until) for m in pull.messages]
    return PulledAnswer(rows, pull.wait_ms)


def settled(asked: Sequence[LeasedMessage], kept: Sequence[str], lease_until: int | UnsetType = UNSET) -> SettledAnswer:
    """Which messages were still the caller's, and which were not."""
    mine = set(kept)
    lost = [id_ for id_ in dict.fromkeys(each.id for each in asked) if id_ not in mine]
    return SettledAnswer(list(kept), lost, lease_until)
