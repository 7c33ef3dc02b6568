"""DuckDB over the files of a table and over pages of a journal: in a thread, and bounded in time and memory.

The SQL is made of names of ours and of conditions that were parsed; their values are quoted by the dialect.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import TypeVar

import duckdb
from duckdb import DuckDBPyConnection
from msgspec import json

from doubledecker.errors import LakeMoved, LakeUnfit, ReadTooLarge
from doubledecker.lake import rows
from doubledecker.lake.queries import Found, Query
from doubledecker.lake.rows import INT, LONG, STRING, STRINGS, TIMESTAMP
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
# How often a query that is to end is interrupted again: it may have been between two steps.
_INSIST_S = 0.05
_NUMBER = "-?[0-9]+([.][0-9]+)?([eE][+-]?[0-9]+)?"
_ERASED = {"named": STRING, "topic": STRING, "before": TIMESTAMP}

# Types as DuckDB's JSON has them.
_TYPES: dict[str, str | list[str]] = {
    INT: "INTEGER",
    LONG: "BIGINT",
    STRING: "VARCHAR",
    TIMESTAMP: "BIGINT",
    STRINGS: ["VARCHAR"],
}
_JSON_NONE = "{}"

_Result = TypeVar("_Result")


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _moment(at: datetime) -> str:
    return f"make_timestamptz({moment.to_us(at)})"


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


@asynccontextmanager
async def opened_aside() -> AsyncIterator[DuckDBPyConnection]:
    """The same in a thread, for a process that answers others meanwhile."""
    holding = opened()
    connection = await asyncio.to_thread(holding.__enter__)
    try:
        yield connection
    finally:
        await asyncio.to_thread(holding.__exit__, None, None, None)


async def run(connection: DuckDBPyConnection, work: Callable[[DuckDBPyConnection], _Result]) -> _Result:
    """Do some work in a thread.

    Raises ReadTooLarge when it takes longer or more memory than a read may. However it ends, the thread has ended too.
    """
    running = asyncio.ensure_future(asyncio.to_thread(do, connection, work))
    try:
        await asyncio.wait({running}, timeout=_READ_S)
        if not running.done():
            raise ReadTooLarge(f"it takes more than {_READ_S:g} s")
        return running.result()
    finally:
        while not running.done():
            connection.interrupt()
            await asyncio.wait({running}, timeout=_INSIST_S)
        if not running.cancelled():
            running.exception()


def do(connection: DuckDBPyConnection, work: Callable[[DuckDBPyConnection], _Result]) -> _Result:
    """Do some work here and now, however long it takes; otherwise it raises what `run` does."""
    try:
        return work(connection)
    except duckdb.OutOfMemoryException as error:
        raise ReadTooLarge(f"it takes more than {_CONFIG['memory_limit']} of memory") from error
    except duckdb.IOException as error:
        raise LakeMoved(f"a file of the lake cannot be read: {_said(error)}") from error
    except duckdb.Error as error:
        raise LakeUnfit(f"the lake cannot be read: {_said(error)}") from error


def _said(error: duckdb.Error) -> str:
    """DuckDB's error, on one line, and without the part of our SQL that follows."""
    return " ".join(str(error).partition("\nLINE ")[0].split())[:300]


def select_files(
    connection: DuckDBPyConnection, paths: list[str], query: Query, erased: Sequence[Erasure] = ()
) -> Found:
    """The rows of some files that fit."""
    if not paths:
        return []
    options = ", hive_partitioning = true, hive_types = {'topic': varchar}" if query.name == "events" else ""
    # What has no rows has the columns that files of an older version lack.
    given = _given("none", rows.layout(query.name).columns)
    files = f"select * from read_parquet($files, union_by_name = true{options})"  # noqa: S608 - names of ours
    source = f"({files} union all by name {given})"
    return _select(connection, source, query, erased, {"files": paths, "none": _JSON_NONE})


def select_erased(connection: DuckDBPyConnection, paths: list[str]) -> list[Erasure]:
    """The tombstones in some files."""
    if not paths:
        return []
    wanted = "epoch_ms(before), tenant, key, topic"
    connection.execute(f"select {wanted} from read_parquet($files)", {"files": paths})  # noqa: S608 - names of ours
    return [
        Erasure(before_ms, tenant=tenant or "", key=key or "", topic=topic or "")
        for before_ms, tenant, key, topic in connection.fetchall()
    ]


def select_rows(
    connection: DuckDBPyConnection,
    columns: Mapping[str, Sequence[object]],
    query: Query,
    erased: Sequence[Erasure] = (),
) -> Found:
    """The rows, given as columns, that fit."""
    source = f"({_given('columns', rows.layout(query.name).columns)})"
    return _select(connection, source, query, erased, {"columns": _encoded(columns)})


def _given(parameter: str, columns: Mapping[str, str]) -> str:
    """A query for the rows of a parameter that has columns as JSON, times in microseconds.

    Not as Arrow: to make it of Python's values, pyarrow imports pandas where there is one, which takes longer than all.
    """
    shape = json.encode({name: [_TYPES[type_]] for name, type_ in columns.items()}).decode()
    lists = (f'unnest(c."{name}") as "{name}"' for name in columns)
    listed = f"select {', '.join(lists)} from (select from_json(${parameter}, '{shape}') as c)"  # noqa: S608 - ours
    moments = (f'make_timestamptz("{name}") as "{name}"' for name, type_ in columns.items() if type_ == TIMESTAMP)
    return f"select * replace ({', '.join(moments)}) from ({listed})"  # noqa: S608 - names of ours


def _encoded(columns: Mapping[str, Sequence[object]]) -> str:
    as_text = {
        name: [each.decode() if isinstance(each, bytes) else each for each in values]
        for name, values in columns.items()
    }
    return json.encode(as_text).decode()


def _select(
    connection: DuckDBPyConnection,
    source: str,
    query: Query,
    erased: Sequence[Erasure],
    parameters: dict[str, object],
) -> Found:
    names, of_type = rows.shown(query.name), rows.layout(query.name).columns
    fitting = [condition.to_sql(query.condition, DIALECT)] if query.condition else []
    for column in ("tenant", "key"):
        named = [each for each in erased if getattr(each, column)]
        if named:
            fitting.append(_not_erased(column))
            parameters = parameters | {f"erased_{column}": _tombstones(named, column)}
    number = "cast(split_part(r.entry, '-', 2) as hugeint)"
    if query.before:
        at_us, seq, partition = query.before.ms * 1000, query.before.seq, query.before.partition
        fitting.append(f"(r.at, {number}, r.partition) < (make_timestamptz({at_us}), {seq}, {partition})")
    where = f"where {' and '.join(f'({each})' for each in fitting)}" if fitting else ""
    shown = ", ".join(_shown(column, of_type[column]) for column in names)
    if query.ids_max:
        names = [*names, "events", "event_count"]
        shown += f", array_slice(r.events, 1, {query.ids_max}), len(r.events)"
    order = f"r.at, r.partition, {number}, r.line"
    if query.is_newest_first:
        order = f"r.at desc, {number} desc, r.partition desc"
    sql = f"select {shown} from {source} r {where} order by {order} limit {query.limit}"  # noqa: S608 - see above
    connection.execute(sql, parameters)
    return [dict(zip(names, row, strict=True)) for row in connection.fetchall()]


def _shown(column: str, type_: str) -> str:
    """Moments as text, in UTC: Python would need one more library for times with a zone."""
    if type_ != TIMESTAMP:
        return f'r."{column}"'
    return f"strftime(r.\"{column}\" at time zone 'UTC', '%Y-%m-%dT%H:%M:%S.%gZ')"


def _not_erased(column: str) -> str:
    """That no tombstone names a row by this column."""
    is_meant = f'e.named = r."{column}" and (e.topic is null or e.topic = r.topic) and r.at < e.before'
    given = _given(f"erased_{column}", _ERASED)
    return f"not exists (select 1 from ({given}) e where {is_meant})"  # noqa: S608 - names of ours


def _tombstones(erased: Sequence[Erasure], column: str) -> str:
    return _encoded(
        {
            "named": [getattr(each, column) for each in erased],
            "topic": [each.topic or None for each in erased],
            "before": [each.before_ms * 1000 for each in erased],
        }
    )
