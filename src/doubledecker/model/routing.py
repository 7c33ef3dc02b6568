"""Routing: who may publish on a topic, and who receives what is published. Pure look-ups on a snapshot.

The snapshot is a process's copy of the registry at one version. The publish script compares that version with the
one in Redis before it writes, so an answer given here is proven there.

An event on a reserved topic goes to its audience alone (model/reserved.py), whatever others subscribe to or match.

Of another client's event, a client's queues get at most so many copies: its first ones by name. That is decided when a
route is made, so that it holds for keys that nobody knew when the queues were registered, and costs a publish nothing.

What a receiver's owner is limited to, by its token's scopes, and its own tenant are joined with the receiver's filter.

Where receivers have filters (model/event_filter.py), `route` has all that an event of the kind may go to, and
`route_event` those of them that want this event. Events that the same receivers want share a route.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import msgspec

from doubledecker.model import filter_syntax
from doubledecker.model.event import EventKind
from doubledecker.model.event_filter import EventFacts, EventFilter
from doubledecker.model.filter_index import FilterIndex, KindFilters
from doubledecker.model.glob_matching import GlobSubscribers
from doubledecker.model.matching import NAMES_MAX, PatternMatcher, ScanResistantCache, Search
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.reserved import audience, is_reserved
from doubledecker.model.scopes import UNLIMITED, Scopes
from doubledecker.model.subscriber import DEFAULT_NAME, Subscriber, tenant_in
from doubledecker.model.token import Token
from doubledecker.model.topic import TopicRights

# Kinds whose routes are kept: the same come again and again, but a publisher may have any number of tenants.
_ROUTES_NEW_MAX, _ROUTES_KEPT_MAX = 2_000, 10_000
# Names of receivers in all indexes of filters, where each takes some 200 bytes.
_INDEXED_NAMES_MAX = 200_000

T = TypeVar("T")
# Of subscribers and of queues with a filter, the places of those that want an event.
Selection = tuple[tuple[int, ...], tuple[int, ...]]


class RouteFilters(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Who may get events of a kind, subscribers and queues by name, and what filters decide; None where none does."""

    receivers: tuple[Subscriber, ...]
    names: tuple[str, ...]
    of_receivers: KindFilters | None
    of_queues: KindFilters | None

    def select(self, facts: EventFacts) -> Selection:
        """The receivers with a filter that want an event."""
        return (
            () if self.of_receivers is None else self.of_receivers.select(facts),
            () if self.of_queues is None else self.of_queues.select(facts),
        )


class Route(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Where events of a kind go: the batches of receivers, and queues, once each. Every route is its own.

    `skipped` are queues that match, and get nothing because their owner has reached a bound. Where a bound decided, the
    route is that of one `publisher`; otherwise of any.
    """

    kind: EventKind
    receivers: tuple[Subscriber, ...] = ()
    queues: tuple[RegisteredQueue, ...] = ()
    skipped: tuple[RegisteredQueue, ...] = ()
    publisher: str | None = None
    # Where filters narrow it, event by event.
    filters: RouteFilters | None = None
    # Kept, because it is asked for every event.
    copies: int = 0

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "copies", len(self.receivers) + len(self.queues))


# Queues that get an event, those that are skipped, and whose event it has to be, if that matters.
_Shares = tuple[tuple[RegisteredQueue, ...], tuple[RegisteredQueue, ...], str | None]


@dataclass
class Registry:
    """Tokens, subscribers, queues and who may publish on topics, as of `version`."""

    version: int = 0
    # How many queues of one client get the same event of another client at most; 0 is no bound.
    copies_max: int = 0
    # Clients for whom too many bytes wait: others' events do not enter their queues.
    overfull: frozenset[str] = frozenset()
    # Whether some route has skipped queues; so nobody has to look at every route.
    is_skipping: bool = False
    tokens: dict[str, Token] = field(default_factory=dict)
    subscribers: dict[str, Subscriber] = field(default_factory=dict)
    queues: dict[str, RegisteredQueue] = field(default_factory=dict)
    # Of each topic who may publish on it: learnt when it is first published on, as a claim does not change the version.
    rights: dict[str, TopicRights] = field(default_factory=dict)
    # Whose each secret is, or was.
    _by_secret: dict[str, str] = field(default_factory=dict)
    # The ids of each client's subscribers, by name.
    _by_client: dict[str, dict[str, str]] = field(default_factory=dict)
    _by_topic: dict[str, tuple[Subscriber, ...]] = field(default_factory=dict)
    globs: GlobSubscribers = field(default_factory=GlobSubscribers)
    # The receivers of queues with a callback, by queue; kept, as ten thousand of them take 50 ms to make.
    _pushed: dict[str, Subscriber] = field(default_factory=dict)
    _matcher: PatternMatcher = field(default_factory=PatternMatcher)
    _routes: ScanResistantCache[EventKind, Route] = field(
        default_factory=lambda: ScanResistantCache(new_max=_ROUTES_NEW_MAX, kept_max=_ROUTES_KEPT_MAX)
    )
    # Routes to the same queues share the tuples of them, so that events can be grouped by it quickly. By the
    # identity of the names, which are shared too and kept alive here: the hash of a thousand takes long.
    _together: dict[tuple[int, str | None], tuple[tuple[str, ...], _Shares]] = field(default_factory=dict)
    _together_names: int = 0
    # By the name of a receiver: a subscriber's token, or `@` and a queue.
    _filters: dict[str, EventFilter] = field(default_factory=dict)
    # The same within what the token of their owner is limited to, of those where it is.
    _limited: dict[str, EventFilter] = field(default_factory=dict)
    # By the identity of those that are indexed, which are kept alive here, and whether it is without limits.
    _indexes: dict[tuple[int, bool], tuple[Sequence[object], FilterIndex]] = field(default_factory=dict)
    _indexed_names: int = 0
    _narrowed: ScanResistantCache[tuple[EventKind, Selection], Route] = field(
        default_factory=lambda: ScanResistantCache(new_max=_ROUTES_NEW_MAX, kept_max=_ROUTES_KEPT_MAX)
    )
    # Those of some receivers that wanted an event, by the identity of all and the chosen ones with filters.
    _subsets: dict[tuple[int, tuple[int, ...]], tuple[Sequence[object], Sequence[object]]] = field(default_factory=dict)
    _subset_names: int = 0

    @property
    def is_filtering(self) -> bool:
        """Whether any receiver has a filter or limits."""
        return bool(self._filters or self._limited)

    def may_publish(self, client: str, topics: Iterable[str]) -> bool:
        """Whether a client is known to be allowed to publish on all of these."""
        for topic in topics:
            rights = self.rights.get(topic)
            if rights is None or not rights.allow(client):
                return False
        return True

    def filters_of_clients(self) -> dict[str, dict[str, EventFilter]]:
        """The filters of each client's receivers, by these."""
        found: dict[str, dict[str, EventFilter]] = {}
        for name, event_filter in self._filters.items():
            found.setdefault(self.owner_of(name), {})[name] = event_filter
        return found

    def route_event(self, kind: EventKind, publisher: str, *, key: str, message: bytes) -> Route:
        """Where an event of this client goes, by the filters too."""
        route = self.route(kind, publisher)
        if route.filters is None:
            return route
        return self.narrow(route, route.filters.select(EventFacts(kind, key, message)), publisher)

    def narrow(self, route: Route, selection: Selection, publisher: str) -> Route:
        """The route of events of a kind that fitted the same filters."""
        filters = route.filters
        assert filters is not None
        narrowed = self._narrowed.get((route.kind, selection))
        if narrowed is None or (narrowed.publisher is not None and narrowed.publisher != publisher):
            receivers = self._subset(filters.receivers, filters.of_receivers, selection[0])
            names = self._subset(filters.names, filters.of_queues, selection[1])
            narrowed = self._made(route.kind, receivers, names, publisher)
            self._narrowed.put((route.kind, selection), narrowed)
        return narrowed

    def route(self, kind: EventKind, publisher: str = "") -> Route:
        """Where a client's events of this kind go; subscribers of the bulk tier get them from the lake."""
        route = self._routes.get(kind)
        if route is None or (route.publisher is not None and route.publisher != publisher):
            names = self._matcher.match(kind.routing_key) if self.queues else ()
            receivers = self.globs.join(kind.topic, self._by_topic.get(kind.topic, ()), self.subscribers)
            route = self._made(kind, receivers, names, publisher, self._filters_for(kind, receivers, names))
            self._routes.put(kind, route)
        return route

    def _made(
        self,
        kind: EventKind,
        receivers: tuple[Subscriber, ...],
        names: tuple[str, ...],
        publisher: str,
        filters: RouteFilters | None = None,
    ) -> Route:
        if is_reserved(kind.topic):
            return self._to_audience(kind, receivers, names, publisher, filters)
        return Route(kind, receivers, *self._shares_of(names, publisher), filters)

    def _filters_for(
        self, kind: EventKind, receivers: tuple[Subscriber, ...], names: tuple[str, ...]
    ) -> RouteFilters | None:
        """What filters decide for events of a kind; None when none of their receivers has one."""
        if not self.is_filtering:
            return None
        # Its audience gets what concerns itself, whatever it is limited to.
        is_free = is_reserved(kind.topic)
        of_receivers = self._index(receivers, (each.token for each in receivers), is_free=is_free)
        of_queues = self._index(names, (f"@{name}" for name in names), is_free=is_free)
        if of_receivers.is_empty and of_queues.is_empty:
            return None
        return RouteFilters(
            receivers,
            names,
            None if of_receivers.is_empty else of_receivers.of(kind),
            None if of_queues.is_empty else of_queues.of(kind),
        )

    def _index(self, indexed: tuple[object, ...], names: Iterable[str], *, is_free: bool) -> FilterIndex:
        known = self._indexes.get((id(indexed), is_free))
        if known is None:
            if self._indexed_names > _INDEXED_NAMES_MAX:
                self._forget_indexes()
            self._indexed_names += len(indexed)
            wanted = ((None if is_free else self._limited.get(name)) or self._filters.get(name) for name in names)
            known = self._indexes[id(indexed), is_free] = indexed, FilterIndex(wanted)
        return known[1]

    def _subset(self, some: tuple[T, ...], filters: KindFilters | None, chosen: tuple[int, ...]) -> tuple[T, ...]:
        """Those without a filter and the chosen ones: one tuple for all events, as what gets the same is grouped."""
        if filters is None:
            return some
        known = self._subsets.get((id(some), chosen))
        if known is None:
            if self._subset_names > NAMES_MAX:
                self._forget_subsets()
            subset = tuple([some[place] for place in sorted((*filters.unfiltered, *chosen))])
            self._subset_names += len(subset)
            known = self._subsets[id(some), chosen] = some, subset
        return cast("tuple[T, ...]", known[1])

    def _to_audience(
        self,
        kind: EventKind,
        receivers: Sequence[Subscriber],
        names: Sequence[str],
        publisher: str,
        filters: RouteFilters | None,
    ) -> Route:
        """The route of an event on a reserved topic: to those who belong to its audience, and to queues of root."""
        owner = audience(publisher)
        matching = [self.queues[name] for name in names]
        fed, skipped, _ = self._share([each for each in matching if each.is_roots or each.owner == owner], publisher)
        return Route(kind, tuple(each for each in receivers if each.client == owner), fed, skipped, publisher, filters)

    @property
    def names_kept(self) -> int:
        """How many names of queues all remembered answers and routes hold together."""
        return self._matcher.names_kept + self._together_names + self._subset_names

    def searches(self, kinds: Iterable[EventKind]) -> list[tuple[PatternMatcher, Search]]:
        """What has to be matched before `route` can answer for these kinds at once; each is given back when run."""
        if not self._matcher.steps_total and not self.globs.matcher.steps_total:
            return []
        unknown = [kind for kind in kinds if self._routes.get(kind) is None]
        asked = (
            (self._matcher, [kind.routing_key for kind in unknown]),
            (self.globs.matcher, dict.fromkeys(kind.topic for kind in unknown)),
        )
        found = ((matcher, [key for key in keys if not matcher.knows(key)]) for matcher, keys in asked)
        return [(matcher, matcher.search(keys)) for matcher, keys in found if keys and matcher.steps_total]

    def recent(self, most: int) -> list[EventKind]:
        """Some kinds of recent events."""
        return self._routes.recent(most)

    def steps(self, owner: str) -> int:
        """How large the patterns of a client's queues and its globs are together."""
        return self._matcher.steps(owner) + self.globs.matcher.steps(owner)

    @property
    def steps_total(self) -> int:
        """How large the patterns of all queues and all globs are together."""
        return self._matcher.steps_total + self.globs.matcher.steps_total

    @property
    def pushed_to(self) -> dict[str, Subscriber]:
        """Everyone who is called: subscribers, and the receivers of queues with a callback."""
        return self.subscribers | {receiver.token: receiver for receiver in self._pushed.values()}

    def receiver(self, token: str) -> Subscriber | None:
        """The receiver with this token: a subscriber, or `@` and the name of a queue with a callback."""
        queue = self.queues.get(token[1:]) if token.startswith("@") else None
        return queue.receiver if queue and queue.callback else self.subscribers.get(token)

    def is_receiver(self, token: str) -> bool:
        """Whether there is such a subscriber, or such a queue, with or without a callback, as `@` and its name."""
        return token[1:] in self.queues if token.startswith("@") else token in self.subscribers

    def put_queue(self, name: str, queue: RegisteredQueue | None) -> None:
        """Take over a changed queue, or forget a deleted one."""
        self._forget_routes()
        self.queues.pop(name, None)
        self._pushed.pop(name, None)
        self._put_filter(f"@{name}", queue.filter if queue else "", queue.owner if queue else "")
        if queue is not None:
            self.queues[name] = queue
        if queue is not None and queue.callback:
            self._pushed[name] = queue.receiver
        self._matcher.put(name, queue.patterns if queue else None, queue.owner if queue else "")

    def put_queues(self, queues: Iterable[RegisteredQueue]) -> None:
        """Take over all queues at once."""
        self._forget_routes()
        for name in self.queues:
            self._put_filter(f"@{name}", "", "")
        self.queues = {queue.name: queue for queue in queues}
        for queue in self.queues.values():
            self._put_filter(f"@{queue.name}", queue.filter, queue.owner)
        self._pushed = {name: queue.receiver for name, queue in self.queues.items() if queue.callback}
        self._matcher.put_all({queue.name: (queue.owner, queue.patterns) for queue in self.queues.values()})

    def put_overfull(self, clients: frozenset[str]) -> None:
        """Take over for whom too many bytes wait."""
        if clients != self.overfull:
            self.overfull = clients
            self._forget_routes()

    def with_name(self, name: str) -> list[Token]:
        """The tokens with this name; a name may be shared."""
        return [token for token in self.tokens.values() if token.name == name]

    def subscription(self, client: str, name: str) -> Subscriber | None:
        """A client's subscriber by its name."""
        return self.subscribers.get(self._by_client.get(client, {}).get(name, ""))

    def subscriptions_of(self, client: str) -> list[Subscriber]:
        """All subscribers of a client."""
        return [self.subscribers[id_] for id_ in self._by_client.get(client, {}).values()]

    def subscribers_named(self, named: str) -> list[str]:
        """The one of this id; else those of `<client>/<name>`, or the default one of `<client>`, by its id or name."""
        if named in self.subscribers:
            return [named]
        client, _, name = named.partition("/")
        clients = [client] if client in self.tokens else [token.id for token in self.with_name(client)]
        found = (self.subscription(each, name or DEFAULT_NAME) for each in clients)
        return sorted(each.token for each in found if each is not None)

    def owner_of(self, receiver: str) -> str:
        """The client that has a subscriber, or a queue by `@` and its name; empty for root, and when there is none."""
        queue = self.queues.get(receiver[1:]) if receiver.startswith("@") else None
        found = queue.receiver if queue else self.subscribers.get(receiver)
        return found.client if found else ""

    def with_secret(self, secret_hash: str, now_ms: int) -> Token | None:
        """The token that this secret is of, now."""
        token = self.tokens.get(self._by_secret.get(secret_hash, ""))
        return token if token is not None and token.accepts(secret_hash, now_ms) else None

    def put_subscriber(self, token: str, subscriber: Subscriber | None) -> None:
        """Take over a changed subscriber, or forget a deleted one."""
        former = self.subscribers.pop(token, None)
        self._put_filter(token, subscriber.filter if subscriber else "", subscriber.client if subscriber else "")
        if former is not None and self._by_client[former.client].get(former.name) == token:
            del self._by_client[former.client][former.name]
        if subscriber is not None:
            self.subscribers[token] = subscriber
            self._by_client.setdefault(subscriber.client, {})[subscriber.name] = token
        self.globs.put(token, subscriber)
        self._reindex({*(former.topics if former else ()), *(subscriber.topics if subscriber else ())})

    def put_subscribers(self, subscribers: Iterable[Subscriber]) -> None:
        """Take over all subscribers at once."""
        for token in self.subscribers:
            self._put_filter(token, "", "")
        self.subscribers = {subscriber.token: subscriber for subscriber in subscribers}
        self._by_client, self._by_topic = {}, {}
        for subscriber in self.subscribers.values():
            self._put_filter(subscriber.token, subscriber.filter, subscriber.client)
            self._by_client.setdefault(subscriber.client, {})[subscriber.name] = subscriber.token
        self.globs.put_all(self.subscribers.values())
        self._reindex({topic for subscriber in self.subscribers.values() for topic in subscriber.topics})

    def put_token(self, id_: str, token: Token | None) -> None:
        """Take over a changed token, or forget a revoked one."""
        former = self.tokens.pop(id_, None)
        for secret in (former.hash, *former.former_hashes) if former else ():
            if self._by_secret.get(secret) == id_:
                del self._by_secret[secret]
        if token is not None:
            self._add_token(token)
            if (former.scopes if former else UNLIMITED).limits != token.scopes.limits:
                self._limit_again(id_)

    def put_tokens(self, tokens: Iterable[Token]) -> None:
        """Take over all tokens at once, before all subscribers and queues, which take their limits from them."""
        self.tokens, self._by_secret = {}, {}
        for token in tokens:
            self._add_token(token)

    def _add_token(self, token: Token) -> None:
        self.tokens[token.id] = token
        self._by_secret[token.hash] = token.id
        for secret in token.former_hashes:
            # One that has ended may be another client's now.
            self._by_secret.setdefault(secret, token.id)

    def _shares_of(self, names: tuple[str, ...], publisher: str) -> _Shares:
        known = self._together.get((id(names), None)) or self._together.get((id(names), publisher))
        if known is not None:
            return known[1]
        if self._together_names > NAMES_MAX:
            self._forget_routes()
        shares = self._share([self.queues[name] for name in names], publisher)
        self._together[id(names), shares[2]] = names, shares
        self._together_names += len(names)
        return shares

    def _share(self, matching: Sequence[RegisteredQueue], publisher: str) -> _Shares:
        """The queues that get an event, those that are skipped, and whose event it has to be, if that matters.

        Queues of root get every event, and those of its publisher too, who alone waits for it to be written.
        """
        copies: Counter[str] = Counter()
        fed: list[RegisteredQueue] = []
        skipped: list[RegisteredQueue] = []
        is_own_exempt = False
        for queue in matching:
            copies[queue.owner] += 1
            is_over = queue.owner in self.overfull or 0 < self.copies_max < copies[queue.owner]
            is_over = is_over and not queue.is_roots
            is_own_exempt = is_own_exempt or (is_over and queue.owner == publisher)
            (skipped if is_over and queue.owner != publisher else fed).append(queue)
        self.is_skipping = self.is_skipping or bool(skipped)
        return tuple(fed), tuple(skipped), publisher if skipped or is_own_exempt else None

    def scopes_of(self, owner: str) -> Scopes:
        """What the token of a receiver's owner may do; all for root."""
        token = self.tokens.get(owner)
        return UNLIMITED if token is None else token.scopes

    def limits_of(self, receiver: str, owner: str) -> Scopes:
        """Which events a receiver may get, by its owner's token and by the tenant that it is for."""
        return self.scopes_of(owner).of_tenant(tenant_in(receiver) if owner else "")

    def _limit_again(self, client: str) -> None:
        """Take over other limits of a client for its receivers; those of one that is gone stay as they were."""
        for queue in self.queues.values():
            if queue.owner == client:
                self._put_limits(f"@{queue.name}", client)
        for subscriber in self.subscriptions_of(client):
            self._put_limits(subscriber.token, client)
        self._forget_routes()

    def _put_limits(self, name: str, owner: str) -> None:
        former, scopes = self._limited.pop(name, None), self.limits_of(name, owner)
        if scopes.limits_events:
            self._limited[name] = filter_syntax.within(scopes.fields, self._filters.get(name), former=former)
        if self._limited.get(name) is not former:
            self._forget_indexes()

    def _put_filter(self, name: str, text: str, owner: str) -> None:
        self._put_own_filter(name, text)
        self._put_limits(name, owner)

    def _put_own_filter(self, name: str, text: str) -> None:
        former = self._filters.pop(name, None)
        if former is not None and former.text == text:
            self._filters[name] = former
            return
        event_filter = filter_syntax.stored(text)
        if event_filter is not None:
            self._filters[name] = event_filter
        if event_filter is not None or former is not None:
            self._forget_indexes()

    def _forget_indexes(self) -> None:
        """Forget who has which filter; other changes leave it as it is, since to index thousands takes milliseconds."""
        self._indexes.clear()
        self._indexed_names = 0
        self._forget_subsets()

    def _forget_subsets(self) -> None:
        self._subsets.clear()
        self._subset_names = 0

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._narrowed.clear()
        self._together.clear()
        self._together_names = 0

    def _reindex(self, topics: set[str]) -> None:
        self._forget_routes()
        found: dict[str, list[Subscriber]] = {topic: [] for topic in topics}
        for subscriber in self.subscribers.values():
            if subscriber.is_bulk:
                continue
            for topic in topics.intersection(subscriber.topics):
                found[topic].append(subscriber)
        for topic, subscribers in found.items():
            self._by_topic[topic] = tuple(subscribers)
            if not subscribers:
                del self._by_topic[topic]
