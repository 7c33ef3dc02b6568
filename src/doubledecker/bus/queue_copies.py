"""How many queues of a client one event of another enters, which has a bound.

Future events are not known. So it is tried on recent kinds of events, and on two that only a catch-all matches.
"""

from collections import Counter

from doubledecker.bus.pattern_search import Searcher
from doubledecker.model import quota
from doubledecker.model.event import EventKind
from doubledecker.model.matching import PatternMatcher
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.quota import Quotas
from doubledecker.model.routing import Registry
from doubledecker.model.topic import NOBODYS, TopicRights
from doubledecker.store import registry
from doubledecker.store.partitions import Partitions

# How many recent kinds of events a queue's patterns are tried on, and kinds that only a catch-all matches.
_RECENT_MAX = 200
_PROBES = tuple(EventKind(f"topic_{end}", f"type-{end}", f"tenant-{end}") for end in ("a", "b"))


class QueueCopies:
    """Counts copies by a process's copy of the registry."""

    def __init__(self, partitions: Partitions, snapshot: Registry, searcher: Searcher, quotas: Quotas) -> None:
        self._partitions = partitions
        self._snapshot = snapshot
        self._searcher = searcher
        self._quotas = quotas
        self._last_kinds: dict[EventKind, TopicRights] | None = None

    async def most(self) -> dict[str, int]:
        """The most queues of each client that one event of another client would enter, but for the bound."""
        found: dict[str, int] = {}
        for publisher, queues in await self._matching():
            for owner, count in Counter(queue.owner for queue in queues).items():
                if owner != publisher:
                    found[owner] = max(found.get(owner, 0), count)
        return found

    async def queues_beyond(self) -> dict[str, RegisteredQueue]:
        """The queues that some event of another client does not enter, as its owner has too many that match; by name.

        Registration refuses such queues where it can, so they are from before the bound, or before it was lowered.
        """
        most = self._quotas.client_copies_max
        found: dict[str, RegisteredQueue] = {}
        for publisher, queues in await self._matching() if most else ():
            copies: Counter[str] = Counter()
            for queue in queues:
                copies[queue.owner] += 1
                if copies[queue.owner] > most and queue.owner != publisher:
                    found[queue.name] = queue
        return found

    async def check(self, queue: RegisteredQueue) -> None:
        """Raise QuotaExceeded when some event of another client would be on more queues of this one than is allowed.

        What is not known yet is bounded when it is routed, as queues with filters are.
        """
        most = self._quotas.client_copies_max
        others = (other for other in self._snapshot.queues.values() if other.owner == queue.owner and other.is_counted)
        own = {other.name for other in others} - {queue.name}
        if most == 0 or len(own) < most or not queue.is_counted:
            return
        recent = self._snapshot.recent(_RECENT_MAX)
        kinds = [kind for kind in recent if self._sole_publisher(kind) != queue.owner]
        kinds += _PROBES
        await self._searcher.learn(self._snapshot, kinds)
        matcher = PatternMatcher()
        matcher.put(queue.name, queue.patterns)
        search = matcher.search([kind.routing_key for kind in kinds])
        await self._searcher.run(search)
        matched = [kind for kind, lookup in zip(kinds, search.lookups, strict=True) if lookup.found]
        routes = (self._snapshot.route(kind, "") for kind in matched)
        copies = max((sum(each.name in own for each in (*route.queues, *route.skipped)) for route in routes), default=0)
        quota.check_copies(self._quotas, copies + 1)

    async def _matching(self) -> list[tuple[str, list[RegisteredQueue]]]:
        """Publishers of some kinds of events, with the clients' queues that match, by name.

        Of some topics it takes the last kinds when this process began too.
        """
        if all(queue.is_roots for queue in self._snapshot.queues.values()):
            return []
        if self._last_kinds is None:
            self._last_kinds = await registry.last_kinds(self._partitions, _RECENT_MAX)
        recent = {kind: self._sole_publisher(kind) for kind in self._snapshot.recent(_RECENT_MAX)}
        last = {kind: _sole(rights) for kind, rights in self._last_kinds.items()}
        publishers = {**recent, **last, **dict.fromkeys(_PROBES, "")}
        await self._searcher.learn(self._snapshot, publishers)
        routes = [(publisher, self._snapshot.route(kind, publisher)) for kind, publisher in publishers.items()]
        return [
            (publisher, sorted((q for q in (*route.queues, *route.skipped) if q.is_counted), key=lambda q: q.name))
            for publisher, route in routes
        ]

    def _sole_publisher(self, kind: EventKind) -> str:
        return _sole(self._snapshot.rights.get(kind.topic, NOBODYS))


def _sole(rights: TopicRights) -> str:
    """The one client that may publish on a topic; empty where several may, each of whom is another to the others."""
    return "" if rights.publishers else rights.owner
