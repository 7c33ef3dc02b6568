"""The lake as DataFrames: all rows of a time and no others, whatever file they are in, as the bus accepted them."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from doubledecker.lake import arrow, rows
from doubledecker.pipeline.lake import files, frames, versions
from doubledecker.pipeline.lake.tables import LakeTable
from doubledecker.pipeline.land import landing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_DAYS = [datetime(2026, 11, day, 12, tzinfo=UTC) for day in (1, 2, 3)]


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    """Three events a day on three days, one commit a day."""
    table = landing.table_of(str(tmp_path), "events")
    for day in _DAYS:
        table.commit(table.open(), files.write(table, [_batch(day)]), {})
    return table


def _batch(day: datetime) -> pa.RecordBatch:
    schema = arrow.schema(rows.layout("events"))
    ms = int(day.timestamp() * 1000)
    told = [
        {"partition": 0, "entry": f"{ms}-{number}", "line": 0, "at": day, "topic": topic, "id": f"{day.day}/{number}"}
        for number, topic in ((9, "orders"), (10, "orders"), (2, "pages"))
    ]
    return pa.RecordBatch.from_pylist(told, schema=schema)


def _ids(spark: SparkSession, table: LakeTable, **bounds: datetime) -> list[str]:
    frame = frames.landed(spark, table, versions.of(table), **bounds)
    return [str(row.id) for row in frame.orderBy(*frames.order()).select("id").toLocalIterator()]


def test_rows_stand_as_the_bus_accepted_them(spark: SparkSession, table: LakeTable) -> None:
    assert _ids(spark, table) == [f"{day.day}/{number}" for day in _DAYS for number in (2, 9, 10)]


def test_a_time_has_its_own_rows_alone_the_beginning_included_and_the_end_not(
    spark: SparkSession, table: LakeTable
) -> None:
    assert {name[0] for name in _ids(spark, table, since=_DAYS[1])} == {"2", "3"}
    assert {name[0] for name in _ids(spark, table, until=_DAYS[1])} == {"1"}
    assert {name[0] for name in _ids(spark, table, since=_DAYS[1], until=_DAYS[2])} == {"2"}


def test_a_time_without_rows_opens_no_file(spark: SparkSession, table: LakeTable) -> None:
    frame = frames.landed(spark, table, versions.of(table), since=datetime(2027, 1, 1, tzinfo=UTC))
    assert frame.inputFiles() == []
    assert frame.isEmpty()


def test_only_files_that_can_hold_the_time_are_opened(spark: SparkSession, table: LakeTable) -> None:
    frame = frames.landed(spark, table, versions.of(table), since=_DAYS[2])
    assert len(frame.inputFiles()) == 2
    assert all("date=2026-11-03" in path for path in frame.inputFiles())


def test_the_log_is_used_after_compaction_too(spark: SparkSession, table: LakeTable) -> None:
    table.open().optimize.compact()
    assert {name[0] for name in _ids(spark, table, since=_DAYS[2])} == {"3"}
