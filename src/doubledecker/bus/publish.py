"""Publishing: from a request's events to the answer that they are safe.

1. Topics without an owner are claimed for the client; events on another client's topics are refused.
2. The rest are handed to the committers of their partitions (bus/commit.py), which write them in groups.
3. The request is answered when all of them are written. If Redis fails the request fails; what was already written
   stays, and when the publisher repeats the request it is delivered again, or not, if the publisher gave it an id.
"""

import asyncio
from collections.abc import Mapping, Sequence

from doubledecker.bus.commit import Committer, check_whole
from doubledecker.bus.headroom import Headroom
from doubledecker.bus.notify import Notifier, Notify
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import QueueFull, Refused, TopicOwned, TopicReserved
from doubledecker.model import quota
from doubledecker.model.event import Draft
from doubledecker.model.reserved import is_reserved
from doubledecker.store.partitions import Partitions


class Publisher:
    def __init__(
        self, partitions: Partitions, registry: LiveRegistry, headroom: Headroom, notify: Notify = Notify.HEARD
    ) -> None:
        self._partitions = partitions
        self._registry = registry
        self._headroom = headroom
        self._notifiers = [Notifier(partition, notify) for partition in partitions.all]
        pairs = zip(partitions.all, self._notifiers, strict=True)
        self._committers = [Committer(partition, registry, headroom, notifier) for partition, notifier in pairs]

    async def run(self) -> None:
        """Commit for as long as the process lives."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._headroom.run())
            for committer in self._committers:
                tasks.create_task(committer.run())
            for notifier in self._notifiers:
                tasks.create_task(notifier.run())

    async def finish(self) -> None:
        """Wait until listeners have been notified of all that was written, for a moment at most."""
        await asyncio.gather(*(notifier.finish() for notifier in self._notifiers))

    async def publish(self, publisher: str, drafts: Sequence[Draft], *, is_whole: bool = False) -> dict[int, Refused]:
        """Write events; returns why which were refused, by their index."""
        if self._headroom.is_full:
            # Before a topic is claimed: a request that is refused leaves nothing behind.
            for partition in {self._partitions.of(draft.kind, draft.key) for draft in drafts}:
                await self._headroom.admit(partition)
        # A single event is common, and the rest takes several times as long.
        kinds = [drafts[0].kind] if len(drafts) == 1 else list(dict.fromkeys([draft.kind for draft in drafts]))
        topics = [kinds[0].topic] if len(kinds) == 1 else list(dict.fromkeys([kind.topic for kind in kinds]))
        if is_whole:
            foreign = await self._registry.foreign(topics, publisher=publisher)
            if foreign:
                return _refused(drafts, {topic: self._refusal(topic, owner) for topic, owner in foreign.items()})
            await self._check_whole(publisher, drafts)
        whys = await self._claim(topics, publisher)
        refused = _refused(drafts, whys)
        if is_whole and refused:
            return refused
        if refused:
            drafts = [draft for draft in drafts if draft.kind.topic not in whys]
        await self._registry.learn([kind for kind in kinds if kind.topic not in whys] if whys else kinds)
        parts = self._parts(drafts)
        waits = [self._commit(index, publisher, part, is_whole=is_whole) for index, part in parts.items()]
        for part in [await waits[0]] if len(waits) == 1 else await asyncio.gather(*waits):
            refused |= part
        return refused

    def _parts(self, drafts: Sequence[Draft]) -> dict[int, Sequence[Draft]]:
        """Events by the index of their partition."""
        if len(self._partitions.all) == 1:
            return {0: drafts} if drafts else {}
        parts: dict[int, list[Draft]] = {}
        for draft in drafts:
            parts.setdefault(self._partitions.of(draft.kind, draft.key).index, []).append(draft)
        return dict(parts)

    async def _claim(self, topics: Sequence[str], publisher: str) -> dict[str, Refused]:
        """Claim topics that have no owner; returns why which of them are not the publisher's."""
        known = self._registry.snapshot.owners
        if {known.get(topic) for topic in topics} == {publisher}:
            return {}
        owners = await self._registry.owners(topics, publisher=publisher)
        return {topic: self._refusal(topic, owners[topic]) for topic in topics if owners[topic] != publisher}

    def _refusal(self, topic: str, owner: str) -> Refused:
        if is_reserved(topic):
            return TopicReserved(topic)
        if not owner:
            return quota.too_many_topics(self._registry.quotas, topic)
        return TopicOwned(topic, owner)

    async def _check_whole(self, publisher: str, drafts: Sequence[Draft]) -> None:
        """Raise TooLarge before anything is claimed or written, in whichever partition it would be too much."""
        await self._registry.refresh()
        await self._registry.learn({draft.kind for draft in drafts})
        for part in self._parts(drafts).values():
            check_whole(publisher, part, self._registry.snapshot)

    async def _commit(
        self, index: int, publisher: str, drafts: Sequence[Draft], *, is_whole: bool
    ) -> dict[int, Refused]:
        """Commit drafts; returns which were refused, and why.

        Topics that were deleted meanwhile are claimed anew; those that are another client's now are refused.
        """
        refused: dict[int, Refused] = {}
        while drafts:
            drafts, full = await self._committers[index].submit(publisher, drafts, is_whole=is_whole)
            refused |= {i: self._no_room(why) for i, why in full.items()}
            if drafts:
                topics = sorted({draft.kind.topic for draft in drafts})
                whys = await self._claim(topics, publisher)
                if is_whole and whys:
                    return {draft.index: next(iter(whys.values())) for draft in drafts}
                refused |= _refused(drafts, whys)
                drafts = [draft for draft in drafts if draft.kind.topic not in whys]
        return refused

    def _no_room(self, why: str) -> QueueFull:
        kind, _, queue = why.partition(" ")
        if kind == "tenants":
            return quota.too_many_tenants(self._registry.quotas, queue)
        return QueueFull(
            f"queue {queue!r} is full, and set to refuse; consume or purge what it holds, raise its max_length or "
            "facet_max_length, or let it drop the oldest (overflow)"
        )


def _refused(drafts: Sequence[Draft], whys: Mapping[str, Refused]) -> dict[int, Refused]:
    """The events on topics that are refused, by their index."""
    return {draft.index: whys[draft.kind.topic] for draft in drafts if draft.kind.topic in whys} if whys else {}
