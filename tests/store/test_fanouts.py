"""Slices of a parcel: together they make every copy once, in order, and none is larger than it may be."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from doubledecker.store import fanouts
from doubledecker.store.fanouts import Copies, Parcel
from doubledecker.store.partitions import Partitions

COUNTS = st.integers(1, 40)
FEEDS = st.lists(st.tuples(COUNTS, COUNTS, st.sampled_from(["@q", "token"])), min_size=1, max_size=3)


def a_parcel(feeds: list[tuple[int, int, str]], size: int = 10) -> Parcel:
    made = [
        Copies([f"{name}{i}-{n}" for n in range(names)], ["red", "blue"], [list(range(1, count)), [count]])
        for i, (names, count, name) in enumerate(feeds)
    ]
    return Parcel("own:ann", "f", made, dict.fromkeys(range(1, 61), b"x" * size))


def slices_of(parcel: Parcel, *, bytes_max: int = 1_000_000) -> list[fanouts.CopySlice]:
    found = []
    at: int | None = 0
    while at is not None:
        found.append(fanouts.cut(replace(parcel, at=at), bytes_max=bytes_max))
        at = found[-1].at
    return found


@given(FEEDS, st.integers(1, 5_000))
def test_slices_make_every_copy_once_and_those_of_a_tenant_in_order(feeds, bytes_max):
    parcel = a_parcel(feeds)
    copies = [
        (name, tenant, i)
        for share in slices_of(parcel, bytes_max=bytes_max)
        for name in share.names
        for tenant, i in share.events
    ]

    assert Counter(copies) == Counter(
        (name, tenant, i) for feed in parcel.feeds for name in feed.names for tenant, i in feed.events
    )
    for feed in parcel.feeds:
        assert [i for name, tenant, i in copies if (name, tenant) == (feed.names[0], "red")] == feed.numbers[0]


@given(FEEDS)
def test_no_slice_has_more_than_what_takes_the_server_a_moment(feeds):
    for share in slices_of(a_parcel(feeds)):
        assert len(share.names) * len(share.events) <= fanouts.SLICE_US
        if share.names[0].startswith("@"):
            assert len(share.names) <= 25


def test_many_events_for_one_queue_are_several_slices():
    parcel = Parcel("own:ann", "f", [Copies(["@q"], ["red"], [list(range(1, 1001))])], {})

    assert [len(share.events) for share in slices_of(parcel)] == [100] * 10


@given(FEEDS)
def test_no_slice_has_more_bytes_than_a_call_may_write_unless_it_is_one_copy(feeds):
    for share in slices_of(a_parcel(feeds, size=1_000), bytes_max=5_500):
        assert len(share.names) * len(share.events) <= 5


async def test_a_parcel_that_is_lost_holds_up_none_behind_it(plain: Partitions):
    home = plain.home
    await home.write("RPUSH", home.key("fanout:line:own:ann"), "lost", "kept")
    words = {"lines": b"{}", "numbers": b"", "feeds": fanouts.encode([Copies(["@q"], ["red"], [[1]])]), "at": 0}
    await home.write("HSET", home.key("fanout:parcel:kept"), *(word for pair in words.items() for word in pair))

    found = await fanouts.first(home, "own:ann")

    assert found is not None
    assert found.fid == "kept"
