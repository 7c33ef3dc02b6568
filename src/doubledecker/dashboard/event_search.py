"""Looking for events: those that were accepted last, and one of them with all that is known of it.

A token that may search or read streams may see any event that is within its limits, and of reserved topics those
about itself. What waits for a receiver is its owner's to see.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from doubledecker.bus.pipeline_jobs import asked_erasures
from doubledecker.dashboard.bus_view import BusView
from doubledecker.errors import BadRequest, LakeUnfit, ReadTooLarge
from doubledecker.model import moment, uid
from doubledecker.model.erasure import Erasure
from doubledecker.model.event import AcceptedEvent
from doubledecker.model.position import Position
from doubledecker.model.reserved import audience, is_reserved, is_within
from doubledecker.model.token import ROOT_NAME, Caller
from doubledecker.store import journal, locate, pipeline_jobs
from doubledecker.store.journal import KeptEntry
from doubledecker.store.partitions import Partition
from doubledecker.store.pipeline_jobs import REPLAYS

if TYPE_CHECKING:
    from doubledecker.lake.reads import ReadContext

# Of one page: some megabytes of the journal, looked through within a tenth of a second.
_PAGES_MAX = 8
# How long what waits is looked through, while its viewer waits too.
_PLACES_S = 2.0
_NEAR_MS = 60_000
_EVER_MS = 2**50
_decode = msgspec.json.Decoder(AcceptedEvent).decode

Ground = Callable[[], Awaitable["ReadContext | None"]]


class EventPlace(NamedTuple):
    """Where an event stands among all; the greatest is the newest."""

    ms: int
    seq: int
    partition: int
    line: int

    def __str__(self) -> str:
        return "-".join(map(str, self))

    @property
    def entry(self) -> str:
        return f"{self.ms}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> "EventPlace":
        """From the address of a page; raises BadRequest."""
        numbers = text.split("-")
        if len(numbers) != len(cls._fields) or not all(each.isascii() and each.isdigit() for each in numbers):
            raise BadRequest(f"before is {text[:80]!r}; it must be as the page before has it")
        if any(len(each) > len(str(_EVER_MS)) for each in numbers):
            raise BadRequest("before is too great")
        return cls(*map(int, numbers))


@dataclass(frozen=True)
class EventsWanted:
    """Which events are wanted: of this caller, with all that is given."""

    caller: Caller
    topic: str = ""
    tenant: str = ""
    type: str = ""

    def fits(self, event: AcceptedEvent, publisher: str) -> bool:
        pairs = ((self.topic, event.topic), (self.tenant, event.tenant), (self.type, event.type))
        return all(wanted in {"", seen} for wanted, seen in pairs) and may_see(
            self.caller, event.topic, event.tenant, publisher
        )


@dataclass(frozen=True)
class EventRow:
    """An event of the journal, and where it stands."""

    place: EventPlace
    event: AcceptedEvent
    publisher: str
    size: int


@dataclass(frozen=True)
class RecentEvents:
    """Events, newest first; older ones are before `before`, if it is not None."""

    rows: Sequence[EventRow]
    before: EventPlace | None


@dataclass(frozen=True)
class KnownEvent:
    """One event as it was accepted, and where it is kept."""

    at_ms: int
    place: EventPlace
    publisher: str
    fields: Mapping[str, object]
    has_landed: bool

    @property
    def topic(self) -> str:
        return str(self.fields["topic"])

    @property
    def tenant(self) -> str:
        return str(self.fields["tenant"])


@dataclass(frozen=True)
class WaitingPlace:
    """Where an event waits or lies: a batch, a queue, the dead letters of a receiver."""

    kind: str
    receiver: str
    id: str
    attempts: int
    why: str


@dataclass(frozen=True)
class EventLife:
    """All that is known of an event, but for its attempts; `is_whole` says that all that waits was looked through."""

    accepted: Sequence[KnownEvent]
    waiting: Sequence[WaitingPlace] = ()
    replays: Sequence[Mapping[str, object]] = ()
    is_whole: bool = True
    reads_lake: bool = False
    has_archive: bool = False
    problem: str = ""


def may_see(caller: Caller, topic: str, tenant: str, publisher: str) -> bool:
    """Whether a caller may see an event."""
    is_own = not is_reserved(topic) or caller.id in {audience(publisher), ROOT_NAME}
    return is_own and is_within(caller.scopes, topic, tenant)


@dataclass
class EventSearch:
    """Looks for events: a few looks of a process at a time, and one of a client, so that others have theirs."""

    bus: BusView
    ground: Ground
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    # A lock lives for as long as a look holds it or waits for it.
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    async def newest(self, wanted: EventsWanted, *, before: EventPlace | None, limit: int) -> RecentEvents:
        """The newest of the journals that are wanted, as far as one page may look."""
        async with self._lock(wanted.caller), self._slots:
            erasures = await asked_erasures(self.bus.partitions.home)
            looked = [await _look_back(each, wanted, erasures, before, limit) for each in self.bus.partitions.all]
        floors = [floor for _, floor in looked if floor is not None]
        horizon = max(floors, default=None)
        rows = [row for found, _ in looked for row in found if horizon is None or row.place >= horizon]
        rows.sort(key=lambda row: row.place, reverse=True)
        last = rows[limit - 1].place if len(rows) > limit else horizon
        return RecentEvents(rows[:limit], last)

    async def life(self, id_: str, caller: Caller) -> EventLife:
        """What is known of the events with an id that a caller may see."""
        async with self._lock(caller), self._slots:
            ground, problem = await self.ground(), ""
            accepted: list[KnownEvent] | None = None
            if ground is not None:
                try:
                    accepted = await _in_lake(ground, id_)
                except (LakeUnfit, ReadTooLarge):
                    problem = "The lake cannot be read just now; what it has of this event is not shown."
            if accepted is None:
                accepted = await self._in_journal(id_)
            states = [await journal.state(each) for each in self.bus.partitions.all]
            marked = [_marked(each, states) for each in accepted]
            mine = [each for each in marked if may_see(caller, each.topic, each.tenant, each.publisher)]
            reads_lake = ground is not None
            has_archive = any("archive" in state for state in states)
            if not mine:
                return EventLife([], reads_lake=reads_lake, has_archive=has_archive, problem=problem)
            waiting, is_whole = await self._waiting(id_, caller)
            replays = await self._replays(mine, caller) if reads_lake else []
        return EventLife(mine, waiting, replays, is_whole, reads_lake, has_archive, problem)

    def _lock(self, caller: Caller) -> asyncio.Lock:
        return self._locks.setdefault(caller.id, asyncio.Lock())

    async def _in_journal(self, id_: str) -> list[KnownEvent]:
        made_at = uid.made_at(id_)
        span = (0, _EVER_MS) if made_at is None else (max(0, made_at - _NEAR_MS), made_at + _NEAR_MS)
        erasures = await asked_erasures(self.bus.partitions.home)
        found: list[KnownEvent] = []
        for partition in self.bus.partitions.all:
            looked = await journal.find_events(partition, [id_], from_ms=span[0], upto_ms=span[1])
            for each in looked.events:
                if not _is_erased(each.event, each.entry.ms, erasures):
                    place = EventPlace(each.entry.ms, each.entry.seq, partition.index, 0)
                    fields = {"tenant": each.event.tenant, **msgspec.json.decode(msgspec.json.encode(each.event))}
                    found.append(KnownEvent(each.entry.ms, place, each.publisher, fields, has_landed=False))
        return found

    async def _waiting(self, id_: str, caller: Caller) -> tuple[list[WaitingPlace], bool]:
        """Where it waits for the caller's receivers, and whether all was looked through."""
        known, found = self.bus.registry.snapshot, []
        try:
            async with asyncio.timeout(_PLACES_S):
                for partition in self.bus.partitions.all:
                    async for each in locate.each_place(partition, id_):
                        is_queue = each.kind == "queue" or each.name not in known.subscribers
                        receiver = f"@{each.name.removeprefix('@')}" if is_queue else each.name
                        if caller.is_admin or known.owner_of(receiver) == caller.id:
                            found.append(WaitingPlace(each.kind, receiver, each.id, each.attempts, each.why))
        except TimeoutError:
            return found, False
        return found, True

    async def _replays(self, accepted: Sequence[KnownEvent], caller: Caller) -> Sequence[Mapping[str, object]]:
        """The caller's replays that have sent it."""
        from doubledecker.lake import event_history  # noqa: PLC0415 - not there without the extra

        kept = await pipeline_jobs.read_all(self.bus.partitions.home, REPLAYS)
        mine = [each for each in kept if caller.is_admin or each.owner == caller.id]
        rows = [{**each.fields, "at": moment.to_text(moment.from_ms(each.at_ms))} for each in accepted]
        return await event_history.replays(rows, mine)


async def _look_back(
    partition: Partition,
    wanted: EventsWanted,
    erasures: Sequence[Erasure],
    before: EventPlace | None,
    limit: int,
) -> tuple[list[EventRow], EventPlace | None]:
    """What is found in a journal, and the place that was come to; None at its beginning."""
    last = before.entry if before else "+"
    rows: list[EventRow] = []
    floor = None
    for _ in range(_PAGES_MAX):
        some = await journal.page_back(partition, last=last)
        if not some:
            return rows, None
        # In a thread: inflating a megabyte takes some milliseconds.
        found = await asyncio.to_thread(_rows_of, some, partition.index, wanted, erasures)
        rows += [row for row in found if before is None or row.place < before]
        floor = EventPlace(*_ends(some[-1].id), partition.index, 0)
        if len(rows) > limit:
            break
        last = f"({some[-1].id}"
    return rows, floor


def _rows_of(
    entries: Sequence[KeptEntry], partition: int, wanted: EventsWanted, erasures: Sequence[Erasure]
) -> list[EventRow]:
    found = []
    for kept in entries:
        ms, seq = _ends(kept.id)
        number = 0
        for publisher, text in kept.inflated().fields:
            for line in text.split(b"\n"):
                event, number = _decode(line), number + 1
                if wanted.fits(event, publisher) and not _is_erased(event, ms, erasures):
                    found.append(EventRow(EventPlace(ms, seq, partition, number), event, publisher, len(line)))
    return found


def _ends(entry: str) -> tuple[int, int]:
    place = Position.parse(entry)
    return place.ms, place.seq


def _is_erased(event: AcceptedEvent, at_ms: int, erasures: Sequence[Erasure]) -> bool:
    return any(each.means(event.topic, event.tenant, event.key, at_ms=at_ms) for each in erasures)


async def _in_lake(ground: "ReadContext", id_: str) -> list[KnownEvent]:
    """What lake and journal have together."""
    from doubledecker.lake import queries, reads  # noqa: PLC0415 - not there without the extra

    found = []
    for row in await reads.find(ground, queries.event(id_)):
        at_ms = moment.to_ms(moment.parse(str(row["at"])))
        place = EventPlace(*_ends(str(row["entry"])), int(str(row["partition"])), int(str(row["line"])))
        kept = {name: value for name, value in row.items() if value is not None and name not in _NO_FIELDS}
        for name in ("data", "cloudevent"):
            if name in kept:
                kept[name] = json.loads(str(kept[name]))
        found.append(KnownEvent(at_ms, place, str(row["publisher"]), kept, has_landed=False))
    return found


# Of a row of the lake: where it is, and what is no part of the event.
_NO_FIELDS = frozenset({"at", "entry", "partition", "line", "publisher", "date", "bytes"})


def _marked(found: KnownEvent, states: Sequence[Mapping[str, str]]) -> KnownEvent:
    """The same, with whether the archive has confirmed that it has it."""
    confirmed = states[found.place.partition].get("events_confirmed", "0-0")
    return replace(found, has_landed=_ends(confirmed) >= found.place[:2])
