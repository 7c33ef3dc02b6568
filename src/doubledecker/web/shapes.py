"""How tokens, subscribers, published events and processes look in answers; those of queues are in queue_shapes.py."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from starlette.responses import Response

from doubledecker.bus.overview import SubscriberView
from doubledecker.model import moment
from doubledecker.model.event import Tenant
from doubledecker.model.own_headers import OwnHeaders
from doubledecker.model.replay import MOMENT
from doubledecker.model.retry import Retry
from doubledecker.model.schema import Count, Shape, one_of
from doubledecker.model.scopes import ActionName, Scopes, TopicNames
from doubledecker.model.subscriber import (
    BacklogBytes,
    BytesMax,
    Concurrency,
    EventsMax,
    Format,
    OnDead,
    Ordered,
    RatePerS,
    Subscriber,
    SubscriptionName,
    Tier,
    TimeoutMs,
)
from doubledecker.model.token import Caller, Token, TokenName
from doubledecker.model.topic_glob import TopicOrGlob
from doubledecker.store.losses import Loss

OwnUuid = Annotated[str, Meta(description="The user name that deliveries carry; shown to its owner alone")]
UuidSet = Annotated[
    bool, Meta(description="Whether it is one that others cannot know; false where version 0.1.0 took the public id")
]
OwnHeadersShown = Annotated[OwnHeaders, Meta(description="Sent with each request; shown to its owner alone")]
SecretSet = Annotated[bool, Meta(description="Whether requests are signed")]
SecretRotatedAt = Annotated[Count | None, Meta(description="Since when by the current secret; null for none")]
NewSecret = Annotated[str, Meta(description="The signing secret, shown this once")]
Health = Annotated[int, Meta(ge=0, le=100)]
Memory = Annotated[
    str, Meta(description="Whether it is short", extra_json_schema={"pattern": "^(ok|short|full|unknown)"})
]
FilterShown = Annotated[
    Raw, Meta(description="Which events it gets; null for all", extra_json_schema={"type": ["object", "null"]})
]
_FormerUntil = Annotated[Count, Meta(description="When the last former secret ends, or ended; null for none")]


def json(value: object, status: int = 200) -> Response:
    """An answer in JSON."""
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


class Status(Shape):
    status: Annotated[str, one_of(["ok"])]
    version: str


class Alive(Shape):
    status: Annotated[str, one_of(["alive"])]


class Ready(Shape):
    status: Annotated[str, one_of(["ready"])]
    checks: dict[str, Annotated[str, one_of(["ok"])]]
    memory: Memory


class VersionAnswer(Shape):
    name: Annotated[str, one_of(["doubledecker"])]
    version: str


class RefusedEvent(Shape):
    """An event that was not published, by its place in the request."""

    index: Count
    why: str


class PublishedAnswer(Shape):
    ids: Annotated[list[str], Meta(min_length=1)]
    refused: list[RefusedEvent]


class TokenMade(Shape):
    name: TokenName
    token: Annotated[TokenName, Meta(description="The secret, shown this once")]
    id: Annotated[str, Meta(description="What stands for the token wherever it is listed")]


class ScopesShown(Shape):
    """What a token may do; null is no limit."""

    actions: list[ActionName] | None
    topics: list[TopicNames] | None
    tenants: list[Tenant] | None


class TokenListed(Shape):
    name: TokenName
    token: Annotated[str, Meta(description="The public id")]
    created_at: Count
    rotated_at: Annotated[Count, Meta(description="When its secret was replaced last")] | None
    former_until: _FormerUntil | None
    description: str
    expires_at: Annotated[Count, Meta(description="0 is never")]
    scopes: ScopesShown
    last_used_at: Annotated[Count, Meta(description="To the minute, and written within half a minute")] | None


class TokenRotated(Shape):
    name: TokenName
    token: Annotated[TokenName, Meta(description="The new secret, shown this once")]
    id: str
    former_until: _FormerUntil | None


class SubscriberEvents(Shape):
    sent: Annotated[Count, Meta(description="Events delivered")]
    queued: Annotated[Count, Meta(description="Events waiting")]
    oldest: Annotated[Count, Meta(description="Age in milliseconds of the oldest waiting batch, 0 for none")]


class LostEvents(Shape, rename={"start": "from", "end": "to"}):
    """Events that were dropped in the last 30 days; all of them were accepted within the time that is given."""

    events: Count
    batches: Count
    bytes: Count
    start: Annotated[str, Meta(description=MOMENT)]
    end: Annotated[str, Meta(description=MOMENT)]


class Disabled(Shape):
    """Since when a receiver is disabled, and what it answered."""

    since: Count
    why: str


Paused = Annotated[bool, Meta(description="Whether nothing is sent to it until it is resumed")]
DisabledSince = Annotated[
    Disabled | None, Meta(description="Since it answered 410 nothing is sent to it, until it is enabled; null if not")
]


class ReceiverState(Shape):
    """Whether a receiver is sent what waits for it."""

    receiver: Annotated[str, Meta(description="A subscriber's id, or `@` and a queue's name")]
    paused: Paused
    disabled: DisabledSince


class SecretRotated(Shape):
    """A receiver with its new signing secret."""

    receiver: Annotated[str, Meta(description="A subscriber's id, or `@` and a queue's name")]
    secret: NewSecret
    rotated_at: Count
    former_until: Annotated[Count, Meta(description="When the last former secret ends; null for none")] | None


class SubscriberAnswer(Shape, kw_only=True):
    subscriber: Annotated[
        str, Meta(description="Its id: that of its client for the default one, else client/name or client/tenant/name")
    ]
    name: Annotated[SubscriptionName, Meta(description="What its client calls it, or its tenant")]
    tenant: Annotated[Tenant, Meta(description="The one whose events alone it gets")] | UnsetType = UNSET
    client: Annotated[str, Meta(description="The public id of its client's token")]
    callback: str
    max_events: EventsMax
    timeout: TimeoutMs
    topics: Annotated[tuple[TopicOrGlob, ...], Meta(extra_json_schema={"uniqueItems": True})]
    uuid: OwnUuid | UnsetType = UNSET
    uuid_set: UuidSet
    events: SubscriberEvents
    max_bytes: BytesMax
    concurrency: Concurrency
    tier: Tier
    health: Health
    failures: Annotated[Count, Meta(description="Different batches that failed in a row; 0 while it is well")]
    refusals: Annotated[Count, Meta(description="Different batches that it refused for their content, in a row")]
    last_attempted_at: Count | None
    paused: Paused
    disabled: DisabledSince
    retry: Retry | None
    rate_per_s: RatePerS
    format: Format
    backlog_max_bytes: BacklogBytes
    dead: Annotated[Count, Meta(description="Dead letters")]
    dropped: Annotated[LostEvents | None, Meta(description="What it lost as more waited than `backlog_max_bytes`")]
    headers: OwnHeadersShown | UnsetType = UNSET
    secret_set: SecretSet
    secret_rotated_at: SecretRotatedAt
    ordered: Ordered
    on_dead: OnDead
    filter: FilterShown
    held_key_count: Annotated[Count, Meta(description="Keys whose events wait for one that it did not take")]
    held_keys: Annotated[
        tuple[str, ...], Meta(description="Some of them: `tenant/key`, or `tenant:topic` without a key")
    ]


class SubscriptionMade(SubscriberAnswer, kw_only=True):
    """A subscription as it was just put; it was not signed before if there is a secret."""

    secret: NewSecret | UnsetType = UNSET


def subscription_made(answer: SubscriberAnswer, secret: str | None) -> SubscriptionMade:
    """The same with the secret that was made for it, if one was."""
    return SubscriptionMade(**msgspec.structs.asdict(answer), secret=secret or UNSET)


def event_filter(kept: str) -> Raw:
    """A filter as it is shown, from what is kept of it."""
    return Raw(kept.encode() or b"null")


def token(listed: Token, last_used_at: int | None) -> TokenListed:
    """A token as it is listed."""
    return TokenListed(
        name=listed.name,
        token=listed.id,
        created_at=listed.created_at,
        rotated_at=listed.rotated_at or None,
        former_until=listed.former_until,
        description=listed.description,
        expires_at=listed.expires_at,
        scopes=_scopes(listed.scopes),
        last_used_at=last_used_at,
    )


def _scopes(scopes: Scopes) -> ScopesShown:
    names = (scopes.actions, scopes.topics, scopes.tenants)
    return ScopesShown(*(None if some is None else list(some) for some in names))


def subscriber(view: SubscriberView, caller: Caller, now_ms: int) -> SubscriberAnswer:
    """A subscriber as it is listed; its uuid is shown to its owner alone."""
    listed, condition = view.subscriber, view.condition
    oldest = 0 if view.oldest_at is None else max(0, now_ms - view.oldest_at)
    return SubscriberAnswer(
        subscriber=listed.token,
        name=listed.short_name,
        tenant=listed.tenant or UNSET,
        client=listed.client,
        callback=listed.callback,
        max_events=listed.max_events,
        timeout=listed.timeout_ms,
        topics=listed.topics,
        uuid=listed.uuid if listed.client == caller.id else UNSET,
        uuid_set=listed.has_secret_uuid,
        events=SubscriberEvents(sent=view.sent, queued=view.events, oldest=oldest),
        max_bytes=listed.max_bytes,
        concurrency=listed.concurrency,
        tier=listed.tier,
        health=condition.health,
        failures=condition.failures,
        refusals=condition.refusals,
        last_attempted_at=condition.last_attempted_at,
        paused=listed.paused,
        disabled=disabled(listed),
        retry=listed.retry.shown if listed.retry else None,
        rate_per_s=listed.rate_per_s,
        format=listed.format,
        backlog_max_bytes=listed.backlog_max_bytes,
        dead=view.dead,
        dropped=_lost(view.lost) if view.lost else None,
        headers=dict(listed.headers) if listed.client == caller.id else UNSET,
        secret_set=listed.signing is not None,
        secret_rotated_at=listed.signing.rotated_at if listed.signing else None,
        ordered=listed.ordered,
        filter=event_filter(listed.filter),
        on_dead=listed.on_dead,
        held_key_count=condition.held_key_count,
        held_keys=condition.held_keys,
    )


def _lost(lost: Loss) -> LostEvents:
    start, end = (moment.to_text(moment.from_ms(at_ms)) for at_ms in (lost.from_ms, lost.upto_ms))
    return LostEvents(lost.events, lost.batches, lost.bytes, start, end)


def receiver_state(receiver: Subscriber) -> ReceiverState:
    """Whether a receiver is sent what waits for it."""
    return ReceiverState(receiver.token, receiver.paused, disabled(receiver))


def disabled(receiver: Subscriber) -> Disabled | None:
    """Since when and why a receiver is disabled, if it is."""
    return Disabled(receiver.disabled_at, receiver.disabled_why) if receiver.disabled_at else None
