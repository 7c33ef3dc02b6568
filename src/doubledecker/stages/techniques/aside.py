"""Aside cache: answer at once with what is there, and fetch behind the caller's back.

The caller never waits for the dependency: it gets the last answer of its key, or `NotCached`. Every look starts a
fetch in the background, unless one is under way (`shares=False` starts one all the same). For answers that may be old
but must be quick.
"""

from dataclasses import dataclass

from doubledecker.stages import limits
from doubledecker.stages.errors import KeyMissing, NotCached
from doubledecker.stages.event import Event
from doubledecker.stages.stage import Stage
from doubledecker.stages.techniques.cache import CacheEntry, Shelf


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
