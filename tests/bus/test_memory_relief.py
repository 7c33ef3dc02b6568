"""What is freed, and in which order, when memory is short: the decision alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubledecker.bus import memory_relief
from doubledecker.bus.memory_relief import (
    Action,
    CutJournal,
    DropBatches,
    DropMessages,
    DroppingQueue,
    Freeable,
    Journal,
    MemoryRules,
    StalledReceiver,
)

UNREAD = Journal(0, "events", 100, is_archived=False)
BEHIND = Journal(1, "events", 100, is_archived=True)
ATTEMPTS = Journal(1, "attempts", 100, is_archived=True)
UNSERVED = DroppingQueue(0, "@idle", 100, is_served=False)
SERVED = DroppingQueue(0, "@busy", 900, is_served=True)
STALLED = StalledReceiver(0, "dead-1", oldest_at=5_000)
ALL = Freeable((UNREAD, BEHIND, ATTEMPTS), (UNSERVED, SERVED), (STALLED,))

sizes = st.lists(st.integers(0, 1_000), max_size=6)


def plan(freeable: Freeable, excess: int, *, journal_refuses: bool = False) -> list[Action]:
    """All that would be done, if each gives what it is asked for."""
    actions: list[Action] = []
    while action := memory_relief.decide(freeable, excess, journal_refuses=journal_refuses):
        actions.append(action)
        match action:
            case CutJournal(journal, keep_bytes):
                excess -= journal.bytes - keep_bytes
            case DropMessages(_, size):
                excess -= size
            case DropBatches():
                excess -= 100
        freeable = memory_relief.without(freeable, action)
    return actions


def test_nothing_is_freed_while_there_is_enough():
    assert memory_relief.decide(ALL, 0) is None


def test_each_gives_only_when_those_before_it_have_nothing_left():
    assert plan(ALL, 10_000) == [
        CutJournal(UNREAD, 0, is_forced=False),
        CutJournal(BEHIND, 0, is_forced=True),
        CutJournal(ATTEMPTS, 0, is_forced=True),
        DropMessages(UNSERVED, 100),
        DropBatches(STALLED, 9_600, created_max=None),
        DropMessages(SERVED, 900),
    ]


def test_what_nobody_reads_is_cut_before_anyone_loses():
    assert plan(ALL, 60) == [CutJournal(UNREAD, 40, is_forced=False)]


def test_a_journal_that_refuses_keeps_the_events_that_its_archive_has_yet_to_read():
    journals = [action.journal for action in plan(ALL, 10_000, journal_refuses=True) if isinstance(action, CutJournal)]

    assert journals == [UNREAD, ATTEMPTS]


def test_the_larger_journals_are_cut_down_to_the_others():
    small, large = Journal(0, "attempts", 10, is_archived=False), Journal(0, "settlements", 60, is_archived=False)

    assert plan(Freeable((small, UNREAD, large)), 80) == [
        CutJournal(UNREAD, 40, is_forced=False),
        CutJournal(large, 40, is_forced=False),
    ]


def test_the_oldest_batches_go_first_whoever_of_the_stalled_has_them():
    other = StalledReceiver(1, "dead-2", oldest_at=1_000)

    assert memory_relief.decide(Freeable(stalled=(STALLED, other)), 70) == DropBatches(
        other, 70, created_max=STALLED.oldest_at + memory_relief.SAME_AGE_MS
    )


@given(sizes, st.integers(-10, 7_000))
def test_a_level_leaves_as_much_as_may_stay_and_cuts_only_the_largest(some: list[int], total: int):
    cut = memory_relief.level(some, total)
    left = [min(size, cut) for size in some]

    assert sum(left) <= max(0, total) or sum(some) <= total
    assert sum(left) > min(sum(some), max(0, total)) - max(1, len(some))


@given(sizes, st.integers(0, 7_000))
def test_journals_may_grow_into_the_room_that_is_left_and_no_further(some: list[int], total: int):
    bounds = memory_relief.journal_bounds(some, total)

    if sum(some) <= total:
        assert all(bound - size == total - sum(some) for size, bound in zip(some, bounds, strict=True))
    else:
        assert sum(min(size, bound) for size, bound in zip(some, bounds, strict=True)) <= total


@pytest.mark.parametrize(
    ("setting", "server", "limit", "journals"),
    [(0, 0, 0, 500), (1_000, 0, 1_000, 450), (0, 1_000, 1_000, 450), (400, 1_000, 400, 150), (5_000, 0, 5_000, 500)],
)
def test_the_lesser_limit_holds_and_journals_get_a_share_of_it(setting: int, server: int, limit: int, journals: int):
    rules = MemoryRules(bytes_max=setting, reserve_bytes=100, journal_bytes_max=500)

    assert rules.limit_of(server) == limit
    assert rules.journals_max(limit) == journals
