"""Finding an event by its id: by the time that the id tells, or by the index in the files."""

import asyncio
from pathlib import Path
from uuid import uuid4

import duckdb
import pytest

from conftest import Topology
from doubledecker.errors import ReadTooLarge
from doubledecker.lake import engine, queries, reads, snapshots
from doubledecker.lake.queries import Found
from doubledecker.model.erasure import Erasure
from doubledecker.model.uid import event_id
from doubledecker.store.journal import JournalEntry
from feed import a_feed
from lakes import a_plain_lake, land_entry

pytestmark = pytest.mark.slow


def ids(found: Found) -> list[str]:
    return [str(row["id"]) for row in found]


def bloom_of(path: str, id_: str) -> set[bool]:
    """Whether the index of a file rules an id out, by row group."""
    return {
        row[0]
        for row in duckdb.execute(
            "select bloom_filter_excludes from parquet_bloom_probe(?, 'id', ?)", [path, id_]
        ).fetchall()
    }


async def test_ids_are_indexed_in_the_files_alone_and_an_erasure_rewrites_the_index(one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        await feed.publish(200, topic="orders")
        await mine.land()
        erased, kept = (next(each for each in feed.events if each.tenant == f"tenant-{n}") for n in (1, 2))
        [before] = mine.table().file_uris()
        held = [bloom_of(before, each) for each in (erased.id, kept.id, "a stranger")]
        await asyncio.to_thread(mine.erase, Erasure(before_ms=10**13, tenant="tenant-1"))
        [after] = mine.table().file_uris()
        left = [bloom_of(after, each) for each in (erased.id, kept.id)]

    assert held == [{False}, {False}, {True}]
    assert left == [{True}, {False}]
    log = mine.log()
    for name in (erased.id, kept.id, "tenant-1", "tenant-2", "key-3"):
        assert name.encode() not in log


async def test_an_id_that_tells_its_time_is_found_by_it_in_a_lake_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root, at_ms, hour_ms = str(tmp_path), 1_794_740_000_000, 3_600_000
    own, foreign = event_id(at_ms), str(uuid4())
    for n in range(4):
        ms = at_ms + n * 24 * hour_ms
        line = b'{"topic":"orders","type":"create","t":1,"id":"%s"}\n{"topic":"orders","type":"create","t":1,"id":"%s"}'
        value = line % ((own if n == 0 else event_id(ms)).encode(), (foreign if n == 2 else str(uuid4())).encode())
        land_entry(root, "events", JournalEntry(f"{ms}-0", (("p", value),)))
    small = {id_: await _look(root, id_) for id_ in (own, foreign)}
    monkeypatch.setattr(reads, "_FILES_MAX", 2)
    large = await _look(root, own)

    assert {id_: ids(found) for id_, found in small.items()} == {own: [own], foreign: [foreign]}
    assert ids(large) == [own]
    for id_ in (foreign, event_id(at_ms - 1000 * hour_ms)):
        with pytest.raises(ReadTooLarge, match="it touches 4 files"):
            await _look(root, id_)


async def test_a_publishers_own_uuid7_is_found_whenever_it_was_accepted(tmp_path: Path):
    imported = event_id(1_600_000_000_000)
    line = b'{"topic":"a","type":"b","t":1,"id":"%s"}' % imported.encode()
    for ms in (1_794_740_000_000, 1_794_999_000_000):
        land_entry(str(tmp_path), "events", JournalEntry(f"{ms}-0", (("p", line),)))

    assert ids(await _look(str(tmp_path), imported)) == [imported, imported]


async def _look(root: str, id_: str) -> Found:
    """Only in the files, without a bus."""
    query = queries.event(id_)
    with engine.opened() as connection:
        look = reads._Look(reads.ReadContext(root, None), query, connection)
        return (await look.read_few(snapshots.read(root, "events", partitions=1), [])).found
