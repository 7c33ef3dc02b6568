"""Versions of the lake's tables: which files a version has and how far it has come, kept up to date by the log.

A step looks at its tables every few seconds. To open a table means to load all of its log, so that is done once; after
that only the commits that are new are read. What a look costs follows from what was committed since the last one, not
from how large the table is or how old.
"""

import posixpath
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.table import ProtocolVersions

from doubledecker.errors import LakeUnfit
from doubledecker.lake import commits, snapshots
from doubledecker.lake.arrow import MOMENT
from doubledecker.lake.commits import Commit, Stamp
from doubledecker.pipeline.lake import tables
from doubledecker.pipeline.lake.tables import Change, LakeTable, Part, TableSize, WrittenFile

# Others commit every few seconds at most, and a commit takes milliseconds.
_TRIES = 20
# A reader loads the last checkpoint and the commits after it. A commit takes it as long as some hundred files of a
# checkpoint, so that of a large table is written less often.
_COMMITS_MIN = 100
_FILES_A_COMMIT = 500
# Far longer than a commit takes.
_DRAFT_S = 86_400
# Files of new commits stay apart until they are so many pieces.
_PIECES_MAX = 64
_COLUMNS = (("path", pa.string()), ("size", pa.int64()), ("rows", pa.int64()), ("at_min", MOMENT), ("at_max", MOMENT))
_IN = "partition."


class _Stats(msgspec.Struct):
    """What the log says of a file's rows; it may not say of which times they are."""

    numRecords: int = 0  # noqa: N815 - Delta's word
    minValues: dict[str, Any] = {}  # noqa: N815
    maxValues: dict[str, Any] = {}  # noqa: N815


@dataclass(frozen=True)
class Version:
    """One version of a table."""

    table: LakeTable
    number: int
    files: pa.Table
    marks: Mapping[str, int | None]
    asked: ProtocolVersions
    size: TableSize
    stamp: Stamp | None

    def version(self) -> int:
        return self.number

    def protocol(self) -> ProtocolVersions:
        """What Delta asks of readers and writers of the table."""
        return self.asked

    def transaction_version(self, app_id: str) -> int | None:
        """The value of a mark; only those that were asked for are known."""
        return self.marks[app_id]

    def parts(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        topics: Collection[str] | None = None,
    ) -> list[Part]:
        """The files that can have rows from `since` until before `until`, of some topics or of all."""
        found = self.files
        if since is not None:
            found = found.filter(_or_unknown(found["at_max"], pc.greater_equal(found["at_max"], _scalar(since))))
        if until is not None:
            found = found.filter(_or_unknown(found["at_min"], pc.less(found["at_min"], _scalar(until))))
        if topics is not None:
            found = found.filter(pc.is_in(found[f"{_IN}topic"], pa.array(sorted(topics), pa.string())))
        return [_part(row) for row in found.to_pylist()]

    @property
    def topics(self) -> list[str]:
        """The topics that its folders are named for."""
        return sorted(pc.unique(self.files[f"{_IN}topic"]).to_pylist())

    def crowded(self, *, size_below: int, files_min: int) -> list[Part]:
        """The small files of folders that have at least so many of them."""
        small = self.files.filter(pc.less(self.files["size"], size_below))
        folders = [f"{_IN}{name}" for name in self.table.partition_by]
        counts = small.group_by(folders).aggregate([([], "count_all")])
        many = counts.filter(pc.greater_equal(counts["count_all"], files_min)).select(folders)
        return [_part(row) for row in small.join(many, folders, join_type="inner").to_pylist()] if many.num_rows else []

    def earliest(self, since: datetime) -> datetime | None:
        """From when on the table can have rows, at or after a time; None when it has none."""
        known = self.files.filter(
            _or_unknown(self.files["at_max"], pc.greater_equal(self.files["at_max"], _scalar(since)))
        )
        if not known.num_rows:
            return None
        least: datetime = pc.min(pc.fill_null(known["at_min"], _scalar(since))).as_py()
        return max(least, since)

    def has(self, paths: Collection[str]) -> bool:
        """Whether all these files are part of it."""
        there = pc.is_in(self.files["path"], pa.array(sorted(paths), pa.string()))
        return bool((pc.sum(there).as_py() or 0) == len(paths))

    def uris(self, parts: Iterable[Part]) -> list[str]:
        """Where files are, for a reader; the log escapes the names of folders, and a reader does not."""
        uri = self.table.uri
        root = str(Path(uri).absolute()) if commits.is_local(uri) else uri
        return [posixpath.join(root, unquote(part.path)) for part in parts]

    def after(self, commit: Commit) -> "Version":
        """The next version."""
        files, size = self.files, self.size
        if commit.removed:
            files = files.filter(pc.invert(pc.is_in(files["path"], pa.array(sorted(commit.removed), pa.string()))))
            size = _size(files)
        if commit.added:
            added = pa.Table.from_pylist([_row(add) for add in commit.added], schema=files.schema)
            files, size = _joined(files, added), tables.total([size, _size(added)])
        changed = {name: commit.marks.get(name, value) for name, value in self.marks.items()}
        return replace(self, number=commit.version, stamp=commit.stamp, files=files, marks=changed, size=size)


class _Follower:
    """The newest version of one table, for all threads of the process."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._newest: Version | None = None

    def look(self, names: Collection[str]) -> Version:
        with self._lock:
            newest = self._newest
            if newest is None or not newest.marks.keys() >= set(names) or not _is_there(newest):
                known = newest.marks.keys() if newest else set()
                newest = _load(self._table, {*known, *names})
            while (commit := commits.read(self._table.uri, newest.number + 1)) is not None:
                newest = _load(self._table, newest.marks.keys()) if commit.is_altering else newest.after(commit)
            self._newest = newest
            return newest


# Steps share the tables, and a process has a handful of them.
_followers: dict[tuple[str, tuple[str, ...]], _Follower] = {}
_followers_lock = threading.Lock()


def of(table: LakeTable, *, partitions: int = 0) -> Version:
    """The table as it is now, with the marks of a bus with so many partitions; made when there is none."""
    with _followers_lock:
        follower = _followers.setdefault((table.uri, tuple(table.schema.names)), _Follower(table))
    return follower.look(snapshots.names(partitions))


def swap(table: LakeTable, former: Collection[Part], latter: Iterable[WrittenFile], *, is_new: bool = True) -> bool:
    """Put files in the place of others; returns no, and changes nothing, if somebody else has replaced one of them.

    Delta itself would let this pass beside a compaction of the same files, and their rows would be there twice: so it
    is tried on the table as it is, and again when somebody was faster with something else. The files are not new when
    they hold what the former held.
    """
    change = Change(tuple(latter), tuple(former), is_new=is_new)
    for _ in range(_TRIES):
        now = of(table)
        if not now.has({part.path for part in former}):
            return False
        if table.append(now, now.version() + 1, change):
            return True
    raise LakeUnfit(f"others commit to {table.uri} all the time")


def shorten(table: LakeTable, *, commits_min: int = _COMMITS_MIN) -> None:
    """Write a checkpoint when there are many commits after the last, and remove commits that are no longer kept."""
    seen = of(table)
    if seen.version() - commits.checkpointed(table.uri) >= max(commits_min, seen.size.files // _FILES_A_COMMIT):
        opened = table.open()
        opened.create_checkpoint()
        opened.cleanup_metadata()
        if commits.is_local(table.uri):
            commits.remove_drafts(table.uri, older_than_s=_DRAFT_S)


def _is_there(version: Version) -> bool:
    """Whether the log still has this version, and it is the one that was read."""
    return version.stamp is not None and version.stamp == commits.stamp(version.table.uri, version.number)


def _load(table: LakeTable, names: Iterable[str]) -> Version:
    """Open the table, and take from it what a version has."""
    opened = table.open()
    schema = pa.schema([*_COLUMNS, *((f"{_IN}{name}", pa.string()) for name in table.partition_by)])
    stamp = commits.stamp(table.uri, opened.version())
    values = {name: opened.transaction_version(name) for name in names}
    files = _files(opened, schema)
    return Version(table, opened.version(), files, values, opened.protocol(), _size(files), stamp)


def _files(opened: DeltaTable, schema: pa.Schema) -> pa.Table:
    actions = pa.table(opened.get_add_actions(flatten=True))
    named = {"size": "size_bytes", "rows": "num_records", "at_min": "min.at", "at_max": "max.at"}
    columns = {column.name: named.get(column.name, column.name) for column in schema}
    # A table that has no file yet has no bounds either.
    arrays = {
        name: actions[source].cast(schema.field(name).type)
        if source in actions.column_names
        else pa.nulls(actions.num_rows)
        for name, source in columns.items()
    }
    return pa.table(arrays).cast(schema).combine_chunks()


def _size(files: pa.Table) -> TableSize:
    rows, size = (pc.sum(files[name]).as_py() or 0 for name in ("rows", "size"))
    return TableSize(rows, size, files.num_rows)


def _joined(files: pa.Table, added: pa.Table) -> pa.Table:
    """Both; what came since the first piece is made one piece now and then, and the first, the largest, not copied."""
    whole = pa.concat_tables([files, added])
    if whole["path"].num_chunks <= _PIECES_MAX:
        return whole
    first = len(whole["path"].chunk(0))
    return pa.concat_tables([whole.slice(0, first), whole.slice(first).combine_chunks()])


def _row(add: Mapping[str, Any]) -> dict[str, object]:
    stats = msgspec.json.decode(add.get("stats") or "{}", type=_Stats)
    at_min, at_max = (datetime.fromisoformat(at) if at else None for at in _bounds(stats))
    folders = {f"{_IN}{name}": value for name, value in add["partitionValues"].items()}
    return {
        "path": add["path"],
        "size": add["size"],
        "rows": stats.numRecords,
        "at_min": at_min,
        "at_max": at_max,
        **folders,
    }


def _bounds(stats: _Stats) -> tuple[str | None, str | None]:
    return stats.minValues.get("at"), stats.maxValues.get("at")


def _part(row: Mapping[str, Any]) -> Part:
    values = {name.removeprefix(_IN): str(row[name]) for name in row if name.startswith(_IN)}
    return Part(row["path"], row["size"], row["rows"] or 0, values, row["at_min"], row["at_max"])


def _or_unknown(bound: pa.ChunkedArray, fits: pa.ChunkedArray) -> pa.ChunkedArray:
    """What fits, and what nothing is known of."""
    return pc.or_kleene(pc.is_null(bound), fits)


def _scalar(at: datetime) -> pa.Scalar:
    return pa.scalar(at, MOMENT)
