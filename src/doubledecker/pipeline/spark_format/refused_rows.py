"""Rows that the bus refused: counted by reason, and kept in a Delta table if the write names one."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa
from deltalake import DeltaTable

from doubledecker import clock
from doubledecker.lake.arrow import MOMENT
from doubledecker.pipeline.lake import files, versions
from doubledecker.pipeline.lake.tables import LakeTable, WrittenFile

_SCHEMA = pa.schema(
    [
        ("at", MOMENT),
        ("query", pa.string()),
        ("batch", pa.int64()),
        ("source", pa.string()),
        ("file", pa.string()),
        ("why", pa.string()),
        ("row", pa.string()),
        ("date", pa.date32()),
    ]
)
# Rows held before they are written to a file.
_HELD_MAX = 10_000
# Distinct reasons that are counted; each names what was seen, so there may be as many as rows.
_REASONS_MAX = 100


class RefusedRows:
    """What a task's rows were refused for."""

    def __init__(self, uri: str, *, query: str, batch: int, source: str = "") -> None:
        self.reasons: Counter[str] = Counter()
        self._table = table_of(uri) if uri else None
        self._known = {"query": query, "batch": batch, "source": source or None}
        self._held: list[dict[str, object]] = []
        self._files: list[WrittenFile] = []

    def add(self, row: Mapping[str, object], why: str, noted: Mapping[str, str | None]) -> None:
        """Note one row, with what its `_row` and `_file` say, if it has them."""
        is_told_apart = why in self.reasons or len(self.reasons) < _REASONS_MAX
        self.reasons[why if is_told_apart else "for other reasons"] += 1
        if self._table is not None:
            text = noted.get("_row") or json.dumps(dict(row), default=str, ensure_ascii=False)
            about = {"at": clock.now_ms() * 1000, "why": why, "row": text, "file": noted.get("_file")}
            self._held.append(self._known | about)
            if len(self._held) >= _HELD_MAX:
                self._write()

    def close(self) -> tuple[WrittenFile, ...]:
        """The files that hold them, for the driver to commit."""
        if self._held:
            self._write()
        return tuple(self._files)

    def _write(self) -> None:
        assert self._table is not None
        batch = pa.RecordBatch.from_pylist(self._held, schema=self._table.given)
        self._files += files.write(self._table, [batch])
        self._held = []


def commit(uri: str, written: Sequence[WrittenFile], *, query: str, batch: int) -> None:
    """Make files part of the table, unless this batch's are already."""
    table = table_of(uri)
    opened = table.open()
    mark = f"refused:{query}"
    reached = opened.transaction_version(mark)
    if reached is None or reached < batch:
        total = (opened.transaction_version(_total(query)) or 0) + sum(file.rows for file in written)
        table.commit(opened, written, {mark: batch, _total(query): total})
        # The table may lie anywhere, where no pipeline tends it.
        versions.shorten(table)


def count(uri: str, query: str) -> int:
    """How many rows of a query are in the table; no data is read."""
    return DeltaTable(uri).transaction_version(_total(query)) or 0 if DeltaTable.is_deltatable(uri) else 0


def _total(query: str) -> str:
    return f"refused_rows:{query}"


def table_of(uri: str) -> LakeTable:
    """The table that keeps refused rows there."""
    return LakeTable(uri, _SCHEMA, ("date",))
