"""The entries of a journal: whoever reads one gets what was written, however it is kept."""

import random

import pytest

import mixed
from doubledecker.store import journal
from doubledecker.store.journal import JournalEntry
from doubledecker.store.partitions import Partitions
from mixed import Written

COUNT = 1_000


def written(entries: list[JournalEntry]) -> list[Written]:
    return [Written(name, line) for entry in entries for name, value in entry.fields for line in value.split(b"\n")]


async def test_every_read_gives_events_as_they_were_accepted(partitions: Partitions):
    for partition in partitions.all:
        accepted = await mixed.write(partition)

        read = await journal.read(partition, "events", count=COUNT)
        page = await journal.page(partition, first="-", last="+", count=COUNT, bytes_max=1 << 30)
        following = await journal.next_page(partition, after="0-0", count=COUNT)
        extent = await journal.range_page(partition, "events", after="0-0", upto="+", count=COUNT)

        assert written(read) == accepted
        assert [kept.inflated() for kept in page.entries] == read
        assert [kept.inflated() for kept in following.entries] == read
        assert list(extent.entries) == read


async def test_a_page_holds_entries_as_they_are_kept_and_both_kinds_are_there(plain: Partitions):
    accepted = await mixed.write(plain.home)

    page = await journal.page(plain.home, first="-", last="+", count=COUNT, bytes_max=1 << 30)

    values = [value for kept in page.entries for value in kept.flat[1::2]]
    assert {value[:1] for value in values} == {b"{", b"x"}
    assert sum(map(len, values)) < sum(len(each.message) for each in accepted) * 2 / 3


@pytest.mark.parametrize("short_by", [-1, 0, 1])
def test_lines_are_compressed_from_two_kibibytes_on(short_by: int):
    lines = b"{" + b"a" * (mixed.COMPRESSED_BYTES_MIN - short_by - 2) + b"}"

    kept = journal.compress(lines)

    assert bool(kept) == (short_by <= 0)
    assert journal.inflate(kept or lines) == lines


@pytest.mark.parametrize(
    ("lines", "is_compressed"),
    [
        (random.Random(1).randbytes(500_000).hex().encode(), False),
        (random.Random(1).randbytes(20_000).hex().encode(), True),
        (b'{"topic":"orders"}\n' * 50_000, True),
    ],
)
def test_a_long_text_that_hardly_shrinks_is_kept_as_it_is(lines: bytes, is_compressed: bool):
    """A megabyte of it held up a web process for 25 milliseconds."""
    kept = journal.compress(lines)

    assert bool(kept) == is_compressed
    assert journal.inflate(kept or lines) == lines


@pytest.mark.parametrize("value", [b"", b"{}", b"x", b"xylophones", b"x^2 acme 1 5", b"x-1 acme 1 5\nx-2 acme 1 5"])
def test_what_is_not_compressed_stays_as_it_is(value: bytes):
    """Names of queues, and ids that publishers give, begin as they like: `x^` is how other levels of zlib begin."""
    assert journal.inflate(value) == value
