"""Ordered subscribers: events of a key arrive in the order of acceptance, whatever becomes of some of them."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import pytest
from structlog.testing import capture_logs

from conftest import Topology
from doubledecker.delivery import formats
from doubledecker.store import dead_letters, registry, subscribers
from doubledecker.worker import deliver
from harness import a_bus, an_event, basic
from receiver import Receiver
from worker.test_deliver import _until
from worker.test_poison import refuse
from worker.test_split import letters, nothing_waits

EVENTS, KEYS = 300, 7
QUICK = {"backoff_base_ms": 20, "backoff_cap_ms": 200}


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("size_max", [1, 20])
async def test_order_holds_by_key_beside_events_that_are_never_taken(topology: Topology, status: int, size_max: int):
    """Others of their keys come after them: when they are dead letters. Other keys do not wait for that."""
    async with a_bus(topology, workers=2, **QUICK) as bus, Receiver() as receiver:
        poison = {"id-10", "id-110", "id-111", "id-210"}
        refuse(receiver, frozenset(poison), status)
        subscriber = await bus.token("s")
        options = {"timeout": 20, "max": size_max, "ordered": True, "retry": [60] * 4}
        await bus.subscribe(subscriber, receiver.url, "widgets", "gadgets", **options)
        events = some_events(EVENTS)
        await bus.publish(await bus.token("p"), events)

        await receiver.until_events(EVENTS - len(poison), within_s=20)
        await _until(lambda: letters(bus, subscriber), lambda found: len(found) == len(poison))

        check_order(events, receiver.ids, poison)
        behind = receiver.ids.index(f"id-{10 + KEYS}")
        assert behind > receiver.ids.index(f"id-{11 + KEYS}")
        await nothing_waits(bus, subscriber)
        [row] = await bus.get("/subscribers", subscriber)
        assert (row["ordered"], row["held_key_count"]) == (True, 0)


async def test_the_keys_that_are_held_are_shown_and_their_events_wait(one: Topology):
    async with a_bus(one, backoff_base_ms=600_000, backoff_cap_ms=600_000) as bus, Receiver() as receiver:
        refuse(receiver, frozenset({"id-0"}), 422)
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=10, ordered=True)
        publisher = await bus.token("p")
        for start in range(0, 40, 10):
            await bus.publish(publisher, [an_event(n, id=f"id-{n}", key=f"k{n % 2}") for n in range(start, start + 10)])
        await receiver.until_events(20)

        [row] = await _until(lambda: bus.get("/subscribers", subscriber), lambda rows: rows[0]["held_key_count"] == 1)

        assert receiver.ids == [f"id-{n}" for n in range(1, 40, 2)]
        assert row["events"]["queued"] == 20
        assert row["held_keys"] == ["default/k0"]
        receiver.plan = lambda _: 200
        await bus.subscribe(subscriber, receiver.url, "widgets", ordered=False)


async def test_an_event_that_is_named_as_failed_holds_its_key(one: Topology):
    async with a_bus(one, **QUICK) as bus, Receiver() as receiver:
        tries: dict[str, int] = defaultdict(int)

        def named(events: list[dict[str, object]]) -> object:
            ids = [str(event["id"]) for event in events]
            for id_ in ids:
                tries[id_] += 1
            return {"failed": [id_ for id_ in ids if id_ in {"id-0", "id-1"} and tries[id_] < 3]}

        receiver.answer = named
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=2, ordered=True)
        await bus.publish(await bus.token("p"), [an_event(n, id=f"id-{n}", key=f"k{n % 2}") for n in range(20)])

        await _until(lambda: _done(receiver), lambda done: len(done) == 20)

        last = {id_: at for at, id_ in enumerate(receiver.ids)}
        for key in range(2):
            mine = [last[f"id-{n}"] for n in range(key, 20, 2)]
            assert mine == sorted(mine)
        await nothing_waits(bus, subscriber)


async def test_two_events_of_one_id_that_are_named_as_failed_do_not_hold_up_their_subscriber(one: Topology):
    """Two publishers may use the same id."""
    async with a_bus(one, **QUICK) as bus, Receiver() as receiver:
        receiver.answer = lambda _: {"failed": ["twice"]}
        subscriber = await bus.token("s")
        options = {"timeout": 200, "max": 10, "ordered": True, "retry": [10, 10]}
        await bus.subscribe(subscriber, receiver.url, "widgets", "gadgets", **options)
        await bus.publish(await bus.token("p"), [an_event(0, id="twice", key="a"), an_event(1, id="b", key="b")])
        await bus.publish(await bus.token("q"), [an_event(2, id="twice", topic="gadgets", key="a")])

        found = await _until(lambda: letters(bus, subscriber), lambda found: len(found) == 2)

        assert [letter.event_id for letter in found] == ["twice", "twice"]
        assert receiver.attempted[0] == ["twice", "b", "twice"]
        await nothing_waits(bus, subscriber)


async def test_an_error_that_nobody_foresaw_counts_as_an_attempt(one: Topology, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> str:
        raise ValueError("nobody foresaw this")

    monkeypatch.setattr(deliver, "_lane", broken)
    monkeypatch.setattr(deliver, "_ERROR_DELAY_MS", 10)
    async with a_bus(one, **QUICK) as bus, Receiver() as receiver:
        receiver.answer = lambda _: {"failed": ["id-0"]}
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, ordered=True, retry=[10, 10])
        await bus.publish(await bus.token("p"), [an_event(0, id="id-0", key="a")])

        [letter] = await _until(lambda: letters(bus, subscriber), lambda found: len(found) == 1)

        assert (letter.event_id, letter.attempts) == ("id-0", 3)


async def test_a_dead_letter_that_blocks_its_key_is_delivered_before_what_waits(one: Topology):
    async with a_bus(one, **QUICK) as bus, Receiver() as receiver:
        refuse(receiver, frozenset({"id-0", "id-1"}), 400)
        subscriber = await bus.token("s")
        options = {"timeout": 0, "max": 10, "ordered": True, "on_dead": "block", "retry": [10, 10]}
        await bus.subscribe(subscriber, receiver.url, "widgets", **options)
        publisher = await bus.token("p")
        for start in range(0, 40, 8):
            await bus.publish(publisher, [an_event(n, id=f"id-{n}", key=f"k{n % 4}") for n in range(start, start + 8)])
        await receiver.until_events(20)
        found = await _until(lambda: letters(bus, subscriber), lambda found: len(found) == 2)
        [row] = await bus.get("/subscribers", subscriber)
        by_event = {"0": "redrive", "1": "purge"}
        receiver.plan = lambda _: 200

        for letter in found:
            action = by_event[msgspec.json.decode(letter.event)["id"].removeprefix("id-")]
            token = row["subscriber"]
            partition = bus.partitions.home
            version = await registry.version(partition)
            if action == "purge":
                assert (await dead_letters.purge(partition, token, [letter.id], version=version)).letters == 1
            else:
                [receiving] = (await subscribers.load_many(partition, [token])).values()
                redriven = await dead_letters.redrive(partition, receiving, [letter.id], version=version)
                assert redriven.letters == 1
        await receiver.until_events(39)

        assert row["held_keys"] == ["default/k0", "default/k1"]
        ids = receiver.ids
        assert [id_ for id_ in ids if int(id_[3:]) % 4 == 0] == [f"id-{n}" for n in range(0, 40, 4)]
        assert [id_ for id_ in ids if int(id_[3:]) % 4 == 1] == [f"id-{n}" for n in range(5, 40, 4)]
        await nothing_waits(bus, subscriber)


async def test_a_subscriber_of_tier_bulk_cannot_be_ordered(one: Topology):
    async with a_bus(one, workers=0) as bus:
        body = {"topics": ["widgets"], "callback": "https://a.example/", "ordered": True, "tier": "bulk"}
        secret = await bus.token("s")
        async with bus.http.post(f"{bus.url}/subscription", json=body, headers=basic(secret)) as response:
            assert (response.status, "tier bulk" in await response.text()) == (400, True)


async def _done(receiver: Receiver) -> set[str]:
    await asyncio.sleep(0)
    return {*receiver.ids}


def some_events(count: int) -> list[dict[str, object]]:
    """Of some keys and tenants, and of two topics without a key."""
    shapes: Sequence[dict[str, object]] = [
        {"key": "a"},
        {"key": "b"},
        {"key": "a", "tenant": "t"},
        {"tenant": "t"},
        {},
        {"topic": "gadgets"},
        {"topic": "gadgets", "key": "c"},
    ]
    return [an_event(n, id=f"id-{n}", **shapes[n % KEYS]) for n in range(count)]


def lane(event: dict[str, object]) -> tuple[object, ...]:
    return event.get("tenant"), event.get("key") or ("", event["topic"])


def check_order(events: Sequence[dict[str, object]], arrived: Sequence[str], poison: set[str]) -> None:
    """For each key, what arrived for the first time is what was accepted, in that order."""
    accepted, found = defaultdict(list), defaultdict(list)
    by_id = {str(event["id"]): event for event in events}
    for id_, event in by_id.items():
        if id_ not in poison:
            accepted[lane(event)].append(id_)
    for id_ in dict.fromkeys(arrived):
        found[lane(by_id[id_])].append(id_)
    assert found == accepted


@pytest.mark.parametrize("is_ordered", [True, False])
async def test_an_event_of_which_no_attempt_can_be_made_dies_alone(
    one: Topology, monkeypatch: pytest.MonkeyPatch, *, is_ordered: bool
):
    """Its batch was tried for ever: whoever gives up what fails is the one that raised."""
    formatted = formats.formatted

    async def failing(format_: str, body: bytes, *rest: object, **more: object) -> object:
        if b'"bad"' in body:
            raise ValueError("a bug")
        return await formatted(format_, body, *rest, **more)

    monkeypatch.setattr(formats, "formatted", failing)
    monkeypatch.setattr(deliver, "_ERROR_DELAY_MS", 1)
    with capture_logs():  # to render them takes seconds
        async with a_bus(one, **QUICK) as bus, Receiver() as receiver:
            subscriber = await bus.token("s")
            await bus.subscribe(subscriber, receiver.url, "widgets", timeout=0, max=9, ordered=is_ordered)
            ids = ["a", "b", "bad", "c", "d"]
            await bus.publish(await bus.token("p"), [an_event(n, id=id_, key="k") for n, id_ in enumerate(ids)])
            [letter] = await _until(lambda: letters(bus, subscriber), lambda found: len(found) == 1)
            await receiver.until_events(4)

            assert (letter.attempts, b'"bad"' in letter.event) == (8, True)
            assert letter.detail == "the bus could not make an attempt: ValueError"
            assert sorted(receiver.ids) == ["a", "b", "c", "d"]
            assert receiver.ids == ["a", "b", "c", "d"] or not is_ordered
            await nothing_waits(bus, subscriber)
