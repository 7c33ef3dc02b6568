"""The lake: Delta tables that hold what the journals held, for good.

A table says itself how far it has come: every commit carries, by partition of the bus, the last entry that is in it
(lake/snapshots.py). So landing resumes from the table alone, and of two processes that land the same range only one
can commit.
"""

import json
import posixpath
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.table import ProtocolVersions
from deltalake.transaction import AddAction, RemoveAction

from doubledecker.errors import LakeUnfit
from doubledecker.lake import commits, snapshots
from doubledecker.lake.commits import Action, Stamp

# Others commit every few seconds at most, and a commit takes milliseconds.
_TRIES = 20
# Our files have statistics of `at` alone, so that the log names no id, tenant or key. Without this property delta-rs
# takes every other column for one that is null throughout, and a filter on it finds no rows.
# Commits are kept for a day, as far back as one can read a table as it was. That a file was removed is remembered for
# longer than the file is kept (maintenance.py): so an erasure always knows which files to delete.
PROPERTIES = {
    "delta.dataSkippingStatsColumns": "at",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 8 days",
}
# What Delta asks of writers of tables without special features, as ours are made.
_WRITER_VERSION = 2


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
    """A file that is part of a table, as its log describes it; the times of its rows may be missing."""

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
class Change:
    """What a commit does: files added and removed, marks set. Files are not new if they hold what the former held."""

    added: tuple[WrittenFile, ...]
    removed: tuple[Part, ...] = ()
    marks: Mapping[str, int] = field(default_factory=dict)
    is_new: bool = True

    @property
    def actions(self) -> list[Action]:
        """As lines of Delta's log."""
        now_ms = _now_ms()
        about = {"timestamp": now_ms, "operation": "WRITE", "operationParameters": {}, "engineInfo": "doubledecker"}
        changed = {"dataChange": self.is_new}
        marks: list[Action] = [{"txn": {"appId": name, "version": value}} for name, value in self.marks.items()]
        gone = {**changed, "deletionTimestamp": now_ms, "extendedFileMetadata": True}
        removed: list[Action] = [{"remove": {**_named(part), **gone}} for part in self.removed]
        added: list[Action] = [
            {"add": {**_named(file), **changed, "modificationTime": now_ms, "stats": file.stats}} for file in self.added
        ]
        return [{"commitInfo": about}, *marks, *removed, *added]

    @property
    def for_delta(self) -> list[AddAction | RemoveAction]:
        """As delta-rs has them."""
        now_ms = _now_ms()
        return [
            *(RemoveAction(part.path, self.is_new, now_ms, part.size, dict(part.values)) for part in self.removed),
            *(
                AddAction(file.path, file.size, dict(file.values), now_ms, data_change=self.is_new, stats=file.stats)
                for file in self.added
            ),
        ]


def _named(file: WrittenFile | Part) -> dict[str, object]:
    return {"path": file.path, "partitionValues": dict(file.values), "size": file.size}


class Followed(Protocol):
    """A version of a table that is followed by its log, commit by commit."""

    @property
    def stamp(self) -> Stamp | None: ...

    def version(self) -> int: ...

    def protocol(self) -> ProtocolVersions: ...


Seen = DeltaTable | Followed


@dataclass(frozen=True)
class TableSize:
    """How large a table is."""

    rows: int
    bytes: int
    files: int


@dataclass(frozen=True)
class LakeTable:
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
            seen = f"cannot open the lake's table {self.uri}: {snapshots.reason(error)}"
            raise LakeUnfit(f"{seen}; set DOUBLEDECKER_LAKE") from error

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

    def commit(self, seen: Seen, files: Iterable[WrittenFile], marks: Mapping[str, int]) -> None:
        """Make files part of the table, and set marks in it, in one atom; raises when someone was faster.

        Others' commits since the table was seen do not matter, unless they set one of these marks.
        """
        change = Change(tuple(files), marks=marks)
        version = seen.version() + 1
        while not self.append(seen, version, change):
            other = commits.read(self.uri, version)
            if other is None:
                raise CommitFailedError(f"the log of {self.uri} was cleaned up past version {version} meanwhile")
            if other.marks.keys() & marks.keys() or (other.is_altering and not _is_plain(DeltaTable(self.uri))):
                raise CommitFailedError(f"version {version} of {self.uri} was committed by somebody else")
            version += 1

    def append(self, seen: Seen, version: int, change: Change) -> bool:
        """Commit a change as this version, and wait until it is safe; False if somebody else has made that version."""
        if commits.is_local(self.uri) and _is_plain(seen):
            # A table that was deleted and made anew meanwhile has the version too, but none of what was seen.
            stamp = None if isinstance(seen, DeltaTable) else seen.stamp
            after = stamp if version == seen.version() + 1 else None
            return commits.append(self.uri, version, change.actions, after=after)
        opened = DeltaTable(self.uri)
        if opened.version() != version - 1:
            return False
        try:
            opened.create_write_transaction(
                change.for_delta,
                mode="append",
                schema=self.schema,
                partition_by=list(self.partition_by),
                commit_properties=CommitProperties(
                    max_commit_retries=0,
                    app_transactions=[Transaction(name, value) for name, value in change.marks.items()],
                ),
            )
        except CommitFailedError:
            return False
        if commits.is_local(self.uri):
            # The bus forgets what is confirmed, so it must be on the disk and not only on its way there.
            commits.sync_version(self.uri, version)
        return True


def _is_plain(seen: Seen) -> bool:
    """Whether nothing is asked of a writer but what our tables were made with; else delta-rs knows what to do."""
    return seen.protocol().min_writer_version <= _WRITER_VERSION


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


def total(sizes: Iterable[TableSize]) -> TableSize:
    """How large several tables are together."""
    known = list(sizes)
    return TableSize(sum(one.rows for one in known), sum(one.bytes for one in known), sum(one.files for one in known))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
