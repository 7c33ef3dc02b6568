"""Tend: join the many small files that landing makes, drop what is older than it is kept, remove what no table needs.

Those of the measures are folded by the step that makes them, since their rows become fewer too.

Joining rewrites files and adds no rows, so neither landing nor a reader notices: how far a table has come stays as it
is, and whoever reads an older version still finds its files until they are removed. What is dropped goes by whole
folders, a day of a topic each, and its files a week later.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession

from doubledecker.pipeline import consuming, files, lake, landing, measures, refusals
from doubledecker.pipeline.lake import Part, Table, WrittenFile

# Fewer are not worth the rewriting.
_FILES_MIN = 16
# A file that large is left alone.
_TARGET_BYTES = 67_108_864
# Longer than any round of landing, any query and any look at an older version takes.
_KEPT_HOURS = 168
# Files that one commit makes out of others: enough to keep all cores busy, few enough to be done again.
_JOINED_TOGETHER = 64
_EARLIEST = datetime.min.replace(tzinfo=UTC)


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


def tend(spark: SparkSession, root: str, retention: Retention | None = None, *, now: datetime | None = None) -> Tended:
    """Drop, join and remove, in every table; safe beside a landing and an erasure, and to be cut short."""
    rules = retention or Retention()
    joined = removed = dropped = 0
    for name, table in _tables(root):
        opened = table.open()
        dropped += sum(_drop(opened, rule) for rule in aged(opened, name, rules, now=now or datetime.now(UTC)))
        joined += _join(spark, table, crowded(lake.parts(opened)))
        removed += _clean(opened)
    removed += sum(_clean(measures.table_of(root, name).open()) for name in measures.TABLES)
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


def crowded(parts: Iterable[Part]) -> list[list[Part]]:
    """Files to be joined, each list to one: the small ones of folders that have many, the oldest first."""
    folders: dict[tuple[str, ...], list[Part]] = defaultdict(list)
    for part in parts:
        if part.size < _TARGET_BYTES // 2:
            folders[tuple(part.values.values())].append(part)
    return [some for small in folders.values() if len(small) >= _FILES_MIN for some in _packed(small)]


def _packed(small: list[Part]) -> Iterator[list[Part]]:
    """As many as make a file of the size that is left alone."""
    some: list[Part] = []
    for part in sorted(small, key=lambda each: (each.at_min or _EARLIEST, each.path)):
        if some and sum(each.size for each in some) + part.size > _TARGET_BYTES:
            yield some
            some = []
        some.append(part)
    if len(some) > 1:
        yield some


def _drop(table: DeltaTable, condition: str) -> int:
    try:
        return int(table.delete(condition)["num_deleted_rows"])
    except CommitFailedError:
        # Somebody wrote to such a folder at this moment; it is as old the next time.
        table.update_incremental()
        return 0


def _join(spark: SparkSession, table: Table, crowds: list[list[Part]]) -> int:
    """Join files, a task for each that they become; returns how many are gone."""
    gone = 0
    for first in range(0, len(crowds), _JOINED_TOGETHER):
        some = crowds[first : first + _JOINED_TOGETHER]
        former = [part for crowd in some for part in crowd]
        written = files.in_tasks(spark, partial(_write_together, table=table), some)
        if table.replace(former, written, is_new=False):
            gone += len(former)
        else:
            # An erasure has replaced one of these meanwhile, and what it erased must not stay in what was joined.
            files.discard(table, written)
    return gone


def _write_together(crowd: list[Part], *, table: Table) -> Iterator[WrittenFile]:
    """In a task: the rows of some files to one."""
    return files.write(table, chain.from_iterable(files.read(table, part) for part in crowd))
