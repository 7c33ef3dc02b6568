"""Bulk delivery by the real step: real Spark, a real lake, real receivers."""

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bulk_ground import a_ground
from conftest import Topology
from doubledecker.lake import event_history, reads
from doubledecker.pipeline.bulk import posting
from doubledecker.pipeline.bulk.batches import Posting
from doubledecker.pipeline.bulk.posting import Posted
from doubledecker.pipeline.lake import frames, versions
from doubledecker.pipeline.land import journal_reader, landing
from doubledecker.store import bulk, subscribers
from harness import ROOT_KEY, an_event
from receiver import Receiver
from web.asking import ask

pytestmark = pytest.mark.slow


def some_events(count: int, *, keys: int = 7, first: int = 0, topic: str = "orders") -> list[dict[str, object]]:
    return [an_event(n, topic, key=f"k{n % keys}", tenant=f"t{n % 3}", data=n) for n in range(first, first + count)]


def in_order(receiver: Receiver) -> bool:
    """Whether each key's events came in the order of acceptance, repeats aside."""
    seen: dict[tuple[object, object], list[int]] = defaultdict(list)
    for event in receiver.events:
        seen[event.get("tenant"), event["key"]].append(int(str(event["data"])))
    return all(numbers == sorted(numbers) for numbers in seen.values())


async def test_everything_is_delivered_once_in_order_by_key_and_in_batches_as_asked_for(
    spark: SparkSession, topology: Topology, tmp_path: Path
):
    async with Receiver() as mail, a_ground(spark, topology, tmp_path) as ground:
        await ground.subscribe("mail", mail.url, "orders", max=20)
        ids = []
        for first in range(0, 1000, 100):
            ids += await ground.publish(some_events(100, first=first))
        await ground.publish([an_event(0, "other")])
        before = await ground.seen("mail")
        await ground.deliver()
        after = await ground.seen("mail")

    assert sorted(mail.ids) == sorted(ids)
    assert in_order(mail)
    assert max(len(batch.events) for batch in mail.batches) == 20
    assert before["events"]["queued"] == 1000
    assert before["events"]["oldest"] > 0
    assert after["events"] == {"sent": 1000, "queued": 0, "oldest": 0}
    assert after["tier"] == "bulk"
    assert after["health"] == 100
    assert after["last_attempted_at"] is not None


async def test_no_batch_and_no_job_is_made_for_a_bulk_subscriber(spark: SparkSession, one: Topology, tmp_path: Path):
    async with Receiver() as mail, a_ground(spark, one, tmp_path) as ground:
        await ground.publish([an_event(0, "orders")])
        await ground.subscribe("mail", mail.url, "orders")
        home = ground.bus.partitions.home
        before = set(await home.command("KEYS", "*"))
        await ground.publish(some_events(50))
        after = set(await home.command("KEYS", "*"))

    assert after - before == set()
    assert not any(b"batch" in key for key in after)


async def test_what_is_posted_is_what_a_worker_posts_byte_by_byte(spark: SparkSession, one: Topology, tmp_path: Path):
    odd = [
        an_event(0, "orders", key="k", data={"ä": "\ud83d\ude00", "n": 1.5e10, "deep": [{"x": None}]}),
        an_event(1, "orders", key="k", tenant="acme", timestamp=7, data=" spaced \n text "),
        {"topic": "orders", "type": "made.up", "key": "k", "id": "my id".replace(" ", "-"), "data": False},
        {"topic": "orders", "type": "noop", "key": "k", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"},
        an_event(4, "orders", key="k", url="https://example.org/ä/%20", tenant="default"),
    ]
    async with Receiver() as live, Receiver() as mail, a_ground(spark, one, tmp_path, workers=1) as ground:
        await ground.subscribe("live", live.url, "orders", tier="live", timeout=3_600_000, max=len(odd), uuid="u")
        await ground.subscribe("mail", mail.url, "orders", max=len(odd), uuid="u")
        await ground.publish(odd)
        await live.until_events(len(odd))
        await ground.deliver()

    [by_worker], [in_bulk] = live.batches, mail.batches
    assert in_bulk.body == by_worker.body
    hosts = ("Host",)
    assert {n: v for n, v in in_bulk.headers.items() if n not in hosts} == {
        n: v for n, v in by_worker.headers.items() if n not in hosts
    }


async def test_a_receiver_is_called_no_more_often_than_it_asked_for(spark: SparkSession, one: Topology, tmp_path: Path):
    """A call in a quarter of an hour is one for as long as a test runs, however many shards want to make it."""
    async with Receiver() as mail, a_ground(spark, one, tmp_path) as ground:
        await ground.subscribe("mail", mail.url, "orders", max=1, rate_per_s=0.001)
        await ground.publish(some_events(30))
        await ground.land()
        async with asyncio.timeout(60):
            while not mail.attempts:
                await ground.round()
        for _ in range(5):
            await ground.round()
        paced = mail.attempts
        await ground.subscribe("mail", mail.url, "orders", max=1, rate_per_s=0)
        await ground.deliver()

    assert paced == 1
    assert len(mail.ids) == 30
    assert in_order(mail)


async def test_its_attempts_are_listed_like_those_of_workers(spark: SparkSession, topology: Topology, tmp_path: Path):
    """Recent ones from the journal, with all that is known; those that failed too."""
    async with Receiver(plan=lambda n: 500 if n == 1 else 200) as mail, a_ground(spark, topology, tmp_path) as ground:
        await ground.subscribe("mail", mail.url, "orders", max=10)
        ids = await ground.publish(some_events(60))
        async with asyncio.timeout(120):
            while len(mail.ids) < len(ids):
                await ground.deliver()
        secret, token = await ground.client("mail"), await ground.id("mail")
        listed = (await ask(ground.bus, "GET", "/subscriber/attempts?limit=1000", secret)).json["attempts"]
        of_event = (await ask(ground.bus, "GET", f"/attempts?event={ids[0]}", secret)).json["attempts"]
        resent = await ask(ground.bus, "POST", "/subscriber/resend", secret, json={"event": ids[0]})

    assert {row["receiver"] for row in listed} == {token}
    assert sorted(id_ for row in listed if row["outcome"] == "delivered" for id_ in row["events"]) == sorted(ids)
    assert [row["status"] for row in listed if row["outcome"] != "delivered"] == [500]
    assert [ids[0] in row["events"] for row in of_event] == [True] * len(of_event) != []
    assert all(row["bytes"] > 0 for row in listed)
    assert resent.status == 202


async def test_a_batch_keeps_within_its_bytes_and_a_larger_event_goes_alone(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    sizes = [100, 100, 5000, 100, 900, 900, 900]
    async with Receiver() as mail, a_ground(spark, one, tmp_path) as ground:
        await ground.subscribe("mail", mail.url, "orders", max_bytes=2000)
        await ground.publish([an_event(n, "orders", key="k", data="x" * size) for n, size in enumerate(sizes)])
        await ground.deliver()

    assert [len(batch.events) for batch in mail.batches] == [2, 1, 2, 1, 1]


async def test_one_that_fails_falls_behind_alone_backs_off_and_catches_up(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    is_down = True
    async with (
        Receiver() as well,
        Receiver(plan=lambda _: 500 if is_down else 200) as sick,
        a_ground(spark, one, tmp_path, backoff_cap_ms=1_000) as ground,
    ):
        await ground.subscribe("well", well.url, "orders", max=10)
        await ground.subscribe("sick", sick.url, "orders", max=10)
        ids = await ground.publish(some_events(300))
        await ground.until(lambda: len(well.ids) >= 300)
        await ground.until(lambda: sick.attempts >= 5)
        failing = await ground.seen("sick")
        tried = sick.attempts
        is_down = False
        await ground.until(lambda: len(set(sick.ids)) >= 300)
        recovered = await ground.seen("sick")

    assert sorted(well.ids) == sorted(sick.ids) == sorted(ids)
    assert in_order(well)
    assert in_order(sick)
    # The four calls that were under way at once, then one at a time.
    assert tried < 20
    assert failing["failures"] > 0
    assert recovered["last_attempted_at"] > failing["last_attempted_at"]
    assert failing["health"] < 100
    assert failing["events"]["queued"] == 300
    assert recovered["failures"] == 0
    assert recovered["events"]["queued"] == 0


async def test_a_hanging_receiver_does_not_hold_up_the_others(spark: SparkSession, one: Topology, tmp_path: Path):
    async with (
        Receiver() as well,
        # It fails first, so that it is tried apart.
        Receiver(plan=lambda number: 503 if number == 1 else "hang") as stuck,
        a_ground(spark, one, tmp_path, delivery_timeout_s=20) as ground,
    ):
        await ground.subscribe("stuck", stuck.url, "orders", concurrency=1)
        await ground.publish([an_event(0, "orders", key="k")])
        await ground.land()
        while not stuck.attempts:
            await ground.round()
        await ground.subscribe("well", well.url, "orders")
        await ground.publish(some_events(100))
        await ground.land()
        while stuck.attempts < 2 or len(well.ids) < 100:
            await ground.round()

        assert stuck.in_flight == 1
        assert len(well.ids) == 100


async def test_an_event_that_is_never_taken_is_left_to_the_workers_and_holds_up_nothing(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with Receiver() as mail, a_ground(spark, one, tmp_path) as ground:
        mail.plan = lambda number: 422 if "poison" in mail.attempted[number - 1] else 200
        await ground.subscribe("mail", mail.url, "orders", max=5)
        poison = an_event(0, "orders", key="k0", id="poison", data=-1)
        ids = await ground.publish([poison, *some_events(100, keys=20)])
        await ground.until(lambda: any("poison" in ids for ids in mail.attempted) and len(mail.ids) >= 96)
        progress, seen = await ground.progress("mail"), await ground.seen("mail")

    held = set(ids) - set(mail.ids)
    assert "poison" in held
    assert len(held) <= 5
    assert [checkpoint for checkpoint in progress.checkpoints.values() if checkpoint.attempts > 0] == []
    # It refuses what it got; others' events it takes.
    assert seen["failures"] == 0


async def test_it_begins_with_the_subscription_and_a_topic_with_its_own(
    spark: SparkSession, topology: Topology, tmp_path: Path
):
    async with Receiver() as mail, a_ground(spark, topology, tmp_path) as ground:
        await ground.publish([*some_events(30), *some_events(30, topic="users")])
        await ground.subscribe("mail", mail.url, "orders")
        wanted = await ground.publish(some_events(30))
        await ground.publish(some_events(30, topic="users"))
        await ground.subscribe("mail", mail.url, "orders", "users")
        wanted += await ground.publish([*some_events(30), *some_events(30, topic="users")])
        before = await ground.seen("mail")
        await ground.deliver()
        after = await ground.seen("mail")

    assert sorted(mail.ids) == sorted(wanted)
    assert before["events"]["queued"] == 90
    assert after["events"]["queued"] == 0


async def test_what_is_delivered_is_journaled_and_lands_like_any_attempt(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with Receiver(plan=lambda number: 500 if number == 1 else 200) as mail, a_ground(spark, one, tmp_path) as it:
        await it.subscribe("mail", mail.url, "orders")
        [id_] = await it.publish([an_event(0, "orders", key="k")])
        await it.until(lambda: len(mail.ids) == 1)
        metrics = await it.metrics()
        await it.land()
        async with journal_reader.connected(it.access) as bus:
            found = await event_history.look(reads.ReadContext(it.root, bus), id_)
        token = await it.id("mail")

    first, second = sorted(found.attempts, key=lambda attempt: int(str(attempt["attempt"])))
    assert [first["outcome"], second["outcome"]] == ["refused", "delivered"]
    assert [first["attempt"], second["attempt"]] == [1, 2]
    assert first["batch"] == second["batch"]
    assert first["subscriber"] == token
    assert f'doubledecker_delivery_events_total{{outcome="delivered",subscriber="{token}"}} 1.0' in metrics
    assert f'doubledecker_subscriber_queue_events{{subscriber="{token}"}} 0.0' in metrics
    assert f'doubledecker_chain_circuits{{state="closed",subscriber="{token}"}} 1.0' in metrics


async def test_nothing_stays_behind_when_the_subscriber_its_token_or_its_topic_goes(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with Receiver() as mail, a_ground(spark, one, tmp_path) as ground:
        home = ground.bus.partitions.home
        for name in ("gone", "revoked", "bare"):
            await ground.subscribe(name, mail.url, "orders")
        await ground.publish(some_events(20))
        bare, revoked = await ground.id("bare"), await ground.id("revoked")
        await ground.ask("DELETE", "/subscriber", await ground.client("gone"))
        await ground.ask("DELETE", f"/api_tokens/{revoked}", ROOT_KEY)
        await ground.ask("DELETE", "/topics/orders", await ground.client("publisher"))
        await ground.deliver()
        kept = await home.command("KEYS", "rm:bulk*")
        progress = await ground.progress("bare")

    assert sorted(kept) == [b"rm:bulk", f"rm:bulk:{bare}".encode()]
    assert progress.topics == {}
    assert mail.ids == []


async def test_a_ledger_of_ones_own_is_posted_once_however_often_it_is_asked_for(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    """As a replay would do it: any DataFrame of events, marked by a header, resumed by the ledger."""
    async with Receiver(plan=lambda number: 500 if number == 3 else 200) as mail, a_ground(spark, one, tmp_path) as it:
        await it.subscribe("mail", mail.url, tier="live", max=7)
        ids = await it.publish(some_events(100))
        await it.land()
        [subscriber] = (await subscribers.load_many(it.bus.partitions.home, [await it.id("mail")])).values()
        await bulk.open_ledger(it.bus.partitions, "posted:replay-1")
        work = Posting(it.bus.settings, subscriber, "posted:replay-1", headers={"Doubledecker-Replay": "1"})
        table = landing.table_of(it.root, "events")
        frame = frames.landed(spark, table, versions.of(table))
        async with asyncio.timeout(60):
            while (await asyncio.to_thread(posting.post, frame, work, tasks=2)).stopped:
                await asyncio.sleep(0.05)
        again = await asyncio.to_thread(posting.post, frame, work, tasks=2)

    assert sorted(mail.ids) == sorted(ids)
    assert in_order(mail)
    assert again.events == 0
    assert {batch.headers["Doubledecker-Replay"] for batch in mail.batches} == {"1"}


async def test_no_more_calls_at_a_time_than_asked_for_over_two_tasks_and_beside_a_worker(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with Receiver(delay_s=0.1) as mail, a_ground(spark, one, tmp_path, workers=1) as ground:
        await ground.subscribe("mail", mail.url, "orders", max=1, concurrency=3, tier="live", timeout=0)
        leftovers = await ground.publish(some_events(30))
        await ground.subscribe("mail", mail.url, "orders")
        ids = await ground.publish(some_events(60))
        await ground.land()
        progress, token = await ground.progress("mail"), await ground.id("mail")
        [subscriber] = (await subscribers.load_many(ground.bus.partitions.home, [token])).values()
        table = landing.table_of(ground.root, "events")
        frame = posting.remaining(frames.landed(spark, table, versions.of(table)), progress.checkpoints)

        def post() -> tuple[Posted, int]:
            spark.sparkContext.setJobGroup("bulk-cap", "two tasks")
            done = posting.post(frame, Posting(ground.bus.settings, subscriber, bulk.ledger_of(token)), tasks=2)
            tracker = spark.sparkContext.statusTracker()
            stages = [s for job in tracker.getJobIdsForGroup("bulk-cap") for s in tracker.getJobInfo(job).stageIds]
            return done, max(tracker.getStageInfo(stage).numTasks for stage in stages if tracker.getStageInfo(stage))

        posted, tasks = await asyncio.to_thread(post)
        await mail.until(lambda: set(leftovers) | set(ids) <= set(mail.ids), within_s=60)

    assert tasks >= 2
    assert posted.events > 0
    assert mail.in_flight_max == 3


async def test_a_round_that_breaks_is_told_and_repeated_while_the_others_are_served(
    spark: SparkSession, one: Topology, tmp_path: Path
):
    async with Receiver() as mail, Receiver() as shop, a_ground(spark, one, tmp_path) as ground:
        await ground.subscribe("mail", mail.url, "orders")
        await ground.subscribe("shop", shop.url, "users")
        mail_id = await ground.id("mail")
        await ground.publish([an_event(n, "orders") for n in range(5)])
        await ground.publish([an_event(n, "users") for n in range(5)])
        await ground.land()
        [file] = (tmp_path / "lake" / "events" / "topic=orders").rglob("*.parquet")
        away = file.rename(tmp_path / "away")
        rounds = [await asyncio.to_thread(ground.step.act)]
        while rounds[-1].has_more:
            rounds.append(await asyncio.to_thread(ground.step.act))
        served, broken = len(shop.events), rounds[-1].trouble
        away.rename(file)
        await ground.until(lambda: len(mail.events) == 5)
        mended = await asyncio.to_thread(ground.step.act)

    assert served == 5
    assert broken.startswith(f"subscriber {mail_id!r}: ")
    assert file.name in broken
    assert mended.trouble == ""
