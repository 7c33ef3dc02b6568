"""The notebook of examples/ runs from its first cell to its last, and says what the lake holds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from doubledecker.pipeline import landing, measuring
from traffic import Traffic

NOTEBOOK = Path(__file__).parents[2] / "examples" / "report.ipynb"


def cells() -> list[dict]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_is_kept_without_outputs():
    assert [cell for cell in cells() if cell["outputs"] or cell["execution_count"]] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_empty", [False, True])
def test_the_notebook_runs_and_says_what_the_lake_holds(spark: SparkSession, tmp_path: Path, is_empty: bool):
    root, traffic = str(tmp_path / "lake"), Traffic(20)
    for name in landing.TABLES:
        landing.table_of(root, name).open()
        if not is_empty:
            traffic.land(root, name, partition=0, entries=200)
    measuring.measure(spark, root, "events", partitions=1)
    program = "\n\n".join("".join(cell["source"]) for cell in cells())
    environment = {**os.environ, "DOUBLEDECKER_LAKE": root, "MPLBACKEND": "agg"}

    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=240, check=False
    )

    count = DeltaTable(f"{root}/events").count()
    assert run.returncode == 0, run.stderr
    assert f"{count} events, " in run.stdout
    assert f"{count} events measured" in run.stdout
    assert run.stdout.count("tenants\n") == (0 if is_empty else 3)
