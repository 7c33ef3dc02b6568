"""Techniques that answer without a call: the cache, the cache aside, and calls that share one flight."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from doubledecker.stages import limits
from doubledecker.stages.context import Event
from doubledecker.stages.errors import KeyMissing, NotCached, Rejected
from doubledecker.stages.limits import MATCHES, On, OutcomeMatcher
from doubledecker.stages.stage import Stage

# Cache: keep answers by key, and give them again.
#
# - At most `capacity` answers; the least recently used goes first (LRU).
# - An answer is fresh for `ttl_s`. For `stale_s` more it is still given, while one fetch in the background renews it:
#   nobody waits for a renewal, and a dependency that is down for a while is not noticed.
# - With `negative_s` a failure that `negative_on` holds for is kept too, and raised again: a key that does not exist is
#   not asked for a thousand times. A result that it holds for is kept so long, and not for `ttl_s`.


@dataclass(frozen=True)
class CacheEntry:
    """An answer or a failure, and until when it is fresh."""

    result: object
    error: Exception | None
    fresh_until: float


class Shelf:
    """Entries by key, at most `capacity`; a look counts as use."""

    def __init__(self, capacity: int) -> None:
        self._entries: OrderedDict[str, CacheEntry] = OrderedDict()
        self._capacity = capacity

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> CacheEntry | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: str, entry: CacheEntry) -> None:
        self._entries[key] = entry
        self._entries.move_to_end(key)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)


@dataclass
class Cache(Stage):
    """The first look that misses asks; put a SingleFlight inside, or a hot key that expires asks many times at once."""

    capacity: int = 1_000
    ttl_s: float = 60.0
    stale_s: float = 0.0
    negative_s: float = 0.0
    negative_on: On = (Exception,)

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(
            self,
            capacity=limits.ONE_OR_MORE,
            ttl_s=limits.ABOVE_ZERO,
            stale_s=limits.ZERO_OR_MORE,
            negative_s=limits.ZERO_OR_MORE,
            negative_on=MATCHES,
        )

    def start(self) -> None:
        self._shelf = Shelf(self.capacity)
        self._negative = OutcomeMatcher(self.negative_on)
        self._renewing: set[str] = set()
        self.hits = 0
        self.misses = 0

    @property
    def state(self) -> str:
        return f"{self.hits} hits, {self.misses} misses, {len(self._shelf)} kept"

    @property
    def needs_key(self) -> bool:
        return True

    def admit(self, event: Event) -> None:
        if event.key is None:
            raise KeyMissing(self.name)

    async def work(self, event: Event) -> object:
        key = event.key or ""
        entry = self._shelf.get(key)
        late_s = self.context.clock() - entry.fresh_until if entry else 0.0
        if entry is None or late_s > (self.stale_s if entry.error is None else 0.0):
            self.misses += 1
            return await self._ask_for(event, key)
        self.hits += 1
        if late_s > 0.0:
            self._renew(event.again(), key)
        if entry.error is not None:
            # Without the traces of those who met it before, which would grow with every raise.
            raise entry.error.with_traceback(None)
        return entry.result

    async def _ask_for(self, event: Event, key: str) -> object:
        try:
            return await self._fetch(event, key)
        except self._negative.caught as error:
            # A rejection is about the moment, not about the key.
            is_kept = self.negative_s > 0.0 and not isinstance(error, Rejected)
            if is_kept and self._negative.holds_for_error(error):
                self._shelf.put(key, CacheEntry(None, error, self.context.clock() + self.negative_s))
            raise

    async def _fetch(self, event: Event, key: str) -> object:
        result = await self.inner(event)
        is_negative = self._negative.asks_results and self._negative.holds_for_result(result)
        fresh_s = self.negative_s if is_negative else self.ttl_s
        if fresh_s > 0.0:
            self._shelf.put(key, CacheEntry(result, None, self.context.clock() + fresh_s))
        return result

    def _renew(self, event: Event, key: str) -> None:
        """A renewal that fails leaves the stale answer where it is."""
        if key not in self._renewing:
            self._renewing.add(key)
            task = self.context.tasks.start(self._fetch(event, key))
            task.add_done_callback(lambda _: self._renewing.discard(key))


# Aside cache: answer at once with what is there, and fetch behind the caller's back.
#
# The caller never waits for the dependency: it gets the last answer of its key, or `NotCached`. Every look starts a
# fetch in the background, unless one is under way (`shares=False` starts one all the same). For answers that may be old
# but must be quick.


@dataclass
class AsideCache(Stage):
    """At most `capacity` answers; one older than `ttl_s` is not given any more."""

    capacity: int = 1_000
    ttl_s: float = float("inf")
    shares: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(self, capacity=limits.ONE_OR_MORE, ttl_s=limits.ABOVE_ZERO)

    def start(self) -> None:
        self._shelf = Shelf(self.capacity)
        self._fetching: set[str] = set()

    @property
    def needs_key(self) -> bool:
        return True

    def admit(self, event: Event) -> None:
        if event.key is None:
            raise KeyMissing(self.name)

    async def work(self, event: Event) -> object:
        key = event.key or ""
        entry = self._shelf.get(key)
        if not self.shares:
            self.context.tasks.start(self._fetch(event.again(), key))
        elif key not in self._fetching:
            self._fetching.add(key)
            task = self.context.tasks.start(self._fetch(event.again(), key))
            task.add_done_callback(lambda _: self._fetching.discard(key))
        if entry is None or self.context.clock() > entry.fresh_until:
            raise NotCached(self.name)
        return entry.result

    async def _fetch(self, event: Event, key: str) -> None:
        result = await self.inner(event)
        self._shelf.put(key, CacheEntry(result, None, self.context.clock() + self.ttl_s))


# Single-flight: many who ask for the same at the same time share one call.
#
# When a hot key leaves a cache, everyone misses at once and asks the dependency for the same answer (a stampede). Here
# the first one's question is asked in a task of its own, and all of the same key wait for it: one call, one answer or
# one exception for all. Who gives up leaves the others alone; when the last one gives up, the call is cancelled.


@dataclass
class _Flight:
    task: "asyncio.Task[object]"
    waiting: int = 0


@dataclass
class SingleFlight(Stage):
    """By the event's key."""

    def start(self) -> None:
        self._flights: dict[str, _Flight] = {}

    @property
    def needs_key(self) -> bool:
        return True

    def admit(self, event: Event) -> None:
        if event.key is None:
            raise KeyMissing(self.name)

    async def work(self, event: Event) -> object:
        key = event.key or ""
        flight = self._flights.get(key) or self._depart(event, key)
        flight.waiting += 1
        try:
            await asyncio.wait((flight.task,))
            return flight.task.result()
        finally:
            flight.waiting -= 1
            if flight.waiting == 0:
                flight.task.cancel()
                self._land(key, flight)

    def _depart(self, event: Event, key: str) -> _Flight:
        flight = _Flight(self.ask(event.again()))
        self._flights[key] = flight
        flight.task.add_done_callback(lambda _: self._land(key, flight))
        return flight

    def _land(self, key: str, flight: _Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
