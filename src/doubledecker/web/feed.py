"""The feed: what is published, read once from the journal by each web process, and handed to all who listen to it.

One follower a partition waits for the journal's next entries, while anyone listens. An event is looked at once, its
frame is made once, and put into the buffer of each listener whose pattern matches: so what an event costs grows with
its listeners, and Redis is read no more often for many listeners than for one. A listener whose buffer is full is
dropped: the feed waits for nobody.

A listener joins at the feed's own position. One that wants what is older reads that by itself first (web/catch_up.py).
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from doubledecker.errors import BusAway, TooMany
from doubledecker.model import position, reserved
from doubledecker.model.event import DEFAULT_TENANT
from doubledecker.model.position import Position
from doubledecker.store import journal
from doubledecker.store.journal import JournalEntry, KeptEntry, Page
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.web import sse
from doubledecker.web.sse import Gap, Listener, Reason
from doubledecker.web.turns import Turns

# Entries in one read; each is at most a publish call's worth, some milliseconds of this process's time.
_PAGE = 16
# After an absence of Redis: soon enough to heal, slow enough not to spin.
_PAUSE_S = 0.2
# How long one who wants to listen waits for the followers to wake.
_WAKE_S = 2.0
# Routing keys whose listeners are remembered.
_KEYS_MAX = 10_000


class _Routed(msgspec.Struct):
    """What is read of a line of the journal: no more than its routing key."""

    topic: str
    type: str
    tenant: str = DEFAULT_TENANT


_ROUTED = msgspec.json.Decoder(_Routed)


def routing_key(line: bytes) -> str:
    """The routing key of a journaled event."""
    routed = _ROUTED.decode(line)
    return f"{routed.tenant}:{routed.topic}:{routed.type}"


def lines_of(entry: JournalEntry) -> list[bytes]:
    """An entry's events, in the order in which places count them."""
    return [line for _, value in entry.fields for line in value.split(b"\n")]


def owner_of(entry: JournalEntry, number: int, key: str) -> str | None:
    """The one client that may see an entry's event, given its number and routing key; None for all."""
    if not reserved.is_reserved(key.split(":")[1]):
        return None
    for publisher, value in entry.fields:
        number -= value.count(b"\n") + 1
        if number <= 0:
            return reserved.audience(publisher)
    raise AssertionError("an entry has as many events as it has lines")


def missing(place: Position, page: Page[KeptEntry]) -> Position | None:
    """Up to where events that follow a place are missing from the page read after it; None when none are."""
    trimmed = Position.after(page.trimmed)
    is_cut = trimmed > place and (not page.entries or Position.after(page.entries[0].id) > trimmed)
    return trimmed if is_cut else None


class Feed:
    """Follows the journals of all partitions, while anyone listens."""

    def __init__(self, partitions: Partitions, *, listeners_max: int) -> None:
        self._partitions = partitions
        self._listeners_max = listeners_max
        self._places: list[Position | None] = [None] * len(partitions.all)
        self._attached: set[Listener] = set()
        self._by_key: dict[str, tuple[Listener, ...]] = {}
        self._holds = 0
        self._is_wanted = asyncio.Event()
        self._has_moved = asyncio.Event()
        self.listeners: set[Listener] = set()
        self.is_stopping = False
        # Of those who read the past: what they read from Redis, and what they make of it.
        self.reads, self.turns = Turns(), Turns()

    @property
    def places(self) -> list[Position]:
        """How far it has read; only while it is held and awake."""
        places = [place for place in self._places if place is not None]
        assert len(places) == len(self._places), "the feed is asleep"
        return places

    def check_room(self) -> None:
        """Raise TooMany when no further listener is served."""
        if len(self.listeners) >= self._listeners_max:
            raise TooMany(f"{len(self.listeners)} streams are open; this process serves at most {self._listeners_max}")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the feed awake while the block runs."""
        self._holds += 1
        self._is_wanted.set()
        try:
            yield
        finally:
            self._holds -= 1
            if self._holds == 0:
                self._is_wanted.clear()

    @contextmanager
    def registered(self, listener: Listener) -> Iterator[None]:
        """Count a listener while the block runs; it gets nothing before it is attached."""
        self.listeners.add(listener)
        if self.is_stopping:
            listener.stop()
        try:
            with self.held():
                yield
        finally:
            self.listeners.discard(listener)
            self._attached.discard(listener)
            self._by_key.clear()

    def attach(self, listener: Listener) -> None:
        """Send a listener what is published from here on, starting right after the feed's places."""
        self._attached.add(listener)
        self._by_key.clear()

    async def until_at(self, wanted: Sequence[Position] = ()) -> None:
        """Wait until every follower is awake, and has come at least this far; raises BusAway when that takes long."""
        try:
            async with asyncio.timeout(_WAKE_S):
                while not self._is_at(wanted):
                    await self._has_moved.wait()
        except TimeoutError as error:
            why = "the journal could not be read in time"
            raise BusAway(why, detail=why) from error

    def stop(self) -> None:
        """End all streams, and every one that is opened from now on."""
        self.is_stopping = True
        for listener in self.listeners:
            listener.stop()

    async def run(self) -> None:
        """Follow for as long as the process lives."""
        async with asyncio.TaskGroup() as tasks:
            for partition in self._partitions.all:
                tasks.create_task(self._follow(partition))

    def _is_at(self, wanted: Sequence[Position]) -> bool:
        if any(place is None for place in self._places):
            return False
        return not wanted or all(here >= there for here, there in zip(self.places, wanted, strict=True))

    async def _follow(self, partition: Partition) -> None:
        while True:
            if not self._is_wanted.is_set():
                # The listener that wakes it starts from the journal's end at that time.
                self._places[partition.index] = None
                await self._is_wanted.wait()
            try:
                await self._step(partition)
            except BusAway:
                await asyncio.sleep(_PAUSE_S)

    async def _step(self, partition: Partition) -> None:
        place = self._places[partition.index]
        if place is None:
            _, last = await journal.ends(partition)
            self._move(partition, Position.after(last))
            return
        page = await journal.next_page(partition, after=place.entry_id, count=_PAGE)
        if not self._is_wanted.is_set():
            return
        cut = missing(place, page)
        if cut is not None:
            self._move(partition, cut)
            self._tell_gap(Gap(partition.index, place, cut))
        for kept in page.entries:
            # In one go: a listener that attaches itself finds the feed before or after an entry, never inside.
            self._hand_out(partition, kept)
            self._move(partition, Position.after(kept.id))
            await asyncio.sleep(0)

    def _move(self, partition: Partition, place: Position) -> None:
        self._places[partition.index] = place
        moved, self._has_moved = self._has_moved, asyncio.Event()
        moved.set()

    def _hand_out(self, partition: Partition, kept: KeptEntry) -> None:
        if not self._attached:
            return
        entry = kept.inflated()
        lines = lines_of(entry)
        at = position.within(self.places, partition.index, kept.id, len(lines))
        for number, line in enumerate(lines, 1):
            key = routing_key(line)
            listeners = self._listeners_of(key)
            if listeners:
                frame, owner = sse.event(at(number), line), owner_of(entry, number, key)
                for listener in listeners:
                    if owner is None or listener.may_see(owner):
                        listener.push(frame)

    def _listeners_of(self, key: str) -> tuple[Listener, ...]:
        found = self._by_key.get(key)
        if found is None:
            found = tuple(listener for listener in self._attached if listener.wants(key))
            if len(self._by_key) < _KEYS_MAX:
                self._by_key[key] = found
        return found

    def _tell_gap(self, gap: Gap) -> None:
        frame = sse.gap(position.render(self.places), gap)
        for listener in self._attached:
            if listener.is_strict:
                listener.drop(Reason.GAP)
            else:
                listener.push(frame)
