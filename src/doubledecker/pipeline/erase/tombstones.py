"""Tombstones: what has been erased, written down in the lake itself, so that it never comes back.

A row stands for: events of this tenant, or of this key on this topic or any, that were accepted before `before`. Search
and replay leave out what a tombstone names, wherever it still is.
"""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as columns

from doubledecker.lake.arrow import MOMENT
from doubledecker.model import moment
from doubledecker.model.erasure import Erasure
from doubledecker.pipeline.lake import files
from doubledecker.pipeline.lake.tables import LakeTable

_SCHEMA = pa.schema(
    [
        ("at", MOMENT),
        ("id", pa.string()),
        ("tenant", pa.string()),
        ("key", pa.string()),
        ("topic", pa.string()),
        ("before", MOMENT),
        ("date", pa.date32()),
    ]
)
_DDL = "name string, topic string, before_ms long"


def table_of(root: str) -> LakeTable:
    """Where they are kept."""
    return LakeTable(f"{root.rstrip('/')}/erasures", _SCHEMA, ("date",))


def write(root: str, id_: str, erasure: Erasure) -> None:
    """Write one down, once."""
    table = table_of(root)
    opened = table.open()
    mark = f"erasure:{id_}"
    if opened.transaction_version(mark) is not None:
        return
    before = moment.from_ms(erasure.before_ms)
    named = {name: getattr(erasure, name) or None for name in ("tenant", "key", "topic")}
    batch = pa.RecordBatch.from_pylist([{"at": before, "id": id_, **named, "before": before}], schema=table.given)
    table.commit(opened, list(files.write(table, [batch])), {mark: 1})


def leave_out(spark: SparkSession, frame: DataFrame, erased: Sequence[Erasure]) -> DataFrame:
    """The events of a frame that no tombstone names."""
    for column in ("tenant", "key"):
        named = [each for each in erased if getattr(each, column)]
        if named:
            listed = [(getattr(each, column), each.topic or None, each.before_ms) for each in named]
            stones = columns.broadcast(spark.createDataFrame(listed, _DDL).alias("stone"))
            is_named = columns.col(f"event.{column}") == columns.col("stone.name")
            frame = frame.alias("event").join(stones, is_named & _is_meant(), "left_anti")
    return frame


def _is_meant() -> Column:
    topic, before_ms = columns.col("stone.topic"), columns.col("stone.before_ms")
    is_on_topic = topic.isNull() | (topic == columns.col("event.topic"))
    return is_on_topic & (columns.unix_millis(columns.col("event.at")) < before_ms)
