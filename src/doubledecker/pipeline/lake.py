"""The lake: Delta tables that hold what the journals held, for good.

A table says itself how far it has come: every commit carries, by partition of the bus, the last entry that is in it
(Delta's application transactions). So landing resumes from the table alone, and of two processes that land the same
range only one can commit. An entry's id does not fit one number, so it takes two: milliseconds and number.
"""

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from doubledecker.errors import LakeUnfit
from doubledecker.model.entry_id import EntryId


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

    def open(self) -> DeltaTable:
        """The table as it is now, made when there is none."""
        try:
            if not DeltaTable.is_deltatable(self.uri):
                DeltaTable.create(self.uri, schema=self.schema, mode="ignore", partition_by=list(self.partition_by))
            return DeltaTable(self.uri)
        except (DeltaError, OSError) as error:
            raise LakeUnfit(f"cannot open the lake's table {self.uri}: {error}; set DOUBLEDECKER_LAKE") from error

    def commit(self, table: DeltaTable, files: Iterable[WrittenFile], marks: Mapping[str, int]) -> None:
        """Make files part of the table, and set marks in it, in one atom; raises when someone was faster."""
        at_ms = time.time_ns() // 1_000_000
        adds: list[AddAction | RemoveAction] = [
            AddAction(f.path, f.size, dict(f.values), at_ms, data_change=True, stats=f.stats) for f in files
        ]
        table.create_write_transaction(
            adds,
            mode="append",
            schema=self.schema,
            partition_by=list(self.partition_by),
            commit_properties=CommitProperties(
                app_transactions=[Transaction(name, value) for name, value in marks.items()]
            ),
        )
        # The bus forgets what is confirmed, so it must be on the disk and not only on its way there.
        _sync(Path(self.uri) / "_delta_log")


def landed(table: DeltaTable, partitions: int) -> dict[int, EntryId]:
    """The last entry of each partition that is in the table."""
    found = {}
    for index in range(partitions):
        ms, seq = (table.transaction_version(name) for name in _names(index))
        found[index] = EntryId(ms or 0, seq or 0)
    return found


def size(table: DeltaTable) -> TableSize:
    """Counted from the table's log; no data is read."""
    adds = pa.table(table.get_add_actions(flatten=True))
    rows = sum(each or 0 for each in adds["num_records"].to_pylist()) if adds.num_rows else 0
    return TableSize(rows, sum(adds["size_bytes"].to_pylist()) if adds.num_rows else 0, adds.num_rows)


def is_local(uri: str) -> bool:
    return "://" not in uri


def reaches(ends: Mapping[int, EntryId]) -> dict[str, int]:
    """The marks that say how far a table has come."""
    return {name: value for index, end in ends.items() for name, value in zip(_names(index), end, strict=True)}


def _names(index: int) -> tuple[str, str]:
    return f"journal:{index}:ms", f"journal:{index}:seq"


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
