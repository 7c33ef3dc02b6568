"""Sketches: percentiles, distinct counts and fairness from what can be added up.

**Durations** are counted in buckets of whole milliseconds: up to 127 ms each has its own, above that 64 buckets lie
between a power of two and the next. Histograms merge by adding, and a percentile is the middle of the bucket that holds
it: exact up to 127 ms, and within 1/128 (0.8 %) of the true one above.

**Distinct keys** are estimated from the 1024 least of their hashes, which lie evenly over all numbers: the nearer the
1024th is to the lower end, the more there are. Up to 1023 keys the count is exact (but for two with the same 64-bit
hash); above, its standard error is 1 / √1022 (3.1 %). Two of these merge to the 1024 least of both.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

import pyarrow as pa
import pyarrow.compute as pc

from doubledecker.model.summary import Spread

# The more, the closer the estimate and the larger the row: at most 8 KiB.
LEAST_MAX = 1024
_HASHES = 1 << 64
# Buckets between a power of two and the next, as bits.
BITS = 6


def bucket(ms: int) -> int:
    """The bucket that a duration is counted in."""
    shift = max(ms.bit_length() - BITS - 1, 0)
    return (shift << BITS) + (ms >> shift)


def middle(number: int) -> float:
    """The middle of a bucket, in milliseconds."""
    shift = max((number >> BITS) - 1, 0)
    return ((number - (shift << BITS)) << shift) + ((1 << shift) - 1) / 2


def spread(counts: Mapping[int, int]) -> Spread | None:
    """The percentiles of a histogram, each the least duration that so many do not exceed; None of nothing."""
    total = sum(counts.values())
    if not total:
        return None
    numbers = sorted(counts)
    reached = list(accumulate(counts[number] for number in numbers))

    def at(percent: int) -> float:
        rank = -(-total * percent // 100)
        return middle(next(number for number, upto in zip(numbers, reached, strict=True) if upto >= rank))

    return Spread(total, at(50), at(95), at(99))


def merge(least: Iterable[Sequence[int]]) -> list[int]:
    """What the union of several sets of keys would have given."""
    return sorted({each for one in least for each in one})[:LEAST_MAX]


def distinct(least: Sequence[int]) -> int:
    """How many different keys there were."""
    if len(least) < LEAST_MAX:
        return len(least)
    share = (least[-1] + _HASHES // 2 + 1) / _HASHES
    return round((LEAST_MAX - 1) / share)


# Tallies: sums and least hashes gathered batch by batch, so that what is held is the result and not the rows.

Row = dict[str, object]
# Rows that wait to be added up: some tens of MiB.
_WAITING_MAX = 1_000_000


class Totals:
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
        return {value: distinct(least) for value, least in self._lists().items()}

    def count(self) -> int:
        """How many there were in all."""
        return distinct(merge(self._lists().values()))

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
        parts = [ordered.slice(one, min(other - one, LEAST_MAX)) for one, other in pairwise([0, *ends])]
        self._pairs = pa.concat_tables(parts) if parts else ordered
        self._waiting = []
