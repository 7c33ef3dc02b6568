"""The format is there without an import and without registration, in a plain session of a plain program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Topology
from doubledecker.pipeline import java
from feed import a_feed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = """
import sys
from pyspark.sql import SparkSession
url, publisher = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
rows = spark.range(3).selectExpr("'orders' as topic", "'create' as type")
rows.write.format("doubledecker").options(redisUrl=url, publisher=publisher).mode("append").save()
print(spark.read.format("doubledecker").option("redisUrl", url).load().count())
print([name for name in sys.modules if name.startswith("doubledecker")])
spark.stop()
"""


async def test_spark_finds_the_format_by_itself(one: Topology, tmp_path: Path):
    environment = {**os.environ, "JAVA_HOME": str(java.find_home(os.environ)), "PYSPARK_PYTHON": sys.executable}
    async with a_feed(one) as feed:
        told = subprocess.run(  # noqa: ASYNC221 - nothing else goes on here
            [sys.executable, "-c", PROGRAM, one.url, feed.publisher],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )

    assert told.stdout.split("\n")[:2] == ["3", "[]"], told.stderr[-2000:]
