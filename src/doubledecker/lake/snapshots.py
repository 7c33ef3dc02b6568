"""One version of a table of the lake, by its log alone: which files it has, and how far it has come.

Reading makes no table and changes none: a lake that is not there has no files and has come nowhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from doubledecker.errors import LakeUnfit
from doubledecker.lake import marks
from doubledecker.lake.rows import MOMENT
from doubledecker.model import moment
from doubledecker.model.entry_id import EntryId
from doubledecker.model.erasure import Erasure

_EMPTY = pa.schema([("path", pa.string()), ("size_bytes", pa.int64())]).empty_table()


@dataclass(frozen=True)
class Snapshot:
    """The files of one version of a table, as its log tells of them, and how far the table has come."""

    uri: str
    reached: Mapping[int, EntryId]
    files: pa.Table

    @property
    def bytes(self) -> int:
        return pc.sum(self.files["size_bytes"]).as_py() or 0

    def paths(self) -> list[str]:
        """Where the files are. In the log a path is a URL, relative to the table."""
        return [f"{self.uri}/{unquote(path)}" for path in self.files["path"].to_pylist()]

    def between(self, since: datetime | None, until: datetime | None) -> "Snapshot":
        """Only the files that can hold rows written from `since` until before `until`."""
        masks = []
        if since is not None:
            masks.append(pc.greater_equal(self._told("max.at", MOMENT), pa.scalar(since, MOMENT)))
        if until is not None:
            masks.append(pc.less(self._told("min.at", MOMENT), pa.scalar(until, MOMENT)))
        return self._fitting(masks)

    def of_topic(self, topic: str) -> "Snapshot":
        """Only the files of a topic's folders; of all when it is empty."""
        return self._fitting([pc.equal(self._told("partition.topic", pa.string()), topic)] if topic else [])

    def without(self, other: "Snapshot") -> "Snapshot":
        """The files that another selection of the same version does not have."""
        return self._fitting([pc.invert(pc.is_in(self.files["path"], other.files["path"].combine_chunks()))])

    def _told(self, column: str, type_: pa.DataType) -> pa.ChunkedArray:
        """What the log tells of each file; null where it does not."""
        if column not in self.files.column_names:
            return pa.chunked_array([pa.nulls(self.files.num_rows, type_)])
        return pc.cast(self.files[column], type_)

    def _fitting(self, masks: Sequence[pa.ChunkedArray]) -> "Snapshot":
        """The files that fit, or of which it cannot be told."""
        known = [pc.fill_null(mask, fill_value=True) for mask in masks]
        files = self.files.filter(reduce(pc.and_, known)) if known else self.files
        return Snapshot(self.uri, self.reached, files)


def read(root: str, name: str, *, partitions: int) -> Snapshot:
    """The newest version of a table."""
    uri = f"{root.rstrip('/')}/{name}"
    table = _open(uri)
    if table is None:
        return Snapshot(uri, {index: EntryId(0, 0) for index in range(partitions)}, _EMPTY)
    return Snapshot(uri, marks.landed(table, partitions), pa.table(table.get_add_actions(flatten=True)))


def erased(root: str) -> Sequence[Erasure]:
    """All tombstones: what was erased, wherever it still is."""
    table = _open(f"{root.rstrip('/')}/erasures")
    if table is None or not table.file_uris():
        return []
    return [
        Erasure(moment.to_ms(_aware(row["before"])), row["tenant"] or "", row["key"] or "", row["topic"] or "")
        for row in pa.table(table.to_pyarrow_table()).to_pylist()
    ]


def _open(uri: str) -> DeltaTable | None:
    try:
        return DeltaTable(uri)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise LakeUnfit(f"cannot open the lake's table {uri}: {error}; set DOUBLEDECKER_LAKE") from error


def _aware(at: datetime) -> datetime:
    return at if at.tzinfo else at.replace(tzinfo=UTC)
