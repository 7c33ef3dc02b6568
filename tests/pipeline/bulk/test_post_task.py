"""A task of bulk delivery, without Spark around it: rows go in, and each shard comes as far as it can."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pyarrow as pa
import pytest
import standardwebhooks
import svix
from msgspec import json

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.lake import arrow, rows
from doubledecker.model.position import Shard
from doubledecker.model.subscriber import Subscriber
from doubledecker.pipeline.bulk.batches import Posting
from doubledecker.pipeline.bulk.post_task import Poster
from doubledecker.store import bulk, journal, receivers, subscribers
from doubledecker.store.journal import AttemptRecord, JournalEntry
from doubledecker.store.receivers import ReceiverRecord
from harness import TestBus, a_bus
from receiver import Receiver
from web.asking import ask

pytestmark = pytest.mark.slow

LEDGER = "posted:test"
FIRST_MS = 1_700_000_000_000


def some_rows(*events: str, shard: int = 0, partition: int = 0) -> pa.RecordBatch:
    """Events of one shard, each a millisecond later than the one before."""
    entries = [
        JournalEntry(f"{FIRST_MS + n}-0", (("p", json.encode({"topic": "orders", "type": "create", "id": id_})),))
        for n, id_ in enumerate(events)
    ]
    made = arrow.to_batch(rows.layout("events"), entries, partition=partition)
    return made.append_column("shard", pa.array([shard] * len(events), pa.int32()))


@dataclass
class Ground:
    """A bus with one subscriber of the bulk tier."""

    bus: TestBus
    secret: str
    subscriber: Subscriber

    async def post(self, batches: Sequence[pa.RecordBatch], **more: bool) -> Poster:
        """What one task does with some rows."""
        partitions = self.bus.partitions
        async with build.open_deliverer(self.bus.settings, partitions, part="bulk") as deliverer:
            posting = Posting(self.bus.settings, self.subscriber, LEDGER, **more)
            poster = Poster(posting, partitions, deliverer, (await bulk.progress(partitions.home, LEDGER)).checkpoints)
            await poster.run(batches)
        return poster

    async def state(self) -> ReceiverRecord:
        home = self.bus.partitions.home
        return (await receivers.states(home, [self.subscriber.token]))[self.subscriber.token]

    async def attempts(self) -> list[AttemptRecord]:
        entries = await journal.read(self.bus.partitions.home, "attempts")
        return [json.decode(entry.fields[0][1], type=AttemptRecord) for entry in entries]


@asynccontextmanager
async def a_ground(
    topology: Topology, url: str, *, backoff_base_ms: int = 20, workers: int = 0, **fields: object
) -> AsyncIterator[Ground]:
    backoff = {"backoff_base_ms": backoff_base_ms, "backoff_cap_ms": 10 * backoff_base_ms}
    async with a_bus(topology, workers=workers, watch_lease_s=0.3, **backoff) as bus:
        secret = await bus.token("mail")
        await bus.subscribe(secret, url, tier="bulk", **{"max": 1, **fields})
        await bulk.open_ledger(bus.partitions, LEDGER)
        [token] = await subscribers.all_tokens(bus.partitions.home)
        yield Ground(bus, secret, (await subscribers.load_many(bus.partitions.home, [token]))[token])


def whys(poster: Poster) -> dict[int, str]:
    return {shard.number: line.why for shard, line in poster.lines.items()}


async def test_a_refused_batch_is_put_aside_for_the_workers_and_its_shard_goes_on(one: Topology):
    async with Receiver() as mail, a_ground(one, mail.url, backoff_base_ms=10**9) as ground:
        mail.plan = lambda number: 422 if "poison" in mail.attempted[number - 1] else 200
        poster = await ground.post([some_rows("poison", "behind"), some_rows("a", "b", "c", shard=1)])
        again = await ground.post([some_rows("poison", "behind")])
        state = await ground.state()
        [row] = await ground.bus.get("/subscribers", ground.secret)

    assert mail.attempts == 5
    assert sorted(mail.ids) == ["a", "b", "behind", "c"]
    assert whys(poster) == {0: "", 1: ""}
    assert whys(again) == {0: ""}
    assert row["events"]["queued"] == 1
    assert (state.failures, state.calls) == (0, 0)


async def test_workers_split_what_bulk_delivery_put_aside_and_give_up_the_poison_alone(one: Topology):
    """1 poison in 100."""
    async with Receiver() as mail, a_ground(one, mail.url, max=100, workers=1, retry=[10, 10]) as ground:
        mail.plan = lambda number: 422 if "e37" in mail.attempted[number - 1] else 200
        poster = await ground.post([some_rows(*(f"e{n}" for n in range(100)))])
        async with asyncio.timeout(20):
            while not (letters := (await ask(ground.bus, "GET", "/subscriber/dead", ground.secret)).json["messages"]):
                await asyncio.sleep(0.05)

        assert whys(poster) == {0: ""}
        assert sorted(mail.ids) == sorted(f"e{n}" for n in range(100) if n != 37)
        assert [(each["event"]["id"], each["reason"], each["status"]) for each in letters] == [("e37", "attempts", 422)]
        assert mail.attempts < 40


async def test_events_that_are_named_as_failed_are_tried_again_by_workers_and_their_shard_goes_on(one: Topology):
    async with Receiver() as mail, a_ground(one, mail.url, max=3, workers=1) as ground:
        mail.answer = lambda events: {"failed": ["b"] if len(events) > 1 and events[0]["id"] == "a" else []}
        poster = await ground.post([some_rows("a", "b", "c", "d", "e", "f")])
        async with asyncio.timeout(20):
            while mail.attempts < 3:
                await asyncio.sleep(0.05)
        attempts = await ground.attempts()

    assert sorted(mail.attempted) == [["a", "b", "c"], ["b"], ["d", "e", "f"]]
    assert whys(poster) == {0: ""}
    assert poster.lines[Shard(0, 0)].events == 5
    assert [each.attempt for each in attempts if each.events == ["b"]] == [2]


async def test_an_event_that_is_always_named_as_failed_becomes_a_dead_letter(one: Topology):
    async with Receiver() as mail, a_ground(one, mail.url, max=3, workers=1, retry=[10, 10]) as ground:
        mail.answer = lambda _: {"failed": ["b"]}
        await ground.post([some_rows("a", "b", "c")])
        async with asyncio.timeout(20):
            while not (letters := (await ask(ground.bus, "GET", "/subscriber/dead", ground.secret)).json["messages"]):
                await asyncio.sleep(0.05)

    assert mail.attempted == [["a", "b", "c"], ["b"], ["b"]]
    assert [(each["event"]["id"], each["reason"], each["attempts"]) for each in letters] == [("b", "attempts", 3)]


async def test_what_is_named_as_failed_in_a_replay_holds_its_shard(one: Topology):
    async with Receiver() as mail, a_ground(one, mail.url, max=2) as ground:
        mail.answer = lambda _: {"failed": ["b"] if mail.attempts == 1 else []}
        first = await ground.post([some_rows("a", "b", "c")], is_replayed=True)
        async with asyncio.timeout(10):
            while (second := await ground.post([some_rows("a", "b", "c")], is_replayed=True)).lines[Shard(0, 0)].why:
                await asyncio.sleep(0.01)
        [row] = await ground.bus.get("/subscribers", ground.secret)

    assert whys(first) == {0: "named in `failed`"}
    assert mail.attempted == [["a", "b"], ["a", "b"], ["c"]]
    assert second.lines[Shard(0, 0)].events == 3
    assert row["events"]["queued"] == 0


async def test_one_that_refuses_batch_after_batch_is_failing_and_ends_the_round(one: Topology):
    async with Receiver(plan=lambda _: 400) as mail, a_ground(one, mail.url, concurrency=1) as ground:
        poster = await ground.post([some_rows(f"e{n}", shard=n) for n in range(16)])
        state = await ground.state()

    assert mail.attempts == 5
    assert state.failures == 1
    assert set(whys(poster).values()) == {"failing"}


async def test_one_that_fails_ends_the_round_and_is_probed_with_what_failed(one: Topology):
    plan = {2: 500}
    async with (
        Receiver(plan=lambda number: plan.get(number, 200)) as mail,
        a_ground(one, mail.url, concurrency=1) as ground,
    ):
        batch = some_rows("a", "b", "c")
        first = await ground.post([batch])
        failing = await ground.state()
        async with asyncio.timeout(10):
            while (second := await ground.post([batch])).lines[Shard(0, 0)].why:
                await asyncio.sleep(0.01)
        state, attempts = await ground.state(), await ground.attempts()

    assert whys(first) == {0: "failed"}
    assert first.lines[Shard(0, 0)].checkpoint.retry_at == pytest.approx(failing.retry_at, abs=50)
    assert failing.failures == 1
    assert mail.ids == ["a", "b", "c"]
    assert second.lines[Shard(0, 0)].events == 2
    assert (state.failures, state.calls) == (0, 0)
    assert [(each.attempt, each.outcome, each.accepted_at - FIRST_MS) for each in attempts] == [
        (1, "delivered", 0),
        (1, "refused", 1),
        (2, "delivered", 1),
        (1, "delivered", 2),
    ]


async def test_a_permit_lasts_as_long_as_the_call_and_holds_over_tasks(one: Topology):
    """The call takes three leases."""
    async with Receiver(delay_s=1.0) as mail, a_ground(one, mail.url, concurrency=1) as ground:
        async with asyncio.TaskGroup() as tasks:
            for shard in range(2):
                tasks.create_task(ground.post([some_rows(f"e{shard}", shard=shard)]))
        state = await ground.state()

    assert sorted(mail.ids) == ["e0", "e1"]
    assert mail.in_flight_max == 1
    assert state.calls == 0


async def test_a_task_that_is_cut_off_gives_its_permits_back(one: Topology):
    async with Receiver(plan=lambda _: "hang") as mail, a_ground(one, mail.url) as ground:
        task = asyncio.create_task(ground.post([some_rows("a"), some_rows("b", shard=1)]))
        await mail.until_attempts(2)
        during = await ground.state()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        after = await ground.state()

    assert during.calls == 2
    assert (after.calls, after.failures) == (0, 0)


async def test_permits_are_divided_among_partitions_and_none_waits_for_anothers(one: Topology):
    topology = Topology("own", one.url, 3, one.node_urls)
    async with Receiver(delay_s=0.2) as mail, a_ground(topology, mail.url, concurrency=4) as ground:
        batches = [some_rows(f"{p}.{n}", shard=n, partition=p) for p in range(3) for n in range(4)]
        await ground.post(batches)
        limits = [
            (await receivers.states(partition, [ground.subscriber.token]))[ground.subscriber.token].limit
            for partition in ground.bus.partitions.all
        ]

    assert limits == [2, 1, 1]
    assert len(mail.ids) == 12
    assert mail.in_flight_max == 4


async def test_nobody_is_called_at_an_address_that_has_changed(one: Topology):
    async with Receiver() as before, Receiver() as now, a_ground(one, before.url) as ground:
        await ground.bus.subscribe(ground.secret, now.url, tier="bulk", max=1)
        poster = await ground.post([some_rows("a")])

    assert before.attempts == now.attempts == 0
    assert whys(poster) == {0: "changed"}


async def test_each_attempt_is_signed_by_the_secrets_that_are_in_force_then(one: Topology):
    """A task knows none when it begins. A batch that is tried again has its id; with more in it, another."""
    seen: list[tuple[str, tuple[str, ...]]] = []
    async with (
        Receiver(plan=lambda number: 503 if number < 3 else 200) as mail,
        a_ground(one, mail.url, max=3) as ground,
    ):
        mail.noted = lambda headers, ids: seen.append((headers["webhook-id"], tuple(ids)))
        first = await _rotated(ground)
        # As it comes out of Spark's closure.
        ground.subscriber = ground.subscriber.bare
        batches = [some_rows("a", "b"), some_rows("a", "b"), some_rows("a", "b", "c")]
        await ground.post(batches[:1])
        async with asyncio.timeout(10):
            while mail.attempts < 2:
                await ground.post(batches[1:2])
        second = await _rotated(ground)
        async with asyncio.timeout(10):
            while mail.attempts < 3:
                await ground.post(batches[2:])

    [batch] = mail.batches
    for secret in (first, second):
        standardwebhooks.Webhook(secret).verify(batch.body, batch.headers)
        svix.Webhook(secret).verify(batch.body, batch.headers)
    assert [events for _, events in seen] == [("a", "b"), ("a", "b"), ("a", "b", "c")]
    assert seen[0] == seen[1]
    assert seen[2][0] != seen[1][0]
    assert batch.uuid


async def _rotated(ground: Ground) -> str:
    answer = await ask(ground.bus, "POST", "/subscriber/rotate-secret", ground.secret, json={"overlap_s": 60})
    return str(answer.json["secret"])


async def test_a_change_of_somebody_else_does_not_end_the_round(one: Topology):
    async with Receiver() as mail, a_ground(one, mail.url, concurrency=1) as ground:
        mail.delay_s = 0.2
        posting = asyncio.create_task(ground.post([some_rows("a", "b", "c")]))
        await mail.until_attempts(1)
        await ground.bus.subscribe(await ground.bus.token("other"), mail.url, "users")
        poster = await posting

    assert mail.ids == ["a", "b", "c"]
    assert whys(poster) == {0: ""}


async def test_what_is_replayed_does_not_tell_when_it_was_accepted_and_counts_for_no_latency(one: Topology):
    async with Receiver() as mail, a_ground(one, mail.url) as ground:
        await ground.post([some_rows("a")], is_replayed=True)
        [attempt] = await ground.attempts()
        counters = await ground.bus.partitions.home.command("HKEYS", ground.bus.partitions.home.key("counters"))

    assert attempt.accepted_at == 0
    assert not any(name.startswith(b"latency") for name in counters)


async def test_health_is_written_however_short_the_task_was(one: Topology):
    async with Receiver(plan=lambda _: 500) as mail, a_ground(one, mail.url) as ground:
        await ground.post([some_rows("a")])
        home, token = ground.bus.partitions.home, ground.subscriber.token
        condition = (await subscribers.conditions(ground.bus.partitions, [token]))[token]
        kept = await home.command("HGET", home.key(f"subscriber:{token}"), "health_points")

    assert kept == b"98"
    assert condition.last_attempted_at is not None
