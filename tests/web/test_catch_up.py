"""The past meets the feed: from any position, with the feed anywhere ahead, every event comes once and in order."""

import asyncio
import random

import msgspec
import pytest

import mixed
from doubledecker.model import glob, position
from doubledecker.model.position import START, Position
from doubledecker.store import journal
from doubledecker.store.journal import KeptEntry
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.web.catch_up import CatchUp
from doubledecker.web.feed import Feed, lines_of
from doubledecker.web.sse import Listener

ENTRIES = 50


@pytest.mark.parametrize("seed", range(6))
async def test_past_and_feed_make_one_whole(partitions: Partitions, seed: int):
    chance = random.Random(seed)
    await write(partitions, chance)
    whole = [await journal.read(partition, "events", count=1000) for partition in partitions.all]
    kept = [await kept_in(partition) for partition in partitions.all]
    feed = Feed(partitions, listeners_max=1)
    starts, meets = [START] * len(whole), [START] * len(whole)
    for i, entries in enumerate(whole):
        begin = chance.randrange(len(entries))
        meet = chance.randrange(begin, len(entries))
        starts[i] = place_in(entries[begin], chance)
        meets[i] = Position.after(entries[meet].id)
    feed._places = list(meets)
    listener = Listener(glob.parse("*:even:*"), buffer_bytes=1 << 20)

    told = b"".join([frames async for frames in CatchUp(partitions, feed, listener, starts).read()])
    read_to = list(feed.places)
    for i, entries in enumerate(kept):
        for entry in entries:
            if Position.after(entry.id) > feed.places[i]:
                feed._hand_out(partitions.all[i], entry)
                feed._move(partitions.all[i], Position.after(entry.id))
    told += await listener.take(wait_s=0.01)

    assert read_to == meets
    frames = parsed(told)
    for i, entries in enumerate(whole):
        expected = [
            event["id"] for place, event in events_of(entries) if event["topic"] == "even" and place > starts[i]
        ]
        assert [event["id"] for _, event in frames if event["tenant"] == f"t{i}"] == expected
    check_ids(frames, whole)


async def test_however_many_streams_read_large_entries_one_of_them_is_in_memory_at_a_time(
    partitions: Partitions, monkeypatch: pytest.MonkeyPatch
):
    """A client that opened a hundred streams before large entries kept Redis and web busy for seconds."""
    for partition in partitions.all:
        line = msgspec.json.encode({"topic": "even", "type": "t", "data": "x" * 100_000, "tenant": "t"})
        for _ in range(8):
            await partition.command("XADD", partition.key("journal:events"), "*", "publisher", line)
    whole = [await journal.read(partition, "events", count=1000) for partition in partitions.all]
    feed = Feed(partitions, listeners_max=10)
    feed._places = [Position.after(entries[-1].id) for entries in whole]
    reads = Reads(monkeypatch)

    async def read() -> int:
        listener = Listener(glob.parse("*"), buffer_bytes=1 << 20, client="ann")
        past = CatchUp(partitions, feed, listener, [START] * len(whole))
        return sum([frames.count(b"data: ") async for frames in past.read()])

    told = await asyncio.gather(*(read() for _ in range(10)))

    assert told == [sum(map(len, whole))] * 10
    assert reads.at_once_max == 1
    assert reads.entries_max == 1


async def test_past_and_feed_tell_events_as_they_were_accepted_however_they_are_kept(partitions: Partitions):
    accepted = [await mixed.write(partition) for partition in partitions.all]
    kept = [await kept_in(partition) for partition in partitions.all]
    feed = Feed(partitions, listeners_max=1)
    feed._places = [Position.after(entries[len(entries) // 2].id) for entries in kept]
    listener = Listener(glob.parse("*"), buffer_bytes=1 << 24)

    told = b"".join([frames async for frames in CatchUp(partitions, feed, listener, [START] * len(kept)).read()])
    for partition, entries in zip(partitions.all, kept, strict=True):
        for entry in entries[len(entries) // 2 + 1 :]:
            feed._hand_out(partition, entry)
            feed._move(partition, Position.after(entry.id))
    told += await listener.take(wait_s=0.01)

    for i, events in enumerate(accepted):
        found = [event for _, event in parsed(told) if event["tenant"] == f"t{i}"]
        assert found == [msgspec.json.decode(each.message) for each in events]


async def test_what_a_slow_listener_has_yet_to_read_is_held_as_it_is_kept(plain: Partitions):
    """Sixteen entries of a few hundred bytes may be sixteen megabytes, for each of a thousand streams."""
    line = msgspec.json.encode({"topic": "even", "type": "t", "data": "x" * 500_000, "tenant": "t"})
    for _ in range(16):
        await plain.home.command("XADD", plain.home.key("journal:events"), "*", "publisher", journal.compress(line))
    feed = Feed(plain, listeners_max=1)
    feed._places = [Position.after((await kept_in(plain.home))[-1].id)]
    past = CatchUp(plain, feed, Listener(glob.parse("*"), buffer_bytes=1 << 20), [START])

    held = [sum(len(text) for kept in past._pages[0] for text in kept.flat) async for _ in past.read()]

    assert len(held) == 16
    assert max(held) < 100_000


class Reads:
    """Counts what the journal's readers do at the same time, and how much comes back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at_once = self.at_once_max = self.entries_max = 0
        self._page = journal.page
        monkeypatch.setattr(journal, "page", self._count)

    async def _count(self, *args, **kwargs) -> journal.Page[KeptEntry]:
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            page = await self._page(*args, **kwargs)
        finally:
            self.at_once -= 1
        self.entries_max = max(self.entries_max, len(page.entries))
        return page


def check_ids(frames: list[tuple[str, dict]], whole: list[list[journal.JournalEntry]]) -> None:
    """An id is where its own event is, in that event's partition, and never goes back in any."""
    last = [Position(0, 0, 0)] * len(whole)
    for id_, event in frames:
        places = position.parse(id_, partitions=len(whole))
        index = int(event["tenant"][1:])
        own = next(place for place, other in events_of(whole[index]) if other["id"] == event["id"])
        assert own == places[index]
        assert all(here >= before for here, before in zip(places, last, strict=True))
        last = places


async def kept_in(partition: Partition) -> list[KeptEntry]:
    """All that a journal has."""
    return list((await journal.page(partition, first="-", last="+", count=1000, bytes_max=1 << 30)).entries)


async def write(partitions: Partitions, chance: random.Random) -> None:
    """Entries of several publishers and several lines each, as the publish script writes them."""
    number = 0
    for _ in range(ENTRIES):
        for partition in partitions.all:
            fields: list[str | bytes] = []
            for publisher in range(chance.randrange(1, 3)):
                lines = []
                for _ in range(chance.randrange(1, 5)):
                    topic = "even" if chance.random() < 0.5 else "odd"
                    line = {"topic": topic, "type": "t", "t": 1, "id": str(number), "tenant": f"t{partition.index}"}
                    lines.append(msgspec.json.encode(line))
                    number += 1
                fields += [f"publisher-{publisher}", b"\n".join(lines)]
            await partition.command("XADD", partition.key("journal:events"), "*", *fields)


def place_in(entry: journal.JournalEntry, chance: random.Random) -> Position:
    """After some of an entry's lines, or all of them."""
    here = Position.after(entry.id)
    seen = chance.randrange(1, len(lines_of(entry)) + 1)
    return here if seen == len(lines_of(entry)) else Position(here.ms, here.seq, seen)


def events_of(entries: list[journal.JournalEntry]) -> list[tuple[Position, dict]]:
    found = []
    for entry in entries:
        lines = lines_of(entry)
        here = Position.after(entry.id)
        for n, line in enumerate(lines, 1):
            place = here if n == len(lines) else Position(here.ms, here.seq, n)
            found.append((place, msgspec.json.decode(line)))
    return found


def parsed(told: bytes) -> list[tuple[str, dict]]:
    frames = []
    for block in told.decode().split("\n\n")[:-1]:
        id_, data = block.split("\n")
        frames.append((id_.removeprefix("id: "), msgspec.json.decode(data.removeprefix("data: "))))
    return frames
