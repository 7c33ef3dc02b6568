"""Changes of subscribers: subscribing, leaving, giving away, and what is done with what waited for one that is gone."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from doubledecker.errors import BadRequest, Conflict, Forbidden, NotFound
from doubledecker.model import quota, topic_glob
from doubledecker.model import subscriber as subscribing
from doubledecker.model.glob import is_glob
from doubledecker.model.glob_matching import steps
from doubledecker.model.reserved import is_reserved
from doubledecker.model.scopes import Scopes
from doubledecker.model.signing import SigningKeys
from doubledecker.model.subscriber import (
    DEFAULT_NAME,
    Subscriber,
    Subscription,
    SubscriptionChange,
    SubscriptionWanted,
    id_of,
)
from doubledecker.store import batches, bulk, dead_letters, notices, subscribers
from doubledecker.store.partitions import Partition, Partitions

if TYPE_CHECKING:
    from doubledecker.bus.registry import LiveRegistry

# Concurrent changes of one subscriber are tried again with a newer copy of the registry, so many times at most.
_TRIES_MAX = 20

_CHANGING = "this subscription is being changed by others at the same time; try again"


class Subscriptions:
    """Changes the subscribers of a registry."""

    def __init__(self, partitions: Partitions, live: "LiveRegistry") -> None:
        self._partitions = partitions
        self._registry = live

    async def put(self, client: str, asked: Subscription) -> Subscriber:
        """Create a client's default subscription, or change what is asked for."""
        return await self._save(client, DEFAULT_NAME, lambda former: subscribing.merge(asked, former))

    async def replace(
        self, client: str, name: str, asked: SubscriptionWanted, *, offered: SigningKeys
    ) -> tuple[Subscriber, bool]:
        """Create or replace a client's subscription of this name; returns whether it is new. One unsigned is signed."""
        is_new = False

        def wanted(former: Subscriber) -> Subscriber:
            nonlocal is_new
            is_new = not former.callback
            return subscribing.replaced(asked, former, offered=offered)

        return await self._save(client, name, wanted), is_new

    async def change(self, client: str, name: str, asked: SubscriptionChange) -> Subscriber:
        """Change some fields of a client's subscription."""

        def wanted(former: Subscriber) -> Subscriber:
            if not former.callback:
                raise NotFound(_no_subscription(name))
            return subscribing.changed(asked, former)

        return await self._save(client, name, wanted)

    async def find(self, client: str, name: str) -> Subscriber:
        """A client's subscription; one that this process does not know may be new."""
        known = self._registry.snapshot
        if known.subscription(client, name) is None:
            await self._registry.refresh()
        found = known.subscription(client, name)
        if found is None:
            raise NotFound(_no_subscription(name))
        return found

    async def check_room(self, client: str, name: str, topics: Collection[str]) -> None:
        """Raise QuotaExceeded when a client may not have so many topics; to be asked before each is checked."""
        await self._registry.refresh()
        known = self._registry.snapshot
        former = known.subscription(client, name)
        token = former.token if former else id_of(client, name)
        quota.check_topics(self._registry.quotas, token, set(topics), known.subscriptions_of(client))

    async def give(self, token: str, *, to: str) -> None:
        """Make another client the owner of a subscription; what waits for it stays, and so does its id.

        It goes on as it was, with its credentials: who gets it may replace them.
        """
        for _ in range(_TRIES_MAX):
            await self._registry.refresh()
            known = self._registry.snapshot
            given = known.subscribers.get(token)
            if given is None:
                raise NotFound(f"no subscription with the id {token[:80]!r}")
            if given.name == DEFAULT_NAME:
                raise Conflict(
                    f"{token!r} is the default subscription of its client, which Routemaster's routes are about, and "
                    "cannot be given away; only those with a name of their own can"
                )
            if given.client == to:
                return
            self._check_taker(given, to)
            for partition in self._partitions.all:
                await notices.forget(partition, token)
            version = await subscribers.give(self._partitions.home, given, to=to, seen=known.version)
            if version > 0:
                await self._registry.spread(version)
                await self._registry.spread_change(known.subscribers.get(token, given), given)
                return
        raise Conflict(_CHANGING)

    def _check_taker(self, given: Subscriber, to: str) -> None:
        """Raise unless a client can take a subscription, by its name and by the client's quotas."""
        known = self._registry.snapshot
        if to not in known.tokens:
            raise BadRequest(f"to is {to[:80]!r}; no client has that id, GET /api_tokens lists them")
        if known.subscription(to, given.name) is not None:
            raise Conflict(f"client {to!r} has a subscription named {given.name!r} already; delete one of the two")
        self._registry.check_backlog(to)
        taken = subscribing.owned_by(given, to)
        _check_limits(taken, known.limits_of(taken.token, to))
        self._check_globs(taken, None)
        filters = known.filters_of_clients()
        filters.get(given.client, {}).pop(given.token, None)
        quota.check_subscriber(self._registry.quotas, taken, known.subscriptions_of(to), filters)

    async def delete(self, client: str, name: str = DEFAULT_NAME) -> None:
        """Forget a client's subscription and what waits for it."""
        await self._registry.refresh()
        found = self._registry.snapshot.subscription(client, name)
        if found is None or not await self._end(found):
            raise NotFound("subscriber not found" if name == DEFAULT_NAME else _no_subscription(name))

    async def leave_topic(self, token: str, name: str) -> None:
        version = await subscribers.leave_topic(self._partitions.home, token, name)
        if version == 0:
            raise NotFound(f"not subscribed to {name!r}")
        await self._registry.spread(version)

    async def end_of(self, client: str) -> None:
        """End the subscriptions of a client that is gone."""
        for each in self._registry.snapshot.subscriptions_of(client):
            await self._end(each)

    async def end_orphans(self) -> list[str]:
        """End the subscribers whose clients are gone; returns which."""
        known = self._registry.snapshot
        orphans = [each for each in known.subscribers.values() if each.client not in known.tokens]
        return [each.token for each in orphans if await self._end(each)]

    async def retire(self, partition: Partition, token: str) -> bool:
        """Set aside what waits in a partition for a subscriber that is gone; returns whether a purge was needed.

        One that is back keeps what it has. Where the registry changes all the time, the sweep tries again.
        """
        for _ in range(_TRIES_MAX):
            if token in self._registry.snapshot.subscribers:
                return False
            version = self._registry.snapshot.version
            was_needed = await subscribers.retire(partition, token, version=version)
            if was_needed:
                return True
            # A purge forgets them when it is done; here there is nothing to purge.
            if was_needed is False and await dead_letters.destroy(partition, token, version=version):
                await batches.forget_gauges(partition, token)
                return False
            await self._registry.refresh()
        return False

    async def _save(self, client: str, name: str, decide: Callable[[Subscriber], Subscriber]) -> Subscriber:
        """Save what is decided by what there was; one that is new had no callback."""
        live = self._registry
        for _ in range(_TRIES_MAX):
            await live.refresh()
            live.check_known(client)
            known, seen = live.snapshot, live.snapshot.version
            former = known.subscription(client, name)
            subscriber = decide(former or self._fresh(client, name))
            _check_limits(subscriber, known.limits_of(subscriber.token, client))
            quota.check_subscriber(live.quotas, subscriber, known.subscriptions_of(client), known.filters_of_clients())
            self._check_globs(subscriber, former)
            token, topics = subscriber.token, subscriber.topics
            if former is None:
                # A process that deleted the former subscription may have died before this.
                await self._retire(token)
                for partition in self._partitions.all:
                    await live.destroy_letters(partition, token)
            beginning = await bulk.beginning(self._partitions, topics) if subscriber.is_bulk else bulk.NOWHERE
            version = await subscribers.save(self._partitions.home, subscriber, beginning, seen=seen)
            if version > 0:
                await live.spread(version)
                if not subscriber.is_bulk:
                    await bulk.end(self._partitions, token)
                await live.spread_change(subscriber, former)
                return subscriber
        raise Conflict(_CHANGING)

    def _check_globs(self, subscriber: Subscriber, former: Subscriber | None) -> None:
        """Raise BadRequest where globs cannot be, and QuotaExceeded when they and its patterns would be too large."""
        known, client = self._registry.snapshot, subscriber.client
        globs = topic_glob.among(subscriber.topics)
        if not globs:
            return
        if subscriber.is_bulk:
            raise BadRequest(
                f"topics has the glob {globs[0]!r}, which a subscriber of tier bulk cannot have, as the lake is read "
                "by topic; name each topic, or let the tier be live"
            )
        others = [each for each in known.subscriptions_of(client) if each.token != subscriber.token]
        more = steps([*others, subscriber]) - steps([*others, former] if former else others)
        total = known.steps_total + more
        quota.check_globs(self._registry.quotas, steps=known.steps(client) + more, more=more, total=total)

    def _fresh(self, client: str, name: str) -> Subscriber:
        token = id_of(client, name)
        taken = self._registry.snapshot.subscribers.get(token)
        if taken is not None:
            raise Conflict(
                f"a subscription with the id {token!r} was given to another client, and keeps it; take another name"
            )
        return subscribing.fresh(token, client)

    async def _end(self, subscriber: Subscriber) -> bool:
        version = await subscribers.delete(self._partitions.home, subscriber)
        if version == 0:
            return False
        await self._registry.spread(version)
        await self._retire(subscriber.token)
        return True

    async def _retire(self, token: str) -> None:
        for partition in self._partitions.all:
            await self.retire(partition, token)


def _no_subscription(name: str) -> str:
    return f"no subscription named {name[:80]!r}; GET /subscriptions lists yours"


def _check_limits(subscriber: Subscriber, scopes: Scopes) -> None:
    """Raise Forbidden where a subscriber asks for what the token of its client may not have."""
    for name in subscriber.topics if subscriber.tenant else ():
        if is_reserved(name):
            raise Forbidden(f"topic {name[:80]!r} is about all receivers of a client; a tenant's subscription may not")
    scopes.check_topics(
        [name for name in subscriber.topics if not (is_reserved(name) or is_glob(name))], to="subscribe to"
    )
    if subscriber.is_bulk and scopes.limits_events:
        whose = "this subscription is for one tenant" if subscriber.tenant else "this token is limited"
        raise Forbidden(f"{whose}, and tier bulk takes whole topics of all tenants; use live")
