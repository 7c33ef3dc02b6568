"""Outside readers: whatever column others filter the lake's tables by, delta-rs, DuckDB and Polars find every row."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder

from doubledecker.model.erasure import Erasure
from doubledecker.pipeline.erase import tombstones
from doubledecker.pipeline.lake import files, tables
from doubledecker.pipeline.lake.tables import LakeTable
from doubledecker.pipeline.land import landing
from doubledecker.pipeline.metrics import measures
from doubledecker.pipeline.spark_format import refused_rows
from doubledecker.pipeline.spark_format.refused_rows import RefusedRows
from lakes import named_in_log
from traffic import Traffic

pytestmark = pytest.mark.slow

Rows = list[dict[str, object]]

OPERATORS: dict[str, Callable[[object, object], bool]] = {
    "=": lambda seen, value: seen == value,
    ">=": lambda seen, value: seen is not None and seen >= value,
}


def land_all(root: str) -> None:
    """Some files in every table that has a journal, with nulls in some columns and not in others."""
    traffic = Traffic(7)
    for _ in range(3):
        for name in landing.TABLES:
            traffic.land(root, name, partition=0, entries=8)
            traffic.land(root, name, partition=1, entries=8)


def the_tables(root: str) -> list[LakeTable]:
    """Every kind of table that a lake has, with rows in each."""
    land_all(root)
    tombstones.write(root, "one", Erasure(1_794_740_000_000, tenant="acme"))
    tombstones.write(root, "two", Erasure(1_794_741_000_000, key="k", topic="orders"))
    refused = RefusedRows(f"{root}/quarantine", query="q", batch=1)
    refused.add({"number": 1}, "topic is null", {})
    refused.add({"number": 2}, "type is null", {"_file": "a.json"})
    refused_rows.commit(f"{root}/quarantine", refused.close(), query="q", batch=1)
    measured = measures.table_of(root, "events")
    row = {"span": "hour", "at": datetime(2026, 11, 15, tzinfo=UTC), "topic": "orders", "events": 3, "keys": [1]}
    batch = pa.RecordBatch.from_pylist([row, {**row, "tenant": "t"}], schema=measured.given)
    measured.commit(measured.open(), list(files.write(measured, [batch])), {})
    landed = [landing.table_of(root, name) for name in landing.TABLES]
    return [*landed, tombstones.table_of(root), refused_rows.table_of(f"{root}/quarantine"), measured]


def literal(value: object) -> str:
    """A value as DuckDB and delta-rs write it in SQL."""
    if isinstance(value, datetime):
        return f"timestamptz '{value.isoformat()}'"
    if isinstance(value, date):
        return f"date '{value}'"
    return f"'{value}'" if isinstance(value, str) else str(value)


def by_dataset(table: DeltaTable, column: str, operator: str, value: object) -> int:
    field = pc.field(column)
    typed = pa.scalar(value, table.to_pyarrow_dataset().schema.field(column).type)
    wanted = field.is_null() if value is None else field == typed if operator == "=" else field >= typed
    return int(table.to_pyarrow_dataset().to_table(filter=wanted).num_rows)


def by_query(table: DeltaTable, column: str, operator: str, value: object) -> int:
    wanted = f"{column} is null" if value is None else f"{column} {operator} {literal(value)}"
    wanted = wanted.replace("timestamptz", "timestamp")
    found = QueryBuilder().register("rows", table).execute(f"select count(*) as n from rows where {wanted}")
    return int(pa.table(found.read_all())["n"][0].as_py())


def by_duckdb(table: DeltaTable, column: str, operator: str, value: object) -> int:
    wanted = f'"{column}" is null' if value is None else f'"{column}" {operator} {literal(value)}'
    with duckdb.connect() as connection:
        connection.register("rows", table.to_pyarrow_dataset())
        [[count]] = connection.execute(f"select count(*) from rows where {wanted}").fetchall()
    return int(count)


def by_polars(table: DeltaTable, column: str, operator: str, value: object) -> int:
    named = pl.col(column)
    wanted = named.is_null() if value is None else named == value if operator == "=" else named >= value
    return pl.scan_delta(table).filter(wanted).collect().height


READERS = {"dataset": by_dataset, "query": by_query, "duckdb": by_duckdb, "polars": by_polars}


def whole(table: DeltaTable) -> Rows:
    """All rows, by no filter."""
    return pa.table(table.scan()).to_pylist()


def filters(rows: Rows) -> list[tuple[str, str, object]]:
    """For every column that can be compared: its least and greatest value, and null."""
    found: list[tuple[str, str, object]] = []
    for column in rows[0]:
        values = {row[column] for row in rows if not isinstance(row[column], list)}
        known = sorted(value for value in values if value is not None)
        found += [(column, operator, value) for value in {*known[:1], *known[-1:]} for operator in OPERATORS]
        found += [(column, "=", None)] if values else []
    return found


def check(table: DeltaTable, reader: str) -> None:
    rows = whole(table)
    wanted = filters(rows)

    found = {each: READERS[reader](table, *each) for each in wanted}
    assert found == {
        (column, operator, value): sum(OPERATORS[operator](row[column], value) for row in rows)
        for column, operator, value in wanted
    }
    assert sum(count > 0 for count in found.values()) > len(rows[0])


@pytest.mark.parametrize("reader", READERS)
def test_a_filter_on_any_column_of_any_table_finds_every_row(reader: str, tmp_path: Path):
    for table in the_tables(str(tmp_path)):
        check(DeltaTable(table.uri), reader)


@pytest.mark.parametrize("reader", READERS)
def test_a_table_made_by_an_older_version_is_found_whole_once_it_was_opened(reader: str, tmp_path: Path):
    root = str(tmp_path)
    table = landing.table_of(root, "events")
    # Version 0.1.0 made its tables without properties.
    DeltaTable.create(table.uri, schema=table.schema, partition_by=list(table.partition_by))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tables, "PROPERTIES", {})
        land_all(root)
    table.open()

    check(DeltaTable(table.uri), reader)


def test_a_checkpoint_and_a_rewrite_by_others_leave_every_row_to_be_found_and_the_log_names_nobody(tmp_path: Path):
    root = str(tmp_path)
    land_all(root)
    table = DeltaTable(f"{root}/events")
    table.optimize.compact()
    table.create_checkpoint()
    again = DeltaTable(f"{root}/events")

    for reader in READERS:
        check(again, reader)
    assert named_in_log(again) == {"at"}


def test_a_landing_that_began_before_the_table_was_upgraded_still_commits(tmp_path: Path):
    root = str(tmp_path)
    table = landing.table_of(root, "events")
    DeltaTable.create(table.uri, schema=table.schema, partition_by=list(table.partition_by))
    former = DeltaTable(table.uri)
    table.open()
    table.commit(former, [], {"mark": 1})

    assert table.open().transaction_version("mark") == 1
