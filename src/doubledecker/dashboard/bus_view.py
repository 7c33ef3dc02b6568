"""What pages show of the bus: looked at once for all who watch, and no more often than the bus can afford."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

from doubledecker import clock
from doubledecker.bus import overview
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.bus.overview import ALIVE_MS, Overview, SubscriberView
from doubledecker.bus.registry import LiveRegistry
from doubledecker.bus.snapshots import SnapshotCache
from doubledecker.dashboard import series
from doubledecker.dashboard.fairness import QueueFairness, weigh
from doubledecker.dashboard.pages import Visit
from doubledecker.dashboard.series import SPANS, Series
from doubledecker.errors import NotFound
from doubledecker.model.attempt import AttemptFilter, ListedAttempt
from doubledecker.model.dead_letter import DeadLetter
from doubledecker.model.scopes import SEEING_QUEUES, SUBSCRIBING
from doubledecker.model.token import Caller
from doubledecker.queues import view as queue_view
from doubledecker.queues.service import ServiceWindow
from doubledecker.queues.view import FacetShare, QueueOverview
from doubledecker.store import attempts, dead_letters, pipeline, processes
from doubledecker.store.attempts import AttemptsFound
from doubledecker.store.partitions import Partitions
from doubledecker.store.pipeline import PipelineState
from doubledecker.store.processes import ProcessReport

# All viewers see the same numbers for so long.
_LEAST_S = 0.9
# Receivers whose newest dead letters are looked at; those with the most come first.
_RECEIVERS_MAX = 50
_TENANTS_MAX = 1_000
_ATTEMPTS = 20
# Snapshots of one of many things, as of a queue: those that nobody looks at are few.
_OTHERS_MAX = 100

T = TypeVar("T")


@dataclass(frozen=True)
class NamedLetter:
    """A dead letter, and whose it is."""

    receiver: str
    id: str
    event_id: str
    topic: str
    tenant: str
    attempts: int
    status: int
    why: str
    died_at: int


class BusView:
    """The bus as pages show it, each caller what the API would let it see."""

    def __init__(self, partitions: Partitions, registry: LiveRegistry, rules: MemoryRules) -> None:
        self.partitions = partitions
        self.registry = registry
        self._rules = rules
        self._overview = SnapshotCache(self._look)
        self._queues = SnapshotCache(self._look_at_queues)
        self._pipeline = SnapshotCache(self._look_at_pipeline)
        self._served = SnapshotCache(ServiceWindow(partitions).look)
        self._others: dict[str, SnapshotCache[object]] = {}
        self._series = {key: SnapshotCache(partial(self._look_back, key)) for key in SPANS}

    async def overview(self) -> Overview:
        """What `doubledecker status` and `/metrics` show."""
        return await self._overview.shared(least_s=_LEAST_S)

    async def queues(self, caller: Caller) -> list[QueueOverview]:
        """How the caller's queues stand, or for root all."""
        found = await self._queues.shared(least_s=_LEAST_S)
        return [each for each in found if caller.is_admin or each.queue.owner == caller.id]

    async def served(self) -> dict[str, Counter[str]]:
        """How many messages queues handed out in the last minute, by tenant."""
        return await self._served.shared(least_s=_LEAST_S)

    async def fairness(self, queue: QueueOverview) -> QueueFairness:
        """How fairly a queue serves its tenants."""
        facets = await self._kept(f"facets {queue.queue.name}", partial(self._look_at_facets, queue))
        return weigh(queue, (await self.served()).get(queue.queue.name, Counter()), facets)

    async def busiest(self, caller: Caller) -> QueueFairness | None:
        """The queue of which most was asked in the last minute, if any was asked for something."""
        served, queues = await self.served(), await self.queues(caller)
        asked = {each.queue.name: served.get(each.queue.name, Counter()).total() + each.waiting for each in queues}
        first = max(queues, key=lambda each: asked[each.queue.name], default=None)
        return await self.fairness(first) if first is not None and asked[first.queue.name] else None

    async def attempts(self, receiver: str, caller: Caller) -> Sequence[ListedAttempt]:
        """The last attempts at a receiver that the journals have."""
        client = None if caller.is_admin else caller.id
        since_ms = self._since_ms(caller)
        wanted = AttemptFilter(receivers=frozenset({receiver}), client=client, from_ms=since_ms)
        return (
            await self._kept(f"attempts {client} {since_ms} {receiver}", partial(self._look_at_attempts, wanted))
        ).attempts

    async def processes(self) -> list[ProcessReport]:
        """What the processes of the bus reported last."""
        return await processes.reports(self.partitions.home, silent_ms_max=ALIVE_MS)

    async def pipeline(self) -> PipelineState:
        return await self._pipeline.shared(least_s=_LEAST_S)

    async def series(self, span: str) -> Series:
        """The history of a span."""
        return await self._series[span].shared(least_s=_LEAST_S)

    def seen(self, view: Overview, visit: Visit) -> list[SubscriberView]:
        """The receivers of an overview that the caller may see: its subscriber and its queues, or all."""
        return [each for each in view.subscribers if self._may_see(each.subscriber.token, visit)]

    async def receiver(self, name: str, visit: Visit) -> SubscriberView:
        """A receiver as it is now; raises NotFound for one that the caller may not see."""
        await self.registry.refresh()
        known = self.registry.snapshot.pushed_to.get(name)
        if known is not None and self._may_see(known.token, visit):
            [seen] = await overview.look_at(self.partitions, [known])
            return seen
        raise NotFound(f"no subscriber {name[:80]!r} that you may see")

    async def newest_letters(self, views: Sequence[SubscriberView], caller: Caller, *, most: int) -> list[NamedLetter]:
        """The newest dead letters of these receivers that the caller may see."""
        with_letters = sorted((each for each in views if each.dead), key=lambda each: -each.dead)[:_RECEIVERS_MAX]
        names = [each.subscriber.token for each in with_letters]
        if not names:
            return []
        places = []
        for partition in self.partitions.all:
            newest = await dead_letters.newest(partition, names, most=most)
            places += [(stamped.stamp, partition, name, stamped.id) for name, stamped in newest]
        found = []
        for _, partition, name, id_ in sorted(places, key=lambda place: -place[0])[:most]:
            found += [_named(name, letter) for letter in await dead_letters.read(partition, name, [id_])]
        return [each for each in found if each.died_at >= self._since_ms(caller)]

    async def letter_counts(self, views: Sequence[SubscriberView], field: str) -> dict[str, int]:
        """How many dead letters of these receivers have each value of a field, the most frequent first."""
        with_letters = sorted((each for each in views if each.dead), key=lambda each: -each.dead)[:_RECEIVERS_MAX]
        total: dict[str, int] = {}
        for partition in self.partitions.all:
            for each in with_letters:
                counts = (await dead_letters.totals(partition, each.subscriber.token)).by[field]
                for value, count in counts.items():
                    total[value] = total.get(value, 0) + count
        return dict(sorted(total.items(), key=lambda pair: -pair[1]))

    def _may_see(self, receiver: str, visit: Visit) -> bool:
        needs = SEEING_QUEUES if receiver.startswith("@") else SUBSCRIBING
        is_own = visit.caller.is_admin or self.registry.snapshot.owner_of(receiver) == visit.caller.id
        return is_own and visit.may(*needs)

    def _since_ms(self, caller: Caller) -> int:
        """Since when what happened may be shown: earlier it may be of topics and tenants beyond the caller's limits."""
        if not caller.scopes.limits_events:
            return 0
        token = self.registry.snapshot.tokens.get(caller.id)
        return token.limited_at if token else 0

    async def _kept(self, key: str, make: Callable[[], Awaitable[T]]) -> T:
        """What is made for one of many things, kept for all who look at it."""
        if key not in self._others and len(self._others) >= _OTHERS_MAX:
            self._others.clear()
        cache = cast("SnapshotCache[T]", self._others.setdefault(key, SnapshotCache(make)))
        return await cache.shared(least_s=_LEAST_S)

    async def _look_at_facets(self, queue: QueueOverview) -> list[FacetShare]:
        return await queue_view.look_at_facets(self.partitions, queue.queue, most=_TENANTS_MAX)

    async def _look_at_attempts(self, wanted: AttemptFilter) -> AttemptsFound:
        return await attempts.newest(self.partitions, wanted, limit=_ATTEMPTS)

    async def _look(self) -> Overview:
        await self.registry.refresh()
        known = self.registry.snapshot.pushed_to
        return await overview.look(self.partitions, known, now_ms=clock.now_ms(), rules=self._rules)

    async def _look_at_queues(self) -> list[QueueOverview]:
        known = sorted(self.registry.snapshot.queues.values(), key=lambda queue: queue.name)
        return await queue_view.look_all(self.partitions, known)

    async def _look_at_pipeline(self) -> PipelineState:
        return await pipeline.read(self.partitions.home)

    async def _look_back(self, span: str) -> Series:
        now_s = await self.partitions.home.time_ms() // 1000
        return await series.look(self.partitions, SPANS[span], now_s=now_s)


def _named(receiver: str, letter: DeadLetter) -> NamedLetter:
    return NamedLetter(
        receiver,
        letter.id,
        letter.event_id,
        letter.topic,
        letter.tenant,
        letter.attempts,
        letter.status,
        letter.detail or letter.reason,
        letter.died_at,
    )
