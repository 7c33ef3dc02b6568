"""Older attempts: from the lake as from the journal, newest first, each once, and in bounded parts."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from conftest import Topology
from doubledecker.lake import attempts, newest
from doubledecker.lake.reads import ReadContext
from doubledecker.model.attempt import FAILED, AttemptFilter, AttemptPlace, ListedAttempt
from doubledecker.store import journal
from doubledecker.store.journal import AttemptRecord, JournalEntry
from feed import a_feed
from harness import ROOT_KEY, a_bus, an_event
from lakes import PlainLake, land_entry
from web.asking import ask, waiting

pytestmark = pytest.mark.slow

BEGIN_MS = 1_794_740_000_000


def a_record(number: int, **fields: object) -> AttemptRecord:
    known = {"outcome": "delivered", "status": 200, "events": [f"e{number}", "all"], **fields}
    return AttemptRecord(f"b{number}", ("ann-1", "bob-2")[number % 2], 1, took_ms=number, at=number, **known)


def land(root: str, number: int, **fields: object) -> None:
    entry = (("attempt", json.encode(a_record(number, **fields))),)
    land_entry(root, "attempts", JournalEntry(f"{BEGIN_MS + number * 1000}-0", entry))


async def walk(ground: ReadContext, *, limit: int, **fields: Any) -> list[ListedAttempt]:
    found, before = list[ListedAttempt](), fields.pop("before", None)
    while True:
        page = await attempts.newest(ground, AttemptFilter(before=before, **fields), limit=limit)
        found += page.attempts
        if page.reached is None:
            return found
        assert before is None or page.reached < before
        before = page.reached


async def test_what_has_landed_is_found_newest_first_and_by_what_is_asked(one: Topology, tmp_path: Path):
    root = str(tmp_path)
    for number in range(12):
        outcome = {"outcome": "refused", "status": 500} if number % 3 == 0 else {}
        owner = {"owner": "ann-1"} if number == 5 else {}
        land(root, number, **outcome, **owner, bytes=number + 1, detail="no", retry_ms=7)
    async with a_feed(one) as feed:
        ground = ReadContext(root, feed.bus.partitions)
        found = await walk(ground, limit=5)

        async def numbers(**fields: Any) -> list[int]:
            return [each.took_ms for each in await walk(ground, limit=5, **fields)]

        assert [each.took_ms for each in found] == [*range(11, -1, -1)]
        assert await numbers(client="ann-1") == [10, 8, 6, 5, 4, 2, 0]
        assert await numbers(client="cat-3", receivers=frozenset({"ann-1"})) == []
        assert (found[0].events, found[0].event_count, found[0].bytes) == (["e11", "all"], 2, 12)
        assert (found[0].detail, found[0].retry_ms, found[0].receiver) == ("no", 7, "bob-2")
        assert await numbers(receivers=frozenset({"ann-1"})) == [10, 8, 6, 4, 2, 0]
        assert await numbers(receivers=frozenset({"bob-2", "x"}), outcome=FAILED) == [9, 3]
        assert await numbers(event="e4") == [4]
        assert await numbers(event="all", status=500) == [9, 6, 3, 0]
        assert await numbers(from_ms=BEGIN_MS + 10_000) == [11, 10]
        assert await numbers(to_ms=BEGIN_MS + 2_000) == [1, 0]
        assert await numbers(before=found[10].place) == [0]
        assert await attempts.read(ground, found[3].place, ids_max=1) is not None
        assert await attempts.read(ground, AttemptPlace(BEGIN_MS, 9, 0), ids_max=1) is None


async def test_a_read_ends_at_its_bounds_and_the_next_goes_on_there(
    one: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = str(tmp_path)
    for number in range(10):
        land(root, number)
    monkeypatch.setattr(newest, "_FILES_MAX", 3)
    monkeypatch.setattr(newest, "_PART_BYTES", 1)
    async with a_feed(one) as feed:
        ground = ReadContext(root, feed.bus.partitions)
        first = await attempts.newest(ground, AttemptFilter(), limit=100)

        assert [each.took_ms for each in first.attempts] == [9, 8, 7]
        assert [each.took_ms for each in await walk(ground, limit=100)] == [*range(9, -1, -1)]


async def test_an_attempt_of_version_0_1_0_is_listed_without_what_it_did_not_know(one: Topology, tmp_path: Path):
    old = {"batch": "b", "subscriber": "s", "attempt": 1, "outcome": "delivered", "took_ms": 1, "at": 7, "events": []}
    land_entry(str(tmp_path), "attempts", JournalEntry(f"{BEGIN_MS}-0", (("attempt", json.encode(old)),)))
    async with a_feed(one) as feed:
        [found] = await walk(ReadContext(str(tmp_path), feed.bus.partitions), limit=10)

    assert (found.bytes, found.detail, found.retry_ms, found.status) == (None, "", None, None)


@pytest.mark.parametrize("limit", [1, 4, 100])
async def test_web_lists_journal_and_lake_as_one_each_attempt_once(one: Topology, tmp_path: Path, limit: int):
    """Some have landed and are gone from the journal, some are in both, some only in the journal."""
    async with a_bus(one, workers=0, lake=str(tmp_path / "lake")) as bus:
        home = bus.partitions.home
        mine = await PlainLake(_Client(one), tmp_path).register()
        for first, last in ((0, 4), (4, 8), (8, 12)):
            for number in range(first, last):
                record = json.encode(a_record(number))
                await home.write("XADD", home.key("journal:attempts"), "*", "attempt", record)
            if last < 12:
                await mine.land("attempts")
            if first == 0:
                await journal.trim(home, "attempts", bytes_max=1 << 30)
        assert len(await journal.read(home, "attempts")) == 8

        found, before = [], ""
        while True:
            answer = await ask(bus, "GET", f"/attempts?event=all&limit={limit}{before}", ROOT_KEY)
            assert answer.status == 200
            found += answer.json["attempts"]
            if answer.json["before"] is None:
                break
            before = f"&before={answer.json['before']}"

    assert [row["took_ms"] for row in found] == [*range(11, -1, -1)]
    assert answer.json["older"] == ""


async def test_an_event_is_sent_again_from_the_lake_once_the_journal_has_it_no_more(one: Topology, tmp_path: Path):
    """By an id that tells when it was made, by an attempt, and not if it was erased."""
    async with a_bus(one, workers=0, lake=str(tmp_path / "lake")) as bus:
        home = bus.partitions.home
        mine = await PlainLake(_Client(one), tmp_path).register()
        ann = await bus.token("ann")
        await bus.subscribe(ann, "http://127.0.0.1:9/", "widgets")
        fields = {"tenant": "acme", "key": "k", "data": {"n": [1, "ü"]}, "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
        ids = await bus.publish(ann, [an_event(0, **fields)])
        cloud = {"specversion": "1.0", "id": "own", "source": "/shop", "type": "paid", "topic": "widgets", "more": 7}
        said = {"Content-Type": "application/cloudevents+json"}
        ids += (await ask(bus, "POST", "/events", ann, json={**cloud, "data_base64": "AP8="}, headers=said)).json["ids"]
        [token] = [row["subscriber"] for row in await bus.get("/subscribers")]
        now = await home.time_ms()
        record = AttemptRecord("b", token, 1, "refused", 1, now, ids, accepted_at=now)
        await home.write("XADD", home.key("journal:attempts"), "*", "attempt", json.encode(record))
        for name in ("events", "attempts"):
            await mine.land(name)
            await journal.trim(home, name, bytes_max=1 << 30)
        before = {event["id"]: event for event in await waiting(bus)}
        single = await ask(bus, "POST", "/subscriber/resend", ann, json={"event": ids[0]})
        [attempt] = (await ask(bus, "GET", "/subscriber/attempts", ann)).json["attempts"]
        both = await ask(bus, "POST", "/subscriber/resend", ann, json={"attempt": attempt["id"]})

        assert await journal.read(home, "events") == []
        assert (single.status, single.json["events"]) == (202, ids[:1])
        assert (both.status, sorted(both.json["events"])) == (202, sorted(ids))
        again = [event for event in await waiting(bus) if "replay" in event]
        assert len(again) == 3
        assert all(event == {**before[event["id"]], "replay": "resend"} for event in again)


class _Client:
    """What a lake needs to know of a bus."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
