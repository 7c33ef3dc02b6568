"""Walking through a range of a journal, some entries at a time."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

from doubledecker.errors import JournalTrimmed
from doubledecker.model.position import Position
from doubledecker.store import journal
from doubledecker.store.journal import JournalEntry, Page
from doubledecker.store.partitions import Partition

# An answer holds about this much. Entries are of one event or of thousands, so the count follows what was seen.
_PAGE_BYTES = 2_097_152
_COUNT_FIRST, _COUNT_MAX = 16, 1_000

Ask = Callable[[], Awaitable[Page[JournalEntry]]]


async def once(ask: Ask) -> Page[JournalEntry]:
    """Ask, and let an absent bus be the caller's problem."""
    return await ask()


async def walk(
    partition: Partition,
    name: str,
    *,
    after: Position,
    upto: Position,
    fails_on_loss: bool = True,
    asks: Callable[[Ask], Awaitable[Page[JournalEntry]]] = once,
) -> AsyncIterator[Sequence[JournalEntry]]:
    """The entries after one id, up to and with another, a bounded number of bytes at a time.

    Raises JournalTrimmed when entries that were not read yet are gone, unless the caller goes on with what is left.
    """
    count = _COUNT_FIRST
    while after < upto:
        page = await asks(partial(journal.range_page, partition, name, after=str(after), upto=str(upto), count=count))
        trimmed = Position.parse(page.trimmed)
        if fails_on_loss and trimmed > after:
            raise JournalTrimmed(lost(partition.index, after, trimmed))
        if not page.entries:
            return
        yield page.entries
        after = Position.parse(page.entries[-1].id)
        count = _next_count(count, page.entries)


def lost(partition: int, after: Position, trimmed: Position) -> str:
    """Why a range cannot be read, and what can."""
    return (
        f"the journal of partition {partition} was to be read after {after}, but is trimmed up to {trimmed}: "
        f"entries in between are gone; start from 'earliest', or set failOnDataLoss to false to go on with what is left"
    )


def _next_count(count: int, entries: Sequence[JournalEntry]) -> int:
    """How many entries to ask for next, so that the answer stays near the size of a page."""
    size = sum(len(value) for entry in entries for _, value in entry.fields)
    fitting = _PAGE_BYTES * len(entries) // max(1, size)
    return max(1, min(fitting, count * 2, _COUNT_MAX))
