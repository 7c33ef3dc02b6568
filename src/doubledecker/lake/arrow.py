"""Rows in Arrow: the schema of each journal, its entries as a batch, and schemas in the words of Spark."""

from collections.abc import Sequence

import pyarrow as pa

from doubledecker.lake import rows
from doubledecker.lake.rows import Layout
from doubledecker.store.journal import Entry

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


def schema(shape: Layout) -> pa.Schema:
    """The columns of a journal's rows."""
    return pa.schema([(name, _TYPES[type_]) for name, type_ in shape.columns.items()])


def ddl(columns: pa.Schema) -> str:
    """A schema in the words of Spark."""
    return ", ".join(f"`{column.name}` {_DDL[column.type]}" for column in columns)


def to_batch(shape: Layout, entries: Sequence[Entry], *, partition: int) -> pa.RecordBatch:
    """All lines of some entries, in order."""
    values = rows.to_columns(shape, entries, partition=partition)
    columns = schema(shape)
    return pa.RecordBatch.from_arrays([pa.array(values[each.name], each.type) for each in columns], schema=columns)
