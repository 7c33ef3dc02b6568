"""Room for large batches: what is under way in a process is bounded, and each client has a share of it."""

import asyncio
from functools import partial

import pytest

from conftest import Topology
from doubledecker.worker import deliver, push
from doubledecker.worker.room import HeldBytes, Room
from harness import ROOT_KEY, TestBus, a_bus, an_event
from receiver import Receiver
from web.asking import ask

KIB = 1024


async def test_a_client_has_a_share_and_another_the_rest():
    room = Room(bytes_max=400)
    let_in: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        held = [tasks.create_task(_hold(room, client, size, let_in)) for client, size in [("a", 60), ("b", 100)]]
        await _settle()
        waiting = tasks.create_task(_hold(room, "a", 60, let_in))
        await _settle()

        assert let_in == ["a", "b"]
        assert not room.has_turn("a")
        assert room.has_turn("b")
        held[0].cancel()
        await _settle()
        assert let_in == ["a", "b", "a"]
        for each in (waiting, held[1]):
            each.cancel()


async def test_who_has_waited_longest_is_let_in_first():
    room = Room(bytes_max=400)
    let_in: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        held = [tasks.create_task(_hold(room, client, 100, let_in)) for client in "abcdefg"]
        await _settle()

        assert let_in == ["a", "b", "c", "d"]
        held[1].cancel()
        held[4].cancel()  # it waits no more
        await _settle()
        assert let_in == ["a", "b", "c", "d", "f"]
        for each in held:
            each.cancel()


async def test_one_that_is_larger_than_all_room_goes_alone():
    room = Room(bytes_max=400)

    for _ in range(3):
        async with room.taken("a", 10_000):
            assert room.has_turn("a")


async def test_one_that_is_cancelled_as_it_is_let_in_takes_no_room():
    room = Room(bytes_max=4)
    async with asyncio.TaskGroup() as tasks:
        first, second = (tasks.create_task(_hold(room, client, 1, [])) for client in "ab")
        await _settle()
        waiting = tasks.create_task(_hold(room, "a", 1, []))
        await _settle()
        waiting.cancel()
        first.cancel()
        await _settle()
        second.cancel()

    async with room.taken("a", 1):
        pass


async def test_large_batches_of_a_slow_receiver_leave_room_to_others(one: Topology, monkeypatch: pytest.MonkeyPatch):
    """A worker held as many as it had slots, of 16 MiB each."""
    monkeypatch.setattr(deliver, "Room", partial(Room, 1600 * KIB))
    async with (
        a_bus(one) as bus,
        Receiver(plan=lambda _: "hang") as slow,
        Receiver() as other,
    ):
        await bus.subscribe(await bus.token("slow"), slow.url, "widgets", timeout=60_000, max=2, concurrency=8)
        publisher = await bus.token("publisher")
        ids = await _publish_batches(bus, publisher, "widgets", 8)
        await slow.until_attempts(4)
        await bus.subscribe(await bus.token("other"), other.url, "gadgets", timeout=60_000, max=2, concurrency=8)

        theirs = await _publish_batches(bus, publisher, "gadgets", 8)
        await other.until_events(len(theirs))

        assert sorted(other.ids) == sorted(theirs)
        assert slow.attempts == 4
        slow.plan = lambda _: 200
        slow._released.set()
        await slow.until_events(len(ids))
        assert sorted(slow.ids) == sorted(ids)


async def test_a_client_with_enough_in_hand_pushes_messages_of_its_queues_one_by_one(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    """Each of its calls had as many as they may, in as many calls at a time."""
    monkeypatch.setattr(push, "HeldBytes", partial(HeldBytes, 1600 * KIB))
    async with a_bus(one) as bus, Receiver(plan=lambda _: "hang") as slow, Receiver() as other:
        for name, receiver in (("slow", slow), ("other", other)):
            hook = {"pattern": f".*:{name}:.*", "callback": receiver.url, "timeout": 0, "max": 20, "concurrency": 6}
            assert (await ask(bus, "PUT", f"/queues/{name}", await bus.token(name), json=hook)).status == 201
        await ask(bus, "POST", "/queues/slow/pause", ROOT_KEY)
        publisher = await bus.token("publisher")
        ids = await _publish_large(bus, publisher, "slow")
        await ask(bus, "POST", "/queues/slow/resume", ROOT_KEY)
        await slow.until_attempts(6)
        theirs = await _publish_large(bus, publisher, "other")
        await other.until_events(len(theirs))

        assert sorted(len(attempted) for attempted in slow.attempted) == [1] * 5 + [20]
        slow.plan = lambda _: 200
        slow._released.set()
        await slow.until_events(len(ids))
        assert sorted(slow.ids) == sorted(ids)


def test_one_that_has_little_in_hand_takes_more_though_all_is_taken():
    held = HeldBytes(bytes_max=8 * 2**20)
    for client in "abcd":
        held.add(client, 2**21)
    held.add("e", 2**20 - 1)

    assert [held.is_enough(client) for client in "aef"] == [True, False, False]
    held.add("a", -(2**21))
    held.add("e", 1)
    assert [held.is_enough(client) for client in "ae"] == [False, False]


async def _publish_large(bus: TestBus, publisher: str, topic: str) -> list[str]:
    """Sixty large events."""
    ids: list[str] = []
    for _ in range(3):
        ids += await bus.publish(publisher, [an_event(n, topic=topic, data="x" * 48 * KIB) for n in range(20)])
    return ids


async def _publish_batches(bus: TestBus, publisher: str, topic: str, count: int) -> list[str]:
    """Batches of two events, each event by a call of its own: these are read after the job is given."""
    ids: list[str] = []
    for n in range(2 * count):
        ids += await bus.publish(publisher, [an_event(n, topic=topic, data="x" * 48 * KIB)])
    return ids


async def _hold(room: Room, client: str, size: int, let_in: list[str]) -> None:
    async with room.taken(client, size):
        let_in.append(client)
        await asyncio.Event().wait()


async def _settle() -> None:
    """Let all tasks go on until each waits."""
    for _ in range(5):
        await asyncio.sleep(0)
