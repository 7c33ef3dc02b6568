"""Land: from the journals into the lake, each row once; then the bus may forget.

1. The table says how far it has come, the journal how far it reaches. What lies between is cut into slices.
2. Each task reads a slice and writes it to files of the table, which nobody sees yet.
3. The driver commits all files together with how far the table now reaches.
4. The bus is informed, and trims its journal up to there.

A commit is made when enough waits or has waited long enough (Pace), so that a quiet bus does not make a file and a
commit out of every event.

Whatever dies in between, the next round begins at 1 with what the table says: files without a commit are never seen,
and a commit that the bus does not know of is reported to it again.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.errors import ArchiveTaken, LakeUnfit
from doubledecker.lake import arrow, rows, snapshots
from doubledecker.model import moment
from doubledecker.model.position import Position
from doubledecker.pipeline import session
from doubledecker.pipeline.lake import files, versions
from doubledecker.pipeline.lake.tables import LakeTable, TableSize, WrittenFile
from doubledecker.pipeline.land import journal_reader
from doubledecker.pipeline.land.journal_reader import Access, JournalFill, JournalSlice
from doubledecker.store import journal
from doubledecker.store.journal import Extent

# Less than this is not worth a second task: it would only make more and smaller files.
_SMALL_BYTES = 4_194_304
# One task's work: large enough to be worth its start, small enough to be repeated.
_SLICE_BYTES = 67_108_864
# What one commit takes at most, in slices; the rest comes with the next.
_SLICES_MAX = 64

# At this share of their bound journals land at once.
_FULL_SHARE = 0.5

# The lake's tables by journal, and what their folders are named for.
TABLES = {"events": ("topic", "date"), "attempts": ("date",), "settlements": ("date",), journal.AUDIT: ("date",)}
_INDEXED = {"events": ("id",)}


@dataclass(frozen=True)
class Landed:
    """One round of landing."""

    rows: int
    files: int
    has_more: bool
    from_ms: int
    size: TableSize


def table_of(root: str, name: str) -> LakeTable:
    """Where a journal's rows go."""
    schema = arrow.schema(rows.layout(name)).append(pa.field("date", pa.date32()))
    return LakeTable(f"{root.rstrip('/')}/{name}", schema, TABLES[name], _INDEXED.get(name, ()))


def archive_of(root: str) -> str:
    """How the lake signs to the bus; stays the same for as long as its events table does."""
    return f"lake-{table_of(root, 'events').open().metadata().id}"


async def register(access: Access, root: str, archive: str, *, takes_over: bool) -> None:
    """Become the archive whose word allows trimming; raises ArchiveTaken when the bus has another.

    Raises LakeUnfit when either of both was restored, and what the other has come to since does not fit.
    """
    async with journal_reader.connected(access) as bus:
        for part in bus.all:
            former = (await journal.state(part)).get("archive")
            if former not in {None, archive} and not takes_over:
                raise ArchiveTaken(
                    f"this bus is archived by {former!r}, and this lake is {archive!r}; run the pipeline on that lake, "
                    f"or, if it is gone for good, with --take-over"
                )
        # The lake is read after the bus: it may land, and confirm that, at this moment.
        states = [await journal.state(part) for part in bus.all]
        reached = {name: snapshots.landed(table_of(root, name).open(), access.partitions) for name in TABLES}
        for part, state in zip(bus.all, states, strict=True):
            now_ms = await part.time_ms()
            for name, ends in reached.items():
                _check_fits(name, ends[part.index], state, now_ms=now_ms, takes_over=takes_over)
        for part in bus.all:
            await journal.register_archive(part, archive)
            if takes_over:
                # What a former lake had confirmed is not in this one.
                for name, ends in reached.items():
                    await journal.confirm(part, name, archive=archive, last_id=str(ends[part.index]))


def _check_fits(name: str, reached: Position, state: Mapping[str, str], *, now_ms: int, takes_over: bool) -> None:
    """Raise LakeUnfit when entries were trimmed that a lake had and has no more, or new ones would be taken for landed.

    A lake that is ahead of a bus fits: the entries that the bus will write have later ids than those that it lost.
    """
    confirmed, trimmed = (Position.parse(state.get(f"{name}_{what}", "0-0")) for what in ("confirmed", "trimmed"))
    if reached < min(confirmed, trimmed) and not takes_over:
        raise LakeUnfit(
            f"this lake is older than its bus: its table {name!r} ends at {_at(reached)}, and the bus has deleted what "
            f"had landed until {_at(min(confirmed, trimmed))}; restore a copy of the lake that is newer than the bus, "
            f"or go on without those rows, with --take-over"
        )
    if reached.ms > now_ms:
        raise LakeUnfit(
            f"the clock of Redis says {moment.to_text(moment.from_ms(now_ms))}, and the lake's table {name!r} has rows "
            f"until {_at(reached)}: new ones would be taken for landed; set the clock"
        )


def _at(place: Position) -> str:
    return moment.to_text(moment.from_ms(place.ms)) if place.ms else "its beginning"


@dataclass(frozen=True)
class Pace:
    """When to land: as soon as so many bytes wait, or so many seconds after the last time, whichever comes first."""

    interval_s: float
    bytes_min: int
    rules: MemoryRules = field(default_factory=MemoryRules)

    def is_due(self, fill: JournalFill, *, since_s: float) -> bool:
        """Whether to land, by what waits and how long ago the last commit was.

        Nothing waits while the journals are half full: at their bound they are cut, or refuse events.
        """
        return fill.bytes >= self.bytes_min or fill.share >= _FULL_SHARE or since_s >= self.interval_s


@dataclass
class Lander:
    """Lands one journal, again and again, at its pace; without one, whenever there is something."""

    spark: SparkSession
    access: Access
    root: str
    name: str
    archive: str
    pace: Pace | None = None
    # When the last commit was; None before the first one, and while there is more: then the next is due at once.
    _landed_s: float | None = None

    def round(self) -> Landed:
        """Land, if it is time; else return how things are."""
        if not self._is_due():
            return Landed(0, 0, has_more=False, from_ms=0, size=versions.of(table_of(self.root, self.name)).size)
        done = land(self.spark, self.access, self.root, self.name, archive=self.archive)
        if done.files:
            self._landed_s = None if done.has_more else time.monotonic()
        return done

    def _is_due(self) -> bool:
        if self.pace is None or self._landed_s is None:
            return True
        fill = asyncio.run(journal_reader.fill(self.access, self.name, self.pace.rules))
        return self.pace.is_due(fill, since_s=time.monotonic() - self._landed_s)


def land(spark: SparkSession, access: Access, root: str, name: str, *, archive: str) -> Landed:
    """Land what a journal has now, as much as one commit takes."""
    table = table_of(root, name)
    seen = versions.of(table, partitions=access.partitions)
    begin = snapshots.landed(seen, access.partitions)
    extents = asyncio.run(journal_reader.extents(access, name, begin))
    slices = plan(begin, extents, cores=session.cores(spark))
    if slices:
        written = _write(spark, access, name, table, slices)
        ends = _ends(slices)
        table.commit(seen, written, snapshots.reaches(ends))
    else:
        written, ends = [], {}
    reached = {**begin, **ends}
    asyncio.run(_confirm(access, name, archive, reached))
    has_more = any(Position.parse(extents[index].last) > end for index, end in reached.items())
    from_ms = min(max(end.ms, Position.parse(extents[index].first).ms) for index, end in begin.items())
    return Landed(sum(file.rows for file in written), len(written), has_more, from_ms, versions.of(table).size)


def plan(begin: Mapping[int, Position], extents: Mapping[int, Extent], *, cores: int) -> list[JournalSlice]:
    """The slices of one round: all that is new, cut so that every core has some, or as much as one commit takes."""
    found: list[JournalSlice] = []
    fair = -(-cores // max(1, len(extents)))
    most = max(1, _SLICES_MAX // max(1, len(extents)))
    for index, extent in extents.items():
        after, last, first = begin[index], Position.parse(extent.last), Position.parse(extent.first)
        if after >= last:
            continue
        # As many for each core: with three for two cores, one would wait for the other's second.
        wanted = 1 if extent.bytes < _SMALL_BYTES else fair * -(-extent.bytes // (fair * _SLICE_BYTES))
        found += JournalSlice(index, after, last).cut(wanted, first=first)[:most]
    return found


def _write(
    spark: SparkSession, access: Access, name: str, table: LakeTable, slices: list[JournalSlice]
) -> list[WrittenFile]:
    return files.in_tasks(spark, partial(_write_slice, access=access, name=name, table=table), slices)


def _write_slice(part: JournalSlice, *, access: Access, name: str, table: LakeTable) -> Iterator[WrittenFile]:
    """In a task: read a slice, and write it."""
    shape = rows.layout(name)
    # What was cut meanwhile is written down by the bus as a gap; the archive goes on.
    pages = journal_reader.pages(access, name, part, fails_on_loss=False)
    return files.write(table, (arrow.to_batch(shape, entries, partition=part.partition) for entries in pages))


def _ends(slices: Iterable[JournalSlice]) -> dict[int, Position]:
    ends: dict[int, Position] = {}
    for part in slices:
        ends[part.partition] = max(part.upto, ends.get(part.partition, part.upto))
    return ends


async def _confirm(access: Access, name: str, archive: str, ends: Mapping[int, Position]) -> None:
    async with journal_reader.connected(access) as bus:
        for index, end in ends.items():
            ask = partial(journal.confirm, bus.all[index], name, archive=archive, last_id=str(end))
            if not await journal_reader.patiently(ask):
                raise ArchiveTaken(f"partition {index} has another archive than {archive!r} now")
