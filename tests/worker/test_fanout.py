"""Copies that are left for later: what a publish call writes at once, and that the job makes the rest exactly once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.assembly.build import BusParts
from doubledecker.errors import RetryLater
from doubledecker.model.job import Job
from doubledecker.store import batches, events, fanouts, jobs, registry
from doubledecker.store.deferred_copies import OTHERS_MIN, OWN_MAX
from doubledecker.store.events import Accepted, PublishLimits
from doubledecker.store.partitions import Partition
from doubledecker.worker import chores
from harness import TestBus, a_bus, an_event, save_queues
from queues.pulling import ROOT, a_queue, an_offer
from web.asking import ask
from worker.test_chores import _chores

MANY = 40
REFUSING = {"overflow": "refuse", "max_length": 1}


@asynccontextmanager
async def a_workshop(topology: Topology, **changes: object) -> AsyncIterator[tuple[TestBus, BusParts]]:
    """A bus without a worker, and what a worker has to make copies."""
    async with a_bus(topology, workers=0, **changes) as bus, build.open_bus(bus.settings) as other:
        yield bus, other


async def id_of(bus: TestBus, name: str) -> str:
    [found] = [token["token"] for token in await bus.get("/api_tokens") if token["name"] == name]
    return found


async def an_owner(bus: TestBus, name: str, count: int, **fields: object) -> str:
    """A client with so many catch-all queues; returns its secret."""
    secret = await bus.token(name)
    owner = await id_of(bus, name)
    queues = [a_queue(f"{name}-{n:03}", owner=owner, **fields) for n in range(count)]
    home = bus.partitions.home
    await save_queues(home, queues)
    await registry.copy_version(bus.partitions, await registry.version(home))
    return secret


async def work(other: BusParts) -> int:
    """Run all jobs that there are, as a worker does; returns how many."""
    await other.registry.refresh()
    done = 0
    for partition in other.partitions.all:
        await jobs.beat(partition, ["slot"])
        while taken := (await jobs.take(partition, ["slot"], process="p")).taken:
            try:
                await _chores(other).run(taken[0])
            except RetryLater:
                await jobs.nack(taken[0], delay_ms=0)
            done += 1
    return done


async def lengths(partition: Partition, prefix: str, count: int) -> list[int]:
    return await partition.commands([["HLEN", partition.key(f"queue:data:{prefix}-{n:03}")] for n in range(count)])


async def test_copies_that_are_made_later_go_by_the_filters_at_acceptance(one: Topology):
    async with a_workshop(one) as (bus, other):
        shop = await an_owner(bus, "shop", MANY, filter='{"key":["a"]}')
        await bus.publish(shop, [an_event(1, key="a"), an_event(2, key="b")])
        changed = {"pattern": ".*", "filter": {"key": ["b"]}}
        answer = await ask(bus, "PUT", "/queues/shop-000", shop, json=changed)
        made = await work(other)

        assert answer.status == 200
        assert made > 0
        assert await lengths(bus.partitions.home, "shop", MANY) == [1] * MANY


async def numbers_in(partition: Partition, queue: str) -> list[int]:
    """The numbers of the events in a queue, by their ids there."""
    flat = await partition.command("HGETALL", partition.key(f"queue:data:{queue}"))
    pairs = zip(flat[0::2], flat[1::2], strict=True)
    ordered = sorted(pairs, key=lambda pair: int(pair[0].split(b"-")[1]))
    return [int(msgspec.json.decode(text)["url"].rpartition("/")[2]) for _, text in ordered]


async def left(partition: Partition) -> list[bytes]:
    return await partition.command("KEYS", partition.key("fanout:*"))


class TestOwn:
    async def test_an_event_with_many_own_queues_is_accepted_before_it_is_in_them(self, one: Topology):
        async with a_workshop(one) as (bus, other):
            ann = await an_owner(bus, "ann", MANY)
            await bus.publish(ann, [an_event(n) for n in range(3)])
            home = bus.partitions.home
            at_once = await lengths(home, "ann", MANY)
            await work(other)

            assert sum(at_once) == 0
            assert await lengths(home, "ann", MANY) == [3] * MANY
            assert await numbers_in(home, f"ann-{MANY - 1:03}") == [0, 1, 2]
            assert await left(home) == []

    async def test_few_own_queues_have_the_event_when_it_is_accepted(self, one: Topology):
        async with a_workshop(one) as (bus, _):
            ann = await an_owner(bus, "ann", OWN_MAX)
            await bus.publish(ann, [an_event(n) for n in range(100)])

            assert await lengths(bus.partitions.home, "ann", OWN_MAX) == [100] * OWN_MAX

    async def test_receivers_are_named_once_for_all_events_of_a_request(self, one: Topology):
        async with a_workshop(one) as (bus, _):
            ann = await an_owner(bus, "ann", MANY)
            await bus.publish(ann, [an_event(n, tenant=f"t{n}") for n in range(100)])
            home = bus.partitions.home
            [parcel] = await home.command("KEYS", home.key("fanout:parcel:*"))

            feeds = await home.command("HGET", parcel.decode(), "feeds")
            assert feeds.count(b"@ann-007") == 1

    async def test_those_that_refuse_still_tell_the_publisher(self, one: Topology):
        async with a_workshop(one) as (bus, other):
            ann = await an_owner(bus, "ann", MANY)
            owner = await id_of(bus, "ann")
            await save_queues(bus.partitions.home, [a_queue("small", owner=owner, **REFUSING)])
            answers = [await ask(bus, "POST", "/events", ann, json=an_event(n)) for n in range(2)]
            await work(other)

            assert [answer.status for answer in answers] == [202, 429]
            assert "'small' is full" in answers[1].detail
            assert await lengths(bus.partitions.home, "ann", MANY) == [1] * MANY

    async def test_all_that_refuse_decide_however_many_they_are(self, one: Topology):
        async with a_workshop(one) as (bus, other):
            ann = await an_owner(bus, "ann", MANY, overflow="refuse", max_length=2)
            owner = await id_of(bus, "ann")
            await save_queues(bus.partitions.home, [a_queue("zz-last", owner=owner, **REFUSING)])
            answers = [await ask(bus, "POST", "/events", ann, json=an_event(n)) for n in range(2)]
            at_once = await lengths(bus.partitions.home, "ann", MANY)
            await work(other)

            assert [answer.status for answer in answers] == [202, 429]
            assert "'zz-last' is full" in answers[1].detail
            assert at_once == await lengths(bus.partitions.home, "ann", MANY) == [1] * MANY

    async def test_those_that_refuse_decide_on_a_wide_event_too(self, one: Topology, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("doubledecker.store.events.WRITES_MAX", 2)
        async with a_workshop(one) as (bus, other):
            ann = await an_owner(bus, "ann", 3)
            owner = await id_of(bus, "ann")
            await save_queues(bus.partitions.home, [a_queue("small", owner=owner, **REFUSING)])
            answers = [await ask(bus, "POST", "/events", ann, json=an_event(n)) for n in range(2)]
            await work(other)

            assert [answer.status for answer in answers] == [202, 429]
            assert await lengths(bus.partitions.home, "ann", 3) == [1] * 3

    async def test_repeats_are_not_copied(self, one: Topology):
        async with a_workshop(one) as (bus, other):
            ann = await an_owner(bus, "ann", MANY)
            await bus.publish(ann, [an_event(0, id="a"), an_event(1, id="b"), an_event(0, id="a")])
            await bus.publish(ann, [an_event(1, id="b"), an_event(2, id="c")])
            await work(other)

            assert await numbers_in(bus.partitions.home, "ann-020") == [0, 1, 2]


class TestOthers:
    async def test_a_call_with_many_copies_for_others_leaves_them_for_later(self, one: Topology):
        async with a_workshop(one) as (bus, other):
            await an_owner(bus, "eve", 4)
            await an_owner(bus, "bob", 1)
            ann = await an_owner(bus, "ann", 1)
            home = bus.partitions.home
            await bus.publish(ann, [an_event(n, tenant=f"t{n}") for n in range(50)])
            at_once = [await lengths(home, *each) for each in (("ann", 1), ("bob", 1), ("eve", 4))]
            await work(other)

            assert at_once == [[50], [0], [0] * 4]
            assert [await lengths(home, *each) for each in (("bob", 1), ("eve", 4))] == [[50], [50] * 4]
            assert await left(home) == []

    async def test_few_copies_for_others_are_made_at_once(self, one: Topology):
        async with a_workshop(one, client_copies_max=0) as (bus, _):
            await an_owner(bus, "eve", OTHERS_MIN)
            await bus.publish(await bus.token("ann"), [an_event()])

            assert await lengths(bus.partitions.home, "eve", OTHERS_MIN) == [1] * OTHERS_MIN

    async def test_two_queues_of_others_get_any_number_of_events_at_once(self, one: Topology):
        async with a_workshop(one) as (bus, _):
            await an_owner(bus, "eve", 2)
            await bus.publish(await bus.token("ann"), [an_event(n) for n in range(100)])

            assert await lengths(bus.partitions.home, "eve", 2) == [100] * 2

    async def test_events_do_not_overtake_those_that_were_left_for_later(self, one: Topology):
        async with a_workshop(one) as (bus, other):
            await an_owner(bus, "eve", 4)
            ann = await bus.token("ann")
            await bus.publish(ann, [an_event(n) for n in range(50)])
            await bus.publish(ann, [an_event(50)])
            await bus.publish(ann, [an_event(51, type="create")])
            await work(other)
            await bus.publish(ann, [an_event(52)])

            assert await numbers_in(bus.partitions.home, "eve-003") == list(range(53))

    async def test_what_one_publisher_left_for_later_makes_no_other_wait(self, one: Topology):
        async with a_workshop(one) as (bus, _):
            await an_owner(bus, "eve", 4)
            await bus.publish(await bus.token("ann"), [an_event(n) for n in range(50)])
            await bus.publish(await bus.token("bob"), [an_event(99, "gadgets")])

            assert await numbers_in(bus.partitions.home, "eve-003") == [99]

    async def test_a_full_queue_of_others_is_skipped_when_its_turn_comes(self, one: Topology):
        async with a_workshop(one) as (bus, other):
            await an_owner(bus, "eve", 4, **REFUSING)
            home = bus.partitions.home
            await bus.publish(await bus.token("ann"), [an_event(n) for n in range(20)])
            await work(other)

            assert await lengths(home, "eve", 4) == [1] * 4
            assert await home.command("HGET", home.key("queue:state:eve-002"), "skipped") == b"19"

    async def test_events_that_an_own_queue_refuses_reach_no_other(self, one: Topology):
        async with a_workshop(one) as (bus, other):
            await an_owner(bus, "eve", 4)
            ann = await an_owner(bus, "ann", 1, overflow="refuse", max_length=3)
            answer = await ask(bus, "POST", "/events", ann, json=[an_event(n) for n in range(20)])
            await work(other)

            assert len(answer.json["refused"]) == 17
            assert await numbers_in(bus.partitions.home, "eve-001") == [0, 1, 2]


class TestJob:
    async def test_it_goes_on_where_a_dead_worker_stopped(self, one: Topology, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(chores, "_SLICES_MAX", 1)
        async with a_workshop(one) as (bus, other):
            ann = await an_owner(bus, "ann", 100)
            home = bus.partitions.home
            await bus.publish(ann, [an_event(n) for n in range(3)])
            await other.registry.refresh()
            line = f"own:{await id_of(bus, 'ann')}"
            with pytest.raises(RetryLater):
                await _chores(other).fan_out(home, line)
            made = await lengths(home, "ann", 100)
            runs = await work(other)

            assert 0 < sum(made) < 300
            assert runs > 2
            assert await lengths(home, "ann", 100) == [3] * 100

    async def test_a_slice_that_is_repeated_writes_nothing(self, one: Topology):
        async with a_workshop(one) as (bus, other):
            ann = await an_owner(bus, "ann", MANY)
            home = bus.partitions.home
            await bus.publish(ann, [an_event()])
            await other.registry.refresh()
            parcel = await fanouts.first(home, f"own:{await id_of(bus, 'ann')}")
            assert parcel is not None
            share = fanouts.cut(parcel, bytes_max=10**6)
            snapshot, limits = other.registry.snapshot, PublishLimits()
            replies = [await events.fan_out(home, parcel, share, snapshot, limits=limits) for _ in range(2)]

            assert [reply.outcome for reply in replies] == [Accepted.OK, Accepted.MOVED]
            assert sum(await lengths(home, "ann", MANY)) == len(share.names)

    async def test_an_old_registry_writes_nothing_and_is_read_again(self, one: Topology):
        async with a_workshop(one) as (bus, other):
            ann = await an_owner(bus, "ann", MANY)
            home = bus.partitions.home
            await other.registry.refresh()
            await bus.publish(ann, [an_event()])
            await an_owner(bus, "later", 3)
            await _chores(other).fan_out(home, f"own:{await id_of(bus, 'ann')}")

            assert await lengths(home, "ann", MANY) == [1] * MANY
            assert await lengths(home, "later", 3) == [0] * 3

    async def test_a_queue_that_was_deleted_meanwhile_gets_nothing(self, one: Topology):
        async with a_workshop(one) as (bus, other):
            ann = await an_owner(bus, "ann", MANY)
            home = bus.partitions.home
            await bus.publish(ann, [an_event()])
            assert (await ask(bus, "DELETE", "/queues/ann-007", ann)).status == 204
            await work(other)

            assert await lengths(home, "ann", MANY) == [1] * 7 + [0] + [1] * (MANY - 8)
            assert await left(home) == []

    async def test_a_queue_that_was_deleted_and_registered_again_meanwhile_gets_nothing(self, topology: Topology):
        async with a_workshop(topology, client_copies_max=0) as (bus, other):
            ann = await an_owner(bus, "ann", MANY)
            await bus.publish(ann, [an_event(0)])
            assert (await ask(bus, "DELETE", "/queues/ann-007", ann)).status == 204
            assert (await ask(bus, "PUT", "/queues/ann-007", ann, json={"pattern": ".*"})).status == 201
            await bus.publish(ann, [an_event(1)])
            await work(other)
            found = [await numbers_in(partition, "ann-007") for partition in bus.partitions.all]
            counts = [await lengths(partition, "ann", MANY) for partition in bus.partitions.all]

            assert [number for numbers in found for number in numbers] == [1]
            assert [sum(each) for each in zip(*counts, strict=True)] == [2] * 7 + [1] + [2] * (MANY - 8)

    async def test_a_queue_that_was_changed_meanwhile_gets_the_event(self, one: Topology):
        async with a_workshop(one, client_copies_max=0) as (bus, other):
            ann = await an_owner(bus, "ann", MANY)
            await bus.publish(ann, [an_event(0)])
            for lease_ms in (1_000, 2_000):
                body = {"pattern": "nothing:.*", "lease_ms": lease_ms}
                assert (await ask(bus, "PUT", "/queues/ann-007", ann, json=body)).status == 200
            await work(other)

            assert await lengths(bus.partitions.home, "ann", MANY) == [1] * MANY

    async def test_a_subscriber_that_left_and_is_back_gets_what_was_accepted_since(
        self, one: Topology, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("doubledecker.store.events.WRITES_MAX", 2)
        async with a_workshop(one) as (bus, other):
            ann, bob, eve = [await bus.token(name) for name in ("ann", "bob", "eve")]
            for secret in (bob, eve):
                await bus.subscribe(secret, "http://127.0.0.1:9/", "widgets", timeout=3_600_000)
            await bus.publish(ann, [an_event(0)])
            await bus.subscribe(eve, "http://127.0.0.1:9/", "widgets", timeout=3_599_000)
            assert (await ask(bus, "DELETE", "/subscriber", bob)).status == 204
            await bus.subscribe(bob, "http://127.0.0.1:9/", "widgets", timeout=3_600_000)
            await bus.publish(ann, [an_event(1), an_event(2)])
            await work(other)
            gauges, _ = await batches.gauges(bus.partitions.home)

            assert gauges == {await id_of(bus, "bob"): 2, await id_of(bus, "eve"): 3}

    async def test_a_line_that_fills_again_while_its_job_ends_has_a_job(self, one: Topology):
        """The job was held by a slot when the next parcel came, and ended then."""
        async with a_workshop(one) as (bus, other):
            ann = await an_owner(bus, "ann", MANY)
            home = bus.partitions.home
            await bus.publish(ann, [an_event(0)])
            [held] = (await jobs.take(home, ["slot"], process="p")).taken
            await other.registry.refresh()
            await _chores(other).fan_out(home, held.job.args[0])
            await bus.publish(ann, [an_event(1)])
            await jobs.ack(held)
            await work(other)

            assert await lengths(home, "ann", MANY) == [2] * MANY

    async def test_a_wide_event_of_the_former_layout_reaches_those_that_are_left(self, one: Topology):
        async with a_workshop(one) as (bus, other):
            home = bus.partitions.home
            queues = [a_queue(f"old-{n:03}") for n in range(3)]
            for queue in queues:
                await other.registry.register_queue(queue, caller=ROOT)
            message = an_offer("acme").message
            await home.command("RPUSH", home.key("fanout:f1"), message, "gone-1", "@old-000", "@old-002", "@gone")
            await jobs.push(home, Job("fanout", ("f1",)))
            await work(other)

            assert await lengths(home, "old", 3) == [1, 0, 1]
            assert await left(home) == []


async def test_all_queues_get_each_event_once_over_partitions_too(topology: Topology):
    async with a_workshop(topology) as (bus, other):
        ann = await an_owner(bus, "ann", MANY)
        await bus.publish(ann, [an_event(n, tenant=f"t{n}") for n in range(30)])
        await work(other)

        found = [await lengths(partition, "ann", MANY) for partition in bus.partitions.all]
        assert [sum(counts) for counts in zip(*found, strict=True)] == [30] * MANY
