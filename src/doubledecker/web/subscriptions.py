"""The routes of subscriptions: a client's default one, as Routemaster has it, and those with names."""

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from doubledecker import clock, log
from doubledecker.bus import overview
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import BadRequest
from doubledecker.model import signing, topic_glob
from doubledecker.model import subscriber as subscribing
from doubledecker.model.dial_guard import DialGuard
from doubledecker.model.event import check_tenant
from doubledecker.model.glob import is_glob
from doubledecker.model.subscriber import DEFAULT_NAME, Subscriber
from doubledecker.model.token import Caller
from doubledecker.store import pipeline, subscribers
from doubledecker.store.partitions import Partitions
from doubledecker.web import auditing, gift, queries, shapes
from doubledecker.web import body as bodies
from doubledecker.web.authentication import require_client
from doubledecker.web.body import BodyLimits
from doubledecker.web.receivers import ReceiverFinder, check_covers, covers

STATES = ("paused", "disabled", "failing")

_log = log.get("web")


class SubscriptionRoutes:
    """Answers for subscriptions."""

    def __init__(
        self,
        partitions: Partitions,
        registry: LiveRegistry,
        finder: ReceiverFinder,
        limits: BodyLimits,
        *,
        guard: DialGuard,
    ) -> None:
        self._partitions = partitions
        self._registry = registry
        self._finder = finder
        self._limits = limits
        self._guard = guard

    async def subscribe(self, request: Request, caller: Caller) -> Response:
        """Create this client's default subscription, or change what is given of it."""
        require_client(caller)
        asked = subscribing.parse(await self._body(request))
        await self._registry.subscriptions.check_room(caller.id, DEFAULT_NAME, asked.topics)
        asked = subscribing.checked(asked, guard=self._guard)
        await self._warn(await self._registry.subscriptions.put(caller.id, asked))
        return Response(status_code=204)

    async def unsubscribe(self, _request: Request, caller: Caller) -> Response:
        """Forget this client's default subscription and what waits for it."""
        require_client(caller)
        await self._registry.subscriptions.delete(caller.id)
        return Response(status_code=204)

    async def leave_topic(self, request: Request, caller: Caller) -> Response:
        """Take one topic out of this client's default subscription."""
        require_client(caller)
        await self._registry.subscriptions.leave_topic(caller.id, request.path_params["name"])
        return Response(status_code=204)

    async def put(self, request: Request, caller: Caller) -> Response:
        """Create or replace a subscription of this client: from the answer on, it gets what is published.

        A new one is signed, and one that was not is from then on; the secret is shown this once.
        """
        subscribing.check_name(request.path_params["name"])
        name = _name(request, caller)
        asked = subscribing.parse_wanted(await self._body(request))
        await self._check_portal(caller, name, asked.topics)
        await self._registry.subscriptions.check_room(caller.id, name, asked.topics)
        subscribing.checked(asked, guard=self._guard)
        offered = signing.make(clock.now_ms())
        kept, is_new = await self._registry.subscriptions.replace(caller.id, name, asked, offered=offered)
        await self._warn(kept)
        auditing.learn(request, target=kept.token)
        secret = offered.secret if kept.signing == offered else None
        [seen] = await overview.look_at(self._partitions, [kept])
        answer = shapes.subscription_made(shapes.subscriber(seen, caller, clock.now_ms()), secret)
        return shapes.json(answer, status=201 if is_new else 200)

    async def change(self, request: Request, caller: Caller) -> Response:
        """Change some fields of a subscription; nothing that waits is lost."""
        name = _name(request, caller)
        asked = subscribing.parse_change(await self._body(request))
        await self._check_portal(caller, name, asked.given.get("topics", ()))
        await self._registry.subscriptions.check_room(caller.id, name, asked.given.get("topics", ()))
        asked = subscribing.checked_change(asked, guard=self._guard)
        kept = await self._registry.subscriptions.change(caller.id, name, asked)
        await self._warn(kept)
        auditing.learn(request, target=kept.token)
        return await self._show(kept, caller)

    async def show(self, request: Request, caller: Caller) -> Response:
        """A subscription of this client, with what waits for it and how it fares."""
        name = _name(request, caller)
        await self._registry.refresh()
        found = await self._registry.subscriptions.find(caller.id, name)
        check_covers(caller, found)
        return await self._show(found, caller)

    async def delete(self, request: Request, caller: Caller) -> Response:
        """Forget a subscription of this client and what waits for it."""
        name = _name(request, caller)
        found = await self._registry.subscriptions.find(caller.id, name)
        check_covers(caller, found)
        auditing.learn(request, target=found.token)
        await self._registry.subscriptions.delete(caller.id, name)
        return Response(status_code=204)

    async def end(self, request: Request, caller: Caller) -> Response:
        """Forget a subscription by its id, as its client or an admin, and what waits for it."""
        chosen = await self._finder.find_anew(request, caller)
        await self._registry.subscriptions.delete(chosen.pushed.client, chosen.pushed.name)
        return Response(status_code=204)

    async def give(self, request: Request, caller: Caller) -> Response:
        """Make another client the owner of a subscription, as an admin; what waits for it stays.

        Admins alone: a client could fill up what another may have.
        """
        to = gift.new_owner(await self._body(request))
        chosen = await self._finder.find_anew(request, caller)
        await self._registry.subscriptions.give(chosen.token, to=to)
        auditing.learn(request, detail=f"to {to}")
        return Response(status_code=204)

    async def list_(self, request: Request, caller: Caller) -> Response:
        """A client's own subscriptions, or all of them for root; whole, or a page when `limit` is given."""
        query = request.query_params
        await self._registry.refresh()
        known = self._registry.snapshot
        own = known.subscribers.values() if caller.is_admin else known.subscriptions_of(caller.id)
        tenant = caller.portal.tenant if caller.portal else query.get("tenant")
        if tenant is not None:
            own = [each for each in own if each.tenant == tenant and covers(caller, each)]
        rows = _page(await self._in_state(_fitting(own, query), query.get("state")), query)
        seen = await overview.look_at(self._partitions, rows)
        now_ms = clock.now_ms()
        return shapes.json([shapes.subscriber(row, caller, now_ms) for row in seen])

    async def _check_portal(self, caller: Caller, name: str, topics: Sequence[str]) -> None:
        """Raise unless a portal may have a subscription of this name, with these topics."""
        if caller.portal is None:
            return
        await self._registry.refresh()
        former = self._registry.snapshot.subscription(caller.id, name)
        if former is not None:
            check_covers(caller, former)
        for topic in topics:
            if is_glob(topic):
                raise BadRequest(f"topics has the glob {topic[:80]!r}; with a portal token, name each topic")
        caller.scopes.check_topics(topics, to="subscribe to")
        await self._registry.topics.check_publisher(topics, client=caller.id)

    async def _in_state(self, some: list[Subscriber], state: str | None) -> list[Subscriber]:
        if state is None:
            return some
        if state not in STATES:
            raise BadRequest(f"state is {state[:80]!r}; it must be {', '.join(STATES[:-1])} or {STATES[-1]}")
        if state == "paused":
            return [each for each in some if each.paused]
        if state == "disabled":
            return [each for each in some if each.disabled_at]
        conditions = await subscribers.conditions(self._partitions, [each.token for each in some])
        return [each for each in some if conditions[each.token].failures > 0]

    async def _show(self, kept: Subscriber, caller: Caller) -> Response:
        [seen] = await overview.look_at(self._partitions, [kept])
        return shapes.json(shapes.subscriber(seen, caller, clock.now_ms()))

    async def _warn(self, kept: Subscriber) -> None:
        """Log that nobody delivers, if nobody does."""
        if kept.is_bulk:
            run = (await pipeline.read(self._partitions.home)).run
            if run is None or not run.is_alive(clock.now_ms()):
                _log.warning("subscriber.unserved", subscriber=kept.token)

    async def _body(self, request: Request) -> bytes:
        return await bodies.read(request.scope, request.receive, self._limits)


def _name(request: Request, caller: Caller) -> str:
    """The name by which the registry has it; raises Forbidden for a tenant that is beyond the caller's limits."""
    require_client(caller)
    tenant = request.query_params.get("tenant", caller.portal.tenant if caller.portal else "")
    if tenant:
        check_tenant(tenant)
        caller.scopes.check_tenants([tenant], to="manage")
    return subscribing.name_for(tenant, request.path_params["name"])


def _fitting(some: Iterable[Subscriber], query: QueryParams) -> list[Subscriber]:
    """Those of a topic, and of a host, if such are asked for, by id."""
    topic, host = query.get("topic"), query.get("host")
    if topic is not None:
        some = (each for each in some if topic_glob.cover(each.topics, topic))
    if host is not None:
        some = (each for each in some if urlsplit(each.callback).hostname == host.lower())
    return sorted(some, key=lambda each: each.token)


def _page(some: list[Subscriber], query: QueryParams) -> list[Subscriber]:
    return some[queries.page([each.token for each in some], query)]
