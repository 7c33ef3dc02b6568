"""Versions: they say what the log says, whoever committed, and however much of the log is gone."""

import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from deltalake.exceptions import CommitFailedError

from doubledecker.errors import LakeUnfit
from doubledecker.lake import arrow, commits, rows, snapshots
from doubledecker.model.position import Position
from doubledecker.pipeline.lake import files, maintenance, tables, versions
from doubledecker.pipeline.lake.tables import LakeTable
from doubledecker.pipeline.lake.versions import Version
from doubledecker.pipeline.land import landing
from doubledecker.pipeline.spark_format import refused_rows
from doubledecker.pipeline.spark_format.refused_rows import RefusedRows
from doubledecker.store.journal import JournalEntry
from traffic import BEGAN_MS, Traffic

pytestmark = pytest.mark.slow

LINE = b'{"topic":"orders","type":"create","t":%d,"id":"id-%d"}'


def a_table(folder: Path) -> LakeTable:
    return landing.table_of(str(folder), "events")


def an_entry(number: int) -> JournalEntry:
    return JournalEntry(f"{BEGAN_MS + number}-0", (("p", LINE % (number, number)),))


def land(table: LakeTable, number: int) -> None:
    """One event, and the mark that it is there."""
    batch = arrow.to_batch(rows.layout("events"), [an_entry(number)], partition=0)
    seen = versions.of(table, partitions=1)
    table.commit(seen, files.write(table, [batch]), snapshots.reaches({0: Position(BEGAN_MS + number, 0)}))


def test_files_that_could_not_be_written_to_their_end_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = a_table(tmp_path)
    table.open()
    entries = [JournalEntry(f"{BEGAN_MS}-0", (("p", LINE % (1, 1)),))]

    def then_full() -> Iterator[pa.RecordBatch]:
        yield from (arrow.to_batch(rows.layout("events"), entries, partition=0) for _ in range(2))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "_CHUNK_ROWS", 1)
    with pytest.raises(OSError, match="No space"):
        list(files.write(table, then_full()))

    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_commit_that_could_not_be_written_leaves_nothing(tmp_path: Path):
    table = a_table(tmp_path)
    table.open()

    def then_full() -> Iterator[commits.Action]:
        yield {"commitInfo": {}}
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        commits.append(table.uri, 1, then_full())

    assert [path.name for path in Path(table.uri, "_delta_log").iterdir()] == [f"{0:020}.json"]


def read_anew(table: LakeTable, partitions: int) -> Version:
    """The same by delta-rs, from the whole log."""
    return versions._load(table, snapshots.names(partitions))


def told(version: Version, partitions: int) -> dict[str, object]:
    parts = sorted(version.parts(), key=lambda part: part.path)
    reached = snapshots.landed(version, partitions)
    return {"version": version.version(), "parts": parts, "size": version.size, "reached": reached}


def age(folder: Path, *, days: int) -> None:
    """Let all of a log be so many days older."""
    for path in (folder / "events" / "_delta_log").iterdir():
        os.utime(path, (time.time() - days * 86_400,) * 2)


def count_commits(folder: Path) -> int:
    return len(list((folder / "events" / "_delta_log").glob("*.json")))


@pytest.mark.parametrize("seed", range(3))
def test_a_followed_version_says_what_one_read_anew_says(seed: int, tmp_path: Path):
    chance, traffic, table = Random(seed), Traffic(seed, partitions=2), a_table(tmp_path)
    for _ in range(25):
        act = chance.choice(["land", "land", "land", "swap", "drop", "delta-rs", "shorten"])
        parts = versions.of(table).parts()
        some = chance.sample(parts, min(len(parts), 3))
        if act == "land":
            traffic.land(str(tmp_path), "events", partition=chance.randrange(2), entries=4)
        elif act == "swap" and some:
            assert versions.swap(table, some, list(maintenance._write_together(some, table=table)), is_new=False)
        elif act == "drop" and some:
            assert versions.swap(table, some, [])
        elif act == "delta-rs":
            table.open().optimize.compact()
        elif act == "shorten":
            versions.shorten(table, commits_min=1)

        followed = versions.of(table, partitions=2)
        assert told(followed, 2) == told(read_anew(table, 2), 2)
        assert sorted(followed.uris(followed.parts())) == sorted(DeltaTable(table.uri).file_uris())


def test_files_are_found_by_time_and_topic(tmp_path: Path):
    table, traffic = a_table(tmp_path), Traffic(3, pace_ms=400_000)
    for _ in range(6):
        traffic.land(str(tmp_path), "events", partition=0, entries=200)
    seen = versions.of(table)
    every = seen.parts()
    middle = sorted(part.at_min for part in every)[len(every) // 2]

    found = seen.parts(since=middle, topics=["topic_a", "topic_b"])
    assert sorted(found, key=lambda part: part.path) == sorted(
        (part for part in every if part.at_max >= middle and part.values["topic"] != "topic_c"),
        key=lambda part: part.path,
    )
    assert 0 < len(found) < len(every)
    assert [part for part in every if part.at_min < middle and part not in seen.parts(until=middle)] == []
    assert seen.earliest(middle) == middle
    assert seen.topics == ["topic_a", "topic_b", "topic_c"]


def test_marks_and_files_survive_the_clean_up_of_the_log(tmp_path: Path):
    table = a_table(tmp_path)
    for number in range(30):
        land(table, number)
    behind = versions.of(table, partitions=1)
    before = told(behind, 1)
    versions.shorten(table, commits_min=10)
    kept = count_commits(tmp_path)
    age(tmp_path, days=2)
    land(table, 30)
    for number in range(31, 45):
        land(table, number)
    versions.shorten(table, commits_min=10)

    assert kept == before["version"] + 1
    assert count_commits(tmp_path) == 16
    assert snapshots.landed(DeltaTable(table.uri), 1) == {0: Position(BEGAN_MS + 44, 0)}
    assert snapshots.landed(versions.of(table, partitions=1), 1) == {0: Position(BEGAN_MS + 44, 0)}
    assert sorted(pa.table(DeltaTable(table.uri).scan())["id"].to_pylist()) == sorted(f"id-{n}" for n in range(45))


def test_a_commit_from_a_view_that_is_older_than_the_log_is_refused_and_changes_nothing(tmp_path: Path):
    table = a_table(tmp_path)
    land(table, 0)
    behind = versions.of(table, partitions=1)
    for number in range(1, 20):
        land(table, number)
    age(tmp_path, days=2)
    versions.shorten(table, commits_min=1)
    assert commits.stamp(table.uri, behind.version()) is None

    with pytest.raises(CommitFailedError, match="cleaned up"):
        table.commit(behind, [], {"another": 1})
    assert told(versions.of(table, partitions=1), 1) == told(read_anew(table, 1), 1)
    assert versions.of(table).size.rows == 20


def test_a_version_that_is_cleaned_away_is_read_anew(tmp_path: Path):
    table = a_table(tmp_path)
    land(table, 0)
    follower = versions._Follower(table)
    follower.look(snapshots.names(1))
    for number in range(1, 20):
        land(table, number)
    age(tmp_path, days=2)
    versions.shorten(table, commits_min=1)

    assert told(follower.look(snapshots.names(1)), 1) == told(read_anew(table, 1), 1)


def test_of_two_that_replace_the_same_files_one_does(tmp_path: Path):
    table = a_table(tmp_path)
    for number in range(4):
        land(table, number)
    parts = versions.of(table).parts()
    first, second = (list(maintenance._write_together(parts, table=table)) for _ in range(2))

    assert [versions.swap(table, parts, written) for written in (first, second)] == [True, False]
    assert versions.of(table).size.rows == 4


def test_a_table_that_asks_more_of_its_writers_is_committed_to_by_delta_rs(tmp_path: Path):
    table = a_table(tmp_path)
    land(table, 0)
    table.open().alter.add_feature(TableFeatures.ChangeDataFeed, allow_protocol_versions_increase=True)
    assert versions.of(table).protocol().min_writer_version > 2
    land(table, 1)

    [newest] = DeltaTable(table.uri).history(1)
    assert str(newest.get("engineInfo", "")).startswith("delta-rs")
    assert told(versions.of(table, partitions=1), 1) == told(read_anew(table, 1), 1)
    assert versions.of(table).size.rows == 2


def test_what_others_append_is_seen(tmp_path: Path):
    table = a_table(tmp_path)
    land(table, 0)
    versions.of(table)
    write_deltalake(table.uri, pa.table(DeltaTable(table.uri).scan()), mode="append")

    assert versions.of(table).size.rows == 2


def test_a_table_of_refused_rows_that_nobody_tends_gets_checkpoints_too(tmp_path: Path):
    uri = str(tmp_path / "refused")
    for batch in range(105):
        refused = RefusedRows(uri, query="q", batch=batch)
        refused.add({"number": batch}, "topic is null", {})
        refused_rows.commit(uri, refused.close(), query="q", batch=batch)

    assert commits.checkpointed(uri) > 90
    assert refused_rows.count(uri, "q") == DeltaTable(uri).count() == 105


def test_a_draft_that_a_dead_append_left_is_no_commit_and_goes_after_a_day(tmp_path: Path):
    table = a_table(tmp_path)
    land(table, 0)
    draft = Path(table.uri) / commits.LOG / ".abc.tmp"
    draft.write_text("{")
    age(tmp_path, days=2)
    land(table, 1)

    assert versions.of(table).size.rows == DeltaTable(table.uri).count() == 2
    versions.shorten(table, commits_min=1)
    assert not draft.exists()
    assert tables.PROPERTIES.items() <= DeltaTable(table.uri).metadata().configuration.items()


def test_a_table_that_was_deleted_and_made_anew_is_told_apart_at_the_same_version(tmp_path: Path):
    table = a_table(tmp_path)
    land(table, 1)
    former = versions.of(table, partitions=1)
    shutil.rmtree(table.uri)
    a_table(tmp_path).open()
    for number in range(former.version()):
        batch = arrow.to_batch(rows.layout("events"), [an_entry(number)], partition=0)
        a_table(tmp_path).commit(table.open(), files.write(table, [batch]), {})
    latter = versions.of(table, partitions=1)

    assert latter.version() == former.version()
    assert told(latter, 1) == told(read_anew(table, 1), 1)
    assert snapshots.landed(latter, 1) == {0: Position(0, 0)}


def test_what_was_seen_of_a_former_table_is_not_committed_to_the_one_that_has_its_place(tmp_path: Path):
    table = a_table(tmp_path)
    former = versions.of(table, partitions=1)
    shutil.rmtree(table.uri)
    anew = table.open().version()
    batch = arrow.to_batch(rows.layout("events"), [an_entry(1)], partition=0)
    with pytest.raises(CommitFailedError):
        table.commit(former, files.write(table, [batch]), {})

    assert (anew, table.open().version()) == (former.version(), former.version())


def without_links(*_: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_a_file_system_without_hard_links_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = a_table(tmp_path / "lake")
    seen = versions.of(table)
    monkeypatch.setattr(os, "link", without_links)
    for act in (lambda: commits.check_links(str(tmp_path)), lambda: table.commit(seen, [], {})):
        with pytest.raises(LakeUnfit, match=r"has no hard links .*; set DOUBLEDECKER_LAKE to a folder on another"):
            act()

    assert table.open().version() == seen.version()
    assert not list(tmp_path.rglob("*.tmp"))


def test_the_check_for_hard_links_leaves_nothing_behind(tmp_path: Path):
    commits.check_links(str(tmp_path / "lake"))

    assert list((tmp_path / "lake").iterdir()) == []
