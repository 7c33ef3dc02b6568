"""Subscribers: push receivers, what they ask for, and within which limits."""

import re
import uuid as uuids
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Annotated, Any
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, UnsetType

from doubledecker.errors import BadRequest
from doubledecker.model import callback as callbacks
from doubledecker.model import dial_guard, filter_syntax, own_headers, schema, topic_glob
from doubledecker.model import retry as retries
from doubledecker.model.dial_guard import DialGuard
from doubledecker.model.event import STEPS
from doubledecker.model.filter_syntax import FilterWanted
from doubledecker.model.own_headers import OwnHeaders
from doubledecker.model.retry import Retry, RetryPolicy
from doubledecker.model.schema import between, matching, one_of, up_to
from doubledecker.model.signing import SigningKeys
from doubledecker.model.topic_glob import TopicOrGlob

TIMEOUT_MS_MAX = 3_600_000
EVENTS_MAX = 10_000
BYTES_MAX = 16_777_216
CONCURRENCY_MAX = 100
# The least bound is a call in some 17 minutes.
RATE_MIN, RATE_MAX = 0.001, 10_000.0
# A tebibyte: more than any server holds.
BACKLOG_BYTES_MAX = 1_099_511_627_776
# A request's, whatever `client_subscriptions_max` is: some 20 ms of the server's time.
TOPICS_MAX = 10_000
# Who delivers: workers, batch by batch as events come; or the pipeline, from the lake.
TIERS = ("live", "bulk")
ON_DEAD = ("continue", "block")
# How events are posted: as Routemaster does, or as CloudEvents in batch mode, or one by one in binary mode.
ROUTEMASTER, JSON = "routemaster", "json"
BATCH, BINARY = "cloudevents-batch", "cloudevents-binary"
FORMATS = (ROUTEMASTER, JSON, BATCH, BINARY)
UUID_LENGTH_MAX = 255
NAME = re.compile(r"[a-z0-9_.-]{1,64}")
# The subscription that Routemaster's routes are about; its id is its client's.
DEFAULT_NAME = "default"
# Basic authentication cannot carry a colon in the user name.
UUID = re.compile(rf"[\x21-\x39\x3b-\x7e]{{1,{UUID_LENGTH_MAX}}}")
_WITH_USER = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^/?#]*)@(?P<rest>.*)", re.DOTALL)


class Halt(IntEnum):
    """Why nothing is sent to a receiver, if nothing is; the numbers are those of lua/receiver_ring.lua."""

    NONE = 0
    PAUSED = 1
    DISABLED = 2


# Points go from 0 to 100, one or two an attempt, so below this there were ten or more recent failures.
_HEALTHY_POINTS_MIN = 80


def health(points: int, *, failures: int, refusals: int, halt: Halt = Halt.NONE) -> str:
    """A receiver's state: `paused` or `disabled`; `failing` or `refusing` by its last calls; else by its points."""
    if halt:
        return halt.name.lower()
    if failures:
        return "failing"
    if refusals:
        return "refusing"
    return "healthy" if points >= _HEALTHY_POINTS_MIN else "recovering"


@dataclass(frozen=True)
class Subscriber:
    """One push receiver; `token` is its id: a client's for its default one, and `<client>/<name>` for others.

    The name of one for a single tenant is `<tenant>/<name>`: so tenants have names of their own, and who has one of
    these ids has always had that tenant's events alone. The id stays when it is given to another client.
    """

    token: str
    callback: str
    uuid: str
    topics: tuple[str, ...] = ()
    timeout_ms: int = 500
    max_events: int = 100
    max_bytes: int = 1_048_576
    concurrency: int = 4
    tier: str = "live"
    retry: RetryPolicy | None = None
    # Events of a tenant with the same key, or without one of the same topic, arrive in order.
    ordered: bool = False
    # What an ordered key does after a dead letter: it goes on, or it waits for the letter (`block`).
    on_dead: str = "continue"
    # Calls, whatever they carry; 0 is no bound.
    rate_per_s: float = 0.0
    # How many bytes may wait for it before it loses the oldest; 0 is no bound.
    backlog_max_bytes: int = 0
    # Which events of its topics it gets, in JSON; empty for all (model/event_filter.py).
    filter: str = ""
    # The registry's version that it came with, as the store sets it.
    since: int = 0
    # The one with which it began anew: it came, moved to another address or was enabled. Calls to it as it was before
    # say nothing of it. 0 for one that has not since this is kept.
    anew_since: int = 0
    # Its owner has paused it; it has answered 410, since when it is disabled, and what it answered.
    paused: bool = False
    disabled_at: int = 0
    disabled_why: str = ""
    # The client that has it, where that is not `token`; of a queue's receiver, empty for root.
    owner: str | None = None
    # Sent with each request, by its owner's wish; their values may be secrets.
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    # By which requests are signed; None for one that never asked for a secret.
    signing: SigningKeys | None = None
    format: str = ROUTEMASTER

    @property
    def bare(self) -> "Subscriber":
        """It without its credentials, for places that do not call it."""
        return replace(self, uuid="", headers=(), signing=None)

    @property
    def halt(self) -> Halt:
        """Why nothing is sent to it; one that is both is paused, as what waits for it must not be dropped."""
        return Halt.PAUSED if self.paused else Halt.DISABLED if self.disabled_at else Halt.NONE

    @property
    def calls_max(self) -> int:
        """How many calls it gets at a time; in order there is one in each partition."""
        return 1 if self.ordered else self.concurrency

    @property
    def client(self) -> str:
        """The client whose receiver it is, empty for root: the bounds that it reaches are this client's."""
        return self.token if self.owner is None else self.owner

    @property
    def name(self) -> str:
        """What its client calls it."""
        return name_in(self.token)

    @property
    def tenant(self) -> str:
        """The tenant whose events alone it gets; empty for all."""
        return "" if self.is_queues else tenant_in(self.token)

    @property
    def short_name(self) -> str:
        """What it is called among those of its tenant."""
        return self.name.rpartition("/")[2]

    @property
    def is_queues(self) -> bool:
        """Whether it is the receiver of a queue, and no subscriber."""
        return self.token.startswith("@")

    def begins_anew(self, former: "Subscriber | None") -> bool:
        """Whether what was learnt of the former one's calls says nothing of it.

        It has another address or owner, or is enabled again.
        """
        if former is None or (self.callback, self.client) != (former.callback, former.client):
            return True
        return former.disabled_at > 0 and self.disabled_at == 0

    @property
    def has_secret_uuid(self) -> bool:
        """Whether others cannot know its uuid: version 0.1.0 took the public id when none was given."""
        return self.uuid != self.token.removeprefix("@")

    @property
    def is_bulk(self) -> bool:
        """Whether the pipeline delivers to it, and no batch is made for it."""
        return self.tier == "bulk"


# What anyone who is pushed to asks for, a subscriber or a queue with a callback.
Callback = Annotated[
    str,
    matching(
        re.compile(r"https?://[\x21-\x7e]+"),
        "https, or http where `private_callbacks` is set; no fragment. A user name in it is the uuid",
        length_max=callbacks.LENGTH_MAX,
    ),
]
Uuid = Annotated[str, matching(UUID, "The user name that deliveries carry")]
TimeoutMs = Annotated[int, between(0, TIMEOUT_MS_MAX, "Milliseconds a batch waits for more")]
EventsMax = Annotated[int, between(1, EVENTS_MAX, "Events in a batch")]
BytesMax = Annotated[int, between(1, BYTES_MAX, "Bytes in a batch")]
Concurrency = Annotated[int, between(1, CONCURRENCY_MAX, "Deliveries at the same time")]
RatePerS = Annotated[
    float, between(0, RATE_MAX, f"Deliveries that begin in a second, {RATE_MIN} at least; 0 is no bound")
]
BacklogBytes = Annotated[
    int, between(0, BACKLOG_BYTES_MAX, "Bytes that may wait; beyond, its oldest batches are dropped. 0 is no bound")
]
Ordered = Annotated[
    bool, msgspec.Meta(description="Whether events of a key arrive in order, whatever happens to others")
]
OnDead = Annotated[str, one_of(ON_DEAD, "Of an ordered one: what a key does after a dead letter")]
SubscriptionName = Annotated[str, matching(NAME), msgspec.Meta(extra_json_schema={"not": {"enum": list(STEPS)}})]
Tier = Annotated[str, one_of(TIERS, "Who delivers: workers, or the Spark pipeline in bulk")]
Format = Annotated[
    str,
    one_of(FORMATS, "As Routemaster's drains take events, as they are, or as CloudEvents; binary needs a `max` of 1"),
]


class ReceiverWanted(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a subscriber and a queue may both ask for; absent keeps the former value, and null too but of a filter."""

    retry: Retry | None = None
    rate_per_s: RatePerS | None = None
    headers: OwnHeaders | None = None
    filter: FilterWanted | UnsetType | None = UNSET
    format: Format | None = None


class Subscription(ReceiverWanted, forbid_unknown_fields=True):
    """What is absent or null keeps its former value; but null ends a filter. No topics: it stays, and gets nothing."""

    topics: Annotated[list[TopicOrGlob], up_to(TOPICS_MAX)]
    callback: Callback
    uuid: Uuid | None = None
    timeout: TimeoutMs | None = None
    max: EventsMax | None = None
    max_bytes: BytesMax | None = None
    concurrency: Concurrency | None = None
    tier: Tier | None = None
    backlog_max_bytes: BacklogBytes | None = None
    ordered: Ordered | None = None
    on_dead: OnDead | None = None


class SubscriptionWanted(Subscription, forbid_unknown_fields=True):
    """What is absent or null has its default; but the uuid stays. No topics: it is there, and gets nothing."""


class SubscriptionChange(msgspec.Struct, forbid_unknown_fields=True):
    """What is absent stays as it was; null gives a field its default, and the uuid another random one."""

    topics: Annotated[list[TopicOrGlob], up_to(TOPICS_MAX)] | UnsetType = UNSET
    callback: Callback | UnsetType = UNSET
    uuid: Uuid | UnsetType | None = UNSET
    timeout: TimeoutMs | UnsetType | None = UNSET
    max: EventsMax | UnsetType | None = UNSET
    max_bytes: BytesMax | UnsetType | None = UNSET
    concurrency: Concurrency | UnsetType | None = UNSET
    tier: Tier | UnsetType | None = UNSET
    backlog_max_bytes: BacklogBytes | UnsetType | None = UNSET
    ordered: Ordered | UnsetType | None = UNSET
    on_dead: OnDead | UnsetType | None = UNSET
    retry: Retry | UnsetType | None = UNSET
    rate_per_s: RatePerS | UnsetType | None = UNSET
    headers: OwnHeaders | UnsetType | None = UNSET
    filter: FilterWanted | UnsetType | None = UNSET
    format: Format | UnsetType | None = UNSET

    @property
    def given(self) -> dict[str, Any]:
        """What it sets, by name."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in fields.items() if value is not UNSET and value is not None}

    @property
    def reset(self) -> list[str]:
        """What gets its default."""
        return [name for name in self.__struct_fields__ if getattr(self, name) is None]


_ASKED = msgspec.json.Decoder(Subscription)
_WANTED = msgspec.json.Decoder(SubscriptionWanted)
_CHANGE = msgspec.json.Decoder(SubscriptionChange)
# What is not called the same in a subscriber.
_FIELDS = {"timeout": "timeout_ms", "max": "max_events"}


def check_name(name: str) -> None:
    """Raise BadRequest unless it can be a subscription's name."""
    if not NAME.fullmatch(name) or name in STEPS:
        raise BadRequest(
            f"the subscription is {name[:80]!r}; a name must match {NAME.pattern}, and be neither . nor .."
        )


def id_of(client: str, name: str) -> str:
    """The id of the subscription that a client makes by this name."""
    return client if name == DEFAULT_NAME else f"{client}/{name}"


def name_in(token: str) -> str:
    """The name in a subscriber's id."""
    return token.partition("/")[2] or DEFAULT_NAME


def tenant_in(token: str) -> str:
    """The tenant in a subscriber's id, if it is for one alone."""
    return name_in(token).rpartition("/")[0]


def name_for(tenant: str, name: str) -> str:
    """The name of a subscription for one tenant, or for all if that is empty."""
    return f"{tenant}/{name}" if tenant else name


def parse(body: bytes) -> Subscription:
    """A subscription, to be checked; raises BadRequest when it is none, or names too many topics."""
    asked = schema.decode(_ASKED, body, what="a subscription")
    _check_count(asked.topics)
    return asked


def parse_wanted(body: bytes) -> SubscriptionWanted:
    """A whole subscription, to be checked like one that `parse` reads."""
    asked = schema.decode(_WANTED, body, what="a subscription")
    _check_count(asked.topics)
    return asked


def parse_change(body: bytes) -> SubscriptionChange:
    """Fields of a subscription, to be checked."""
    asked = schema.decode(_CHANGE, body, what="a change of a subscription")
    _check_count(asked.given.get("topics", ()))
    return asked


def _check_count(topics: Sequence[str]) -> None:
    if len(topics) > TOPICS_MAX:
        raise BadRequest(f"{len(topics)} topics; at most {TOPICS_MAX} are allowed")


def checked(asked: Subscription, *, guard: DialGuard) -> Subscription:
    """The subscription with its callback in its one form; raises BadRequest with what was seen and what is allowed."""
    for topic in asked.topics:
        topic_glob.check(topic)
    asked.callback, asked.uuid = where_to(asked.callback, asked.uuid, guard=guard)
    check_uuid(asked.uuid)
    check_receiver(asked)
    schema.check(asked)
    return asked


def checked_change(asked: SubscriptionChange, *, guard: DialGuard) -> SubscriptionChange:
    """The change with its callback in its one form; raises BadRequest with what was seen and what is allowed."""
    given = asked.given
    for topic in given.get("topics", ()):
        topic_glob.check(topic)
    if "callback" in given:
        asked.callback, uuid = where_to(given["callback"], given.get("uuid"), guard=guard)
        asked.uuid = asked.uuid if uuid is None else uuid
    check_uuid(asked.given.get("uuid"))
    check_receiver(ReceiverWanted(**{name: given[name] for name in given.keys() & {"rate_per_s", "retry", "headers"}}))
    schema.check(asked)
    return asked


def check_receiver(asked: ReceiverWanted) -> None:
    """Raise BadRequest unless it can be kept."""
    rate = asked.rate_per_s
    if rate is not None and rate != 0 and not RATE_MIN <= rate <= RATE_MAX:
        raise BadRequest(f"rate_per_s is {asked.rate_per_s}; it must be 0, or from {RATE_MIN} to {RATE_MAX}")
    if asked.retry is not None:
        retries.policy(asked.retry)
    if asked.headers is not None:
        own_headers.checked(asked.headers)


def filter_text(asked: dict[str, Any] | UnsetType | None, former: str = "") -> str:
    """A filter as it is kept: what is asked for, checked; null ends the former one."""
    if asked is UNSET:
        return former
    return "" if asked is None else filter_syntax.parse(asked).text


def check_format(name: str, max_events: int) -> None:
    """Raise BadRequest unless a request of this format can carry as many events."""
    if name == BINARY and max_events != 1:
        raise BadRequest(
            f"format is {BINARY}, which carries one event a request, and max is {max_events}; set max to 1"
        )


def where_to(callback: str, uuid: str | None, *, guard: DialGuard) -> tuple[str, str | None]:
    """A callback in its one form, and the uuid; raises BadRequest unless the bus may call it.

    A user name in the callback is the uuid when none is given: Routemaster's command line asks for one in this way.
    """
    found = _WITH_USER.fullmatch(callback)
    if found is None:
        return _checked(callback, guard), uuid
    user, _, password = found["user"].partition(":")
    if password:
        raise BadRequest("callback must not carry a password; the uuid, or a user name in its place, is the credential")
    given = unquote(user) or None
    if uuid is not None and given is not None and given != uuid:
        raise BadRequest("callback carries a user name, and the uuid is another; give one of them")
    return _checked(f"{found['scheme']}{found['rest']}", guard), uuid if given is None else given


def check_uuid(uuid: str | None) -> None:
    """Raise BadRequest unless it can be the user name of deliveries."""
    if uuid is not None and not UUID.fullmatch(uuid):
        raise BadRequest(f"uuid must be 1 to {UUID_LENGTH_MAX} printable ASCII characters without a colon")


def make_uuid() -> str:
    """A credential for deliveries that nobody can guess."""
    return str(uuids.uuid4())


def fresh(token: str, client: str) -> Subscriber:
    """A subscriber before anything is asked of it, with a random uuid."""
    return Subscriber(token=token, callback="", uuid=make_uuid(), owner=None if token == client else client)


def owned_by(given: Subscriber, client: str) -> Subscriber:
    """The same as another client's."""
    return replace(given, owner=client)


def replaced(asked: SubscriptionWanted, former: Subscriber, *, offered: SigningKeys) -> Subscriber:
    """The subscriber as it is asked for, with the uuid, the pause and the secret that it had, or the secret offered."""
    plain = replace(
        fresh(former.token, former.client), uuid=former.uuid, paused=former.paused, signing=former.signing or offered
    )
    return merge(asked, plain)


def changed(asked: SubscriptionChange, former: Subscriber) -> Subscriber:
    """The subscriber with some fields changed. One that is disabled is enabled only by a callback."""
    plain, given = fresh(former.token, former.client), asked.given
    defaults = {_FIELDS.get(name, name): getattr(plain, _FIELDS.get(name, name)) for name in asked.reset}
    kept = {"topics": list(former.topics), "callback": former.callback}
    merged = merge(Subscription(**(kept | given)), replace(former, **defaults))
    if "callback" in given:
        return merged
    return replace(merged, disabled_at=former.disabled_at, disabled_why=former.disabled_why)


def merge(asked: Subscription, start: Subscriber) -> Subscriber:
    """The subscriber that results from what is asked and what was there before."""
    tier, ordered = asked.tier or start.tier, start.ordered if asked.ordered is None else asked.ordered
    on_dead = asked.on_dead or start.on_dead
    if asked.on_dead == "block" and not ordered:
        raise BadRequest("on_dead is block, which is for an ordered subscriber; set ordered to true as well")
    max_events, format_ = asked.max or start.max_events, asked.format or start.format
    check_format(format_, max_events)
    if ordered and tier == "bulk":
        raise BadRequest(
            "a subscriber of tier bulk cannot be ordered: bulk delivery is in order by key, but for what is put aside"
        )
    filter_ = filter_text(asked.filter, start.filter)
    if filter_ and tier == "bulk":
        raise BadRequest(
            "a subscriber of tier bulk cannot have a filter, as the lake is read by topic; let the tier be live, or "
            "set filter to null"
        )
    return Subscriber(
        token=start.token,
        owner=start.owner,
        callback=asked.callback,
        uuid=asked.uuid or start.uuid,
        topics=tuple(sorted(set(asked.topics))),
        timeout_ms=start.timeout_ms if asked.timeout is None else asked.timeout,
        max_events=max_events,
        max_bytes=asked.max_bytes or start.max_bytes,
        concurrency=asked.concurrency or start.concurrency,
        tier=tier,
        ordered=ordered,
        on_dead=on_dead,
        retry=start.retry if asked.retry is None else retries.policy(asked.retry),
        rate_per_s=start.rate_per_s if asked.rate_per_s is None else asked.rate_per_s,
        backlog_max_bytes=start.backlog_max_bytes if asked.backlog_max_bytes is None else asked.backlog_max_bytes,
        filter=filter_,
        paused=start.paused,
        headers=start.headers if asked.headers is None else own_headers.checked(asked.headers),
        signing=start.signing,
        format=format_,
    )


def _checked(callback: str, guard: DialGuard) -> str:
    url = callbacks.parse(callback)
    if not url.is_tls and not guard.is_private_allowed:
        raise BadRequest(
            f"callback is {callback[:80]!r}; it must be a URL with https; "
            "DOUBLEDECKER_PRIVATE_CALLBACKS=true of the bus allows http"
        )
    # The addresses of a name are checked whenever it is dialled.
    if url.address is not None and guard.why_not(url.address, host=url.host):
        raise BadRequest(
            f"callback is {callback[:80]!r}: {dial_guard.REFUSAL}; give a host with public addresses, or have the "
            "operator of the bus allow it (DOUBLEDECKER_CALLBACK_ALLOW)"
        )
    return str(url)
