"""A bound on what waits for one subscriber: beyond it that subscriber loses its own oldest, counted and shown."""

import json
from typing import Any

import pytest

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.model import moment
from doubledecker.model.position import Position
from doubledecker.model.settlement import DELIVERED
from doubledecker.store import batches, counters, journal, losses
from doubledecker.store.deliveries import Settled
from doubledecker.store.losses import Dropped
from doubledecker.store.partitions import Partitions
from doubledecker.worker.backlog_bounds import BacklogBounds
from harness import TestBus, a_bus, an_event
from receiver import Receiver
from store.test_deliveries import a_receiver, publish, take
from web.asking import ask, waiting
from worker.test_deliver import _until
from worker.test_notices import published, types
from worker.test_poison import refuse

NOBODY = "http://127.0.0.1:9/"
DATA = "x" * 1_000
BOUND = 30_000


async def row(bus: TestBus, secret: str) -> dict[str, Any]:
    [found] = await bus.get("/subscribers", secret)
    return dict(found)


async def dropped(bus: TestBus, token: str) -> int:
    """How many events were counted as dropped, over all partitions."""
    field = f"events.dropped:subscriber={token}"
    return sum([(await counters.read(partition)).get(field, 0) for partition in bus.partitions.all])


async def waiting_bytes(partitions: Partitions, token: str) -> int:
    return sum([await losses.measure(partition, token) for partition in partitions.all])


def some_events(first: int, count: int = 20) -> list[dict[str, object]]:
    return [an_event(n, tenant=f"t{n % 7}", data=DATA) for n in range(first, first + count)]


async def enforce(bus: TestBus) -> None:
    async with build.open_bus(bus.settings) as other:
        await BacklogBounds(other.partitions, other.registry).enforce()


async def test_a_dead_receiver_under_load_loses_its_oldest_and_nobody_else_anything(topology: Topology):
    """No publish is refused, and each accepted event is delivered, dropped, or waits."""
    async with a_bus(topology, workers=2) as bus, Receiver() as mail, Receiver() as mended:
        dead, well = await bus.token("dead"), await bus.token("mail")
        fields = {"timeout": 20, "max": 5, "concurrency": 2}
        await bus.subscribe(dead, NOBODY, "widgets", backlog_max_bytes=BOUND, **fields)
        await bus.subscribe(well, mail.url, "widgets", **fields)
        publisher = await bus.token("shop")
        accepted: list[str] = []
        for first in range(0, 400, 20):
            accepted += await bus.publish(publisher, some_events(first))
        await mail.until_events(len(accepted), within_s=30)
        token = (await row(bus, dead))["subscriber"]
        # What may stay beyond it in each partition: two batches in flight, and the one that still takes events.
        spared = 3 * 5 * 1_200 * len(bus.partitions.all)
        await _until(lambda: waiting_bytes(bus.partitions, token), lambda size: size <= BOUND + spared)

        lost = await _until(lambda: row(bus, dead), lambda found: found["dropped"])
        assert lost["backlog_max_bytes"] == BOUND
        assert (await row(bus, well))["dropped"] is None
        await bus.subscribe(dead, mended.url, "widgets", backlog_max_bytes=0)
        await _until(lambda: row(bus, dead), lambda found: found["events"]["queued"] == 0)
        count = await dropped(bus, token)
        assert sorted(mail.ids) == sorted(accepted)
        assert len(mended.ids) == len(set(mended.ids)) == len(accepted) - count
        assert accepted[-1] in mended.ids
        found = await row(bus, dead)
        assert found["dropped"]["events"] == count > len(accepted) // 2
        assert found["dropped"]["bytes"] > count * len(DATA)
        text = (await ask(bus, "GET", "/metrics")).body.decode()
        assert f'doubledecker_events_dropped_total{{subscriber="{token}"}} {float(count)}' in text


async def test_what_was_lost_was_accepted_within_the_time_that_is_shown(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        secret = await bus.token("s")
        await bus.subscribe(secret, NOBODY, "widgets", timeout=0, max=3, backlog_max_bytes=BOUND)
        publisher = await bus.token("shop")
        for first in range(0, 200, 20):
            await bus.publish(publisher, some_events(first))
        before = {each["id"] for each in await journal_rows(bus)}
        await enforce(bus)
        found = await row(bus, secret)
        left = await kept_ids(bus)

        lost = [each for each in await journal_rows(bus) if each["id"] not in left]
        assert len(before) == 200
        assert found["dropped"]["events"] == len(lost) == 200 - found["events"]["queued"] > 100
        from_ms, upto_ms = await shown_ms(bus, found["subscriber"])
        assert all(from_ms <= each["at"] < upto_ms for each in lost)
        assert upto_ms - from_ms < 60_000


async def test_batches_in_flight_stay_and_are_delivered(plain: Partitions):
    receiver = a_receiver("s-12345678", concurrency=2)
    await publish(plain.home, receiver, batches=6)
    jobs = (await take(plain.home, "s1", "s2")).jobs

    lost = await losses.drop_oldest(plain.home, receiver.token, bytes_enough=2**40, created_max=None)
    again = await losses.drop_oldest(plain.home, receiver.token, bytes_enough=2**40, created_max=None)
    turn = await take(plain.home, "s1", settled=[Settled(job, DELIVERED) for job in jobs])

    assert (lost, again) == (Dropped(4, 4, 8), Dropped(0, 0, 0))
    assert [result.is_ours for result in turn.results] == [True, True]
    assert turn.jobs == []
    assert await batches.gauges(plain.home) == ({receiver.token: 0}, {receiver.token: 0})
    found = await counters.read(plain.home)
    assert found["events.removed:subscriber=s-12345678"] == 6
    assert found["events.dropped:subscriber=s-12345678"] == 4


async def test_a_receiver_that_takes_nothing_keeps_no_jobs_of_what_it_lost(plain: Partitions):
    """One remains, so that its place among other receivers is true."""
    receiver, home = a_receiver("s-12345678"), plain.home
    for _ in range(5):
        await publish(home, receiver, batches=20)
        await losses.drop_oldest(home, receiver.token, bytes_enough=2**40, created_max=None)

    assert await home.command("LLEN", home.key("jobs:instant:main:s-12345678")) == 1
    await publish(home, receiver, batches=1)
    [job] = (await take(home, "s1")).jobs
    assert job.batch is not None


async def test_one_batch_larger_than_the_bound_stays_while_it_takes_events(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("s")
        await bus.subscribe(secret, NOBODY, "widgets", timeout=60_000, max=100, backlog_max_bytes=1)
        publisher = await bus.token("shop")
        await bus.publish(publisher, some_events(0))
        await enforce(bus)
        begun = await row(bus, secret)
        await bus.publish(publisher, some_events(20, 90))
        await enforce(bus)

        assert (begun["events"]["queued"], begun["dropped"]) == (20, None)
        found = await row(bus, secret)
        assert (found["events"]["queued"], found["dropped"]["events"]) == (10, 100)


async def test_a_paused_one_is_bound_too_and_its_owner_is_notified_once(one: Topology):
    """It chose the bound itself; autodrop would take nothing from it."""
    async with a_bus(one) as bus, Receiver() as told:
        secret, other = await bus.token("s"), await bus.token("other")
        await bus.subscribe(secret, NOBODY, "widgets", timeout=0, max=5, backlog_max_bytes=BOUND)
        body = {"pattern": ".*:doubledecker.receivers:.*", "callback": told.url, "timeout": 0}
        assert (await ask(bus, "PUT", "/queues/told", secret, json=body)).status == 201
        await ask(bus, "POST", "/subscriber/pause", secret)
        publisher = await bus.token("shop")
        for first in (0, 100):
            await bus.publish(publisher, some_events(first, 100))
            await _until(lambda: row(bus, secret), lambda found: found["events"]["queued"] < 40)
        await told.until_events(1, within_s=20)
        found = await row(bus, secret)
        listed = await ask(bus, "GET", "/subscriber/attempts?outcome=dropped", secret)
        token = found["subscriber"]

        assert types(await published(bus)) == ["receiver.dropping"]
        [event] = told.events
        assert (event["data"]["receiver"], event["data"]["reason"]) == (token, "backlog")
        assert f"doubledecker replay --direct --receiver {token} --from 20" in event["data"]["remedy"]
        assert event["data"]["remedy"].endswith(" --topic widgets")
        records = listed.json["attempts"]
        assert {(each["outcome"], each["attempt"], each["receiver"]) for each in records} == {("dropped", 0, token)}
        assert sum(int(each["detail"].split(" ")[0]) for each in records) == found["dropped"]["events"]
        assert (await ask(bus, "GET", f"/subscribers/{token}/attempts", other)).status == 404
        assert await bus.get("/subscribers", other) == []


@pytest.mark.parametrize("is_due", [False, True])
async def test_a_key_that_a_dropped_event_held_is_let_go(one: Topology, is_due: bool):
    """Whether the retry of the event that held it was scheduled, or in line."""
    backoff_ms = 300 if is_due else 1_500
    async with (
        a_bus(one, backoff_base_ms=backoff_ms, backoff_cap_ms=backoff_ms) as bus,
        Receiver() as receiver,
    ):
        refuse(receiver, frozenset({"id-0"}), 422)
        secret, publisher = await bus.token("s"), await bus.token("shop")
        await bus.subscribe(secret, receiver.url, "widgets", timeout=0, max=1, ordered=True)
        await bus.publish(publisher, [an_event(n, id=f"id-{n}", key="k") for n in range(5)])
        held = await _until(lambda: row(bus, secret), lambda found: found["held_key_count"] == 1)
        if is_due:
            await ask(bus, "POST", "/subscriber/pause", secret)
            home = bus.partitions.home
            line = home.key(f"jobs:instant:main:{held['subscriber']}")
            await _until(lambda: home.command("LLEN", line), bool)
        found = await losses.drop_oldest(bus.partitions.home, held["subscriber"], bytes_enough=2**40, created_max=None)
        await bus.publish(publisher, [an_event(9, id="id-9", key="k")])
        await ask(bus, "POST", "/subscriber/resume", secret)
        await receiver.until(lambda: "id-9" in receiver.ids)

        assert found.events >= 4
        await _until(lambda: row(bus, secret), lambda found: found["held_key_count"] == 0)
        assert (await row(bus, secret))["events"]["queued"] == 0


async def test_each_subscriber_has_its_turn_though_looks_are_short(one: Topology, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("doubledecker.worker.backlog_bounds._LOOK_S", 0.0)
    async with a_bus(one, workers=0) as bus, build.open_bus(bus.settings) as other:
        for name in ("ann", "bob", "cid"):
            await bus.subscribe(await bus.token(name), NOBODY, "widgets", timeout=0, max=1, backlog_max_bytes=1)
        await bus.publish(await bus.token("shop"), some_events(0))
        bounds = BacklogBounds(other.partitions, other.registry)
        seen = []
        for _ in range(3):
            await bounds.enforce()
            seen.append([row["subscriber"][:3] for row in await bus.get("/subscribers") if row["dropped"]])

        assert seen == [["ann"], ["ann", "bob"], ["ann", "bob", "cid"]]


async def test_a_bound_stays_until_it_is_changed_and_0_ends_it(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("s")
        await bus.subscribe(secret, NOBODY, "widgets", backlog_max_bytes=BOUND)
        await bus.subscribe(secret, NOBODY, "widgets", backlog_max_bytes=None)
        kept = await row(bus, secret)
        await bus.subscribe(secret, NOBODY, "widgets", backlog_max_bytes=0)
        ended = await row(bus, secret)
        body = {"topics": [], "callback": NOBODY, "backlog_max_bytes": -1}
        refused = await ask(bus, "POST", "/subscription", secret, json=body)

        assert (kept["backlog_max_bytes"], ended["backlog_max_bytes"]) == (BOUND, 0)
        assert refused.status == 400
        assert "backlog_max_bytes" in refused.detail


async def test_what_a_subscriber_lost_is_forgotten_with_it(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        secret = await bus.token("s")
        await bus.subscribe(secret, NOBODY, "widgets", timeout=0, max=5, backlog_max_bytes=BOUND)
        await bus.publish(await bus.token("shop"), some_events(0, 200))
        await enforce(bus)
        before = await row(bus, secret)
        await ask(bus, "DELETE", "/subscriber", secret)
        await bus.subscribe(secret, NOBODY, "widgets")

        assert before["dropped"]["events"] > 0
        assert (await row(bus, secret))["dropped"] is None


async def test_ranges_are_joined_where_they_meet_and_beyond_their_number(plain: Partitions):
    receiver, home = a_receiver("s-12345678"), plain.home
    found = []
    for number in range(40):
        await publish(home, receiver, batches=1)
        await losses.drop_oldest(home, receiver.token, bytes_enough=1, created_max=None)
        home.shift_ms += 500 if number < 5 else 10_000
        found.append((await losses.of_subscribers(home, [receiver.token]))[receiver.token])

    assert [len(ranges) for ranges in found[:7]] == [1, 1, 1, 1, 1, 1, 2]
    assert len(found[-1]) == 32
    assert losses.total(found[-1]).events == 40
    assert [each.from_ms for each in found[-1]] == sorted(each.from_ms for each in found[-1])
    home.shift_ms += 31 * 86_400_000
    await publish(home, receiver, batches=1)
    await losses.drop_oldest(home, receiver.token, bytes_enough=1, created_max=None)
    [last] = (await losses.of_subscribers(home, [receiver.token]))[receiver.token]
    assert last.events == 1


async def journal_rows(bus: TestBus) -> list[dict[str, Any]]:
    """Every accepted event's id, and when its entry was written."""
    return [
        {"id": json.loads(line)["id"], "at": Position.parse(entry.id).ms}
        for partition in bus.partitions.all
        for entry in await journal.read(partition, "events", count=10_000)
        for _, lines in entry.fields
        for line in lines.split(b"\n")
    ]


async def kept_ids(bus: TestBus) -> set[object]:
    return {event["id"] for event in await waiting(bus)}


async def shown_ms(bus: TestBus, token: str) -> tuple[int, int]:
    [found] = [each for each in await bus.get("/subscribers") if each["subscriber"] == token]
    begin, end = (moment.to_ms(moment.parse(found["dropped"][name])) for name in ("from", "to"))
    return begin, end
