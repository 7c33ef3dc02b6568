"""One version of a table of the lake, by its log alone: which files it has, and how far it has come.

Reading makes no table and changes none: a lake that is not there has no files and has come nowhere.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, chain, repeat, starmap
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from arro3.core import ChunkedArray, DataType, Table
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from doubledecker.errors import LakeUnfit
from doubledecker.model import moment
from doubledecker.model.position import Position

# How far a table of the lake has come: the last entry of each journal partition that is in it.
#
# Every commit carries these marks as Delta's application transactions. An entry's id does not fit one number, so it
# takes two: milliseconds and number.


class Marked(Protocol):
    """A version of a table: delta-rs's, or one of ours."""

    def transaction_version(self, app_id: str) -> int | None: ...


def landed(table: Marked, partitions: int) -> dict[int, Position]:
    """The last entry of each partition that is in the table."""
    found = {}
    for index in range(partitions):
        ms, seq = (table.transaction_version(name) for name in _names(index))
        found[index] = Position(ms or 0, seq or 0)
    return found


def reaches(ends: Mapping[int, Position]) -> dict[str, int]:
    """The marks of how far a table has come."""
    pairs = [zip(_names(index), (end.ms, end.seq), strict=True) for index, end in ends.items()]
    return dict(chain.from_iterable(pairs))


def names(partitions: int) -> list[str]:
    """The names of all marks of a bus with so many partitions."""
    return [name for index in range(partitions) for name in _names(index)]


def _names(index: int) -> tuple[str, str]:
    return f"journal:{index}:ms", f"journal:{index}:seq"


_COLOUR = re.compile("\x1b\\[[0-9;]*m")
# The year 9999, in microseconds since 1970.
_NEVER = 253_370_764_800_000_000
_MOMENT = DataType.timestamp("us", tz="UTC")


class File(NamedTuple):
    """A file of a table, as its log has it; None where the log has nothing. Times are microseconds since 1970."""

    path: str
    size: int
    at_min: int | None
    at_max: int | None
    topic: str | None


@dataclass(frozen=True)
class TableSnapshot:
    """The files of one version of a table, or some of them, and how far the table has come."""

    uri: str
    reached: Mapping[int, Position]
    files: Sequence[File]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    def paths(self) -> list[str]:
        """Where the files are. In the log a path is a URL, relative to the table."""
        return [f"{self.uri}/{unquote(file.path)}" for file in self.files]

    def between(self, since: datetime | None, until: datetime | None) -> "TableSnapshot":
        """Only the files that can hold rows written from `since` until before `until`."""
        low, high = (None if at is None else moment.to_us(at) for at in (since, until))
        return self._only(
            file
            for file in self.files
            if (low is None or file.at_max is None or file.at_max >= low)
            and (high is None or file.at_min is None or file.at_min < high)
        )

    def of_topic(self, topic: str) -> "TableSnapshot":
        """Only the files of a topic's folders; of all when it is empty."""
        return self._only(file for file in self.files if not topic or file.topic in {None, topic})

    def without(self, other: "TableSnapshot") -> "TableSnapshot":
        """The files that another selection of the same version does not have."""
        theirs = {file.path for file in other.files}
        return self._only(file for file in self.files if file.path not in theirs)

    @property
    def begin(self) -> datetime:
        """Before when none of the files has rows; they are at least one."""
        return moment.from_ms(min(_begin(file) for file in self.files) // 1000)

    def by_time(self) -> "TableSnapshot":
        """The files by when their rows begin; those of which that is not known come first."""
        return self._only(sorted(self.files, key=_begin))

    @property
    def end(self) -> int:
        """Microseconds since 1970 after which none of the files has rows; they are at least one."""
        return max(map(_end, self.files))

    def newest_first(self) -> "TableSnapshot":
        """The files by when their rows end, the last first; those of which that is not known before all."""
        return self._only(sorted(self.files, key=_end, reverse=True))

    def first(self, *, files: int, bytes_: int) -> "TableSnapshot":
        """As many files from the first one on as fit into both."""
        sizes = accumulate(file.size for file in self.files)
        return self._only(file for file, size in zip(self.files[:files], sizes, strict=False) if size <= bytes_)

    def parts(self, bytes_: int) -> Iterator["TableSnapshot"]:
        """All files, in parts of at least so many bytes, of which each is to have twice as many as the one before."""
        part: list[File] = []
        size = 0
        for file in self.files:
            part.append(file)
            size += file.size
            if size >= bytes_:
                yield self._only(part)
                part, size, bytes_ = [], 0, 2 * bytes_
        if part:
            yield self._only(part)

    def _only(self, files: Iterable[File]) -> "TableSnapshot":
        return TableSnapshot(self.uri, self.reached, tuple(files))


def _begin(file: File) -> int:
    return file.at_min or 0


def _end(file: File) -> int:
    return _NEVER if file.at_max is None else file.at_max


def read(root: str, name: str, *, partitions: int) -> TableSnapshot:
    """The newest version of a table."""
    uri = f"{root.rstrip('/')}/{name}"
    table = _open(uri)
    if table is None:
        return TableSnapshot(uri, {index: Position(0, 0) for index in range(partitions)}, ())
    return TableSnapshot(uri, landed(table, partitions), _files(table))


def _files(table: DeltaTable) -> list[File]:
    """The files of a log, by columns: a log may have a hundred thousand."""
    added = table.get_add_actions(flatten=True)
    names = ("path", "size_bytes", "min.at", "max.at", "partition.topic")
    return list(starmap(File, zip(*(_column(added, name) for name in names), strict=True)))


def _column(added: Table, name: str) -> Iterable[Any]:
    """What the log knows of each file."""
    if name not in added.column_names:
        return repeat(None, added.num_rows)
    return _values(added[name])


def _values(column: ChunkedArray) -> list[Any]:
    """Python's values, times in microseconds since 1970."""
    plain = column
    if DataType.is_timestamp(column.type):
        plain = column.cast(_MOMENT).cast(DataType.int64())
    return list(plain.to_pylist())


def _open(uri: str) -> DeltaTable | None:
    try:
        return DeltaTable(uri)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise LakeUnfit(f"cannot open the lake's table {uri}: {reason(error)}; set DOUBLEDECKER_LAKE") from error


def reason(error: Exception) -> str:
    """The error of delta-rs, on one line and without colours."""
    return " ".join(_COLOUR.sub("", str(error)).split())
