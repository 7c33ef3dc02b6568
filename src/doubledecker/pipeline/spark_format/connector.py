"""`doubledecker` as a Spark format: read and write the bus like any table.

spark.read.format("doubledecker").option("topic", "orders").load()

Spark finds it by itself (see the package `pyspark_doubledecker`); `register` does what that cannot.
"""

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from doubledecker.errors import BadRequest
from doubledecker.lake import arrow, rows
from doubledecker.pipeline.spark_format import options, writer
from doubledecker.pipeline.spark_format.options import ReadOptions
from doubledecker.pipeline.spark_format.reader import JournalReader, JournalStreamReader
from doubledecker.pipeline.spark_format.writer import BusStreamWriter, BusWriter, SinkPlan

NAME = "doubledecker"


def register(spark: SparkSession) -> None:
    """Make the format known to a session, along with files that were sent to executors; again does no harm."""
    # Spark reads in batches from a format that takes filters only if this says so.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(BusSource)


class BusSource(DataSource):
    """A bus: its journals to read, and topics to write to."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        """The columns of the journal that is read."""
        return arrow.ddl(arrow.schema(rows.layout(self._wanted().journal)))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - the journal decides
        return JournalReader(self._wanted())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's name
        return JournalStreamReader(self._wanted())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's own
        return BusWriter(self._planned(schema, is_overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802 - Spark's own
        return BusStreamWriter(self._planned(schema, is_overwrite=overwrite))

    def _planned(self, schema: StructType, *, is_overwrite: bool) -> SinkPlan:
        if is_overwrite:
            raise BadRequest("what is published cannot be taken back; write with mode('append')")
        writer.check_columns(schema)
        return writer.plan(options.parse_write(self.options))

    def _wanted(self) -> ReadOptions:
        wanted = options.parse_read(self.options)
        columns = rows.layout(wanted.journal).columns
        for column, values in (("topic", wanted.topics), ("tenant", wanted.tenants)):
            if values and column not in columns:
                raise BadRequest(f"the journal {wanted.journal!r} has no {column}; leave the option out")
        return wanted
