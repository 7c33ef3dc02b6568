"""Queues: what consumers pull from, what is put on them, and within which limits."""

import re
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from doubledecker.errors import BadRequest, Forbidden
from doubledecker.model import own_headers, schema
from doubledecker.model import retry as retries
from doubledecker.model import subscriber as subscribing
from doubledecker.model.dial_guard import DialGuard
from doubledecker.model.event import STEPS
from doubledecker.model.retry import RetryPolicy, RetryWanted
from doubledecker.model.schema import between, matching, one_of, up_to
from doubledecker.model.signing import SigningKeys
from doubledecker.model.subscriber import (
    BytesMax,
    Callback,
    Concurrency,
    EventsMax,
    ReceiverWanted,
    Subscriber,
    TimeoutMs,
    Uuid,
)
from doubledecker.model.token import ROOT_NAME, Caller

NAME = re.compile(r"[a-z0-9_.-]{1,64}")
PATTERNS_MAX = 20
LEASE_MS_MIN, LEASE_MS_MAX = 100, 12 * 3_600_000
ATTEMPTS_MAX = 1_000
LENGTH_MAX = 100_000_000
WEIGHT_MIN, WEIGHT_MAX = 0.01, 1_000.0
RATE_MIN, RATE_MAX = 0.001, 1_000_000.0
HELD_MAX = 100_000
REFUSE_CLIENTS_MAX = 100
CHARGES = ("time", "count")
OVERFLOWS = ("drop_oldest", "refuse")


class RegisteredQueue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A registered queue; `owner` is the public id of a token, or empty for root."""

    name: str
    owner: str
    patterns: tuple[str, ...]
    lease_ms: int = 30_000
    attempts_max: int = 10
    charge: str = "time"
    max_length: int = 1_000_000
    facet_max_length: int = 0
    overflow: str = "drop_oldest"
    # Where messages are pushed, when there is a callback; the fields mean what they mean for a subscriber.
    callback: str = ""
    uuid: str = ""
    timeout_ms: int = 500
    max_events: int = 100
    max_bytes: int = 1_048_576
    concurrency: int = 4
    retry: RetryPolicy | None = None
    rate_per_s: float = 0.0
    headers: tuple[tuple[str, str], ...] = ()
    # What routes and receivers change, and PUT keeps: its callback is paused, or has answered 410.
    paused: bool = False
    disabled_at: int = 0
    disabled_why: str = ""
    signing: SigningKeys | None = None
    format: str = subscribing.JSON
    # Further clients whose events the queue may refuse; None in a record of version 0.1.0, which had no such list.
    refuse_clients: tuple[str, ...] | None = None
    # Which of the events that match it gets, in JSON; empty for all (model/event_filter.py).
    filter: str = ""
    # Messages of a tenant with the same key, or topic, are handed out one at a time (lua/queue_lanes.lua).
    ordered: bool = False
    # The registry's version that it came with, and the one with which its receiver began anew (model/subscriber.py).
    # The store sets them, at the end of the record (lua/queue_save.lua).
    since: int = 0
    anew_since: int = 0

    @property
    def refuses(self) -> bool:
        """Whether a full queue turns new events away; otherwise the oldest of the same facet goes."""
        return self.overflow == "refuse"

    @property
    def is_roots(self) -> bool:
        """Whether root owns it."""
        return self.owner in {"", ROOT_NAME}

    @property
    def is_counted(self) -> bool:
        """Whether an event's kind alone decides that it is one of a client's copies (`client_copies_max`)."""
        return not (self.is_roots or self.filter)

    def may_refuse(self, publisher: str) -> bool:
        """Whether this client's publish may be refused because the queue is full.

        Only the owner's own, those of clients that root has named, and for root's queues everybody's: otherwise one
        client could stop another from publishing. Other events do not enter a full queue that refuses.
        """
        return self.refuses and (self.is_roots or publisher == self.owner or publisher in (self.refuse_clients or ()))

    @property
    def receiver(self) -> Subscriber:
        """The receiver of what is pushed from it; its name cannot be a token's."""
        return Subscriber(
            token=f"@{self.name}",
            callback=self.callback,
            # Version 0.1.0 kept none when none was given, and showed the name; receivers know it by that.
            uuid=self.uuid or self.name,
            timeout_ms=self.timeout_ms,
            max_events=self.max_events,
            max_bytes=self.max_bytes,
            concurrency=self.concurrency,
            retry=self.retry,
            rate_per_s=self.rate_per_s,
            paused=self.paused,
            disabled_at=self.disabled_at,
            disabled_why=self.disabled_why,
            owner="" if self.is_roots else self.owner,
            headers=self.headers,
            signing=self.signing,
            format=self.format,
            anew_since=self.anew_since,
        )


class FacetRule(msgspec.Struct, frozen=True):
    """What holds for one facet; zero means no bound."""

    weight: float = 1.0
    concurrency: int = 0
    rate_per_s: float = 0.0
    paused: bool = False


# What may stand in a request, and what an answer shows of it.
QueueName = Annotated[str, matching(NAME), Meta(extra_json_schema={"not": {"enum": list(STEPS)}})]
LeaseMs = Annotated[int, between(LEASE_MS_MIN, LEASE_MS_MAX, "How long a message is a consumer's")]
Attempts = Annotated[int, between(1, ATTEMPTS_MAX, "After these a message is a dead letter")]
Charge = Annotated[str, one_of(CHARGES, "What tenants share evenly: time spent, or messages")]
Length = Annotated[int, between(1, LENGTH_MAX, "Messages in the queue")]
FacetLength = Annotated[int, between(0, LENGTH_MAX, "Waiting messages of one tenant; 0 is no bound")]
Ordered = Annotated[
    bool, Meta(description="Whether messages of a tenant with the same key are handed out one at a time, in order")
]
Overflow = Annotated[str, one_of(OVERFLOWS, "What happens to an event when the queue is full")]
_Pattern = Annotated[
    str, Meta(description="RE2, on the whole of `tenant:topic:type`", extra_json_schema={"minLength": 1})
]
_Clients = Annotated[
    list[str],
    up_to(REFUSE_CLIENTS_MAX, "Ids of further clients whose events it may refuse when full; for root alone"),
]
_Patterns = Annotated[list[_Pattern], Meta(extra_json_schema={"minItems": 1})]


class QueueWanted(ReceiverWanted, forbid_unknown_fields=True):
    """What is absent has its default. With a callback, workers push what the queue holds."""

    pattern: _Pattern | _Patterns
    lease_ms: LeaseMs = 30_000
    attempts_max: Attempts = 10
    charge: Charge = "time"
    max_length: Length = 1_000_000
    facet_max_length: FacetLength = 0
    overflow: Overflow = "drop_oldest"
    ordered: Ordered = False
    owner: Annotated[str, Meta(description="A token's id; for root alone")] | None = None
    refuse_clients: _Clients | None = None
    callback: Callback | None = None
    uuid: Uuid | None = None
    timeout: TimeoutMs = 500
    max: EventsMax = 100
    max_bytes: BytesMax = 1_048_576
    concurrency: Concurrency = 4


class RuleWanted(msgspec.Struct, forbid_unknown_fields=True):
    """What is absent stays as it was; null ends a bound."""

    weight: Annotated[float, between(WEIGHT_MIN, WEIGHT_MAX)] | UnsetType = UNSET
    concurrency: Annotated[int, between(1, HELD_MAX, "Messages in consumers' hands at once")] | UnsetType | None = UNSET
    rate_per_s: Annotated[float, between(RATE_MIN, RATE_MAX)] | UnsetType | None = UNSET
    paused: bool | UnsetType = UNSET


_WANTED = msgspec.json.Decoder(QueueWanted)
_RULE_WANTED = msgspec.json.Decoder(RuleWanted)


def check_name(name: str) -> None:
    """Raise BadRequest unless it can be a queue's name."""
    if not NAME.fullmatch(name) or name in STEPS:
        raise BadRequest(f"the queue is {name[:80]!r}; a name must match {NAME.pattern}, and be neither . nor ..")


def parse(body: bytes, *, name: str, owner: str, is_admin: bool, guard: DialGuard) -> RegisteredQueue:
    """A queue, checked but for its patterns: `matching.check_pattern` takes a millisecond for one.

    Raises BadRequest with what was seen and what is allowed.
    """
    check_name(name)
    asked = schema.decode(_WANTED, body, what="a queue")
    _check(asked, is_admin=is_admin)
    if asked.callback is not None:
        asked.callback, asked.uuid = subscribing.where_to(asked.callback, asked.uuid, guard=guard)
    subscribing.check_uuid(asked.uuid)
    return RegisteredQueue(
        name=name,
        owner=owner if asked.owner is None else asked.owner,
        patterns=_patterns(asked.pattern),
        lease_ms=asked.lease_ms,
        attempts_max=asked.attempts_max,
        charge=asked.charge,
        max_length=asked.max_length,
        facet_max_length=asked.facet_max_length,
        overflow=asked.overflow,
        ordered=asked.ordered,
        callback=asked.callback or "",
        uuid=asked.uuid or "",
        timeout_ms=asked.timeout,
        max_events=asked.max,
        max_bytes=asked.max_bytes,
        concurrency=asked.concurrency,
        retry=None if asked.retry is None else retries.policy(asked.retry),
        rate_per_s=asked.rate_per_s or 0.0,
        headers=own_headers.checked(asked.headers or {}),
        format=asked.format or subscribing.JSON,
        refuse_clients=None if asked.refuse_clients is None else _refuse_clients(asked.refuse_clients),
        filter=subscribing.filter_text(asked.filter),
    )


def _check(asked: QueueWanted, *, is_admin: bool) -> None:
    """Raise BadRequest for what may not be asked, but for its callback and patterns."""
    if asked.owner is not None and not is_admin:
        raise BadRequest("owner can be set by an admin alone; without it the queue is yours")
    if asked.refuse_clients is not None and not is_admin:
        raise BadRequest("refuse_clients can be set by an admin alone; without it the queue may refuse your own events")
    schema.check(asked)
    subscribing.check_receiver(asked)
    if isinstance(asked.retry, RetryWanted) and (asked.retry.attempts_max or asked.retry.age_max_s):
        raise BadRequest("retry of a queue has delays alone; its attempts_max says when a message is a dead letter")
    subscribing.check_format(asked.format or subscribing.JSON, asked.max)


def succeeding(queue: RegisteredQueue, former: RegisteredQueue | None) -> RegisteredQueue:
    """The queue with what it keeps of the former one: age, pause, credentials, and whom it may refuse.

    The credentials are the uuid, unless it was given another, and while it has a callback the signing secret. A former
    owner knows them, so another owner has others. One with a callback gets a random uuid if it has none.
    """
    since, anew_since, paused = (former.since, former.anew_since, former.paused) if former else (0, 0, False)
    kept = former if former is not None and is_same_owner(queue, former) else None
    signing = kept.signing if kept and kept.callback and queue.callback else queue.signing
    uuid = queue.uuid or (kept.uuid if kept else "")
    has_uuid = bool(uuid or (kept and kept.callback))
    if not has_uuid and queue.callback:
        uuid = subscribing.make_uuid()
    clients = former.refuse_clients if former and queue.refuse_clients is None else queue.refuse_clients
    return msgspec.structs.replace(
        queue,
        since=since,
        anew_since=anew_since,
        paused=paused,
        uuid=uuid,
        signing=signing,
        refuse_clients=clients or (),
    )


def check_owner(queue: RegisteredQueue, caller: Caller) -> None:
    """Raise Forbidden unless the queue is the caller's; root has them all."""
    if not caller.is_admin and queue.owner != caller.id:
        raise Forbidden(f"queue {queue.name!r} belongs to another client")


def is_same_owner(queue: RegisteredQueue, other: RegisteredQueue) -> bool:
    """Whether one client has both, or root."""
    return queue.owner == other.owner or (queue.is_roots and other.is_roots)


def parse_rule(body: bytes, former: FacetRule) -> FacetRule:
    """The rule that results from what is asked and what was there before."""
    asked = schema.decode(_RULE_WANTED, body, what="a facet's rule")
    schema.check(asked)
    given = {field: getattr(asked, field) for field in asked.__struct_fields__}
    changes = {field: value for field, value in given.items() if value is not UNSET}
    plain = FacetRule()
    return msgspec.structs.replace(
        former, **{field: getattr(plain, field) if value is None else value for field, value in changes.items()}
    )


def _patterns(asked: str | list[str]) -> tuple[str, ...]:
    patterns = [asked] if isinstance(asked, str) else list(dict.fromkeys(asked))
    if not 1 <= len(patterns) <= PATTERNS_MAX:
        raise BadRequest(f"{len(patterns)} patterns; a queue has from 1 to {PATTERNS_MAX}")
    return tuple(patterns)


def _refuse_clients(asked: list[str]) -> tuple[str, ...]:
    if len(asked) > REFUSE_CLIENTS_MAX:
        raise BadRequest(f"refuse_clients names {len(asked)} clients; at most {REFUSE_CLIENTS_MAX} are allowed")
    return tuple(sorted(set(asked)))
