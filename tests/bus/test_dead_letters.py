"""Bounds of dead letters: the oldest of a receiver that has too many leave, with a record, and of no other."""

import asyncio
from typing import Any

import msgspec
import pytest

from doubledecker.bus import dead_letters
from doubledecker.bus.dead_letters import LetterBounds, LetterOwner
from doubledecker.model.attempt import AttemptFilter
from doubledecker.model.cloud_event import ATTRIBUTES_BYTES_MAX
from doubledecker.model.dead_letter import DeadLetter, LetterFilter
from doubledecker.model.event import AcceptedEvent, encode
from doubledecker.model.routing import Registry
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import attempts, counters, journal
from doubledecker.store import dead_letters as kept
from doubledecker.store.journal import AttemptRecord
from doubledecker.store.partitions import Partitions
from letters import RECEIVER, a_letter

NO_BOUND = 2**53


async def add(partitions: Partitions, count: int, receiver: str = RECEIVER) -> None:
    """Letters in turns over the partitions, each a second younger than the one before."""
    for n in range(count):
        for partition in partitions.all:
            partition.shift_ms = n * 1_000
        await kept.add(partitions.all[n % len(partitions.all)], receiver, [a_letter(n, status=500 + n % 2)])


async def numbers(partitions: Partitions, receiver: str = RECEIVER) -> list[int]:
    found = [each for partition in partitions.all async for each in kept.each(partition, receiver, most=1_000)]
    return sorted(int(letter.id.partition("-")[2]) for letter in found)


async def test_the_oldest_leave_beyond_a_number(plain: Partitions):
    await add(plain, 30)
    await add(plain, 5, receiver="@jobs")

    lost = await dead_letters.drop_beyond(plain, Registry(), LetterBounds(10, NO_BOUND))

    assert {name: each.letters for name, each in lost.items()} == {RECEIVER: 20}
    assert await numbers(plain) == list(range(20, 30))
    assert await numbers(plain, "@jobs") == list(range(5))
    assert await dead_letters.drop_beyond(plain, Registry(), LetterBounds(10, NO_BOUND)) == {}


async def test_the_oldest_leave_beyond_bytes(plain: Partitions):
    await add(plain, 30)
    size = (await kept.sizes(plain.home))[RECEIVER]

    lost = await dead_letters.drop_beyond(plain, Registry(), LetterBounds(NO_BOUND // 1_000, size // 2))

    assert 15 <= lost[RECEIVER].letters <= 16
    assert (await kept.sizes(plain.home))[RECEIVER] <= size // 2
    assert await numbers(plain) == list(range(lost[RECEIVER].letters, 30))


async def test_over_several_partitions_they_are_bounded_together(
    partitions: Partitions, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dead_letters, "_DROPPED_TOGETHER", 1)
    await add(partitions, 31)

    await dead_letters.drop_beyond(partitions, Registry(), LetterBounds(10, NO_BOUND))

    assert await numbers(partitions) == list(range(21, 31))


async def test_what_leaves_is_journaled_and_counted(plain: Partitions):
    await add(plain, 6)

    await dead_letters.drop_beyond(plain, Registry(), LetterBounds(1, NO_BOUND))

    entries = await journal.read(plain.home, "attempts")
    records = [msgspec.json.decode(value, type=AttemptRecord) for entry in entries for _, value in entry.fields]
    assert {record.outcome for record in records} == {"dropped"}
    assert sorted(id_ for record in records for id_ in record.events) == [f"e{n}" for n in range(5)]
    assert {(record.subscriber, record.status, record.detail) for record in records} == {
        (RECEIVER, status, f"dead letter: attempts {status}") for status in (500, 501)
    }
    state = await journal.state(plain.home)
    assert int(state["attempts_bytes"]) == sum(len(value) for entry in entries for _, value in entry.fields)
    assert (await counters.read(plain.home))[f"letters.dropped:receiver={RECEIVER}"] == 5


@pytest.mark.parametrize("id_", ["orders/17", 'a"id":"b', "back\\slash\\/", "x" * 128])
async def test_what_leaves_is_found_by_its_events_id_whatever_its_data_has(plain: Partitions, id_: str):
    data = msgspec.Raw(b'{"id":"inner","list":[{"id":"other"}],"text":"%b"}' % (b"x" * 70_000))
    attributes = msgspec.Raw(b'{"source":"/%b"}' % (b"s" * (ATTRIBUTES_BYTES_MAX - 14)))
    event = AcceptedEvent(
        topic="t", type="paid", t=1, data=data, id=id_, key="k" * 64, cloudevent=attributes, replay="resend"
    )
    await kept.add(plain.home, RECEIVER, [a_letter(1, event=encode(event))])

    await kept.drop_oldest(plain.home, RECEIVER)

    [found] = (await attempts.newest(plain, AttemptFilter(event=id_), limit=5)).attempts
    assert list(found.events) == [id_]


async def test_letters_that_are_named_are_looked_at_some_at_a_time(plain: Partitions, monkeypatch: pytest.MonkeyPatch):
    """A thousand of 64 KiB each were held in memory together."""
    await add(plain, 400)
    owner = LetterOwner(Subscriber(RECEIVER, "http://127.0.0.1:9/", "uuid"))
    ids = [a_letter(n).id for n in range(500)]
    real, most = kept.read, 0

    async def read(*asked: Any) -> list[DeadLetter]:
        nonlocal most
        found = await real(*asked)
        most = max(most, len(found))
        return found

    monkeypatch.setattr(kept, "read", read)
    found = await dead_letters.meant(plain, owner, [*ids, *ids[:9]], LetterFilter(status=501))

    assert (found, most) == (ids[1:400:2], 100)


async def test_what_is_purged_while_it_is_dropped_is_either(plain: Partitions):
    """In any order: each letter is dropped or purged, and none is both."""
    await add(plain, 200)
    ids = [a_letter(n).id for n in range(200)]

    dropping = dead_letters.drop_beyond(plain, Registry(), LetterBounds(20, NO_BOUND))
    lost, *purged = await asyncio.gather(
        dropping, *(kept.purge(plain.home, RECEIVER, ids[n : n + 10], version=0) for n in range(0, 200, 10))
    )

    gone = sum(each.letters for each in (*lost.values(), *purged))
    assert gone + len(await numbers(plain)) == 200
