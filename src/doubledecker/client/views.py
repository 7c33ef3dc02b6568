"""What the bus returns about itself: queues, facets and messages; tokens, topics and subscriptions."""

from typing import Any

import msgspec

from doubledecker.client.message import Event


class FacetView(msgspec.Struct, frozen=True):
    """A facet: `share` is its part of the service, `oldest` its oldest message's age in ms, None no bound."""

    tenant: str
    waiting: int
    in_flight: int
    oldest: int
    share: float
    weight: float
    concurrency: int | None
    rate_per_s: float | None
    paused: bool


# When a receiver is tried again, as it was asked for: bounds by name, or delays in milliseconds; None is the bus's own.
Retry = dict[str, int | None] | tuple[int, ...] | None


class QueueView(msgspec.Struct, frozen=True):
    """A queue; only `get` of one queue returns its facets and the health of its callback.

    Only `register` returns the signing `secret` of a callback, when the callback is new. `timeout`, `max`, `max_bytes`
    and `concurrency` are None without a callback.
    """

    name: str
    owner: str
    pattern: tuple[str, ...]
    lease_ms: int
    attempts_max: int
    charge: str
    max_length: int
    facet_max_length: int
    overflow: str
    ordered: bool = False
    refuse_clients: tuple[str, ...] = ()
    filter: dict[str, Any] | None = None
    waiting: int = 0
    in_flight: int = 0
    delayed: int = 0
    dead: int = 0
    oldest: int = 0
    counters: dict[str, int] = {}
    facets: tuple[FacetView, ...] = ()
    callback: str = ""
    uuid: str = ""
    uuid_set: bool = False
    timeout: int | None = None
    max: int | None = None
    max_bytes: int | None = None
    concurrency: int | None = None
    retry: Retry = None
    rate_per_s: float = 0.0
    format: str = "json"
    health: int | None = None
    failures: int = 0
    refusals: int = 0
    last_attempted_at: int | None = None
    paused: bool = False
    disabled: "Disabled | None" = None
    headers: dict[str, str] = {}
    secret_set: bool = False
    secret_rotated_at: int | None = None
    secret: str = ""


class Rule(msgspec.Struct, frozen=True):
    """The rules of one tenant; None is no bound."""

    weight: float
    concurrency: int | None
    rate_per_s: float | None
    paused: bool


class DeadLetter(msgspec.Struct, frozen=True):
    """A dead letter with its reason and its receiver's last answer. Times are in milliseconds since 1970, 0 if unknown.

    `redriven` is how often it was redriven before.
    """

    id: str
    tenant: str
    attempts: int
    why: str
    died_at: int
    event: Event
    topic: str = ""
    reason: str = ""
    status: int = 0
    answer_headers: tuple[str, ...] = ()
    answer: str = ""
    accepted_at: int = 0
    batch: str = ""
    redriven: int = 0


class LettersMeant(msgspec.Struct, frozen=True):
    """How many dead letters there are of those that were asked for, and before when these had died.

    `until` is empty for a bus of before, which does not know it.
    """

    count: int
    until: str = ""


class LetterJobView(msgspec.Struct, frozen=True):
    """A job that redrives or purges dead letters: `done` of `count`; `ended_at` is None while it runs."""

    id: str
    receiver: str
    action: str
    state: str
    count: int
    done: int
    rate_per_s: float
    asked_at: int
    ended_at: int | None = None


class Waiting(msgspec.Struct, frozen=True):
    """A waiting message that was not pulled."""

    id: str
    tenant: str
    event: Event


class TokenScopes(msgspec.Struct, frozen=True):
    """What a token may do: actions, topics by name or glob, and tenants; None is no limit."""

    actions: tuple[str, ...] | None = None
    topics: tuple[str, ...] | None = None
    tenants: tuple[str, ...] | None = None


class TokenView(msgspec.Struct, frozen=True):
    """A client. Times are in milliseconds since 1970; `former_until` is how long the secret before this one works.

    `expires_at` is 0 for never; when it was last used is known to the minute.
    """

    name: str
    id: str = msgspec.field(name="token")
    created_at: int
    rotated_at: int | None = None
    former_until: int | None = None
    description: str = ""
    expires_at: int = 0
    scopes: TokenScopes = TokenScopes()
    last_used_at: int | None = None


class IssuedToken(msgspec.Struct, frozen=True):
    """A client with its secret, `token`, which the bus shows this once."""

    name: str
    id: str
    token: str
    former_until: int | None = None

    def __repr__(self) -> str:
        return f"<IssuedToken {self.id}>"


class PortalToken(msgspec.Struct, frozen=True):
    """A token for the subscriptions of one tenant of a client; the bus keeps it nowhere."""

    token: str
    client: str
    tenant: str
    expires_at: int
    topics: list[str] | None = None

    def __repr__(self) -> str:
        return f"<PortalToken {self.client}/{self.tenant}>"


class Topic(msgspec.Struct, frozen=True):
    """A topic: the name and the id of its owner, how many events it had, and the ids of who else may publish there."""

    name: str
    publisher: str
    publisher_id: str
    events: int | None
    description: str = ""
    publishers: tuple[str, ...] = ()


class SubscriptionView(msgspec.Struct, frozen=True):
    """A subscription by its id; `uuid` is shown to its owner alone, and `secret` once, to who puts it."""

    subscriber: str
    callback: str
    topics: tuple[str, ...]
    max_events: int
    max_bytes: int
    timeout: int
    concurrency: int
    tier: str
    events: "SubscriptionEvents"
    health: int
    failures: int
    refusals: int
    uuid: str | None = None
    uuid_set: bool = False
    last_attempted_at: int | None = None
    paused: bool = False
    disabled: "Disabled | None" = None
    retry: Retry = None
    rate_per_s: float = 0.0
    format: str = "routemaster"
    backlog_max_bytes: int = 0
    dropped: "LostEvents | None" = None
    headers: dict[str, str] = {}
    secret_set: bool = False
    secret_rotated_at: int | None = None
    dead: int = 0
    ordered: bool = False
    on_dead: str = "continue"
    filter: dict[str, Any] | None = None
    held_key_count: int = 0
    held_keys: tuple[str, ...] = ()
    # A bus of before has one subscription a client.
    name: str = "default"
    client: str = ""
    # The one whose events alone it gets; None for all.
    tenant: str | None = None
    secret: str | None = None


class FilteredEvent(msgspec.Struct, frozen=True):
    """Whether an event fits a filter; `why` says what does not."""

    id: str
    topic: str
    type: str
    tenant: str
    fits: bool
    why: str


class FilterView(msgspec.Struct, frozen=True):
    """What became of events that a filter was tried on, how many fit, and what the filter costs."""

    events: tuple[FilteredEvent, ...]
    fitting: int
    steps: int


class Disabled(msgspec.Struct, frozen=True):
    """Since when a receiver is disabled, in milliseconds, and what it answered."""

    since: int
    why: str


class AttemptView(msgspec.Struct, frozen=True):
    """One attempt at a receiver: of the events that it carried the first hundred ids; `at` is when it began, in ms."""

    id: str
    receiver: str
    batch: str
    attempt: int
    outcome: str
    status: int | None
    took_ms: int
    at: int
    events: tuple[str, ...]
    event_count: int
    bytes: int | None
    detail: str
    retry_ms: int | None


class AttemptsPage(msgspec.Struct, frozen=True):
    """Attempts, newest first; `before` is where older ones continue, and `older` says why some are not there.

    What was written at `scanned_until` (ms since 1970) or later is all listed; None where everything is.
    """

    attempts: tuple[AttemptView, ...]
    before: str | None
    older: str
    scanned_until: int | None = None


class AuditRecordView(msgspec.Struct, frozen=True):
    """One action of the audit trail: who did what to what; `at` is when it was asked for, in ms."""

    id: str
    at: int
    actor: str
    actor_name: str
    action: str
    target: str
    outcome: str
    status: int | None
    count: int | None
    fields: tuple[str, ...]
    detail: str
    address: str
    proxy: str
    request_id: str
    traceparent: str


class AuditPage(msgspec.Struct, frozen=True):
    """Records, newest first; `before` is where older ones continue, and `older` says why some are not there."""

    records: tuple[AuditRecordView, ...]
    before: str | None
    older: str


class ResentEvents(msgspec.Struct, frozen=True):
    """The ids of events that wait for a receiver again, that were not found, and that its queue had no room for."""

    receiver: str
    events: tuple[str, ...]
    missing: tuple[str, ...]
    refused: tuple[str, ...] = ()


class LostEvents(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """Events that a subscriber lost beyond its `backlog_max_bytes`, and from when to when they were accepted."""

    events: int
    batches: int
    bytes: int
    start: str
    end: str


class ReceiverView(msgspec.Struct, frozen=True):
    """Whether a receiver is sent what waits for it; a queue's goes by `@` and the queue's name."""

    receiver: str
    paused: bool
    disabled: Disabled | None = None


class IssuedSecret(msgspec.Struct, frozen=True):
    """A receiver's signing secret, which the bus shows this once; `former_until` is how long those before it sign."""

    receiver: str
    secret: str
    rotated_at: int
    former_until: int | None = None

    def __repr__(self) -> str:
        return f"<IssuedSecret of {self.receiver}>"


class TrialView(msgspec.Struct, frozen=True):
    """The outcome of a test event, and the beginning of what the receiver answered."""

    receiver: str
    event: str
    signed: bool
    outcome: str
    status: int | None
    took_ms: int
    detail: str
    headers: tuple[str, ...]
    answer: str
    retry_after_ms: int | None = None


class SubscriptionEvents(msgspec.Struct, frozen=True):
    """How many were sent and how many wait; `oldest` is an age in milliseconds."""

    sent: int
    queued: int
    oldest: int


class DayCount(msgspec.Struct, frozen=True):
    """How many events of a topic a replay or an erasure is about, of one day."""

    topic: str
    day: str
    events: int


class PipelineJobView(msgspec.Struct, frozen=True, kw_only=True):
    """What replays and erasures have alike: `total` and `counts` once they are known, `note` with what it waits for."""

    id: str
    owner: str
    state: str
    created_at: int
    changed_at: int
    total: int
    counts: tuple[DayCount, ...]
    note: str
    error: str

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in {"done", "failed", "cancelled"}


class ReplayView(PipelineJobView, frozen=True, kw_only=True, rename={"start": "from", "end": "to"}):
    """A replay, and how far it has come."""

    sent: int
    refused: int
    start: str
    end: str
    rate: int
    topic: str | None = None
    tenant: str | None = None
    where: str | None = None
    to_subscriber: str | None = None
    to_queue: str | None = None
    to_topic: str | None = None
    direct: bool = False
    dry_run: bool = False


class ErasureView(PipelineJobView, frozen=True, kw_only=True):
    """An erasure, and how far it has come; it is of what was accepted `before` a time."""

    erased: int
    before: str
    tenant: str | None = None
    key: str | None = None
    topic: str | None = None
    dry_run: bool = False
