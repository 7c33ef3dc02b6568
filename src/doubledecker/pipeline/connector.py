"""`doubledecker` as a Spark format: register it once, then read and write the bus like any table.

from doubledecker.pipeline import connector
connector.register(spark)
spark.read.format("doubledecker").option("topic", "orders").load()
"""

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from doubledecker.errors import BadRequest
from doubledecker.pipeline import options, rows
from doubledecker.pipeline.options import ReadOptions
from doubledecker.pipeline.source import JournalReader, JournalStreamReader

NAME = "doubledecker"


def register(spark: SparkSession) -> None:
    """Make the format known to a session; again does no harm."""
    spark.dataSource.register(BusSource)


class BusSource(DataSource):
    """A bus: its journals to read."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        """The columns of the journal that is read."""
        return rows.ddl(rows.layout(self._wanted().journal).schema)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - the journal decides
        return JournalReader(self._wanted())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's name
        return JournalStreamReader(self._wanted())

    def _wanted(self) -> ReadOptions:
        wanted = options.parse_read(self.options)
        columns = rows.layout(wanted.journal).schema.names
        for column, values in (("topic", wanted.topics), ("tenant", wanted.tenants)):
            if values and column not in columns:
                raise BadRequest(f"the journal {wanted.journal!r} has no {column}; leave the option out")
        return wanted
