"""Parquet files of a table, written and read in tasks; what comes back to the driver is a line about each file.

Rows are gathered to chunks, sorted by the table's folders, and written to one open file a folder. What is held is a
chunk, whatever the number of rows; what a task that dies leaves behind belongs to no table, and vacuum removes it.
"""

import contextlib
import json
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import SparkSession

from doubledecker.lake import arrow, commits
from doubledecker.lake.commits import is_local, system_of
from doubledecker.pipeline.lake.tables import LakeTable, Part, WrittenFile

# A row group: large enough to compress well, small enough to hold.
_CHUNK_ROWS = 131_072
_CHUNK_BYTES = 67_108_864
# Rows that are read at a time; a chunk gathers several.
_BATCH_ROWS = 16_384
# What a task returns to the driver of a file; its rows stay where they are.
WRITTEN = pa.schema([("path", pa.string()), ("size", pa.int64()), ("rows", pa.int64()), ("more", pa.string())])
# Of the row groups without an id, the share that is read without need: then a filter takes a byte a row.
_FALSE_SHARE = 0.03
# Files a task keeps open; with more topics than that the one open longest is closed.
_OPEN_MAX = 64

_Job = TypeVar("_Job")


@dataclass
class _OpenFile:
    """A file that still takes rows."""

    path: str
    values: dict[str, str]
    stream: pa.NativeFile
    writer: pq.ParquetWriter
    rows: int = 0
    at_min: str = ""
    at_max: str = ""


def write(table: LakeTable, batches: Iterable[pa.RecordBatch]) -> Iterator[WrittenFile]:
    """Write all rows; yields each file when it is whole. When it fails, such as on a full disk, it leaves no file."""
    system = system_of(table.uri)
    begun: list[_OpenFile] = []
    is_whole = False
    try:
        yield from _write(table, system, batches, begun)
        is_whole = True
    finally:
        if not is_whole:
            _abandon(system, begun)


def _write(
    table: LakeTable, system: fs.FileSystem, batches: Iterable[pa.RecordBatch], begun: list[_OpenFile]
) -> Iterator[WrittenFile]:
    """Write all rows; notes the files in `begun`."""
    kept = pa.schema([column for column in table.schema if column.name not in table.partition_by])
    open_files: dict[tuple[str, ...], _OpenFile] = {}
    for chunk in _chunks(table, batches):
        for folder, rows in _by_folder(table, chunk):
            if folder not in open_files:
                if len(open_files) >= _OPEN_MAX:
                    yield _close(table, system, open_files.pop(next(iter(open_files))))
                open_files[folder] = _open(table, system, folder, kept, rows=rows.num_rows)
                begun.append(open_files[folder])
            _add(open_files[folder], rows.select(kept.names))
    for file in open_files.values():
        yield _close(table, system, file)


def _abandon(system: fs.FileSystem, begun: Iterable[_OpenFile]) -> None:
    """Delete files that nobody will commit: on a disk that is full, each further try would leave its own."""
    for file in begun:
        # What is still to be written may not fit; it is not needed.
        for end in (file.writer.close, file.stream.close, partial(system.delete_file, file.path)):
            with contextlib.suppress(OSError):
                end()


def in_tasks(
    spark: SparkSession, work: Callable[[_Job], Iterable[WrittenFile]], jobs: Sequence[_Job]
) -> list[WrittenFile]:
    """Have files written, a task for each job, anywhere in the cluster; the rows themselves never leave their task."""

    def act(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield to_rows(work(jobs[number]))

    rows = spark.range(0, len(jobs), 1, len(jobs)).mapInArrow(act, arrow.ddl(WRITTEN))
    return [from_row(*row) for row in rows.collect()]


def to_rows(written: Iterable[WrittenFile]) -> pa.RecordBatch:
    """In a task: what the driver needs to know of files."""
    return pa.RecordBatch.from_pylist([_row(file) for file in written], schema=WRITTEN)


def from_row(path: str, size: int, rows: int, more: str) -> WrittenFile:
    """On the driver: a file as a task reported it."""
    return WrittenFile(path, size, rows, **json.loads(more))


def _row(file: WrittenFile) -> dict[str, object]:
    more = {"values": file.values, "at_min": file.at_min, "at_max": file.at_max}
    return {"path": file.path, "size": file.size, "rows": file.rows, "more": json.dumps(more)}


def read(table: LakeTable, part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of a file, in the columns that rows are given in today, some at a time."""
    with system_of(table.uri).open_input_file(unquote(part.path)) as source:
        for batch in pq.ParquetFile(source).iter_batches(batch_size=_BATCH_ROWS):
            named = {name: pa.repeat(value, len(batch)) for name, value in part.values.items()}
            there = {**named, **dict(zip(batch.schema.names, batch.columns, strict=True))}
            # A file that an older version wrote lacks the columns that have come since.
            arrays = [pc.cast(there.get(column.name, pa.nulls(len(batch))), column.type) for column in table.given]
            yield pa.RecordBatch.from_arrays(arrays, schema=table.given)


def _chunks(table: LakeTable, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Rows with their date, gathered."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        dates = pc.cast(batch["at"], pa.date32())
        gathered.append(batch.append_column(pa.field("date", pa.date32()), dates).select(table.schema.names))
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield pa.Table.from_batches(gathered)


def _by_folder(table: LakeTable, chunk: pa.Table) -> Iterator[tuple[tuple[str, ...], pa.Table]]:
    """The rows of each folder, in the order in which they came: the sort is stable."""
    folders = chunk.select(table.partition_by).group_by(table.partition_by, use_threads=False).aggregate([])
    ordered = chunk
    if folders.num_rows > 1:
        ordered = chunk.take(pc.sort_indices(chunk, [(name, "ascending") for name in table.partition_by]))
    names = pc.binary_join_element_wise(*(pc.cast(ordered[name], pa.string()) for name in table.partition_by), "\0")
    encoded = pc.run_end_encode(names.combine_chunks())
    first = 0
    for value, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        yield tuple(value.split("\0")), ordered.slice(first, end - first)
        first = end


def _open(
    table: LakeTable, system: fs.FileSystem, folder: tuple[str, ...], schema: pa.Schema, *, rows: int
) -> _OpenFile:
    values = dict(zip(table.partition_by, folder, strict=True))
    inner = "/".join(f"{name}={quote(value, safe='')}" for name, value in values.items())
    path = posixpath.join(inner, f"{uuid4()}.parquet")
    if is_local(table.uri):
        system.create_dir(inner, recursive=True)
    stream = system.open_output_stream(path)
    writer = pq.ParquetWriter(stream, schema, compression="zstd", bloom_filter_options=_indexed(table, rows))
    return _OpenFile(path, values, stream, writer)


def _indexed(table: LakeTable, rows: int) -> dict[str, dict[str, float]] | None:
    """Bloom filters, one for each row group, made for as many values as the first group has rows.

    They are the index by which an event is found by its id. They are part of the file, so that whatever rewrites a
    file, such as an erasure, rewrites its index too, and the table's log has no trace of an id.
    """
    return {name: {"ndv": max(1, rows), "fpp": _FALSE_SHARE} for name in table.indexed} or None


def _add(file: _OpenFile, rows: pa.Table) -> None:
    file.writer.write_table(rows)
    file.rows += rows.num_rows
    bounds = pc.min_max(rows["at"]).as_py()
    least, most = (f"{bounds[end].isoformat(timespec='milliseconds')[:-6]}Z" for end in ("min", "max"))
    file.at_min, file.at_max = min(file.at_min or least, least), max(file.at_max, most)


def _close(table: LakeTable, system: fs.FileSystem, file: _OpenFile) -> WrittenFile:
    file.writer.close()
    file.stream.close()
    if is_local(table.uri):
        # The bus forgets what is confirmed, so it must be on the disk and not only on its way there.
        commits.sync(Path(table.uri) / file.path)
    [rows] = system.get_file_info([file.path])
    # In Delta's log a path is a URL: what was escaped in a folder's name is escaped once more.
    return WrittenFile(quote(file.path, safe="/="), rows.size, file.rows, file.values, file.at_min, file.at_max)


def discard(table: LakeTable, written: Iterable[WrittenFile]) -> None:
    """Delete files that will never be part of the table."""
    for file in written:
        system_of(table.uri).delete_file(unquote(file.path))
