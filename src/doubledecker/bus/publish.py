"""Publishing: from a request's events to the answer that they are safe.

1. Topics without an owner are claimed for the client; events on topics where it may not publish are refused.
2. The rest are handed to the committers of their partitions, which write them in groups.
3. The request is answered when all of them are written. If Redis fails the request fails; what was already written
   stays, and when the publisher repeats the request it is delivered again, or not, if the publisher gave it an id.

A committer is the one writer of a process to a partition. It has at most one call under way. What arrives meanwhile
forms the next group: the busier the bus, the larger the groups. The script writes all of a group, or nothing because
the registry has changed: then the committer reads what changed and gathers again, with the new routing. If Redis fails,
every request in the group fails.

Publishers share a group: each has a line of its own, whose order is kept, and each group begins with another line. So
the event of one publisher waits for a call or two, however many events others have sent before.
"""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from doubledecker.bus.headroom import Headroom
from doubledecker.bus.notify import Notifier, Notify
from doubledecker.bus.registry import LiveRegistry
from doubledecker.bus.selections import Selections
from doubledecker.errors import (
    BusAway,
    DoubledeckerError,
    JournalFull,
    QueueFull,
    Refused,
    TooLarge,
    TopicOwned,
    TopicReserved,
    Unauthenticated,
)
from doubledecker.model import quota
from doubledecker.model.event import Draft
from doubledecker.model.reserved import is_reserved
from doubledecker.model.routing import Registry
from doubledecker.model.topic import TopicRights
from doubledecker.store import deferred_copies, events
from doubledecker.store.events import Accepted, RoutedEvent
from doubledecker.store.partitions import Partition, Partitions

# The registry would have to change this often within one commit; then something else is wrong.
_STALE_MAX = 20
# A copy into a queue takes the server some 4 µs among others, one into a batch about 1.
_QUEUE_COST = 4
_TOO_LARGE = (
    f"with ?all=1 the events must fit one write, and these do not: at most {events.WRITES_MAX} copies, "
    f"the journal's included, and {events.BYTES_MAX} bytes over all receivers; send fewer, or without it"
)


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
        selections = Selections()
        topics = [kinds[0].topic] if len(kinds) == 1 else list(dict.fromkeys([kind.topic for kind in kinds]))
        if is_whole:
            barred = await self._registry.topics.barred(topics, publisher=publisher)
            if barred:
                return _refused(drafts, {topic: self._refusal(topic, rights) for topic, rights in barred.items()})
            await self._check_whole(publisher, drafts, selections)
        whys = await self._claim(topics, publisher)
        refused = _refused(drafts, whys)
        if is_whole and refused:
            return refused
        if refused:
            drafts = [draft for draft in drafts if draft.kind.topic not in whys]
        await self._registry.learn([kind for kind in kinds if kind.topic not in whys] if whys else kinds)
        await selections.find(publisher, drafts, self._registry.snapshot)
        parts = self._parts(drafts)
        waits = [self._commit(index, publisher, part, selections, is_whole=is_whole) for index, part in parts.items()]
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
        """Claim topics that have no owner; returns why the publisher may not publish on which of them."""
        if self._registry.snapshot.may_publish(publisher, topics):
            return {}
        known = await self._registry.topics.claim(topics, publisher=publisher)
        return {topic: self._refusal(topic, known[topic]) for topic in topics if not known[topic].allow(publisher)}

    def _refusal(self, topic: str, rights: TopicRights) -> Refused:
        if is_reserved(topic):
            return TopicReserved(topic)
        if not rights.owner:
            return quota.too_many_topics(self._registry.quotas, topic)
        return TopicOwned(topic, rights.owner)

    async def _check_whole(self, publisher: str, drafts: Sequence[Draft], selections: Selections) -> None:
        """Raise TooLarge before anything is claimed or written, in whichever partition it would be too much."""
        await self._registry.refresh()
        await self._registry.learn({draft.kind for draft in drafts})
        await selections.find(publisher, drafts, self._registry.snapshot)
        for part in self._parts(drafts).values():
            check_whole(publisher, part, selections, self._registry.snapshot)

    async def _commit(
        self, index: int, publisher: str, drafts: Sequence[Draft], selections: Selections, *, is_whole: bool
    ) -> dict[int, Refused]:
        """Commit drafts; returns which were refused, and why.

        Topics that were deleted meanwhile are claimed anew; those on which it may not publish any more are refused.
        """
        refused: dict[int, Refused] = {}
        while drafts:
            drafts, full = await self._committers[index].submit(publisher, drafts, selections, is_whole=is_whole)
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


@dataclass(slots=True)
class _Unit:
    """The part of a request that goes to one partition; a whole one is written in one call or not at all."""

    publisher: str
    drafts: Sequence[Draft]
    selections: Selections
    done: "asyncio.Future[None]"
    is_whole: bool
    version: int
    written: int = 0
    disowned: list[Draft] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)

    def finish(self, error: DoubledeckerError | None = None) -> None:
        """Answer the request, unless it has gone away meanwhile."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


@dataclass
class Group:
    """What one call carries: events, and how far each unit gets with it."""

    routed: list[RoutedEvent] = field(default_factory=list)
    parts: list[tuple[_Unit, int]] = field(default_factory=list)
    wholes: list[tuple[int, int]] = field(default_factory=list)
    writes: int = 0
    size: int = 0
    cost: int = 0
    writes_max: int = field(default_factory=lambda: events.WRITES_MAX)
    size_max: int = field(default_factory=lambda: events.BYTES_MAX)
    cost_max: float = math.inf
    # Copies of an event into queues that are made at once, by the identity of these and publisher: most share them.
    prompt: dict[tuple[int, str], int] = field(default_factory=dict)

    def share(self, left: int) -> None:
        """Leave the next publisher its part of the room that is left for so many."""
        self.writes_max = self.writes + max(1, (events.WRITES_MAX - self.writes) // left)
        self.size_max = self.size + max(1, (events.BYTES_MAX - self.size) // left)
        self.cost_max = self.cost + max(1, (events.WRITES_MAX - self.cost) // left)

    def share_all(self) -> None:
        """Leave the next publisher all there is: what is written whole may take as long as its writes do."""
        self.share(1)
        self.cost_max = math.inf

    def take(self, routed_event: RoutedEvent) -> bool:
        """Take the event along if there is room for it; for one there always is."""
        queued = self._queued(routed_event) if routed_event.route.queues else 0
        places = 1 + queued + (0 if routed_event.is_wide else len(routed_event.route.receivers))
        writes, size = self.writes + places, self.size + len(routed_event.message) * places
        cost = self.cost + places + (_QUEUE_COST - 1) * queued
        if self.routed and (writes > self.writes_max or size > self.size_max or cost > self.cost_max):
            return False
        self.routed.append(routed_event)
        self.writes, self.size, self.cost = writes, size, cost
        return True

    def _queued(self, routed_event: RoutedEvent) -> int:
        if routed_event.is_wide:
            return deferred_copies.refusing_copies(routed_event.route.queues, routed_event.publisher)
        key = id(routed_event.route.queues), routed_event.publisher
        count = self.prompt.get(key)
        if count is None:
            count = self.prompt[key] = deferred_copies.prompt_copies(routed_event.route.queues, routed_event.publisher)
        return count


def check_whole(publisher: str, drafts: Sequence[Draft], selections: Selections, snapshot: Registry) -> None:
    """Raise TooLarge unless one call can write all of these."""
    group = Group()
    for draft in drafts:
        if not group.take(_routed(publisher, draft, selections, snapshot)):
            raise TooLarge(_TOO_LARGE)


class Committer:
    """Takes drafts from requests and writes them in groups."""

    def __init__(self, partition: Partition, registry: LiveRegistry, headroom: Headroom, notifier: Notifier) -> None:
        self._partition = partition
        self._registry = registry
        self._headroom = headroom
        self._notifier = notifier
        # By publisher; the first line begins the next group.
        self._lines: dict[str, deque[_Unit]] = {}
        self._has_work = asyncio.Event()

    async def submit(
        self, publisher: str, drafts: Sequence[Draft], selections: Selections, *, is_whole: bool
    ) -> tuple[list[Draft], dict[int, str]]:
        """Wait until the drafts are written.

        Returns those on whose topic it may not publish any more, and why which were refused, by their index.
        """
        done = asyncio.get_running_loop().create_future()
        unit = _Unit(publisher, drafts, selections, done, is_whole, self._registry.snapshot.version)
        if publisher not in self._lines:
            self._lines[publisher] = deque()
        self._lines[publisher].append(unit)
        self._has_work.set()
        await done
        return unit.disowned, unit.refused

    async def run(self) -> None:
        """Commit for as long as the process lives."""
        while True:
            await self._has_work.wait()
            await self._commit_group()
            # Requests that were read along with the reply come this far in the loop's next turn.
            await asyncio.sleep(0)
            if not self._lines:
                self._has_work.clear()

    async def _commit_group(self) -> None:
        group = Group()
        try:
            for _ in range(_STALE_MAX):
                await self._match_again()
                # That of the routes, read before anything is waited for: others refresh the registry too.
                version = self._registry.snapshot.version
                group = self._gather()
                if not group.routed:
                    return self._settle(group)
                reply = await events.publish(
                    self._partition,
                    group.routed,
                    version=version,
                    limits=await self._headroom.admit(self._partition),
                    wholes=group.wholes,
                    channels=self._notifier.channels(group.routed),
                )
                if reply.outcome is not Accepted.STALE:
                    break
                await self._registry.refresh()
            else:
                why = "the registry changes faster than events can be published"
                raise BusAway(why, detail=why)
            if reply.outcome is Accepted.FULL:
                raise JournalFull
        except DoubledeckerError as error:
            return self._fail(group, error)
        _note_refused(group, reply.refused)
        self._settle(group)
        self._registry.note_skipped(group.routed, reply)
        self._notifier.add(group.routed, reply)
        # The events are written. If Redis is away now, the next call fails, and its callers get the error.
        with contextlib.suppress(BusAway):
            await self._headroom.tidy(self._partition, reply.journal_bytes)
        return None

    async def _match_again(self) -> None:
        """Match the next drafts with patterns and filters that changed since they were submitted."""
        version = self._registry.snapshot.version
        parts: list[tuple[_Unit, list[Draft]]] = []
        for line in self._lines.values():
            left = events.WRITES_MAX
            for unit in islice(line, events.WRITES_MAX):
                if unit.version != version and left > 0:
                    parts.append((unit, list(islice(unit.drafts, unit.written, unit.written + left))))
                    left -= len(parts[-1][1])
        if parts:
            await self._registry.learn({draft.kind for _, drafts in parts for draft in drafts})
            for unit, drafts in parts:
                await unit.selections.find(unit.publisher, drafts, self._registry.snapshot)

    def _gather(self) -> Group:
        """The next group, of every line in its order of arrival; nothing is taken off the lines yet."""
        group = Group()
        snapshot = self._registry.snapshot
        for i, line in enumerate(self._lines.values()):
            group.share(len(self._lines) - i)
            for unit in line:
                if unit.version != snapshot.version:
                    _recheck(unit, snapshot)
                if not self._add(group, unit):
                    break
        if not group.parts:
            first = next(iter(self._lines.values()))[0]
            group.parts.append((first, 0))
            first.finish(TooLarge(_TOO_LARGE))
        return group

    def _add(self, group: Group, unit: _Unit) -> bool:
        """Add what fits of a unit; returns whether all of it did."""
        if unit.is_whole and not group.parts:
            # It fits no share, perhaps; where it comes first it has all the room there is.
            group.share_all()
        before = replace(group, routed=list(group.routed)) if unit.is_whole else group
        upto = unit.written
        for draft in islice(unit.drafts, unit.written, None):
            if not group.take(_routed(unit.publisher, draft, unit.selections, self._registry.snapshot)):
                break
            upto += 1
        is_complete = upto == len(unit.drafts)
        if unit.is_whole and not is_complete:
            group.routed, group.writes, group.size, group.cost = before.routed, before.writes, before.size, before.cost
            return False
        if unit.is_whole:
            group.wholes.append((len(before.routed), len(group.routed) - 1))
        if is_complete or upto > unit.written:
            group.parts.append((unit, upto))
        return is_complete

    def _settle(self, group: Group) -> None:
        """Note how far each unit got, and answer those that are complete or have already failed."""
        for unit, upto in group.parts:
            unit.written = upto
            if upto == len(unit.drafts) or unit.done.done():
                self._lines[unit.publisher].popleft()
                unit.finish()
        self._pass_turn()

    def _fail(self, group: Group, error: DoubledeckerError) -> None:
        for unit, _ in group.parts:
            self._lines[unit.publisher].popleft()
            unit.finish(error)
        self._pass_turn()

    def _pass_turn(self) -> None:
        """Forget empty lines, and let another begin the next group."""
        first, *others = self._lines
        self._lines = {publisher: self._lines[publisher] for publisher in (*others, first) if self._lines[publisher]}


def _routed(publisher: str, draft: Draft, selections: Selections, snapshot: Registry) -> RoutedEvent:
    return RoutedEvent(selections.route(publisher, draft, snapshot), draft.message, publisher, draft.repeat_id)


def _note_refused(group: Group, refused: Mapping[int, str]) -> None:
    """Note with each unit which of its events were refused, and why."""
    if not refused:
        return
    at = 0
    for unit, upto in group.parts:
        for draft in unit.drafts[unit.written : upto]:
            if at in refused:
                unit.refused[draft.index] = refused[at]
            at += 1


def _recheck(unit: _Unit, snapshot: Registry) -> None:
    """The registry has changed since the unit came: its client may be gone, or may not publish there now."""
    unit.version = snapshot.version
    left = unit.drafts[unit.written :]
    if left and unit.publisher not in snapshot.tokens:
        unit.finish(Unauthenticated("the token was revoked"))
        left = []
    is_allowed = [snapshot.may_publish(unit.publisher, (draft.kind.topic,)) for draft in left]
    if unit.is_whole and not all(is_allowed):
        is_allowed = [False] * len(left)
    unit.disowned += [draft for draft, is_kept in zip(left, is_allowed, strict=True) if not is_kept]
    kept = [draft for draft, is_kept in zip(left, is_allowed, strict=True) if is_kept]
    unit.drafts = [*unit.drafts[: unit.written], *kept]
