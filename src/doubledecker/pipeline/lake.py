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
        self._commit(table, [_added(file, is_new=True) for file in files], marks)

    def replace(
        self, table: DeltaTable, old: Iterable[Mapping[str, object]], files: Iterable[WrittenFile], mark: str
    ) -> None:
        """Put files in the place of others, given by their actions in the log, that say the same with more rows.

        Delta lets two do this to the same files at once, which would double what they say; `mark` grows with each, and
        so the second of two is refused.
        """
        removed = [_removed(add, self.partition_by) for add in old]
        turn = (table.transaction_version(mark) or 0) + 1
        self._commit(table, [*(_added(file, is_new=False) for file in files), *removed], {mark: turn})

    def _commit(self, table: DeltaTable, actions: Iterable[AddAction | RemoveAction], marks: Mapping[str, int]) -> None:
        table.create_write_transaction(
            list(actions),
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


def total(sizes: Iterable[TableSize]) -> TableSize:
    """How large several tables are together."""
    known = list(sizes)
    return TableSize(sum(one.rows for one in known), sum(one.bytes for one in known), sum(one.files for one in known))


def is_local(uri: str) -> bool:
    return "://" not in uri


def reaches(ends: Mapping[int, EntryId]) -> dict[str, int]:
    """The marks that say how far a table has come."""
    return {name: value for index, end in ends.items() for name, value in zip(_names(index), end, strict=True)}


def _names(index: int) -> tuple[str, str]:
    return f"journal:{index}:ms", f"journal:{index}:seq"


def _added(file: WrittenFile, *, is_new: bool) -> AddAction:
    return AddAction(file.path, file.size, dict(file.values), _now_ms(), data_change=is_new, stats=file.stats)


def _removed(add: Mapping[str, object], folders: Iterable[str]) -> RemoveAction:
    values: dict[str, str | None] = {name: str(add[f"partition.{name}"]) for name in folders}
    return RemoveAction(str(add["path"]), False, _now_ms(), int(str(add["size_bytes"])), values)  # noqa: FBT003 - Delta's own


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
