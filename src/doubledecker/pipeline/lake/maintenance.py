"""Tend: join the many small files that landing makes, drop what is older than it is kept, remove what no table needs.

Those of the measures are folded by the step that makes them, since their rows become fewer too.

Joining rewrites files and adds no rows, so neither landing nor a reader notices: how far a table has come stays as it
is, and a reader of an older version still finds its files until they are removed. What is dropped goes by whole
folders, a day of a topic each, and its files a week later.

The log of a table is kept short too: every so many commits all that the table is now, its marks included, is written
to a checkpoint, and commits that are older than a day and behind a checkpoint are removed.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import chain

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from doubledecker.pipeline.erase import tombstones
from doubledecker.pipeline.lake import files, versions
from doubledecker.pipeline.lake.tables import LakeTable, Part, WrittenFile
from doubledecker.pipeline.lake.versions import Version
from doubledecker.pipeline.land import landing
from doubledecker.pipeline.metrics import measures
from doubledecker.pipeline.sources import streaming
from doubledecker.pipeline.spark_format import refused_rows
from doubledecker.store import journal

# Fewer are not worth the rewriting.
_FILES_MIN = 16
# A file that large is left alone.
_TARGET_BYTES = 67_108_864
# Longer than any round of landing, any query and any look at an older version takes.
_KEPT_HOURS = 168
# To find files that no version has, all names on the disk are listed; they are a week old by then.
_CLEAN_S = 21_600
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
class Maintained:
    """What was done to the tables: files joined, files removed from the disk, rows dropped for their age."""

    joined: int
    removed: int
    dropped: int = 0


@dataclass
class Maintainer:
    """Maintains the tables of a lake again and again; looks for files of no version at first and every six hours."""

    spark: SparkSession
    root: str
    rules: Retention
    _cleaned_s: float | None = None

    def round(self) -> Maintained:
        now_s = time.monotonic()
        is_due = self._cleaned_s is None or now_s - self._cleaned_s >= _CLEAN_S
        done = tend(self.spark, self.root, self.rules, cleans=is_due)
        if is_due:
            self._cleaned_s = now_s
        return done


def tend(
    spark: SparkSession,
    root: str,
    retention: Retention | None = None,
    *,
    now: datetime | None = None,
    cleans: bool = True,
) -> Maintained:
    """Drop, join and remove, in every table; safe beside a landing and an erasure, and to be cut short."""
    rules = retention or Retention()
    joined = removed = dropped = 0
    for table in _all(root):
        # First of all: it must go on also while something else fails.
        versions.shorten(table)
    for name, table in _tables(root):
        dropped += _drop(table, aged(versions.of(table), name, rules, now=now or datetime.now(UTC)))
        small = versions.of(table).crowded(size_below=_TARGET_BYTES // 2, files_min=_FILES_MIN)
        joined += _join(spark, table, crowded(small))
    if cleans:
        removed = sum(map(_clean, _all(root)))
    return Maintained(joined, removed, dropped)


def _tables(root: str) -> Iterator[tuple[str, LakeTable]]:
    """All tables whose files are joined, by name."""
    for name in landing.TABLES:
        yield name, landing.table_of(root, name)
    quarantine = streaming.quarantine_of(root)
    if DeltaTable.is_deltatable(quarantine):
        yield streaming.QUARANTINE, refused_rows.table_of(quarantine)


def _all(root: str) -> Iterator[LakeTable]:
    """All tables of a lake."""
    yield from (table for _, table in _tables(root))
    yield from (measures.table_of(root, name) for name in measures.TABLES)
    yield tombstones.table_of(root)


def aged(seen: Version, name: str, rules: Retention, *, now: datetime) -> list[Part]:
    """The files of folders that are too old: a whole day is over before it goes."""
    today = now.astimezone(UTC).date()
    if name in {streaming.QUARANTINE, journal.AUDIT}:
        return []
    if name != "events":
        return _before(seen, today - timedelta(rules.attempts_days)) if rules.attempts_days else []
    by_days: dict[int, set[str]] = defaultdict(set)
    for topic in seen.topics:
        by_days[rules.topics_days.get(topic, rules.events_days)].add(topic)
    return [
        part
        for days, topics in by_days.items()
        if days
        for part in _before(seen, today - timedelta(days), topics=topics)
    ]


def _before(seen: Version, day: date, *, topics: set[str] | None = None) -> list[Part]:
    until = datetime.combine(day, datetime.min.time(), UTC)
    return [part for part in seen.parts(until=until, topics=topics) if part.values["date"] < str(day)]


def _clean(table: LakeTable) -> int:
    # Files of rounds that were never committed are in no version: only a full look finds them. Files that a commit
    # removed are kept for as long; that the log remembers them for longer (tables.py) is for erasures.
    removed = table.open().vacuum(
        retention_hours=_KEPT_HOURS, dry_run=False, full=True, enforce_retention_duration=False
    )
    return len(removed)


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


def _drop(table: LakeTable, old: list[Part]) -> int:
    """Take files out of a table; if somebody has replaced one at this moment, they are as old the next time."""
    return sum(part.rows for part in old) if old and versions.swap(table, old, []) else 0


def _join(spark: SparkSession, table: LakeTable, crowds: list[list[Part]]) -> int:
    """Join files, a task for each that they become; returns how many are gone."""
    gone = 0
    for first in range(0, len(crowds), _JOINED_TOGETHER):
        some = crowds[first : first + _JOINED_TOGETHER]
        former = [part for crowd in some for part in crowd]
        written = files.in_tasks(spark, partial(_write_together, table=table), some)
        if versions.swap(table, former, written, is_new=False):
            gone += len(former)
        else:
            # An erasure has replaced one of these meanwhile, and what it erased must not stay in what was joined.
            files.discard(table, written)
    return gone


def _write_together(crowd: list[Part], *, table: LakeTable) -> Iterator[WrittenFile]:
    """In a task: the rows of some files to one."""
    return files.write(table, chain.from_iterable(files.read(table, part) for part in crowd))
