"""`POST /filters/test`: which events a filter fits, and why not the others, before anybody depends on it.

The events are those of the request, or recent ones: those of the journal that the client could read as a stream.
Nothing is written. Reading and checking take turns, a piece at a time (web/turns.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from doubledecker import clock
from doubledecker.errors import BadRequest
from doubledecker.model import event as parsing
from doubledecker.model import filter_syntax, quota, schema, topic_glob
from doubledecker.model.event import AcceptedEvent, EventLimits, Name, Offered, Tenant, TopicName
from doubledecker.model.event_filter import EventFacts, EventFilter, why_not
from doubledecker.model.filter_syntax import FilterWanted
from doubledecker.model.matching import PatternSet, check_pattern
from doubledecker.model.queue import PATTERNS_MAX
from doubledecker.model.reserved import is_within
from doubledecker.model.schema import Count, Shape, up_to
from doubledecker.model.subscriber import TOPICS_MAX
from doubledecker.model.token import ROOT_NAME, Caller
from doubledecker.model.topic_glob import TopicOrGlob
from doubledecker.store import journal
from doubledecker.store.journal import JournalEntry
from doubledecker.store.partitions import Partitions
from doubledecker.web import body as bodies
from doubledecker.web import shapes
from doubledecker.web.body import BodyLimits
from doubledecker.web.feed import lines_of, owner_of, routing_key
from doubledecker.web.turns import Turns

# Of a request, and of the recent events: as many as a page of a screen or two shows.
EVENTS_MAX = 100
# Of the newest entries of each partition's journal; an entry may have a megabyte.
_ENTRIES_MAX = 20
_READ_BYTES_MAX = 2_097_152
# Checked in one turn: each takes up to a millisecond.
_PIECE = 5

_RecentCount = Annotated[int, schema.between(1, EVENTS_MAX, "Without `events`: how many recent ones are tested")]


class FilterTestBody(msgspec.Struct, forbid_unknown_fields=True):
    """What a receiver would ask for, and events to try it on, as they would be published; or recent ones."""

    filter: FilterWanted | None = None
    topics: Annotated[list[TopicOrGlob], up_to(TOPICS_MAX, "As a subscription has them")] | None = None
    patterns: Annotated[list[str], up_to(PATTERNS_MAX, "As a queue has them")] | None = None
    events: Annotated[list[Offered], up_to(EVENTS_MAX)] | None = None
    limit: _RecentCount = 20


class TriedEvent(Shape):
    """Whether an event fits; of one in the request that has no id, the id is its index there."""

    id: str
    topic: TopicName
    type: Name
    tenant: Tenant
    fits: bool
    why: Annotated[str, Meta(description="What does not fit first, with what was seen and wanted; empty if it fits")]


class FilterTested(Shape):
    """What became of the events: those of the request in its order, recent ones with the newest first."""

    events: list[TriedEvent]
    fitting: Count
    steps: Annotated[Count, Meta(description="What the filter counts for `client_filter_steps_max`, alone")]


_BODY = msgspec.json.Decoder(FilterTestBody)
_EVENT = msgspec.json.Decoder(AcceptedEvent)


@dataclass(frozen=True)
class _Tried:
    """An event to try a filter on, as it is or would be stored."""

    event: AcceptedEvent
    message: bytes


@dataclass(frozen=True)
class _Wanted:
    """What a receiver would ask for; None is no bound."""

    filter: EventFilter | None
    topics: tuple[str, ...] | None
    patterns: PatternSet | None

    def why_not(self, tried: _Tried) -> str:
        """What does not fit first; empty if all does."""
        event = tried.event
        key = f"{event.tenant}:{event.topic}:{event.type}"
        if self.topics is not None and not topic_glob.cover(self.topics, event.topic):
            return f"no topic or glob has {event.topic!r}"
        if self.patterns is not None and not self.patterns.match(key):
            return f"no pattern matches {key!r}"
        return "" if self.filter is None else why_not(self.filter, EventFacts(event.kind, event.key, tried.message))


class FilterRoutes:
    """Tries filters; one piece of work at a time, each client's in turn."""

    def __init__(self, partitions: Partitions, body: BodyLimits, limits: EventLimits) -> None:
        self._partitions = partitions
        self._body = body
        self._limits = limits
        self._turns = Turns()

    async def test(self, request: Request, caller: Caller) -> Response:
        """Try a filter on events, or on recent ones of the journal, and say why which do not fit."""
        asked = schema.decode(_BODY, await bodies.read(request.scope, request.receive, self._body), what="a test")
        schema.check(asked)
        wanted = await self._wanted(asked, caller)
        if asked.events is None:
            tried = await self._recent(caller, asked.limit)
        else:
            tried = await self._given(caller, asked.events)
        tested: list[TriedEvent] = []
        for first in range(0, len(tried), _PIECE):
            async with self._turns.taken(caller.id):
                tested += [_tested(wanted, each) for each in tried[first : first + _PIECE]]
        fitting = sum(each.fits for each in tested)
        return shapes.json(
            FilterTested(tested, fitting, quota.filter_steps([] if wanted.filter is None else [wanted.filter]))
        )

    async def _wanted(self, asked: FilterTestBody, caller: Caller) -> _Wanted:
        if asked.filter is None and asked.topics is None and asked.patterns is None:
            raise BadRequest("there is no filter; give a filter, topics or patterns")
        for name in asked.topics or ():
            topic_glob.check(name)
        if asked.patterns is not None and not 1 <= len(asked.patterns) <= PATTERNS_MAX:
            raise BadRequest(f"{len(asked.patterns)} patterns; a queue has from 1 to {PATTERNS_MAX}")
        for pattern in asked.patterns or ():
            async with self._turns.taken(caller.id):
                check_pattern(pattern)
        return _Wanted(
            None if asked.filter is None else filter_syntax.parse(asked.filter),
            None if asked.topics is None else tuple(asked.topics),
            None if asked.patterns is None else PatternSet(asked.patterns),
        )

    async def _given(self, caller: Caller, offered: Sequence[Offered]) -> list[_Tried]:
        if len(offered) > EVENTS_MAX:
            raise BadRequest(f"{len(offered)} events; at most {EVENTS_MAX} are tested at a time")
        tried: list[_Tried] = []
        for first in range(0, len(offered), _PIECE):
            async with self._turns.taken(caller.id):
                tried += [
                    self._accepted(index, each) for index, each in enumerate(offered[first : first + _PIECE], first)
                ]
        return tried

    def _accepted(self, index: int, offered: Offered) -> _Tried:
        try:
            event = parsing.accept(offered, id_=str(index), now_ms=clock.now_ms(), limits=self._limits)
        except BadRequest as error:
            raise BadRequest(f"event {index}: {error.detail}") from error
        return _Tried(event, parsing.encode(event))

    async def _recent(self, caller: Caller, limit: int) -> list[_Tried]:
        """The newest events that a client may read, over all partitions."""
        found: list[tuple[str, _Tried]] = []
        for partition in self._partitions.all:
            left, size, before = limit, 0, "+"
            for _ in range(_ENTRIES_MAX):
                async with self._turns.taken(caller.id):
                    entry = await journal.newest(partition, before=before)
                    lines = [] if entry is None else list(_readable(entry, caller))[-left:]
                    size += 0 if entry is None else sum(len(value) for _, value in entry.fields)
                    found += [(entry.id, _Tried(_EVENT.decode(line), line)) for line in reversed(lines) if entry]
                left -= len(lines)
                if entry is None or left == 0 or size > _READ_BYTES_MAX:
                    break
                before = f"({entry.id}"
        found.sort(key=lambda pair: int(pair[0].partition("-")[0]), reverse=True)
        return [tried for _, tried in found[:limit]]


def _readable(entry: JournalEntry, caller: Caller) -> Iterator[bytes]:
    """The events of an entry that a client may read: of reserved topics, those that concern itself."""
    for number, line in enumerate(lines_of(entry), 1):
        key = routing_key(line)
        tenant, topic, _ = key.split(":")
        if not is_within(caller.scopes, topic, tenant):
            continue
        owner = owner_of(entry, number, key)
        if owner is None or caller.id in {owner, ROOT_NAME}:
            yield line


def _tested(wanted: _Wanted, tried: _Tried) -> TriedEvent:
    event = tried.event
    why = wanted.why_not(tried)
    return TriedEvent(event.id, event.topic, event.type, event.tenant, not why, why)
