"""Rounds of landing on a table of a given age and size, without Spark and without a bus; prints figures as JSON.

A round looks at the table, commits a file, looks again, and finds the files of the last minutes, as the steps of the
pipeline do. The table is made of log alone, since a round reads no file: so many files by a thousand commits and a
checkpoint. Of an old table the log is what clean-up leaves: a checkpoint near its end, and the commits of the last day.
"""

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from deltalake import CommitProperties, DeltaTable, Transaction

from doubledecker.lake import commits, snapshots
from doubledecker.model import moment
from doubledecker.model.position import Position
from doubledecker.pipeline.lake import tables, versions
from doubledecker.pipeline.lake.tables import Change, LakeTable, WrittenFile
from doubledecker.pipeline.land import landing

_BEGAN_MS = 1_700_000_000_000
_TOPICS = 20
# By how much time a file follows the last.
_PACE_MS = 10_000
_FILLING = 1_000
# One every ten seconds, kept for a day.
_KEPT = 8_640
_AFTER_CHECKPOINT = 50


def main() -> None:
    age, files, rounds = map(int, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        table = landing.table_of(folder, "events")
        _fill(table, files)
        if age > _FILLING:
            _grow_old(table, age)
        figures = {"open_s": _cpu_s(lambda: versions.of(table, partitions=1))}
        first = versions.of(table).version() + 1
        took_s = _cpu_s(lambda: [_round(table, first + number) for number in range(rounds)])
        figures["round_ms"] = took_s / rounds * 1000
        figures["memory_mb"] = _resident_mb()
        figures["delta_rs_ms"] = _cpu_s(lambda: _round_by_delta_rs(table, first + rounds)) * 1000
        figures["checkpoint_s"] = _cpu_s(lambda: DeltaTable(table.uri).create_checkpoint())
    print(json.dumps(figures), flush=True)


def _round(table: LakeTable, number: int) -> None:
    seen = versions.of(table, partitions=1)
    at_ms = _BEGAN_MS + number * _PACE_MS
    table.commit(seen, [_file(number, number)], snapshots.reaches({0: Position(at_ms, 0)}))
    now = versions.of(table, partitions=1)
    assert now.size.files == seen.size.files + 1
    assert now.parts(since=moment.from_ms(at_ms) - timedelta(minutes=5), topics={f"topic_{number % _TOPICS}"})


def _round_by_delta_rs(table: LakeTable, number: int) -> None:
    """The same as version 0.1.0 did it: open, commit, update, and make a list of all files."""
    opened = DeltaTable(table.uri)
    opened.create_write_transaction(
        Change((_file(number, number),)).for_delta,
        mode="append",
        schema=table.schema,
        partition_by=list(table.partition_by),
        commit_properties=CommitProperties(app_transactions=[Transaction("journal:0:ms", number)]),
    )
    opened.update_incremental()
    assert tables.parts(opened)


def _fill(table: LakeTable, files: int) -> None:
    """A thousand commits, which add so many files together, and a checkpoint."""
    first = table.open().version() + 1
    each = files // _FILLING
    for number in range(_FILLING):
        added = tuple(_file(index, index - files) for index in range(number * each, number * each + each))
        _write(table, first + number, Change(added, marks={"journal:0:ms": _BEGAN_MS, "journal:0:seq": 0}))
    DeltaTable(table.uri).create_checkpoint()


def _grow_old(table: LakeTable, age: int) -> None:
    """Let the table have as many commits as its age is, all but the last day's cleaned up."""
    log = Path(table.uri) / commits.LOG
    last = json.loads((log / "_last_checkpoint").read_text())
    [checkpoint] = log.glob("*.checkpoint.parquet")
    for path in log.glob("*.json"):
        path.unlink()
    reached = age - _AFTER_CHECKPOINT
    checkpoint.rename(log / f"{reached:020}.checkpoint.parquet")
    (log / "_last_checkpoint").write_text(json.dumps({**last, "version": reached}))
    for version in range(age - _KEPT, age + 1):
        _write(table, version, Change((), marks={"journal:0:ms": _BEGAN_MS}))


def _write(table: LakeTable, version: int, change: Change) -> None:
    """A commit as ours are, but not waited for to be on the disk."""
    lines = "".join(json.dumps(action) + "\n" for action in change.actions)
    (Path(table.uri) / commits.LOG / f"{version:020}.json").write_text(lines)


def _file(number: int, moment_number: int) -> WrittenFile:
    at = moment.from_ms(_BEGAN_MS + moment_number * _PACE_MS)
    bound = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    values = {"topic": f"topic_{number % _TOPICS}", "date": str(at.date())}
    path = f"topic={values['topic']}/date={values['date']}/{uuid4()}.parquet"
    return WrittenFile(path, 4_096, 10, values, bound, bound)


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1_048_576


def _cpu_s(act: Callable[[], object]) -> float:
    started_s = time.process_time()
    act()
    return time.process_time() - started_s


if __name__ == "__main__":
    main()
