"""Sweeps on Spark give what they give anywhere."""

import json
from pathlib import Path

import pytest

from cli.commands import run

pytestmark = pytest.mark.slow

GUARD = """
duration = 20
replications = 2
chain = [{ stage = "retry", attempts = 3 }, { stage = "timeout", limit_s = 0.5 }]
dependency = { latency = { kind = "log_normal", median_s = 0.1 }, availability = 0.9 }
"""


def test_a_sweep_on_spark_equals_the_same_on_this_machines_cores(tmp_path: Path):
    path = tmp_path / "guard.toml"
    path.write_text(GUARD)
    arguments = ["simulate", str(path), "--sweep", "retry.attempts=1..2", "--json"]
    on_spark = run(*arguments, "--spark", within_s=120, DOUBLEDECKER_SPARK_MASTER="local[2]")

    assert on_spark.returncode == 0, on_spark.stderr
    assert json.loads(on_spark.stdout) == json.loads(run(*arguments, "--jobs", "1").stdout)
