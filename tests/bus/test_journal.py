"""The journal's bound: what is trimmed, what is a gap, and when publishing is refused."""

import asyncio

import pytest
from msgspec import Raw

from conftest import Topology
from doubledecker.model.event import AcceptedEvent, EventKind, encode
from doubledecker.model.routing import Route
from doubledecker.store import events, journal
from doubledecker.store.events import PublishLimits, RoutedEvent
from doubledecker.store.journal import Extent
from doubledecker.store.partitions import Partition, Partitions
from harness import TestBus, a_bus, an_event, basic

LIMITS = PublishLimits()


async def _publish(partition: Partition, number: int) -> None:
    event = AcceptedEvent("widgets", "update", t=number, id=str(number))
    offer = RoutedEvent(Route(event.kind), encode(event), "p-1")
    await events.publish(partition, [offer], version=10**9, limits=LIMITS)


async def _bytes(partition: Partition) -> int:
    page = await journal.page(partition, first="-", last="+", count=10_000, bytes_max=10**9)
    return sum(len(text) for kept in page.entries for text in kept.flat)


async def test_without_an_archive_the_bound_alone_trims_the_oldest(plain: Partitions):
    for number in range(20):
        await _publish(plain.home, number)
    before = await _bytes(plain.home)

    trimmed = await journal.trim(plain.home, "events", bytes_max=before // 2)

    entries = await journal.read(plain.home, "events", count=100)
    assert trimmed.lost == 0
    assert trimmed.bytes_left == await _bytes(plain.home) <= before // 2
    assert b'"id":"19"' in entries[-1].fields[0][1]
    assert len(entries) == 20 - trimmed.removed


async def test_what_the_archive_has_confirmed_goes_at_once_and_the_rest_stays(plain: Partitions):
    await journal.register_archive(plain.home, "lake")
    for number in range(10):
        await _publish(plain.home, number)
    entries = await journal.read(plain.home, "events", count=100)

    await journal.confirm(plain.home, "events", archive="lake", last_id=entries[3].id)
    trimmed = await journal.trim(plain.home, "events", bytes_max=10**9)

    assert (trimmed.removed, trimmed.lost) == (4, 0)
    assert await journal.read(plain.home, "events", count=100) == entries[4:]


async def test_an_extent_tells_how_much_is_new_and_not_how_much_is_kept(plain: Partitions):
    for moment in range(1_000, 2_000, 10):
        await plain.home.command("XADD", plain.home.key("journal:events"), f"{moment}-0", "p-1", "{}")
    await plain.home.command("HSET", plain.home.key("journal"), "events_bytes", 10_000)

    whole = await journal.read_extent(plain.home, "events")
    half = await journal.read_extent(plain.home, "events", after="1490-0")
    none = await journal.read_extent(plain.home, "events", after="1990-0")

    assert whole == Extent("0-0", "1000-0", "1990-0", entries=100, bytes=10_000)
    assert (half.first, half.last, half.entries) == ("1500-0", "1990-0", 100)
    assert 4_900 < half.bytes < 5_100
    assert none.bytes == 0


async def test_an_extent_tells_how_much_there_is_to_read_and_not_how_much_is_kept(plain: Partitions):
    """By what is kept, landing waited for nine times as many events, and gave them all to one task."""
    lines = [encode(AcceptedEvent("widgets", "update", t=number, id=str(number))) for number in range(500)]
    offers = [RoutedEvent(Route(EventKind("widgets", "update", "default")), line, "p-1") for line in lines]
    for _ in range(3):
        await events.publish(plain.home, offers, version=10**9, limits=LIMITS)

    extent = await journal.read_extent(plain.home, "events")

    assert int((await journal.state(plain.home))["events_bytes"]) < sum(map(len, lines))
    assert extent.bytes == pytest.approx(3 * sum(map(len, lines)), rel=0.1)


async def test_an_entry_that_is_nothing_once_compressed_does_not_make_an_extent_endless(plain: Partitions):
    event = AcceptedEvent("widgets", "update", data=Raw(b'"%s"' % (b"x" * 500_000)), id="long")
    await events.publish(
        plain.home, [RoutedEvent(Route(event.kind), encode(event), "p-1")], version=10**9, limits=LIMITS
    )

    extent = await journal.read_extent(plain.home, "events")

    assert extent.bytes == 10 * int((await journal.state(plain.home))["events_bytes"])


async def test_what_the_bound_cuts_before_it_was_archived_is_written_down_as_a_gap(plain: Partitions):
    await journal.register_archive(plain.home, "lake")
    for number in range(10):
        await _publish(plain.home, number)
    entries = await journal.read(plain.home, "events", count=100)
    await journal.confirm(plain.home, "events", archive="lake", last_id=entries[1].id)

    trimmed = await journal.trim(plain.home, "events", bytes_max=0)

    [[_, flat]] = await plain.home.command("XRANGE", plain.home.key("journal:gaps"), "-", "+")
    gap = dict(zip(flat[0::2], flat[1::2], strict=True))
    assert (trimmed.removed, trimmed.lost, trimmed.bytes_left) == (10, 8, 0)
    assert gap == {
        b"journal": b"events",
        b"from": entries[2].id.encode(),
        b"to": entries[9].id.encode(),
        b"entries": b"8",
    }
    assert (await journal.state(plain.home))["events_lost"] == "8"


async def test_only_the_registered_archive_confirms(plain: Partitions):
    assert not await journal.confirm(plain.home, "events", archive="lake", last_id="1-1")
    await journal.register_archive(plain.home, "lake")
    assert not await journal.confirm(plain.home, "events", archive="notebook", last_id="1-1")
    assert await journal.confirm(plain.home, "events", archive="lake", last_id="1-1")
    await journal.unregister_archive(plain.home)
    assert not await journal.confirm(plain.home, "events", archive="lake", last_id="1-1")


async def test_publishing_trims_a_journal_that_is_over_its_bound(topology: Topology):
    async with a_bus(topology, workers=0, journal_bytes_max=5_000) as bus:
        publisher = await bus.token("publisher")
        for number in range(200):
            await bus.publish(publisher, [an_event(number, tenant=f"t{number % 5}")])

        async with asyncio.timeout(5):
            for partition in bus.partitions.all:
                while await _bytes(partition) > 5_000:
                    await asyncio.sleep(0.01)


async def test_a_full_journal_refuses_when_it_is_set_to_until_the_archive_catches_up(one: Topology):
    async with a_bus(one, workers=0, journal_bytes_max=2_000, journal_full="refuse") as bus:
        home = bus.partitions.home
        publisher = await bus.token("publisher")
        await journal.register_archive(home, "lake")
        statuses = [await _status(bus, publisher, number) for number in range(30)]
        entries = await journal.read(home, "events", count=1000)
        await journal.confirm(home, "events", archive="lake", last_id=entries[-1].id)
        await journal.trim(home, "events", bytes_max=2_000, is_forced=False)

        assert statuses[0] == (202, None)
        assert statuses[-1] == (503, "2")
        assert len(entries) == statuses.count((202, None))
        assert await _status(bus, publisher, 99) == (202, None)


async def test_without_an_archive_nothing_is_refused(one: Topology):
    async with a_bus(one, workers=0, journal_bytes_max=2_000, journal_full="refuse") as bus:
        publisher = await bus.token("publisher")

        assert {await _status(bus, publisher, number) for number in range(30)} == {(202, None)}


async def _status(bus: TestBus, publisher: str, number: int) -> tuple[int, str | None]:
    async with bus.http.post(f"{bus.url}/events", json=an_event(number), headers=basic(publisher)) as response:
        return response.status, response.headers.get("Retry-After")
