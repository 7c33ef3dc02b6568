"""The notebook of examples/ runs from its first cell to its last, and says what the lake holds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import recount
from doubledecker.pipeline.lake import files
from doubledecker.pipeline.land import landing
from doubledecker.pipeline.metrics import measures
from traffic import Traffic

pytestmark = pytest.mark.slow

NOTEBOOK = Path(__file__).parents[2] / "examples" / "report.ipynb"


def cells() -> list[dict]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def a_measured_lake(root: str) -> None:
    """Rows in every table, and measures of the events: made without Spark, since the notebook starts one."""
    traffic = Traffic(20)
    for name in landing.TABLES:
        traffic.land(root, name, partition=0, entries=200)
    measure, table = measures.MEASURES["events"], measures.table_of(root, "events")
    names = [name for name in measure.schema.names if name != "keys"]
    counted = recount.recount(root, "events", span="hour").items()
    rows = [dict(zip(names, ("hour", *about, *sums), strict=False)) for about, sums in counted]
    table.commit(table.open(), files.write(table, [pa.RecordBatch.from_pylist(rows, schema=measure.schema)]), {})


def test_the_notebook_is_kept_without_outputs():
    assert [cell for cell in cells() if cell["outputs"] or cell["execution_count"]] == []


@pytest.mark.timeout(600)
def test_the_notebook_runs_and_says_what_the_lake_holds(tmp_path: Path):
    root = str(tmp_path / "lake")
    a_measured_lake(root)
    program = "\n\n".join("".join(cell["source"]) for cell in cells())
    environment = {**os.environ, "DOUBLEDECKER_LAKE": root, "MPLBACKEND": "agg"}

    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=550, check=False
    )

    count = DeltaTable(f"{root}/events").count()
    assert run.returncode == 0, run.stderr
    assert f"{count} events, " in run.stdout
    assert f"{count} events measured" in run.stdout
    assert run.stdout.count("tenants\n") == 3
