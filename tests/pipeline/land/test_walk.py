"""The walk of landing in ARCHITECTURE.md leads through files that events really pass."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import walks
from conftest import Topology

pytestmark = pytest.mark.slow


async def test_an_event_passes_the_files_that_the_walk_of_landing_names(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    walk = await walks.land(spark, one, tmp_path)

    named = walks.described("Land")
    assert len(named) > 4
    assert [name for name in named if name not in walk.files] == []
