"""Publishing: from a request's events to the answer that they are safe.

1. Topics without an owner are claimed for the client; events on another client's topics are refused.
2. The rest are handed to the committers of their partitions (bus/commit.py), which write them in groups.
3. The request is answered when all of them are written. If Redis fails the request fails; what was already written
   stays, and when the publisher repeats the request it is delivered again, or not, if the publisher gave it an id.
"""

import asyncio
from collections.abc import Sequence

from doubledecker.bus.commit import Committer, Draft, check_whole
from doubledecker.bus.headroom import Headroom
from doubledecker.bus.notify import Notifier, Notify
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import QueueFull, Refused, TopicOwned
from doubledecker.model import quota
from doubledecker.model.event import Event, encode
from doubledecker.store.partitions import Partitions


class Publisher:
    """Takes events from requests, and answers when they are safe."""

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

    async def publish(
        self, publisher: str, offered: Sequence[tuple[Event, bool]], *, is_whole: bool = False
    ) -> dict[int, Refused]:
        """Write events (each with whether the client gave its id); returns why which were refused, by index."""
        if self._headroom.is_full:
            # Before a topic is claimed: a request that is refused leaves nothing behind.
            for partition in {self._partitions.of(event.kind, event.key) for event, _ in offered}:
                await self._headroom.admit(partition)
        topics = list(dict.fromkeys(event.topic for event, _ in offered))
        if is_whole:
            foreign = await self._registry.foreign(topics, publisher=publisher)
            if foreign:
                named = ((i, event.topic) for i, (event, _) in enumerate(offered) if event.topic in foreign)
                return {i: TopicOwned(topic, foreign[topic]) for i, topic in named}
            await self._check_whole(publisher, offered)
        owners = await self._registry.owners(topics, publisher=publisher)
        refused: dict[int, Refused] = {}
        drafts: dict[int, list[Draft]] = {}
        for i, (event, is_id_given) in enumerate(offered):
            if owners[event.topic] == publisher:
                draft = Draft(event.kind, encode(event), publisher, event.id if is_id_given else "", i)
                drafts.setdefault(self._partitions.of(draft.kind, event.key).index, []).append(draft)
            else:
                refused[i] = self._refusal(event.topic, owners[event.topic])
        if is_whole and refused:
            return refused
        await self._registry.learn({draft.kind for part in drafts.values() for draft in part})
        waits = [self._commit(index, part, is_whole=is_whole) for index, part in drafts.items()]
        for part in [await waits[0]] if len(waits) == 1 else await asyncio.gather(*waits):
            refused |= part
        return refused

    def _refusal(self, topic: str, owner: str) -> Refused:
        if not owner:
            return quota.too_many_topics(self._registry.quotas, topic)
        return TopicOwned(topic, owner)

    async def _check_whole(self, publisher: str, offered: Sequence[tuple[Event, bool]]) -> None:
        """Raise TooLarge before anything is claimed or written, in whichever partition it would be too much."""
        await self._registry.refresh()
        drafts: dict[int, list[Draft]] = {}
        for event, _ in offered:
            draft = Draft(event.kind, encode(event), publisher)
            drafts.setdefault(self._partitions.of(draft.kind, event.key).index, []).append(draft)
        await self._registry.learn({draft.kind for part in drafts.values() for draft in part})
        for part in drafts.values():
            check_whole(part, self._registry.snapshot)

    async def _commit(self, index: int, drafts: Sequence[Draft], *, is_whole: bool) -> dict[int, Refused]:
        """Commit drafts; returns which were refused, and why.

        Topics that were deleted meanwhile are claimed anew; those that are another client's now are refused.
        """
        refused: dict[int, Refused] = {}
        while drafts:
            drafts, full = await self._committers[index].submit(drafts, is_whole=is_whole)
            refused |= {i: _full(queue) for i, queue in full.items()}
            if drafts:
                topics = sorted({draft.kind.topic for draft in drafts})
                owners = await self._registry.owners(topics, publisher=drafts[0].publisher)
                foreign = [draft for draft in drafts if owners[draft.kind.topic] != draft.publisher]
                whys = [self._refusal(draft.kind.topic, owners[draft.kind.topic]) for draft in foreign]
                refused |= {draft.index: why for draft, why in zip(foreign, whys, strict=True)}
                drafts = [draft for draft in drafts if draft.index not in refused]
                if is_whole and foreign:
                    return {draft.index: whys[0] for draft in [*foreign, *drafts]}
        return refused


def _full(queue: str) -> QueueFull:
    return QueueFull(
        f"queue {queue!r} is full, and set to refuse; consume or purge what it holds, raise its max_length or "
        "facet_max_length, or let it drop the oldest (overflow)"
    )
