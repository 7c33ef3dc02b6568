"""Rows in Arrow: the schema of each journal, its entries as a batch, and schemas in the words of Spark."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from doubledecker.lake import rows
from doubledecker.lake.rows import RowLayout
from doubledecker.store.journal import JournalEntry

# Entries are made to rows so many bytes at a time, some thousand rows: what is made of them on the way stays in the
# processor's caches, and a row costs a fifth less than with two megabytes at once.
_PIECE_BYTES = 262_144

# When something was, as every table has it.
MOMENT = pa.timestamp("us", tz="UTC")
_TYPES = {
    rows.INT: pa.int32(),
    rows.LONG: pa.int64(),
    rows.STRING: pa.string(),
    rows.TIMESTAMP: MOMENT,
    rows.DATE: pa.date32(),
    rows.STRINGS: pa.list_(pa.string()),
    rows.LONGS: pa.list_(pa.int64()),
}
_DDL = {arrow: word for word, arrow in _TYPES.items()}


def schema(shape: RowLayout) -> pa.Schema:
    """The columns of a journal's rows."""
    return pa.schema([(name, _TYPES[type_]) for name, type_ in shape.columns.items()])


def ddl(columns: pa.Schema) -> str:
    """A schema in the words of Spark."""
    return ", ".join(f"`{column.name}` {_DDL[column.type]}" for column in columns)


def to_batch(shape: RowLayout, entries: Sequence[JournalEntry], *, partition: int) -> pa.RecordBatch:
    """All lines of some entries, in order."""
    pieces = [_to_batch(shape, piece, partition) for piece in _pieces(entries)]
    return pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)


def _to_batch(shape: RowLayout, entries: Sequence[JournalEntry], partition: int) -> pa.RecordBatch:
    values = rows.to_columns(shape, entries, partition=partition)
    columns = schema(shape)
    return pa.RecordBatch.from_arrays([pa.array(values[each.name], each.type) for each in columns], schema=columns)


def _pieces(entries: Sequence[JournalEntry]) -> Iterator[Sequence[JournalEntry]]:
    """The entries in parts of about the same size, one at least."""
    first, size = 0, 0
    for i, entry in enumerate(entries, 1):
        size += sum([len(value) for _, value in entry.fields])
        if size >= _PIECE_BYTES:
            yield entries[first:i]
            first, size = i, 0
    if first < len(entries) or not entries:
        yield entries[first:]
