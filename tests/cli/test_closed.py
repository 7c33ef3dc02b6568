"""Commands on lakes that are another user's, or broken: one line that says so, and no traceback."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cli.commands import Up, run, run_without_rights
from doubledecker.model import moment
from doubledecker.model.erasure import Erasure
from doubledecker.pipeline.erase import tombstones
from doubledecker.pipeline.lake import files
from doubledecker.pipeline.metrics import measures
from doubledecker.store.journal import JournalEntry
from lakes import land_entry

pytestmark = pytest.mark.slow


@contextmanager
def closed(path: Path) -> Iterator[None]:
    """A file or folder that one without rights can neither read nor enter, as another user's is."""
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        yield
    finally:
        path.chmod(mode)


def assert_one_line(answer: subprocess.CompletedProcess[str], *said: str) -> None:
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith("doubledecker: ")
    assert answer.stderr.count("\n") == 1
    assert "\x1b" not in answer.stderr
    assert all(word in answer.stderr for word in said), answer.stderr


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """An event, a tombstone and a measure."""
    root = tmp_path / "theirs" / "lake"
    line = b'{"topic":"orders","type":"create","t":1,"id":"a"}'
    land_entry(str(root), "events", JournalEntry("1600000000000-0", (("p", line),)))
    tombstones.write(str(root), "an-id", Erasure(before_ms=1, tenant="acme"))
    measure, table = measures.TABLES["events"], measures.table_of(str(root), "events")
    counted = {"at": moment.parse("2026-01-15T12:00"), "span": "minute", "topic": "orders", "tenant": "acme"}
    row = {**counted, "events": 1, "bytes": 1, "keys": [1]}
    table.commit(table.open(), files.write(table, [pa.RecordBatch.from_pylist([row], schema=measure.schema)]), {})
    return root


def a_file(uri: str) -> Path:
    [path] = DeltaTable(uri).file_uris()
    return Path(path)


@pytest.mark.parametrize("command", ["events", "report"])
@pytest.mark.parametrize("which", ["the lake", "the folder around it"])
def test_a_lake_in_a_folder_of_another_user_is_refused(command: str, which: str, lake: Path):
    """It used to be a traceback, or taken for a lake that is not there."""
    with closed(lake if which == "the lake" else lake.parent):
        answer = run_without_rights(command, "--lake", str(lake))

    assert_one_line(answer, f"cannot read the lake {lake}: Permission denied", "--lake")


def test_a_table_of_another_user_is_refused(bus: Up, lake: Path):
    with closed(lake / "events" / "_delta_log"):
        events = run_without_rights("events", "--data", str(bus.data), "--lake", str(lake))
    with closed(lake / "measures" / "events" / "_delta_log"):
        report = run_without_rights("report", "--lake", str(lake))

    assert_one_line(events, f"{lake}/events", "Permission denied")
    assert_one_line(report, f"{lake}/measures/events", "Permission denied")


@pytest.mark.parametrize("name", ["events", "erasures"])
def test_a_file_of_another_user_is_refused(name: str, bus: Up, lake: Path):
    path = a_file(f"{lake}/{name}")
    with closed(path):
        answer = run_without_rights("events", "--data", str(bus.data), "--lake", str(lake))

    assert_one_line(answer, path.name, "Permission denied")


def test_measures_of_another_user_are_refused(lake: Path):
    path = a_file(f"{lake}/measures/events")
    with closed(path):
        answer = run_without_rights(
            "report", "--lake", str(lake), "--from", "2026-01-15T12:00", "--to", "2026-01-15T13:00"
        )

    assert_one_line(answer, path.name, "Permission denied")


def test_a_broken_tombstone_is_refused(bus: Up, lake: Path):
    """What it names cannot be told, so nothing is shown."""
    a_file(f"{lake}/erasures").write_bytes(b"not Parquet")
    answer = run("events", "--data", str(bus.data), "--lake", str(lake))

    assert_one_line(answer, "the lake cannot be read")


def test_a_page_in_a_folder_of_another_user_is_refused(lake: Path, tmp_path: Path):
    (tmp_path / "closed").mkdir()
    with closed(tmp_path / "closed"):
        answer = run_without_rights("report", "--lake", str(lake), "--html", str(tmp_path / "closed" / "page.html"))

    assert_one_line(answer, "page.html: Permission denied")
