"""A bus over HTTP, for async programs: publishing, subscribing, listening, queues, and what its operator does."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack, cast

import msgspec

from doubledecker.client.calls import Calls, decode, given, listed, of_receiver, path
from doubledecker.client.consumer import run_together, stopped_by_signals
from doubledecker.client.dead_letters import AsyncDeadLetters
from doubledecker.client.errors import BusAway, ClientError, Refusal, Refused, StreamDropped
from doubledecker.client.message import Event, read_event
from doubledecker.client.pipeline_jobs import AsyncErasures, AsyncReplays
from doubledecker.client.queue import AsyncQueue, ReceiverFormat
from doubledecker.client.views import (
    AttemptsPage,
    AuditPage,
    FilterView,
    IssuedSecret,
    IssuedToken,
    PortalToken,
    QueueView,
    ReceiverView,
    ResentEvents,
    SubscriptionView,
    TokenScopes,
    TokenView,
    Topic,
    TrialView,
)

# What passes over a bus, as it passes: the frames of `GET /stream`, for as long as one connection lasts.

# The bus sends a heartbeat every 15 s unless set otherwise; two may be lost.
SILENCE_S_MAX = 45.0


class Streamed(msgspec.Struct, frozen=True):
    """What came over a stream: an event; a gap, where the journal no longer holds events; or only a new position.

    `id` is the position after it: a stream that starts there goes on with what followed. `json` is the event or the
    gap as the bus wrote it.
    """

    kind: Literal["event", "gap", "position"]
    id: str
    json: str = ""

    @property
    def event(self) -> Event | None:
        """The event, if it is one."""
        return read_event(self.json.encode()) if self.kind == "event" else None


class _End(msgspec.Struct):
    reason: str
    detail: str


async def read_stream(
    calls: Calls, pattern: str, *, start: str, silence_s_max: float
) -> AsyncGenerator[Streamed, None]:
    """All that comes; ends with an error, as a stream has no end."""
    query = path("stream", **{"pattern": pattern, "from": start})
    last_id = ""
    async for lines in _frames(calls.chunks(query, silence_s=silence_s_max)):
        fields = dict(line.partition(": ")[::2] for line in lines.split("\n"))
        name, json, last_id = fields.get("event", ""), fields.get("data", ""), fields.get("id", last_id)
        if name == "dropped":
            end = decode(json.encode(), _End)
            raise StreamDropped(end.reason, end.detail)
        if name == "gap":
            yield Streamed("gap", last_id, json)
        else:
            yield Streamed("event" if json else "position", last_id, json)
    raise BusAway("the stream ended")


async def _frames(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n\n")
        for frame in whole:
            yield frame.decode()


PATIENCE_S = 10.0
# An attempt at a receiver may take so long, unless the bus is set otherwise.
_ATTEMPT_S_MAX = 20.0
# A bus that takes longer to say that it is ready is not.
_READY_S_MAX = 2.0


class EventOptions(TypedDict, total=False):
    """Optional fields of an event; docs/http-api.md describes them."""

    url: str
    tenant: str | int
    key: str
    id: str
    timestamp: int
    data: Any
    traceparent: str


class Publication(EventOptions, total=False):
    """One event to publish; topic and type are required."""

    topic: str
    type: str


class SubscriptionOptions(TypedDict, total=False):
    """Optional fields of a subscription; docs/http-api.md describes them."""

    uuid: str
    timeout: int
    max: int
    max_bytes: int
    concurrency: int
    tier: Literal["live", "bulk"]
    retry: Mapping[str, int] | Sequence[int]
    rate_per_s: float
    backlog_max_bytes: int
    headers: Mapping[str, str]
    format: ReceiverFormat
    ordered: bool
    on_dead: Literal["continue", "block"]
    filter: Mapping[str, Any] | None


class SubscriptionListOptions(TypedDict, total=False):
    """Which subscriptions are listed; docs/http-api.md describes them. `after` needs a `limit`."""

    topic: str
    tenant: str
    state: Literal["paused", "disabled", "failing"]
    host: str
    limit: int
    after: str


class AttemptOptions(TypedDict, total=False):
    """Which attempts are listed; docs/http-api.md describes them. Times are ISO 8601."""

    outcome: str
    status: int
    start: str
    end: str
    before: str
    limit: int


class AuditOptions(TypedDict, total=False):
    """Which records of the audit trail are listed; docs/http-api.md describes them. Times are ISO 8601."""

    actor: str
    action: str
    target: str
    start: str
    end: str
    before: str
    limit: int


class Published(msgspec.Struct, frozen=True):
    """The ids of the events that the bus accepted, in order, and the refused ones with their reasons."""

    ids: tuple[str, ...]
    refused: tuple[Refusal, ...] = ()


class AsyncBus:
    """A bus at a URL, used with a client's token; `async with` closes its connections.

    While the bus is unreachable, the client retries a call for up to `patience_s`. That is safe: a publish carries an
    idempotency key, and the other calls that are retried are idempotent. Calls that are not are made once: a pull,
    creating or rotating a token or a secret, testing a receiver, and `request`.
    """

    def __init__(self, url: str, token: str, *, patience_s: float = PATIENCE_S) -> None:
        self._calls = Calls(url, token, patience_s=patience_s)
        self._queues: dict[str, AsyncQueue] = {}
        self._stop: asyncio.Event | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End message loops and runs, nack the messages that they hold, and close the connections.

        The next call opens new ones.
        """
        for queue in self._queues.values():
            await queue.leave()
        await self._calls.close()

    async def publish(self, topic: str, type: str, **options: Unpack[EventOptions]) -> str:  # noqa: A002
        """Publish one event; returns its id once the bus has stored it. Raises Refused with the bus's reason."""
        event = {"topic": topic, "type": type, **options}
        return (await self._publish(event, path("events"))).ids[0]

    async def publish_many(
        self, events: Sequence[Publication] | Sequence[Mapping[str, Any]], *, is_whole: bool = False
    ) -> Published:
        """Publish several events; returns ids and refusals. Raises EventsRefused when the bus refuses all.

        With `is_whole` one refusal refuses all.
        """
        return await self._publish(list(events), path("events", all=1 if is_whole else None))

    async def subscribe(self, topics: Sequence[str], callback: str, **options: Unpack[SubscriptionOptions]) -> None:
        """Have the bus post the events of these topics to a callback: this client's subscription named `default`.

        What is not given stays as it was. `put_subscription` is for those with other names.
        """
        body = {"topics": listed(topics), "callback": callback, **options}
        await self._calls.ask("POST", path("subscription"), body, kind=type(None))

    async def unsubscribe(self) -> None:
        """End this client's subscription named `default` and delete its waiting events."""
        await self._calls.ask("DELETE", path("subscriber"), kind=type(None))

    async def subscriptions(self, **options: Unpack[SubscriptionListOptions]) -> list[SubscriptionView]:
        """The subscriptions of this client, or all of them for root, by id; those alone that are asked for."""
        return await self._calls.ask("GET", path("subscriptions", **options), kind=list[SubscriptionView])

    async def subscription(self, name: str, *, tenant: str | None = None) -> SubscriptionView:
        """One subscription of this client, by its name; those for one tenant have names of their own."""
        return await self._calls.ask("GET", path("subscriptions", name, tenant=tenant), kind=SubscriptionView)

    async def put_subscription(
        self,
        name: str,
        topics: Sequence[str],
        callback: str,
        *,
        tenant: str | None = None,
        **options: Unpack[SubscriptionOptions],
    ) -> SubscriptionView:
        """Create or replace a subscription of this client. A new one has its signing secret in the answer, this once.

        With a tenant it gets the events of that tenant alone. Asked once, since the answer to a repeat would not have
        the secret.
        """
        body = {"topics": listed(topics), "callback": callback, **options}
        answer = await self._calls.once("PUT", path("subscriptions", name, tenant=tenant), body)
        return decode(answer, SubscriptionView)

    async def change_subscription(self, name: str, tenant: str | None = None, /, **changes: object) -> SubscriptionView:
        """Change fields of a subscription: those of `put_subscription`; None gives one its default."""
        at = path("subscriptions", name, tenant=tenant)
        return await self._calls.ask("PATCH", at, changes, kind=SubscriptionView)

    async def delete_subscription(self, name: str, *, tenant: str | None = None) -> None:
        """End a subscription of this client and delete its waiting events."""
        await self._calls.ask("DELETE", path("subscriptions", name, tenant=tenant), kind=type(None))

    async def give_subscription(self, subscriber: str, to: str) -> None:
        """Make the client with the token id `to` the owner of a subscription, given by its id, as root or an admin."""
        await self._calls.ask("POST", path("subscribers", subscriber, "give"), {"to": to}, kind=type(None))

    async def pause(self, receiver: str | None = None) -> ReceiverView:
        """Have the bus send a receiver nothing, and keep all that waits for it, until it is resumed.

        It is the subscription with this id, or this client's of this name, or `@` and the name of a queue; without one,
        this client's subscription named `default`.
        """
        return await self._change(receiver, "pause")

    async def resume(self, receiver: str | None = None) -> ReceiverView:
        """End the pause of a receiver, named as in `pause`."""
        return await self._change(receiver, "resume")

    async def enable(self, receiver: str | None = None) -> ReceiverView:
        """Have the bus send to a receiver again that answered 410, named as in `pause`."""
        return await self._change(receiver, "enable")

    async def attempts(
        self, receiver: str | None = None, *, event: str | None = None, **options: Unpack[AttemptOptions]
    ) -> AttemptsPage:
        """The attempts at a receiver, named as in `pause`, the newest first; or those that carried an event."""
        query: dict[str, Any] = {**options, "event": event}
        query |= {"from": query.pop("start", None), "to": query.pop("end", None)}
        at = path("attempts", **query) if event and receiver is None else of_receiver(receiver, "attempts", **query)
        return await self._calls.ask("GET", at, kind=AttemptsPage)

    async def audit(self, **options: Unpack[AuditOptions]) -> AuditPage:
        """Who changed what, the newest first: all for root and admins, for a client what it did itself."""
        query: dict[str, Any] = {**options}
        query |= {"from": query.pop("start", None), "to": query.pop("end", None)}
        return await self._calls.ask("GET", path("audit", **query), kind=AuditPage)

    async def resend(
        self,
        event: str | None = None,
        *,
        attempt: str | None = None,
        receiver: str | None = None,
        topic: str | None = None,
        source: str | None = None,
    ) -> ResentEvents:
        """Have the bus send one event, or those of one attempt, to a receiver again, named as in `pause`.

        `topic`, or the `source` of a CloudEvent, says which is meant where several events have one id.
        """
        body = given({"event": event, "attempt": attempt, "topic": topic, "source": source})
        headers = {"Idempotency-Key": uuid.uuid4().hex} if self._calls.are_repeated else None
        at = of_receiver(receiver, "resend")
        return await self._calls.ask("POST", at, body, kind=ResentEvents, headers=headers)

    async def rotate_secret(self, receiver: str | None = None, *, overlap_s: int | None = None) -> IssuedSecret:
        """Have a receiver, named as in `pause`, signed by a new secret, its first or another. Asked once.

        Former ones sign too for `overlap_s`, a day if None.
        """
        at, body = of_receiver(receiver, "rotate-secret"), given({"overlap_s": overlap_s})
        return decode(await self._calls.once("POST", at, body), IssuedSecret)

    async def test(self, receiver: str | None = None) -> TrialView:
        """Have the bus send a test event to a receiver, named as in `pause`, and show what it answers. Asked once."""
        at = of_receiver(receiver, "test")
        return decode(await self._calls.once("POST", at, wait_s=_ATTEMPT_S_MAX), TrialView)

    async def test_filter(
        self,
        filter: Mapping[str, Any],  # noqa: A002
        events: Sequence[Publication] | None = None,
        *,
        limit: int = 20,
    ) -> FilterView:
        """Which of these events, or of so many recent ones, a filter fits, and why not the others."""
        body = given({"filter": filter, "events": events, "limit": limit})
        return await self._calls.ask("POST", path("filters", "test"), body, kind=FilterView)

    async def stream(
        self, pattern: str = "*", *, start: str = "latest", silence_s_max: float = SILENCE_S_MAX
    ) -> AsyncGenerator[Streamed, None]:
        """Follow what is published: events whose `tenant:topic:type` fits a pattern of `*` and `?`, and gaps.

        It starts with what is published from now on, with the `earliest` event that the journal holds, or after an
        `id` that came before. It lasts as long as its connection: BusAway is raised when that breaks off or is silent
        for too long, StreamDropped when the bus ends it. A new stream from the last `id` misses nothing.
        """
        async for each in read_stream(self._calls, pattern, start=start, silence_s_max=silence_s_max):
            yield each

    async def _change(self, receiver: str | None, action: str) -> ReceiverView:
        return await self._calls.ask("POST", of_receiver(receiver, action), kind=ReceiverView)

    def dead_letters(self, receiver: str | None = None) -> AsyncDeadLetters:
        """The dead letters of a receiver, named as in `pause`."""
        return AsyncDeadLetters(self._calls, receiver)

    def replays(self) -> AsyncReplays:
        """Past events sent again by the pipeline: begun, listed, cancelled."""
        return AsyncReplays(self._calls)

    def erasures(self) -> AsyncErasures:
        """Past events erased from the lake by the pipeline, as root or an admin."""
        return AsyncErasures(self._calls)

    async def topics(self) -> list[Topic]:
        """All topics, and who owns them."""
        return await self._calls.ask("GET", path("topics"), kind=list[Topic])

    async def topic(self, name: str) -> Topic:
        """A topic: who owns it, and who else may publish there."""
        return await self._calls.ask("GET", path("topics", name), kind=Topic)

    async def set_topic(
        self, name: str, *, publishers: Sequence[str] | None = None, description: str | None = None
    ) -> Topic:
        """Say which clients may publish on a topic, by their token ids, and what it is for, as its owner or an admin.

        `publishers` are all of them but its owner; what is not given stays. A topic that nobody owns becomes this
        client's.
        """
        body = given({"publishers": None if publishers is None else listed(publishers), "description": description})
        return await self._calls.ask("PUT", path("topics", name), body, kind=Topic)

    async def give_topic(self, name: str, to: str) -> None:
        """Make the client with the token id `to` the owner of a topic, as root."""
        await self._calls.ask("POST", path("topics", name, "give"), {"to": to}, kind=type(None))

    async def delete_topic(self, name: str) -> None:
        """Forget a topic, as its owner or root: subscriptions to it end, and its name is free."""
        await self._calls.ask("DELETE", path("topics", name), kind=type(None))

    async def tokens(self) -> list[TokenView]:
        """All clients, as root; their secrets are not known to the bus."""
        kind = cast("type[list[TokenView] | None]", list[TokenView] | None)
        return await self._calls.ask("GET", path("api_tokens"), kind=kind) or []

    async def create_token(
        self,
        name: str,
        *,
        token: str | None = None,
        description: str | None = None,
        expires_in_s: int | None = None,
        scopes: TokenScopes | None = None,
    ) -> IssuedToken:
        """Make a client, as root, with a secret of one's own or of the bus's choice. Asked once."""
        body = given({"name": name, "token": token, "description": description, "expires_in_s": expires_in_s})
        body |= {} if scopes is None else {"scopes": _limits(scopes)}
        return decode(await self._calls.once("POST", path("api_tokens"), body), IssuedToken)

    async def update_token(
        self,
        id: str,  # noqa: A002
        *,
        description: str | None = None,
        expires_in_s: int | None = None,
        scopes: TokenScopes | None = None,
    ) -> TokenView:
        """Change a client's token, as root or an admin; what is None stays, and `TokenScopes()` is without limits."""
        body = given({"description": description, "expires_in_s": expires_in_s})
        body |= {} if scopes is None else {"scopes": _limits(scopes)}
        return await self._calls.ask("PATCH", path("api_tokens", id), body, kind=TokenView)

    async def rotate_token(self, id: str, *, token: str | None = None, overlap_s: int | None = None) -> IssuedToken:  # noqa: A002
        """Give a client a new secret, as root; the former one works for `overlap_s` too, a day if None. Asked once."""
        body = given({"token": token, "overlap_s": overlap_s})
        return decode(await self._calls.once("POST", path("api_tokens", id, "rotate"), body), IssuedToken)

    async def revoke_token(self, id: str) -> None:  # noqa: A002
        """Forget a client, as root; its subscription ends with it. An id that is not known is no error."""
        await self._calls.ask("DELETE", path("api_tokens", id), kind=type(None))

    async def portal_token(
        self, tenant: str, *, expires_in_s: int | None = None, topics: Sequence[str] | None = None
    ) -> PortalToken:
        """A token for a customer, for the subscriptions of its tenant alone; it lasts an hour if None is given."""
        names = None if topics is None else listed(topics)
        body = given({"tenant": tenant, "expires_in_s": expires_in_s, "topics": names})
        return await self._calls.ask("POST", path("portal_tokens"), body, kind=PortalToken)

    def queue(self, name: str) -> AsyncQueue:
        """The queue of that name; the same object each time."""
        return self._queues.setdefault(name, AsyncQueue(self._calls, name))

    async def queues(self) -> list[QueueView]:
        """The queues of this client; for root, all queues."""
        return await self._calls.ask("GET", path("queues"), kind=list[QueueView])

    async def is_ready(self) -> bool:
        """Whether the bus says that it takes and delivers events; asked once, and no answer is a no."""
        try:
            async with asyncio.timeout(_READY_S_MAX):
                await self._calls.once("GET", path("readyz"))
        except (BusAway, Refused, TimeoutError):
            return False
        return True

    async def request(self, method: str, path: str, body: object = None, *, wait_s: float = 0.0) -> bytes:
        """What the bus answers on a route, as it wrote it: for routes and fields that have nothing else here.

        Asked once. `wait_s` is how long the bus was asked to wait, besides the time that any answer may take.
        """
        return await self._calls.once(method, path, body, wait_s=wait_s)

    async def run(self) -> None:
        """Call the handlers of all queues until `stop`, SIGTERM or SIGINT; then finish or nack what they hold."""
        at_work = [queue for queue in self._queues.values() if queue.has_handlers]
        if not at_work:
            raise ClientError("no queue has a handler; decorate a function with @bus.queue(name).handler()")
        self._stop = stop = asyncio.Event()
        with stopped_by_signals(stop):
            await run_together([queue.run_until(stop) for queue in at_work], stop)

    def stop(self) -> None:
        """End `run` cleanly."""
        if self._stop is not None:
            self._stop.set()

    async def _publish(self, body: object, at: str) -> Published:
        # Where nothing is repeated the bus need not remember it.
        headers = {"Idempotency-Key": uuid.uuid4().hex} if self._calls.are_repeated else None
        return await self._calls.ask("POST", at, body, kind=Published, headers=headers)


def _limits(scopes: TokenScopes) -> dict[str, list[str]] | None:
    """The limits that there are; None where there are none."""
    named = {"actions": scopes.actions, "topics": scopes.topics, "tenants": scopes.tenants}
    return {name: list(some) for name, some in named.items() if some is not None} or None
