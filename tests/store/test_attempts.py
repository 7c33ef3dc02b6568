"""Attempts in the journals: found newest first, page after page, each once, whatever else is there."""

import pytest

from doubledecker.model.attempt import AttemptFilter, AttemptPlace, ListedAttempt
from doubledecker.store import attempts, journal
from doubledecker.store.journal import AttemptRecord
from doubledecker.store.partitions import Partition, Partitions


async def write(partition: Partition, number: int, subscriber: str, **fields: object) -> None:
    known = {"outcome": "delivered", "status": 200, "events": [f"e{number}"], **fields}
    record = AttemptRecord(f"b{number}", subscriber, 1, took_ms=number, at=number, **known)
    await partition.write("XADD", partition.key("journal:attempts"), "*", "attempt", journal.pack(record))


async def walk(partitions: Partitions, wanted: AttemptFilter, *, limit: int) -> list[ListedAttempt]:
    """All pages, one after the other."""
    found, pages = list[ListedAttempt](), 0
    while True:
        page = await attempts.newest(partitions, wanted, limit=limit)
        assert len(page.attempts) <= limit
        found += page.attempts
        pages += 1
        assert pages < 200
        if page.reached is None:
            return found
        wanted = _before(wanted, page.reached)


def _before(wanted: AttemptFilter, place: AttemptPlace) -> AttemptFilter:
    return AttemptFilter(**{**vars(wanted), "before": place})


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_every_attempt_of_a_receiver_is_found_once_newest_first(partitions: Partitions, limit: int):
    for number in range(60):
        partition = partitions.all[number * 7 % len(partitions.all)]
        await write(partition, number, ("ann-1", "@ann-1", "bob-2")[number % 3])

    found = await walk(partitions, AttemptFilter(frozenset({"ann-1"})), limit=limit)

    assert sorted(each.took_ms for each in found) == list(range(0, 60, 3))
    places = [each.place for each in found]
    assert places == sorted(places, reverse=True)
    for each in found:
        assert await attempts.read(partitions.all[each.place.partition], each.place, ids_max=1) == each


async def test_a_request_looks_at_a_bounded_number_of_entries_and_the_next_goes_on(
    plain: Partitions, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(attempts, "_ENTRIES_MAX", 5)
    monkeypatch.setattr(attempts, "_CALLS_MAX", 2)
    for number in range(35):
        await write(plain.home, number, "ann" if number in {3, 33} else "bob")
    wanted = AttemptFilter(frozenset({"ann"}))

    first = await attempts.newest(plain, wanted, limit=10)
    assert [each.took_ms for each in first.attempts] == [33]
    assert first.reached is not None
    second = await attempts.newest(plain, _before(wanted, first.reached), limit=10)
    assert second.attempts == []

    assert [each.took_ms for each in await walk(plain, wanted, limit=10)] == [33, 3]


async def test_attempts_are_found_by_event_outcome_status_and_time(plain: Partitions):
    for number, (outcome, status) in enumerate(
        [("delivered", 200), ("refused", 500), ("timed_out", None), ("refused", 422)]
    ):
        await write(plain.home, number, "ann", outcome=outcome, status=status, events=["same", f"e{number}"])
    await write(plain.home, 4, 'e1"', events=["e"])
    everything = await walk(plain, AttemptFilter(), limit=3)
    middle = everything[2].place

    async def numbers(**fields: object) -> list[int]:
        return [each.took_ms for each in await walk(plain, AttemptFilter(**fields), limit=3)]

    assert await numbers() == [4, 3, 2, 1, 0]
    assert await numbers(event="e1") == [1]
    assert await numbers(event="same", outcome="refused") == [3, 1]
    assert await numbers(status=422) == [3]
    assert await numbers(receivers=frozenset({"bob", "cat"})) == []
    assert await numbers(receivers=frozenset({"ann", "cat"}), event="e2") == [2]
    assert await numbers(before=middle) == [1, 0]
    assert await numbers(from_ms=middle.ms + 60_000) == []
    assert await numbers(to_ms=everything[-1].place.ms) == []
    assert await numbers(to_ms=0) == await numbers(before=AttemptPlace(0, 0, 0)) == []


async def test_of_many_events_the_first_are_listed_with_their_number(plain: Partitions):
    await write(plain.home, 0, "ann", events=[f"e{n}" for n in range(10_000)])

    [listed] = (await attempts.newest(plain, AttemptFilter(event="e9999"), limit=10)).attempts

    assert listed.events == [f"e{n}" for n in range(100)]
    assert listed.event_count == 10_000


@pytest.mark.parametrize("limit", [1, 100])
async def test_attempts_that_are_kept_compressed_are_found_among_others(
    plain: Partitions, monkeypatch: pytest.MonkeyPatch, limit: int
):
    monkeypatch.setattr(attempts, "_PACKED_BYTES_MAX", 1_000)
    for number in range(12):
        many = [f"{number}-of-a-batch-whose-entry-is-compressed-{n}" for n in range(100 if number % 3 else 1)]
        await write(plain.home, number, ("ann", "bob")[number % 2], events=many)
    ann, event = frozenset({"ann"}), "7-of-a-batch-whose-entry-is-compressed-99"

    of_ann = await walk(plain, AttemptFilter(ann), limit=limit)
    of_event = await walk(plain, AttemptFilter(event=event), limit=limit)
    first = await attempts.newest(plain, AttemptFilter(event=event), limit=limit)

    assert [each.took_ms for each in of_ann] == [10, 8, 6, 4, 2, 0]
    assert [each.event_count for each in of_ann] == [100, 100, 1, 100, 100, 1]
    assert [each.took_ms for each in of_event] == [each.took_ms for each in first.attempts] == [7]
    assert await walk(plain, AttemptFilter(ann, event=event), limit=limit) == []
