"""Reads over lake and journal together: what has landed from the table, what has not from the bus, nothing twice.

1. The journal says up to where it was trimmed and where it ends.
2. The newest version of the table says how far it has come. The journal's part begins right after.
3. The journal's part is read first. It is short-lived: when landing goes on meanwhile, it may be trimmed beyond the
   version's mark, and then all begins again with a newer version. A reader never holds the journal.
4. The files of the version are read. They stay, unless an erasure deletes them; then all begins again as well.

A read of too many files is refused, or, where a part is of use, ends before them and says so.

The bus trims only what the table has, or what its bound forces it to: the version was opened after 1, so what it does
not have and what was trimmed by then is a gap, which the bus has recorded, and not to be found anywhere.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from duckdb import DuckDBPyConnection
from msgspec import json

from doubledecker.errors import JournalTrimmed, LakeMoved, LakeUnfit, ReadTooLarge
from doubledecker.lake import engine, journals, rows, snapshots
from doubledecker.lake.queries import Found, Query, Row
from doubledecker.lake.snapshots import TableSnapshot
from doubledecker.model import moment
from doubledecker.model.erasure import Erasure
from doubledecker.model.position import Position
from doubledecker.store import journal
from doubledecker.store.journal import Extent, JournalEntry
from doubledecker.store.partitions import Partition, Partitions

# Landing commits every few seconds, and each try begins further on.
_TRIES = 10
# Reads of one process at a time; each has two threads.
_READS_MAX = 2
# Opening a file costs about 0.3 ms.
_FILES_MAX = 5_000
# Of what is searched row by row: about five million rows, read in two seconds on two cores.
_BYTES_MAX = 268_435_456
# Of the first part of a read that goes as far as it can; each has twice as many as the one before. When one takes too
# long, what the others found is there.
_PART_BYTES = 8_388_608

Reader = Callable[[TableSnapshot, Query, Sequence[Erasure]], Awaitable[Found]]


@dataclass(frozen=True)
class ReadContext:
    """Where to look, and how many reads a process does at a time."""

    root: str
    bus: Partitions
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_READS_MAX))


@dataclass(frozen=True)
class Looked:
    """The rows that were found, and from when on files were not read; None when all were."""

    found: Found
    until: datetime | None = None


_Read = Callable[["_Look", TableSnapshot, Sequence[Erasure]], Awaitable[Looked]]


async def find(ground: ReadContext, query: Query, *, reader: Reader | None = None) -> Found:
    """The first rows that fit, by time; of events, those that were not erased.

    Files are read by `reader`, such as Spark, or here; then ReadTooLarge is raised when they are too many for that.
    """
    return (await _try(ground, query, _by(reader) if reader else _Look.read_few)).found


async def find_far(ground: ReadContext, query: Query, *, reader: Reader | None = None) -> Looked:
    """The same, but files that are too many to be read here are read from the earliest on, as far as the bounds go."""
    return await _try(ground, query, _by(reader) if reader else _Look.read_far)


def erased(root: str) -> Sequence[Erasure]:
    """All tombstones: what was erased, wherever it still is."""
    with engine.opened() as connection:
        return engine.do(connection, partial(_select_erased, root))


def _select_erased(root: str, connection: DuckDBPyConnection) -> Sequence[Erasure]:
    stones = snapshots.read(root, "erasures", partitions=0)
    return engine.select_erased(connection, stones.paths())


async def _try(ground: ReadContext, query: Query, read: _Read) -> Looked:
    async with ground.slots:
        with engine.opened() as connection:
            look = _Look(ground, query, connection)
            for left in reversed(range(_TRIES)):
                try:
                    return await look.once(read)
                except (JournalTrimmed, LakeMoved) as error:
                    if not left:
                        raise LakeUnfit(f"the lake cannot be read, tried {_TRIES} times: {error}") from error
    raise AssertionError("the last try returns or raises")


def _by(reader: Reader) -> _Read:
    async def read(look: "_Look", snapshot: TableSnapshot, erased: Sequence[Erasure]) -> Looked:
        return Looked(await reader(snapshot, look.query, erased))

    return read


@dataclass(frozen=True)
class _Look:
    """One read, with a DuckDB of its own."""

    ground: ReadContext
    query: Query
    connection: DuckDBPyConnection

    async def once(self, read: _Read) -> Looked:
        """Read journal and table as they are now; raises when they change meanwhile."""
        bus, query, root = self.ground.bus, self.query, self.ground.root
        reach = {part.index: await journal.read_extent(part, query.name) for part in bus.all}
        snapshot = await asyncio.to_thread(snapshots.read, root, query.name, partitions=len(bus.all))
        erased = await engine.run(self.connection, partial(_select_erased, root)) if query.name == "events" else []
        fresh: Found = []
        for part in bus.all:
            fresh += await self._read_journal(part, reach[part.index], snapshot.reached[part.index], erased)
        landed = await read(self, snapshot, erased)
        return Looked(sorted(landed.found + fresh, key=_place)[: query.limit], landed.until)

    async def read_few(self, snapshot: TableSnapshot, erased: Sequence[Erasure]) -> Looked:
        """Read the files of a version, if they are few enough.

        An id that contains its time is looked for in the files of that time first. The bus makes such an id once; a
        publisher may bring one of any time, so the other files are read as well, as long as they are few enough.
        """
        chosen = self._choose(snapshot)
        near = chosen.between(*self.query.near) if self.query.near else chosen
        found = await self._read_all(near, erased)
        rest = chosen.without(near)
        if found and _is_too_large(rest, self.query):
            return Looked(found)
        return Looked(found + await self._read_all(rest, erased))

    async def read_far(self, snapshot: TableSnapshot, erased: Sequence[Erasure]) -> Looked:
        """Read the files of a version by time, in growing parts, until they are too many or take too long."""
        chosen = self._choose(snapshot).by_time()
        near = chosen.first(files=_FILES_MAX, bytes_=_BYTES_MAX)
        found: Found = []
        for part in near.parts(_PART_BYTES):
            try:
                found += await self._read_files(part, erased)
            except ReadTooLarge:
                return Looked(found, self._begin(part))
        rest = chosen.without(near)
        return Looked(found, self._begin(rest) if rest.files else None)

    def _begin(self, unread: TableSnapshot) -> datetime:
        return max(unread.begin, self.query.since) if self.query.since else unread.begin

    def _choose(self, snapshot: TableSnapshot) -> TableSnapshot:
        """The files that the log alone does not rule out."""
        if "://" in snapshot.uri:
            raise ReadTooLarge("the lake is not a folder")
        return snapshot.between(self.query.since, self.query.until).of_topic(self.query.topic)

    async def _read_all(self, chosen: TableSnapshot, erased: Sequence[Erasure]) -> Found:
        if _is_too_large(chosen, self.query):
            raise ReadTooLarge(f"it touches {len(chosen.files):,} files of {chosen.bytes // 1_048_576:,} MiB")
        return await self._read_files(chosen, erased)

    async def _read_files(self, chosen: TableSnapshot, erased: Sequence[Erasure]) -> Found:
        select = partial(engine.select_files, paths=chosen.paths(), query=self.query, erased=erased)
        return await engine.run(self.connection, select)

    async def _read_journal(
        self, partition: Partition, extent: Extent, reached: Position, erased: Sequence[Erasure]
    ) -> Found:
        """What a journal has beyond what has landed; it is in order, so the first rows that fit are enough."""
        query = self.query
        after, upto = max(reached, Position.parse(extent.cut)), Position.parse(extent.last)
        if query.since is not None:
            after = max(after, Position(max(0, moment.to_ms(query.since)), 0).before)
        if query.until is not None:
            upto = min(upto, Position(max(0, moment.to_ms(query.until)) + 1, 0).before)
        found: Found = []
        async for entries in journals.walk(partition, query.name, after=after, upto=upto):
            likely = [entry for entry in entries if _may_have(entry, query.id)]
            if likely:
                found += await engine.run(self.connection, partial(_select_entries, likely, partition, query, erased))
            if len(found) >= query.limit:
                break
        return found


def _select_entries(
    entries: Sequence[JournalEntry],
    partition: Partition,
    query: Query,
    erased: Sequence[Erasure],
    connection: DuckDBPyConnection,
) -> Found:
    columns = rows.to_columns(rows.layout(query.name), entries, partition=partition.index)
    return engine.select_rows(connection, columns, query, erased)


def _is_too_large(chosen: TableSnapshot, query: Query) -> bool:
    # An id is found by the Bloom filters of the files, whatever their size.
    is_by_id = query.name == "events" and query.id
    return len(chosen.files) > _FILES_MAX or (not is_by_id and chosen.bytes > _BYTES_MAX)


def _place(row: Row) -> tuple[str, int, int, int]:
    """Where a row stands among others, as the bus accepted them."""
    number = Position.parse(str(row["entry"])).seq
    return str(row["at"]), int(str(row["partition"])), number, int(str(row["line"]))


def _may_have(entry: JournalEntry, id_: str) -> bool:
    """Whether an id can be in an entry, by its bytes: most entries are passed over without being parsed."""
    sign = json.encode(id_)[1:-1]
    return not id_ or any(sign in value for _, value in entry.fields)
