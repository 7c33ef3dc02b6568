"""Changes of subscribers: subscribing, leaving, and what is done with what waited for one that is gone."""

from typing import TYPE_CHECKING

from doubledecker.errors import BadRequest, Conflict, Forbidden, NotFound
from doubledecker.model import quota, topic_glob
from doubledecker.model import subscriber as subscribing
from doubledecker.model.glob_matching import steps
from doubledecker.model.reserved import is_reserved
from doubledecker.model.scopes import Scopes
from doubledecker.model.subscriber import Subscriber, Subscription
from doubledecker.store import batches, bulk, dead_letters, subscribers
from doubledecker.store.partitions import Partition, Partitions

if TYPE_CHECKING:
    from doubledecker.bus.registry import LiveRegistry

# Concurrent changes of one subscriber are tried again with a newer copy of the registry, so many times at most.
_TRIES_MAX = 20


class Subscriptions:
    """Changes the subscribers of a registry."""

    def __init__(self, partitions: Partitions, live: "LiveRegistry") -> None:
        self._partitions = partitions
        self._registry = live

    async def put(self, token: str, asked: Subscription) -> Subscriber:
        """Create or replace the subscriber of a token."""
        live = self._registry
        for _ in range(_TRIES_MAX):
            await live.refresh()
            live.check_known(token)
            former, seen = live.snapshot.subscribers.get(token), live.snapshot.version
            self._check_topics(token, asked)
            subscriber = subscribing.merge(asked, token=token, former=former)
            _check_limits(subscriber, live.snapshot.scopes_of(subscriber.client))
            quota.check_filter(live.quotas, token, token, subscriber.filter, live.snapshot.filters_of_clients())
            self._check_globs(subscriber, former)
            if former is None:
                # Whoever ended its former self may have died before this.
                await self._retire(token)
                for partition in self._partitions.all:
                    await live.destroy_letters(partition, token)
            topics = subscriber.topics
            beginning = await bulk.beginning(self._partitions, topics) if subscriber.is_bulk else bulk.NOWHERE
            version = await subscribers.save(self._partitions.home, subscriber, beginning, seen=seen)
            if version > 0:
                await live.spread(version)
                if not subscriber.is_bulk:
                    await bulk.end(self._partitions, token)
                await live.spread_change(subscriber, former)
                return subscriber
        raise Conflict("this subscriber is being changed by others at the same time; try again")

    async def check_room(self, token: str, asked: Subscription) -> None:
        """Raise QuotaExceeded when a subscriber may not have so many topics; to be asked before each is checked."""
        await self._registry.refresh()
        self._check_topics(token, asked)

    async def delete(self, token: str) -> None:
        """Forget the subscriber of a token and what waits for it."""
        if not await self._end(token):
            raise NotFound("subscriber not found")

    async def leave_topic(self, token: str, name: str) -> None:
        version = await subscribers.leave_topic(self._partitions.home, token, name)
        if version == 0:
            raise NotFound(f"not subscribed to {name!r}")
        await self._registry.spread(version)

    async def end_of(self, client: str) -> None:
        """End the subscriber of a client that is gone, if it has one."""
        if client in self._registry.snapshot.subscribers:
            await self._end(client)

    async def end_orphans(self) -> list[str]:
        """End the subscribers whose clients are gone; returns which."""
        known = self._registry.snapshot
        return [each for each in known.subscribers.keys() - known.tokens.keys() if await self._end(each)]

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

    def _check_topics(self, token: str, asked: Subscription) -> None:
        former = self._registry.snapshot.subscribers.get(token)
        quota.check_subscriptions(self._registry.quotas, set(asked.topics), former.topics if former else ())

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
        others = [each for each in known.subscribers.values() if each.client == client]
        others = [each for each in others if each.token != subscriber.token]
        more = steps([*others, subscriber]) - steps([*others, former] if former else others)
        total = known.steps_total + more
        quota.check_globs(self._registry.quotas, steps=known.steps(client) + more, more=more, total=total)

    async def _end(self, token: str) -> bool:
        version = await subscribers.delete(self._partitions.home, token)
        if version == 0:
            return False
        await self._registry.spread(version)
        await self._retire(token)
        return True

    async def _retire(self, token: str) -> None:
        for partition in self._partitions.all:
            await self.retire(partition, token)


def _check_limits(subscriber: Subscriber, scopes: Scopes) -> None:
    """Raise Forbidden where a subscriber asks for what the token of its client may not have."""
    scopes.check_topics([name for name in subscriber.topics if not is_reserved(name)], to="subscribe to")
    if subscriber.is_bulk and scopes.limits_events:
        raise Forbidden("this token is limited to some topics or tenants, and tier bulk takes whole topics; use live")
