"""DuckDB over the files of a table and over pages of a journal: in a thread, and bounded in time and memory.

The SQL is made of names of ours and of conditions that were parsed; their values are quoted by the dialect.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection

from doubledecker.errors import LakeMoved, LakeUnfit, ReadTooLarge
from doubledecker.lake import rows
from doubledecker.lake.queries import Found, Query
from doubledecker.lake.rows import MOMENT
from doubledecker.model import condition, moment
from doubledecker.model.condition import Dialect
from doubledecker.model.erasure import Erasure

# What one read may take; what needs more is Spark's.
_READ_S = 10.0
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "threads": 2,
    "memory_limit": "512MB",
    # Nothing is written to a disk, and nothing fetched from a network.
    "temp_directory": "",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
# How often a query that was told to end is told so again: it may have been between two steps.
_INSIST_S = 0.05
_NUMBER = "-?[0-9]+([.][0-9]+)?([eE][+-]?[0-9]+)?"
_ERASED = pa.schema([("named", pa.string()), ("topic", pa.string()), ("before", MOMENT)])

_Result = TypeVar("_Result")


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _moment(at: datetime) -> str:
    return f"make_timestamptz({moment.to_ms(at) * 1000 + at.microsecond % 1000})"


def _json(column: str, path: Sequence[str]) -> str:
    return f"json_extract_string({column}, {_text('$' + ''.join(f'.{chr(34)}{name}{chr(34)}' for name in path))})"


def _number(value: str) -> str:
    return f"case when regexp_full_match({value}, '{_NUMBER}') then cast({value} as double) end"


DIALECT = Dialect(
    name=lambda column: f'r."{column}"',
    text=_text,
    moment=_moment,
    json=_json,
    number=_number,
    contains=lambda column, value: f"list_contains({column}, {value})",
)


@contextmanager
def opened() -> Iterator[DuckDBPyConnection]:
    """A DuckDB in memory; opening one costs 40 ms, so a read uses one for all its pages."""
    connection = duckdb.connect(":memory:", config=_CONFIG)
    try:
        yield connection
    finally:
        connection.close()


async def run(connection: DuckDBPyConnection, work: Callable[[DuckDBPyConnection], _Result]) -> _Result:
    """Do some work in a thread.

    Raises ReadTooLarge when it takes longer or more memory than a read may. However it ends, the thread has ended too.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work, connection))
    try:
        await asyncio.wait({running}, timeout=_READ_S)
        if not running.done():
            raise ReadTooLarge(f"it takes more than {_READ_S:g} s")
        return running.result()
    except duckdb.OutOfMemoryException as error:
        raise ReadTooLarge(f"it takes more than {_CONFIG['memory_limit']} of memory") from error
    except duckdb.IOException as error:
        raise LakeMoved(f"a file of the lake cannot be read: {error}") from error
    except duckdb.Error as error:
        raise LakeUnfit(f"the lake cannot be read: {' '.join(str(error).split())[:300]}") from error
    finally:
        while not running.done():
            connection.interrupt()
            await asyncio.wait({running}, timeout=_INSIST_S)
        if not running.cancelled():
            running.exception()


def select_files(
    connection: DuckDBPyConnection, paths: list[str], query: Query, erased: Sequence[Erasure] = ()
) -> Found:
    """The rows of some files that fit."""
    if not paths:
        return []
    connection.register("shape", rows.layout(query.name).schema.empty_table())
    # The empty table has the columns that files of an older version lack.
    files = "read_parquet($files, union_by_name = true, hive_partitioning = true, hive_types = {'topic': varchar})"
    if query.name != "events":
        files = "read_parquet($files, union_by_name = true)"
    source = f"(select * from {files} union all by name select * from shape)"  # noqa: S608 - names of ours
    return _select(connection, source, query, erased, {"files": paths})


def select_batch(
    connection: DuckDBPyConnection, batch: pa.RecordBatch, query: Query, erased: Sequence[Erasure] = ()
) -> Found:
    """The rows of a batch that fit."""
    connection.register("batch", pa.Table.from_batches([batch]))
    return _select(connection, "batch", query, erased, {})


def _select(
    connection: DuckDBPyConnection,
    source: str,
    query: Query,
    erased: Sequence[Erasure],
    parameters: dict[str, object],
) -> Found:
    names = rows.shown(query.name)
    fitting = [condition.to_sql(query.condition, DIALECT)] if query.condition else []
    fitting += [_not_erased(connection, column, erased) for column in ("tenant", "key") if erased]
    where = f"where {' and '.join(f'({each})' for each in fitting)}" if fitting else ""
    number = "cast(split_part(r.entry, '-', 2) as hugeint)"
    shown = ", ".join(_shown(column) for column in rows.layout(query.name).schema if column.name in names)
    order = f"r.at, r.partition, {number}, r.line"
    sql = f"select {shown} from {source} r {where} order by {order} limit {query.limit}"  # noqa: S608 - see above
    connection.execute(sql, parameters)
    return [dict(zip(names, row, strict=True)) for row in connection.fetchall()]


def _shown(column: pa.Field) -> str:
    """Moments as text, in UTC: Python would need one more library for times with a zone."""
    if column.type != MOMENT:
        return f'r."{column.name}"'
    return f"strftime(r.\"{column.name}\" at time zone 'UTC', '%Y-%m-%dT%H:%M:%S.%gZ')"


def _not_erased(connection: DuckDBPyConnection, column: str, erased: Sequence[Erasure]) -> str:
    """That no tombstone names a row by this column."""
    named = [
        {"named": getattr(each, column), "topic": each.topic or None, "before": moment.from_ms(each.before_ms)}
        for each in erased
        if getattr(each, column)
    ]
    table = f"erased_{column}"
    connection.register(table, pa.Table.from_pylist(named, schema=_ERASED))
    is_meant = f'e.named = r."{column}" and (e.topic is null or e.topic = r.topic) and r.at < e.before'
    return f"not exists (select 1 from {table} e where {is_meant})"  # noqa: S608 - names of ours
