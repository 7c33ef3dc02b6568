"""Tend: join the many small files that landing makes, drop what is older than it is kept, remove what no table needs.

Those of the measures are folded by the step that makes them, since their rows become fewer too.

Joining rewrites files and adds no rows, so neither landing nor a reader notices: how far a table has come stays as it
is, and whoever reads an older version still finds its files until they are removed. What is dropped goes by whole
folders, a day of a topic each, and its files a week later.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from doubledecker.pipeline import consuming, lake, landing, measures, refusals
from doubledecker.pipeline.lake import Table

# Fewer are not worth the rewriting.
_FILES_MIN = 16
# A file that large is left alone.
_TARGET_BYTES = 67_108_864
# Longer than any round of landing, any query and any look at an older version takes.
_KEPT_HOURS = 168


@dataclass(frozen=True)
class Retention:
    """For how many days the tables keep their rows; 0 is for ever. A topic may have a rule of its own."""

    events_days: int = 0
    topics_days: dict[str, int] = field(default_factory=dict)
    attempts_days: int = 0


@dataclass(frozen=True)
class Tended:
    """What was done to the tables: files joined, files removed from the disk, rows dropped for their age."""

    joined: int
    removed: int
    dropped: int = 0


def tend(root: str, retention: Retention | None = None, *, now: datetime | None = None) -> Tended:
    """Drop, join and remove, in every table; safe beside a landing and an erasure, and to be cut short."""
    rules = retention or Retention()
    joined = removed = dropped = 0
    for name, table in _tables(root):
        opened = table.open()
        dropped += sum(_drop(opened, rule) for rule in aged(opened, name, rules, now=now or datetime.now(UTC)))
        for values in crowded(opened, table.partition_by):
            joined += _join(opened, table.partition_by, values)
        removed += _clean(opened)
    removed += sum(_clean(measures.table_of(root, name).open()) for name in measures.MEASURES)
    return Tended(joined, removed, dropped)


def _tables(root: str) -> Iterator[tuple[str, Table]]:
    """All tables whose files are joined, by name."""
    for name in landing.TABLES:
        yield name, landing.table_of(root, name)
    quarantine = consuming.quarantine_of(root)
    if DeltaTable.is_deltatable(quarantine):
        yield consuming.QUARANTINE, refusals.table_of(quarantine)


def aged(table: DeltaTable, name: str, rules: Retention, *, now: datetime) -> list[str]:
    """Which folders are too old, as conditions on what they are named for: a whole day is over before it goes."""
    today = now.astimezone(UTC).date()
    if name == consuming.QUARANTINE:
        return []
    if name != "events":
        return [f"date < '{today - timedelta(rules.attempts_days)}'"] if rules.attempts_days else []
    found = []
    for topic in sorted({str(each["topic"]) for each in table.partitions()}):
        days = rules.topics_days.get(topic, rules.events_days)
        if days:
            found.append(f"topic = '{topic}' and date < '{today - timedelta(days)}'")
    return found


def _clean(opened: DeltaTable) -> int:
    # Files of rounds that were never committed are in no version: only a full look finds them.
    return len(opened.vacuum(retention_hours=_KEPT_HOURS, dry_run=False, full=True))


def crowded(table: DeltaTable, columns: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The folders that hold many small files, by the values they are named for."""
    small = Counter(
        tuple(part.values[column] for column in columns) for part in lake.parts(table) if part.size < _TARGET_BYTES // 2
    )
    return sorted(values for values, count in small.items() if count >= _FILES_MIN)


def _drop(table: DeltaTable, condition: str) -> int:
    try:
        return int(table.delete(condition)["num_deleted_rows"])
    except CommitFailedError:
        # Somebody wrote to such a folder at this moment; it is as old the next time.
        table.update_incremental()
        return 0


def _join(table: DeltaTable, columns: tuple[str, ...], values: tuple[str, ...]) -> int:
    filters = [(column, "=", value) for column, value in zip(columns, values, strict=True)]
    try:
        return int(table.optimize.compact(partition_filters=filters, target_size=_TARGET_BYTES)["numFilesRemoved"])
    except CommitFailedError:
        # An erasure has replaced one of these files at this moment; the next time they are joined.
        table.update_incremental()
        return 0
