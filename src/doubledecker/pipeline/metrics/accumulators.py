"""Tallies: sums and least hashes gathered batch by batch, so that what is held is the result and not the rows."""

from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from doubledecker.pipeline.metrics import sketches

Row = dict[str, object]
# Rows that wait to be added up: some tens of MiB.
_WAITING_MAX = 1_000_000


class Tally:
    """The sums of columns, a row for each combination of others."""

    def __init__(self, by: Sequence[str], names: Sequence[str] = (), *, waiting_max: int = _WAITING_MAX) -> None:
        self._by = list(by)
        self._names = list(names)
        self._waiting: list[pa.Table] = []
        self._waiting_max = waiting_max

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(self._summed(rows))
        if sum(one.num_rows for one in self._waiting) > self._waiting_max:
            self._waiting = [self._summed(pa.concat_tables(self._waiting))]

    def rows(self) -> list[Row]:
        """What has been added, once each."""
        found: list[Row] = self._summed(pa.concat_tables(self._waiting)).to_pylist() if self._waiting else []
        return found

    def _summed(self, rows: pa.Table) -> pa.Table:
        summed = rows.group_by(self._by).aggregate([(name, "sum") for name in self._names])
        return summed.rename_columns([*self._by, *self._names])


class Least:
    """The least hashes of keys, by the values of a column."""

    def __init__(self, by: str, *, waiting_max: int = _WAITING_MAX) -> None:
        self._by = by
        self._pairs: pa.Table | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_max = waiting_max

    def add(self, rows: pa.Table) -> None:
        lists = pa.concat_arrays(rows["keys"].chunks) if rows.num_rows else pa.array([], pa.list_(pa.int64()))
        values = rows[self._by].take(pc.list_parent_indices(lists))
        self._waiting.append(pa.table({self._by: values, "hash": pc.list_flatten(lists)}))
        if sum(one.num_rows for one in self._waiting) > self._waiting_max:
            self._settle()

    def counts(self) -> dict[object, int]:
        """How many different keys there were, by value."""
        return {value: sketches.distinct(least) for value, least in self._lists().items()}

    def count(self) -> int:
        """How many there were in all."""
        return sketches.distinct(sketches.merge(self._lists().values()))

    def _lists(self) -> dict[object, list[int]]:
        self._settle()
        found: dict[object, list[int]] = {}
        if self._pairs is None:
            return found
        values, hashes = self._pairs[self._by].to_pylist(), self._pairs["hash"].to_pylist()
        for value, number in zip(values, hashes, strict=True):
            found.setdefault(value, []).append(number)
        return found

    def _settle(self) -> None:
        """Keep of each value no more than the least."""
        if not self._waiting:
            return
        known = [] if self._pairs is None else [self._pairs]
        apart = pa.concat_tables([*known, *self._waiting]).group_by([self._by, "hash"]).aggregate([])
        ordered = apart.sort_by([(self._by, "ascending"), ("hash", "ascending")])
        ends = pc.run_end_encode(ordered[self._by].combine_chunks()).run_ends.to_pylist() if ordered.num_rows else []
        parts = [ordered.slice(one, min(other - one, sketches.LEAST_MAX)) for one, other in pairwise([0, *ends])]
        self._pairs = pa.concat_tables(parts) if parts else ordered
        self._waiting = []
