"""Kill -9 of a process that lands, joins and cleans the log up: how far the table has come is never forgotten.

What must hold whenever it dies: each event is in the table once, and the marks say how far that is.
"""

import asyncio
import random
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from doubledecker.lake import snapshots
from doubledecker.store import die_with_parent
from faults.tended_lake import BEGAN_MS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KILLS = 5
# Each line is one step of the child; four make a round, and five rounds a checkpoint.
LINES_MAX = 50


async def run_and_kill(root: Path, lines: int) -> int:
    """Start the process, kill it after so many lines; returns the last event that it said had landed."""
    child = Path(__file__).parent / "tended_lake.py"
    command = die_with_parent.wrapped([sys.executable, str(child), str(root)])
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    landed = -1
    async with asyncio.timeout(120):
        for _ in range(lines):
            words = (await process.stdout.readline()).decode().split()
            assert words, "the process ended by itself"
            landed = int(words[1]) if words[0] == "landed" else landed
        process.kill()
        rest = (await process.stdout.read()).decode().splitlines()
        await process.wait()
    return max([landed, *(int(line.split()[1]) for line in rest if line.startswith("landed "))])


async def test_marks_and_events_survive_kills_while_the_log_is_cleaned_up(tmp_path: Path):
    chance = random.Random(11)
    log = tmp_path / "events" / "_delta_log"
    for _ in range(KILLS):
        landed = await run_and_kill(tmp_path, chance.randrange(1, LINES_MAX))
        if landed < 0:
            continue
        table = DeltaTable(tmp_path / "events")
        last = snapshots.landed(table, 1)[0].ms - BEGAN_MS
        ids = sorted(pa.table(table.scan())["id"].to_pylist())

        # A commit may be whole before the process could say so.
        assert last in {landed, landed + 3}
        assert ids == sorted(f"id-{number}" for number in range(last + 1))
    commits = sorted(log.glob("*.json"))

    assert not (log / f"{0:020}.json").exists()
    assert len(commits) < 40
    assert DeltaTable(tmp_path / "events").version() > 2 * len(commits)
