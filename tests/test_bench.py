"""The bench runs; what it measures is nobody's assertion."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.parametrize(("part", "row"), [("ingest", "| 1 subscriber: requests |"), ("stages", "| a plain stage |")])
def test_a_quick_bench_of_a_part_prints_its_tables_and_writes_nothing(part: str, row: str):
    page = ROOT / "docs" / "benchmarks.md"
    before = page.read_bytes() if page.exists() else None
    command = [sys.executable, "-m", "bench", "--quick", "--only", part]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr
    assert row in done.stdout
    assert (page.read_bytes() if page.exists() else None) == before
