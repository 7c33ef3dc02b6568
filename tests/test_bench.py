"""The bench runs; what it measures is nobody's assertion."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_a_quick_bench_of_ingest_prints_its_tables_and_writes_nothing():
    page = ROOT / "docs" / "benchmarks.md"
    before = page.read_bytes() if page.exists() else None
    command = [sys.executable, "-m", "bench", "--quick", "--only", "ingest"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr
    assert "| 1 subscriber: requests |" in done.stdout
    assert (page.read_bytes() if page.exists() else None) == before
