"""From the bus to Spark: a journal as a batch or as a stream of rows, all partitions in parallel.

A stream's offset is, by partition, the id of the last entry that was read. So a query that is started again goes on
where it was, whatever was trimmed, appended or restarted meanwhile.
"""

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from doubledecker.errors import JournalTrimmed
from doubledecker.lake import arrow, journals, rows
from doubledecker.model.position import Position
from doubledecker.pipeline.land import journal_reader
from doubledecker.pipeline.land.journal_reader import JournalSlice
from doubledecker.pipeline.spark_format import options
from doubledecker.pipeline.spark_format.options import ReadOptions
from doubledecker.store.journal import Extent

# A task for each so many bytes: large enough to be worth a task, small enough to repeat one.
_SLICE_BYTES = 33_554_432

Selection = tuple[tuple[str, frozenset[str]], ...]


@dataclass(frozen=True)
class _Bounds:
    """What filters say of the time in an entry's id; `None` says nothing."""

    after: Position | None = None
    upto: Position | None = None


class _Part(InputPartition):
    """A slice of the journal, for one task."""

    def __init__(self, part: JournalSlice) -> None:
        super().__init__(part)
        self.part = part


class JournalReader(DataSourceReader):
    """Reads a range of a journal once."""

    def __init__(self, wanted: ReadOptions) -> None:
        self._wanted = wanted
        self._selection = _selection(wanted)
        self._bounds = _Bounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take equality on text and bounds in time upon us; Spark does the rest."""
        texts = {column.name for column in _schema(self._wanted) if column.type == pa.string()}
        for each in filters:
            values = _equal_to(each, texts)
            narrowed = _narrowed(self._bounds, each)
            if values is not None:
                self._selection = (*self._selection, values)
            elif narrowed is not None:
                # The id has milliseconds, a filter may have microseconds: Spark looks again.
                self._bounds = narrowed
                yield each
            else:
                yield each

    def partitions(self) -> Sequence[InputPartition]:
        wanted = self._wanted
        extents = asyncio.run(journal_reader.extents(wanted.access, wanted.journal))
        start = options.position(wanted.start, extents, is_end=False)
        end = options.position(wanted.end, extents, is_end=True)
        if wanted.start != "earliest":
            _check_kept(wanted, start, extents)
        if self._bounds.after is not None:
            start = {index: max(after, self._bounds.after) for index, after in start.items()}
        if self._bounds.upto is not None:
            end = {index: min(upto, self._bounds.upto) for index, upto in end.items()}
        return _parts(wanted, start, end, extents) or [_Part(JournalSlice(0, Position(0, 0), Position(0, 0)))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Part)
        # What `earliest` meant may be trimmed before its task runs; then it means what is left.
        is_strict = self._wanted.fails_on_loss and self._wanted.start != "earliest"
        return _read(replace(self._wanted, fails_on_loss=is_strict), self._selection, partition.part)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a journal as it grows."""

    def __init__(self, wanted: ReadOptions) -> None:
        self._wanted = wanted
        self._selection = _selection(wanted)
        self._target: dict[str, str] | None = None

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        extents = self._extents()
        start = options.position(self._wanted.start, extents, is_end=False)
        if self._wanted.start != "earliest":
            _check_kept(self._wanted, start, extents)
        return _offset(start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._wanted.rows_per_batch) if self._wanted.rows_per_batch else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._latest()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802 - Spark's name
        latest = _places(self._target or self._latest())
        begin = _places(start)
        # A journal never goes back; a bus that was emptied does.
        end = {index: max(upto, begin.get(index, upto)) for index, upto in latest.items()}
        if isinstance(limit, ReadMaxRows):
            begin = {index: begin.get(index, Position(0, 0)) for index in end}
            wanted = self._wanted
            end = asyncio.run(journal_reader.reach(wanted.access, wanted.journal, begin, end, rows=limit.max_rows))
        return _offset(end)

    def reportLatestOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return self._latest()

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        begin = _places(start)
        return _parts(self._wanted, begin, _places(end), self._extents(begin))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Part)
        return _read(self._wanted, self._selection, partition.part)

    def _latest(self) -> dict[str, str]:
        return _offset(options.position(self._wanted.end, self._extents(), is_end=True))

    def _extents(self, after: Mapping[int, Position] | None = None) -> dict[int, Extent]:
        return asyncio.run(journal_reader.extents(self._wanted.access, self._wanted.journal, after))


def _read(wanted: ReadOptions, selection: Selection, part: JournalSlice) -> Iterator[pa.RecordBatch]:
    """The rows of a slice that are wanted, a batch a page."""
    shape = rows.layout(wanted.journal)
    for entries in journal_reader.pages(wanted.access, wanted.journal, part, fails_on_loss=wanted.fails_on_loss):
        batch = arrow.to_batch(shape, entries, partition=part.partition)
        for column, values in selection:
            batch = batch.filter(pc.is_in(batch[column], pa.array(sorted(values), pa.string())))
        if batch.num_rows:
            yield batch


def _parts(
    wanted: ReadOptions, start: Mapping[int, Position], end: Mapping[int, Position], extents: Mapping[int, Extent]
) -> list[_Part]:
    """The slices to read; more than one of a partition when there is a core for it, or much to read."""
    fair = max(1, (os.cpu_count() or 1) // len(extents))
    found = []
    for index, upto in end.items():
        # A partition that the offset does not know yet is read from where it begins.
        after = max(start.get(index, Position(0, 0)), Position(0, 0))
        if after < upto:
            count = wanted.slices or max(fair, extents[index].bytes // _SLICE_BYTES)
            first = Position.parse(extents[index].first)
            found += [_Part(each) for each in JournalSlice(index, after, upto).cut(count, first=first)]
    return found


def _check_kept(wanted: ReadOptions, start: Mapping[int, Position], extents: Mapping[int, Extent]) -> None:
    """Raise JournalTrimmed when the start is no longer there."""
    for index, after in start.items():
        trimmed = Position.parse(extents[index].cut)
        if wanted.fails_on_loss and after < trimmed:
            raise JournalTrimmed(journals.lost(index, after, trimmed))


def _selection(wanted: ReadOptions) -> Selection:
    pairs = (("topic", wanted.topics), ("tenant", wanted.tenants))
    return tuple((column, values) for column, values in pairs if values)


def _schema(wanted: ReadOptions) -> pa.Schema:
    return arrow.schema(rows.layout(wanted.journal))


def _equal_to(each: Filter, texts: set[str]) -> tuple[str, frozenset[str]] | None:
    """The column and its allowed values, if that is all that the filter says."""
    if isinstance(each, EqualTo | In) and len(each.attribute) == 1 and each.attribute[0] in texts:
        values = each.value if isinstance(each, In) else (each.value,)
        return each.attribute[0], frozenset(value for value in values if value is not None)
    return None


def _narrowed(bounds: _Bounds, each: Filter) -> _Bounds | None:
    """The bounds with what a filter on `at` adds to them."""
    if not isinstance(each, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual) or each.attribute != ("at",):
        return None
    if not isinstance(each.value, datetime) or each.value.timestamp() < 0:
        return None
    ms = int(each.value.timestamp() * 1000)
    if isinstance(each, GreaterThan | GreaterThanOrEqual):
        after = Position(ms, 0).before
        return replace(bounds, after=after if bounds.after is None else max(after, bounds.after))
    upto = Position(ms + 1, 0).before
    return replace(bounds, upto=upto if bounds.upto is None else min(upto, bounds.upto))


def _offset(places: Mapping[int, Position]) -> dict[str, str]:
    return {str(index): str(place) for index, place in sorted(places.items())}


def _places(offset: Mapping[str, str]) -> dict[int, Position]:
    return {int(index): Position.parse(place) for index, place in offset.items()}
