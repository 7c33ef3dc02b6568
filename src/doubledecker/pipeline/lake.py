"""The lake: Delta tables that hold what the journals held, for good.

A table says itself how far it has come: every commit carries, by partition of the bus, the last entry that is in it
(lake/marks.py). So landing resumes from the table alone, and of two processes that land the same range only one can
commit.
"""

import json
import os
import posixpath
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from doubledecker.errors import LakeUnfit

# Others commit every few seconds at most, and a commit takes milliseconds.
_TRIES = 20
# Our files have statistics of `at` alone, so that the log names no id, tenant or key. Without this property delta-rs
# takes every other column for one that is null throughout, and a filter on it finds no rows.
PROPERTIES = {"delta.dataSkippingStatsColumns": "at"}


@dataclass(frozen=True)
class WrittenFile:
    """A Parquet file that belongs to a table once it is committed."""

    path: str
    size: int
    rows: int
    values: Mapping[str, str]
    at_min: str
    at_max: str

    @property
    def stats(self) -> str:
        """What Delta keeps of it, so that a reader can skip the file by time."""
        bounds = {"minValues": {"at": self.at_min}, "maxValues": {"at": self.at_max}, "nullCount": {"at": 0}}
        return json.dumps({"numRecords": self.rows, **bounds})


@dataclass(frozen=True)
class Part:
    """A file that is part of a table, as the log tells of it; it may not say of which times its rows are."""

    path: str
    size: int
    rows: int
    values: Mapping[str, str]
    at_min: datetime | None
    at_max: datetime | None

    @property
    def name(self) -> str:
        """The file's own, which no other has; the log escapes the names of folders, and the list of URIs does not."""
        return posixpath.basename(self.path)


@dataclass(frozen=True)
class TableSize:
    """How large a table is."""

    rows: int
    bytes: int
    files: int


@dataclass(frozen=True)
class Table:
    """One table of the lake: where it is, its columns, and which of them its folders are named for."""

    uri: str
    schema: pa.Schema
    partition_by: tuple[str, ...]
    # Columns that single rows are looked for by.
    indexed: tuple[str, ...] = ()

    @property
    def given(self) -> pa.Schema:
        """The columns that its rows are given in: all but `date`, which is made of `at` when they are written."""
        return pa.schema([column for column in self.schema if column.name != "date"])

    def open(self) -> DeltaTable:
        """The table as it is now, made when there is none; one of an older version gets today's columns and properties.

        Rows written before a column was there have null in it. Raises LakeUnfit when a column is of another type.
        """
        try:
            if not DeltaTable.is_deltatable(self.uri):
                self._create()
            return self._upgraded()
        except (DeltaError, OSError) as error:
            raise LakeUnfit(f"cannot open the lake's table {self.uri}: {error}; set DOUBLEDECKER_LAKE") from error

    def _create(self) -> None:
        folders = list(self.partition_by)
        DeltaTable.create(
            self.uri, schema=self.schema, mode="ignore", partition_by=folders, configuration=dict(PROPERTIES)
        )

    def _upgraded(self) -> DeltaTable:
        """The table with all columns and properties; another process may upgrade it at the same moment."""
        for left in reversed(range(_TRIES)):
            opened = DeltaTable(self.uri)
            lacking = self._lacking(opened)
            has = opened.metadata().configuration
            try:
                if lacking:
                    opened.alter.add_columns(lacking)
                if any(has.get(name) != value for name, value in PROPERTIES.items()):
                    opened.alter.set_table_properties(dict(PROPERTIES))
            except CommitFailedError:
                if not left:
                    raise
            else:
                return opened
        raise AssertionError("the last try returns or raises")

    def _lacking(self, opened: DeltaTable) -> list[Field]:
        """The columns that the table does not have yet."""
        there = {column.name: column for column in opened.schema().fields}
        wanted = Schema.from_arrow(self.schema).fields
        for column in wanted:
            if column.name in there and there[column.name].type != column.type:
                raise LakeUnfit(
                    f"the column {column.name!r} of the lake's table {self.uri} is {_shown(there[column.name])}, and "
                    f"this version writes {_shown(column)}; run the version that made the table, or set "
                    "DOUBLEDECKER_LAKE to a new place"
                )
        return [column for column in wanted if column.name not in there]

    def commit(self, table: DeltaTable, files: Iterable[WrittenFile], marks: Mapping[str, int]) -> None:
        """Make files part of the table, and set marks in it, in one atom; raises when someone was faster.

        An erasure that replaced files meanwhile is none: as long as the marks are as they were, it is tried again.
        """
        adds = [_added(file, is_new=True) for file in files]
        transactions = [Transaction(name, value) for name, value in marks.items()]
        seen = {name: table.transaction_version(name) for name in marks}
        for left in reversed(range(_TRIES)):
            try:
                self._commit(table, adds, CommitProperties(app_transactions=transactions))
                break
            except CommitFailedError:
                table = DeltaTable(self.uri)
                if not left or any(table.transaction_version(name) != value for name, value in seen.items()):
                    raise

    def replace(self, former: Collection[Part], latter: Iterable[WrittenFile], *, is_new: bool = True) -> bool:
        """Put files in the place of others; says no, and changes nothing, if somebody else has replaced one of them.

        Delta itself would let this pass beside a compaction of the same files, and their rows would be there twice: so
        it is tried on the table as it is, and again when somebody was faster with something else. The files are not new
        when they say the same as the former.
        """
        removes = [_removed(part, is_new=is_new) for part in former]
        adds = [_added(file, is_new=is_new) for file in latter]
        for _ in range(_TRIES):
            opened = self.open()
            if not {part.path for part in former} <= {part.path for part in parts(opened)}:
                return False
            try:
                self._commit(opened, [*removes, *adds], CommitProperties(max_commit_retries=0))
            except CommitFailedError:
                continue
            return True
        raise LakeUnfit(f"others commit to {self.uri} all the time")

    def _commit(
        self, table: DeltaTable, actions: Sequence[AddAction | RemoveAction], properties: CommitProperties
    ) -> None:
        table.create_write_transaction(
            [*actions],
            mode="append",
            schema=self.schema,
            partition_by=list(self.partition_by),
            commit_properties=properties,
        )
        # The bus forgets what is confirmed, so it must be on the disk and not only on its way there.
        _sync(Path(self.uri) / "_delta_log")


def _shown(column: Field) -> str:
    return str(getattr(column.type, "type", column.type))


def parts(table: DeltaTable) -> list[Part]:
    """The files of a table, by its log; no data is read."""
    return [_part(add) for add in pa.table(table.get_add_actions(flatten=True)).to_pylist()]


def _part(add: Mapping[str, Any]) -> Part:
    values = {name.removeprefix("partition."): str(add[name]) for name in add if name.startswith("partition.")}
    at_min, at_max = _aware(add.get("min.at")), _aware(add.get("max.at"))
    return Part(add["path"], add["size_bytes"], add["num_records"] or 0, values, at_min, at_max)


def _aware(at: datetime | None) -> datetime | None:
    return at if at is None or at.tzinfo else at.replace(tzinfo=UTC)


def uris(table: DeltaTable) -> dict[str, str]:
    """Where the files of a table are, by their names."""
    return {posixpath.basename(uri): uri for uri in table.file_uris()}


def size(table: DeltaTable) -> TableSize:
    """How large a table is, by its log."""
    held = parts(table)
    return TableSize(sum(part.rows for part in held), sum(part.size for part in held), len(held))


def total(sizes: Iterable[TableSize]) -> TableSize:
    """How large several tables are together."""
    known = list(sizes)
    return TableSize(sum(one.rows for one in known), sum(one.bytes for one in known), sum(one.files for one in known))


def is_local(uri: str) -> bool:
    return "://" not in uri


def _added(file: WrittenFile, *, is_new: bool) -> AddAction:
    return AddAction(file.path, file.size, dict(file.values), _now_ms(), data_change=is_new, stats=file.stats)


def _removed(part: Part, *, is_new: bool) -> RemoveAction:
    return RemoveAction(part.path, is_new, _now_ms(), part.size, dict(part.values))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _sync(log: Path) -> None:
    """Wait until the newest commit is on the disk, where the lake is on one of ours."""
    if not log.is_dir():
        return
    newest = max(log.glob("*.json"), default=None)
    for path in filter(None, (newest, log)):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
