"""One event's life, without Spark: from lake, journal and Redis."""

import asyncio
from pathlib import Path

import pytest
from duckdb import DuckDBPyConnection
from msgspec import Raw, json

from conftest import Topology
from doubledecker.errors import ReadTooLarge
from doubledecker.lake import engine, event_history, reads, snapshots
from doubledecker.lake.event_history import EventHistory
from doubledecker.lake.queries import Found, Query
from doubledecker.model import moment
from doubledecker.model.pipeline_job import PipelineJob
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.replay import Replay
from doubledecker.model.subscriber import Subscription
from doubledecker.model.token import Caller
from doubledecker.model.uid import made_at
from doubledecker.store import journal
from doubledecker.store.journal import AttemptRecord, JournalEntry
from doubledecker.store.queues import LeasedMessage
from feed import a_feed
from harness import a_bus, an_event
from lakes import PlainLake, a_plain_lake, land_entry
from receiver import Receiver
from watching import a_queue, register, until_empty, watching

pytestmark = pytest.mark.slow


async def test_an_events_life_is_its_acceptance_and_every_attempt(one: Topology, tmp_path: Path):
    async with Receiver(plan=lambda number: 503 if number == 1 else 200) as receiver, a_bus(one) as bus:
        secret = await bus.token("shop")
        await bus.subscribe(await bus.token("mailer"), receiver.url, "widgets", timeout=0)
        [id_] = await bus.publish(secret, [an_event(1)])
        async with asyncio.timeout(20):
            while (await journal.read_extent(bus.partitions.home, "attempts")).entries < 2:
                await asyncio.sleep(0.02)
        mine = PlainLake(_Client(one), tmp_path)
        await mine.register()
        fresh = await mine.life(id_)
        await mine.land()
        await mine.land("attempts")
        landed = await mine.life(id_)
        stranger = await mine.life("nobody")

    assert [row["id"] for row in fresh.events] == [id_]
    assert [(row["attempt"], row["outcome"], row["status"]) for row in fresh.attempts] == [
        (1, "refused", 503),
        (2, "delivered", 200),
    ]
    assert {row["accepted_at"] for row in fresh.attempts} == {fresh.events[0]["at"]}
    assert landed == fresh
    assert stranger == EventHistory([], [], [], [])


DAY_MS = 86_400_000


def an_old_events_attempts(root: str, id_: str, *, at_ms: int, days: int) -> None:
    """An event that was accepted long ago, and an attempt to deliver it on each of some days, in a file of its own."""
    line = b'{"topic":"orders","type":"create","t":1,"id":"%s"}' % id_.encode()
    land_entry(root, "events", JournalEntry(f"{at_ms}-0", (("p", line),)))
    for day in range(days):
        at = at_ms + day * DAY_MS + 1000
        attempt = AttemptRecord("a-batch", "mailer", day + 1, "refused", 5, at, [id_], status=503)
        land_entry(root, "attempts", JournalEntry(f"{at}-0", (("a", json.encode(attempt)),)))


@pytest.mark.parametrize("bound", ["_FILES_MAX", "_BYTES_MAX"])
async def test_attempts_on_an_old_event_are_read_as_far_as_the_bounds_go(
    bound: str, one: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The bounds have room for the files of three days, of ten."""
    begin_ms = 1_694_740_000_000
    async with a_feed(one) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        an_old_events_attempts(mine.root, "an-old-one", at_ms=begin_ms, days=10)
        whole = await mine.life("an-old-one")
        file_bytes = snapshots.read(mine.root, "attempts", partitions=1).bytes // 10
        monkeypatch.setattr(reads, bound, {"_FILES_MAX": 3, "_BYTES_MAX": int(3.5 * file_bytes)}[bound])
        part = await mine.life("an-old-one")
        assert part.attempts_until is not None
        rest = await mine.life("an-old-one", since=moment.parse(part.attempts_until))

    assert ([row["attempt"] for row in whole.attempts], whole.attempts_until) == ([*range(1, 11)], None)
    assert [row["attempt"] for row in part.attempts] == [1, 2, 3]
    assert part.attempts_until == str(whole.attempts[3]["at"])
    assert [row["attempt"] for row in rest.attempts] == [4, 5, 6]
    assert rest.attempts_until == str(whole.attempts[6]["at"])


async def test_attempts_that_take_too_long_to_read_leave_those_found_before(
    one: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    select, read = engine.select_files, []

    def select_some(connection: DuckDBPyConnection, *, query: Query, **named: object) -> Found:
        read.append(query.name)
        if read.count("attempts") == 3:
            raise ReadTooLarge("it takes more than 10 s")
        return select(connection, query=query, **named)

    monkeypatch.setattr(engine, "select_files", select_some)
    # Each of the first files is a part.
    monkeypatch.setattr(reads, "_PART_BYTES", 1)
    async with a_feed(one) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        an_old_events_attempts(mine.root, "an-old-one", at_ms=1_694_740_000_000, days=10)
        found = await mine.life("an-old-one")

    assert [row["attempt"] for row in found.attempts] == [1, 2]
    assert found.attempts_until == "2023-09-17T01:06:41.000Z"


class _Client:
    """What a lake needs to know of a bus."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology


async def test_an_attempt_at_a_queues_receiver_tells_when_its_oldest_event_was_accepted(one: Topology, tmp_path: Path):
    async with Receiver() as receiver, a_bus(one, workers=0) as bus:
        queue = a_queue(receiver.url, max_events=10)
        await register(bus.settings, queue)
        secret = await bus.token("shop")
        oldest, own = await bus.publish(secret, [an_event(1), an_event(2, id="own")])
        [later] = await bus.publish(secret, [an_event(3)])
        async with watching(bus.settings):
            await receiver.until_events(3)
            await until_empty(bus.partitions, queue)
        mine = PlainLake(_Client(one), tmp_path)
        await mine.register()
        found = [(await mine.life(id_)).attempts for id_ in (oldest, own, later)]
        counters = await bus.partitions.home.command("HKEYS", bus.partitions.home.key("counters"))

    assert len(receiver.batches) == 1
    told = moment.from_ms(made_at(oldest) or 0).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert [[row["accepted_at"] for row in rows] for rows in found] == [[told]] * 3
    # How long a queue lets events wait is its own doing: it is no latency of deliveries.
    assert not any(name.startswith(b"latency") for name in counters)


async def test_an_events_life_has_where_it_waits_and_its_dead_letters(topology: Topology, tmp_path: Path):
    async with a_feed(topology) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        root = Caller("", "root", is_root=True)
        for name in ("waits", "dies"):
            await feed.bus.registry.register_queue(
                RegisteredQueue(name, "", (".*:orders:.*",), attempts_max=1), caller=root
            )
        [event, _] = await feed.publish(2, topic="orders")
        dying = feed.bus.registry.snapshot.queues["dies"]
        for message in (await feed.bus.rings.pull(dying, most=2)).messages:
            await feed.bus.rings.nack(dying, [LeasedMessage(message.id, message.attempt)], why="no good")
        known = await mine.life(event.id)

    assert sorted((row["kind"], row["name"], row["why"]) for row in known.waiting) == [
        ("dead", "dies", "no good"),
        ("queue", "waits", ""),
    ]


async def test_an_event_is_found_in_a_batch_among_others_of_its_request(one: Topology, tmp_path: Path):
    async with a_feed(one) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        token = await feed.bus.registry.clients.create("late", "secret", now_ms=0)
        wanted = Subscription(["orders"], "https://example.org/", timeout=3_600_000, max=10)
        await feed.bus.registry.subscriptions.put(token.id, wanted)
        events = [*await feed.publish(3, topic="orders"), *await feed.publish(1, topic="orders", id="2")]
        found = [(await mine.life(event.id)).waiting for event in events]

    assert [[(row["kind"], row["name"], row["attempts"]) for row in rows] for rows in found] == [
        [("batch", token.id, 0)]
    ] * len(events)


async def test_an_id_with_signs_that_json_escapes_is_found_in_the_journal(one: Topology, tmp_path: Path):
    id_ = 'a"b\\c'
    async with a_feed(one) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        await feed.bus.registry.register_queue(
            RegisteredQueue("waits", "", (".*",), attempts_max=1), caller=Caller("", "root", is_root=True)
        )
        [event] = await feed.publish(1, topic="orders", id=id_)
        fresh = await mine.life(event.id)
        await mine.land()
        landed = await mine.life(event.id)

    assert [row["id"] for row in fresh.events] == [row["id"] for row in landed.events] == [id_]
    assert [row["name"] for row in fresh.waiting] == ["waits"]


def a_replay(id_: str, *, cursor: int = 2_000, **asked: object) -> PipelineJob:
    replay = Replay(**{"target": "queue", "name": "again", "from_ms": 1_000, "upto_ms": 2_000, "rate": 1, **asked})
    return PipelineJob(id_, "", Raw(json.encode(replay)), 0, state="done", done=1, cursor=cursor)


async def test_replays_are_told_by_what_they_were_asked_for_and_how_far_they_came():
    row = {"at": "1970-01-01T00:00:01.500Z", "topic": "orders", "tenant": "acme", "timestamp": 7}
    kept = [
        a_replay("all"),
        a_replay("other-topic", topic="users"),
        a_replay("too-late", from_ms=1_501),
        a_replay("not-so-far", cursor=1_500),
        a_replay("fits", where="timestamp = 7"),
        a_replay("fits-not", where="timestamp = 8"),
        a_replay("spark-sql", where="abs(timestamp) = 8"),
        a_replay("counted-only", dry_run=True),
    ]
    found: Found = await event_history.replays([row], kept)

    assert [(each["id"], each["sent"]) for each in found] == [("all", True), ("fits", True), ("spark-sql", None)]
