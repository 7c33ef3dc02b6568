"""Makes an archive of the classes that Spark loads, so that each JVM of the tests maps them instead of reading them.

spark_classes.py ARCHIVE

A start of Spark takes 3.7 s of processor time with it, 6.3 s without, and more is saved by what comes after. A JVM that
does not fit the archive, of another Java or with other jars, goes without. `make test` makes it once an installation.
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from doubledecker.pipeline.session import SessionPlan, open_session


def main(archive: Path) -> None:
    draft = archive.with_name(f"{archive.name}.draft")
    draft.unlink(missing_ok=True)
    # As conftest.py starts them, but for warnings of classes that cannot be archived.
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:+UseSerialGC -XX:ArchiveClassesAtExit={draft} -Xlog:disable"
    spark = open_session(SessionPlan(master="local[2]"))
    with tempfile.TemporaryDirectory() as folder:
        use(spark, Path(folder))
    gateway = SparkContext._gateway
    spark.stop()
    # It ends when nobody writes to it any more, and writes the archive then.
    gateway.proc.stdin.close()
    gateway.proc.wait()
    if draft.exists():
        draft.rename(archive)
    else:
        # A Java without an archive of its own classes makes none of others.
        archive.touch()


def use(spark: SparkSession, folder: Path) -> None:
    """What the pipeline does: files in and out, sorts, counts, a join, a stream, and Python in tasks."""
    rows = spark.range(1_000).selectExpr("id", "cast(id % 7 as string) as key", "timestamp_millis(id) as at")
    rows.repartition(2).sortWithinPartitions("key").write.parquet(f"{folder}/rows")
    rows.write.json(f"{folder}/lines")
    read = spark.read.parquet(f"{folder}/rows")
    counted = read.groupBy("key").agg({"id": "sum", "at": "max"})
    read.join(counted, "key").select("id", "key").mapInArrow(lambda batches: batches, "id long, key string").orderBy(
        "id"
    ).collect()
    stream = spark.readStream.schema(rows.schema).json(f"{folder}/lines").writeStream.format("noop")
    stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
