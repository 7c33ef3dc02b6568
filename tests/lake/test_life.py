"""One event's life, without Spark: from lake, journal and Redis."""

import asyncio
from pathlib import Path

from msgspec import Raw, json

from conftest import Topology
from doubledecker.lake import life
from doubledecker.lake.life import Life
from doubledecker.lake.queries import Found
from doubledecker.model.errand import Errand
from doubledecker.model.queue import Queue
from doubledecker.model.replay import Replay
from doubledecker.model.token import Caller
from doubledecker.store import extents
from doubledecker.store.queues import Held
from feed import a_feed
from harness import a_bus, an_event
from lakes import PlainLake, a_plain_lake
from receiver import Receiver


async def test_an_events_life_is_its_acceptance_and_every_attempt(one: Topology, tmp_path: Path):
    async with Receiver(plan=lambda number: 503 if number == 1 else 200) as receiver, a_bus(one) as bus:
        secret = await bus.token("shop")
        await bus.subscribe(await bus.token("mailer"), receiver.url, "widgets", timeout=0)
        [id_] = await bus.publish(secret, [an_event(1)])
        async with asyncio.timeout(20):
            while (await extents.read(bus.partitions.home, "attempts")).entries < 2:
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
    assert landed == fresh
    assert stranger == Life([], [], [], [])


class _Client:
    """What a lake needs to know of a bus."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology


async def test_an_events_life_has_where_it_waits_and_its_dead_letters(topology: Topology, tmp_path: Path):
    async with a_feed(topology) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        root = Caller("", "root", is_root=True)
        for name in ("waits", "dies"):
            await feed.bus.registry.register_queue(Queue(name, "", (".*:orders:.*",), attempts_max=1), caller=root)
        [event, _] = await feed.publish(2, topic="orders")
        dying = feed.bus.registry.snapshot.queues["dies"]
        for message in (await feed.bus.rings.pull(dying, most=2)).messages:
            await feed.bus.rings.nack(dying, [Held(message.id, message.attempt)], why="no good")
        known = await mine.life(event.id)

    assert sorted((row["kind"], row["name"], row["why"]) for row in known.waiting) == [
        ("dead", "dies", "no good"),
        ("queue", "waits", ""),
    ]


async def test_an_id_with_signs_that_json_escapes_is_found_in_the_journal(one: Topology, tmp_path: Path):
    id_ = 'a"b\\c'
    async with a_feed(one) as feed:
        mine = await a_plain_lake(feed, tmp_path)
        await feed.bus.registry.register_queue(
            Queue("waits", "", (".*",), attempts_max=1), caller=Caller("", "root", is_root=True)
        )
        [event] = await feed.publish(1, topic="orders", id=id_)
        fresh = await mine.life(event.id)
        await mine.land()
        landed = await mine.life(event.id)

    assert [row["id"] for row in fresh.events] == [row["id"] for row in landed.events] == [id_]
    assert [row["name"] for row in fresh.waiting] == ["waits"]


def a_replay(id_: str, *, cursor: int = 2_000, **asked: object) -> Errand:
    replay = Replay(**{"target": "queue", "name": "again", "from_ms": 1_000, "upto_ms": 2_000, "rate": 1, **asked})
    return Errand(id_, "", Raw(json.encode(replay)), 0, state="done", done=1, cursor=cursor)


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
    found: Found = await life._replays([row], kept)

    assert [(each["id"], each["sent"]) for each in found] == [("all", True), ("fits", True), ("spark-sql", None)]
