"""The past of a stream: the journal from a listener's position on, until it meets the feed.

It is read as fast as the listener takes it, so one that is slow here fills no buffer. Partitions are merged by time, as
well as their servers' clocks agree; the order inside each is exact. It never reads further than the feed has come, and
attaches the listener at the very moment at which both are at the same position: so nothing is missing between past and
present, and nothing comes twice.

Reading takes turns (web/turns.py): a client may open many streams at a place where the journal has large entries.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from doubledecker.errors import BusAway
from doubledecker.model import position
from doubledecker.model.position import Position
from doubledecker.store import journal
from doubledecker.store.journal import JournalEntry, KeptEntry
from doubledecker.store.partitions import Partitions
from doubledecker.web import sse
from doubledecker.web.feed import Feed, lines_of, missing, owner_of, routing_key
from doubledecker.web.sse import Gap, Listener, Reason

# Entries and bytes in one read, of which each listener that reads the past holds one a partition.
_PAGE = 16
_PAGE_BYTES = 16_384
_PAUSE_S = 0.2


class CatchUp:
    """One listener's way from where it was to the present."""

    def __init__(self, partitions: Partitions, feed: Feed, listener: Listener, places: Sequence[Position]) -> None:
        self._partitions = partitions
        self._feed = feed
        self._listener = listener
        self._places = list(places)
        self._pages: list[deque[KeptEntry]] = [deque() for _ in places]
        self._gaps: list[bytes] = []

    async def read(self) -> AsyncIterator[bytes]:
        """Frames, or nothing at all, so that the caller can look up between two; ends with the listener attached."""
        while behind := self._behind():
            for i in behind:
                if not self._pages[i]:
                    await self._fill(i)
            gaps, self._gaps = b"".join(self._gaps), []
            ready = [i for i in behind if self._pages[i]]
            first = min(ready, key=lambda i: Position.after(self._pages[i][0].id), default=None)
            yield gaps + (b"" if first is None else await self._next(first))
        self._feed.attach(self._listener)

    @property
    def position(self) -> str:
        """How far it has come."""
        return position.render(self._places)

    def _behind(self) -> list[int]:
        return [i for i, there in enumerate(self._feed.places) if self._places[i] < there]

    async def _fill(self, i: int) -> None:
        place, upto = self._places[i], self._feed.places[i]
        first = f"({place.entry_id}" if place.is_whole else place.entry_id
        try:
            async with self._feed.reads.taken(self._listener.client):
                page = await journal.page(
                    self._partitions.all[i], first=first, last=upto.entry_id, count=_PAGE, bytes_max=_PAGE_BYTES
                )
        except BusAway:
            await asyncio.sleep(_PAUSE_S)  # it is asked again in the next round
            return
        cut = missing(place, page)
        if cut is not None:
            self._note_gap(Gap(i, place, min(cut, upto)))
        self._pages[i] = deque(page.entries)
        if not page.entries:
            self._places[i] = upto

    def _note_gap(self, gap: Gap) -> None:
        if self._listener.is_strict:
            self._listener.drop(Reason.GAP)
        self._places[gap.partition] = gap.to
        self._gaps.append(sse.gap(self.position, gap))

    async def _next(self, i: int) -> bytes:
        """The frames of a partition's next entry, without the lines that were read already."""
        kept = self._pages[i].popleft()
        async with self._feed.turns.taken(self._listener.client):
            frames = self._frames(i, kept.inflated())
        self._places[i] = Position.after(kept.id)
        return frames

    def _frames(self, i: int, entry: JournalEntry) -> bytes:
        place, lines = self._places[i], lines_of(entry)
        seen = place.lines if place.entry_id == entry.id else 0
        at = position.within(self._places, i, entry.id, len(lines))
        numbered = ((n, line) for n, line in enumerate(lines, 1) if n > seen)
        return b"".join(sse.event(at(n), line) for n, line in numbered if self._is_for_it(entry, n, routing_key(line)))

    def _is_for_it(self, entry: JournalEntry, number: int, key: str) -> bool:
        if not self._listener.wants(key):
            return False
        owner = owner_of(entry, number, key)
        return owner is None or self._listener.may_see(owner)
