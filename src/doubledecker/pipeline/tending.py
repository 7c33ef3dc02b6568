"""Tend: join the many small files that landing makes, and remove what no table needs any more.

Those of the measures are folded by the step that makes them, since their rows become fewer too.

Joining rewrites files and adds no rows, so neither landing nor a reader notices: how far a table has come stays as it
is, and whoever reads an older version still finds its files until they are removed.
"""

from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable

from doubledecker.pipeline import landing, measures

# Fewer are not worth the rewriting.
_FILES_MIN = 16
# A file that large is left alone.
_TARGET_BYTES = 67_108_864
# Longer than any round of landing, any query and any look at an older version takes.
_KEPT_HOURS = 168


@dataclass(frozen=True)
class Tended:
    """What was done to the tables."""

    joined: int
    removed: int


def tend(root: str) -> Tended:
    """Join and remove, in every table; safe beside a landing, and to be cut short."""
    joined = removed = 0
    for name in landing.TABLES:
        table = landing.table_of(root, name)
        opened = table.open()
        for values in crowded(opened, table.partition_by):
            filters = [(column, "=", value) for column, value in zip(table.partition_by, values, strict=True)]
            done = opened.optimize.compact(partition_filters=filters, target_size=_TARGET_BYTES)
            joined += int(done["numFilesRemoved"])
        removed += _clean(opened)
    removed += sum(_clean(measures.table_of(root, name).open()) for name in measures.MEASURES)
    return Tended(joined, removed)


def _clean(opened: DeltaTable) -> int:
    # Files of rounds that were never committed are in no version: only a full look finds them.
    return len(opened.vacuum(retention_hours=_KEPT_HOURS, dry_run=False, full=True))


def crowded(table: DeltaTable, columns: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The folders that hold many small files, by the values they are named for."""
    adds = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    small = Counter(
        tuple(str(add[f"partition.{column}"]) for column in columns)
        for add in adds
        if add["size_bytes"] < _TARGET_BYTES // 2
    )
    return sorted(values for values, count in small.items() if count >= _FILES_MIN)
