"""What `doubledecker events` takes over a lake of 1.2 million rows, imports included: the whole command, without Spark.

python -m bench.reads

A sixth of the rows are imports, whose ids tell no time. Most files are large, as upkeep leaves them; the last 180 are
small, as landing makes them. Each command is run several times; the median of its time and of its CPU time is printed.
"""

import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from uuid import uuid4

import pyarrow as pa

from bench.bus import a_bus
from doubledecker.lake import arrow, rows, snapshots
from doubledecker.model import moment
from doubledecker.model.position import Position
from doubledecker.model.uid import event_id
from doubledecker.pipeline.lake import files
from doubledecker.pipeline.land import landing

_BEGAN_MS = 1_794_700_000_000
_STEP_MS = 100
_LARGE, _SMALL = [17_000] * 60, [1_000] * 180
_CARRIED = 100  # events of a delivery attempt
_REPEATS = 5


def main() -> None:
    """Make the lake, and print a row for each command."""
    with tempfile.TemporaryDirectory() as root:
        own, imported = _fill(root)
        until = moment.from_ms(_BEGAN_MS + 700_000 * _STEP_MS)
        since = moment.from_ms(_BEGAN_MS + 694_000 * _STEP_MS)
        commands = {
            "one id of the bus's own": ["--id", own],
            "one id of an import": ["--id", imported],
            "an id that is not there": ["--id", str(uuid4())],
            "ten minutes": ["--from", since.isoformat(), "--to", until.isoformat()],
            "a topic, the oldest": ["--topic", "orders"],
            "a condition on all rows": ["--where", "data.number = 600000"],
            "refused": ["--from", "yesterday"],
        }
        asyncio.run(_measure(root, commands))


async def _measure(root: str, commands: dict[str, list[str]]) -> None:
    async with a_bus() as bus:
        environment = {**os.environ, **bus.environment, "DOUBLEDECKER_LAKE": root}
        for name, words in commands.items():
            taken = [await asyncio.to_thread(_run, words, environment) for _ in range(_REPEATS)]
            wall_s, cpu_s = (statistics.median(column) for column in zip(*taken, strict=True))
            print(f"{name:26} {wall_s:6.2f} s, {cpu_s:5.2f} s of CPU")


def _run(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "doubledecker", "events", "--json", *words]
    subprocess.run(command, env=environment, capture_output=True, check="yesterday" not in words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _fill(root: str) -> tuple[str, str]:
    """Land all rows; returns an id of each kind from the middle."""
    number, found = 0, {}
    for turn, count in enumerate(_LARGE + _SMALL):
        is_import = turn % 6 == 5
        ids = [str(uuid4()) if is_import else event_id(_BEGAN_MS + n * _STEP_MS) for n in range(number, number + count)]
        _land(root, "events", _events(number, ids), number + count)
        _land(root, "attempts", _attempts(number, ids), number + count)
        if turn in {30, 35}:
            found[is_import] = ids[count // 2]
        number += count
    return found[False], found[True]


def _land(root: str, name: str, batch: pa.RecordBatch, upto: int) -> None:
    table = landing.table_of(root, name)
    reached = snapshots.reaches({0: Position(_BEGAN_MS + upto * _STEP_MS, 0)})
    table.commit(table.open(), list(files.write(table, [batch])), reached)


def _events(first: int, ids: list[str]) -> pa.RecordBatch:
    made = []
    for n, id_ in enumerate(ids, first):
        row = _place(n) | {"publisher": "shop-1a2b3c4d", "type": "update", "id": id_, "timestamp": n, "bytes": 230}
        row |= {"topic": ("orders", "users", "clicks")[n // 20_000 % 3], "tenant": f"tenant-{n % 50}"}
        row |= {"key": f"key-{n % 100_000}", "url": f"https://example.org/{n}"}
        made.append(row | {"data": f'{{"number":{n},"text":"{uuid4().hex}"}}'})
    return pa.RecordBatch.from_pylist(made, schema=arrow.schema(rows.layout("events")))


def _attempts(first: int, ids: list[str]) -> pa.RecordBatch:
    made = []
    for n in range(0, len(ids), _CARRIED):
        row = _place(first + n) | {"subscriber": "mailer-1a2b3c4d", "batch": uuid4().hex[:20], "attempt": 1}
        made.append(row | {"outcome": "delivered", "status": 200, "took_ms": 12, "events": ids[n : n + _CARRIED]})
    return pa.RecordBatch.from_pylist(made, schema=arrow.schema(rows.layout("attempts")))


def _place(n: int) -> dict[str, object]:
    ms = _BEGAN_MS + n * _STEP_MS
    return {"partition": 0, "entry": f"{ms}-0", "line": 0, "at": moment.from_ms(ms)}


if __name__ == "__main__":
    main()
