"""Deliveries and receivers by example: whose turn it is, and what the law of receivers has found."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from doubledecker.delivery.permits import Permits
from doubledecker.errors import BusAway
from doubledecker.model.event import EventKind
from doubledecker.model.routing import Route
from doubledecker.model.settlement import CUT, DELIVERED, RETURNED, Settlement
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import batches, dead_letters, deliveries, events, receivers
from doubledecker.store.deliveries import Settled, Turn
from doubledecker.store.events import PublishLimits, RoutedEvent
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.store.receivers import Answer, Permit, ReceiverRecord

LEASE_MS = 1_000_000
DAY_MS = 86_400_000
FAILED = Settlement("failed", raises=True, probe_ms=1)


def a_receiver(token: str, concurrency: int = 1, timeout_ms: int = 0) -> Subscriber:
    """One whose every event is a batch."""
    max_events = 1 if timeout_ms == 0 else 100
    return Subscriber(token, "https://a", token, ("widgets",), timeout_ms, max_events, concurrency=concurrency)


async def publish(home: Partition, receiver: Subscriber, batches: int = 1, *, version: int = 0) -> None:
    offer = RoutedEvent(Route(EventKind("widgets", "update", "default"), (receiver,)), b"{}", "pam")
    for _ in range(batches):
        await events.publish(home, [offer], version=version, limits=PublishLimits(id_window_ms=1, ids_max=1))


async def take(
    home: Partition, *slots: str, settled: Sequence[Settled] = (), process: str = "p", probes_max: int = 1
) -> Turn:
    return await deliveries.turn(home, settled, slots, process=process, probes_max=probes_max)


async def fail(home: Partition, *receivers_: Subscriber) -> None:
    """Make receivers fail, each with two batches, whose probes are due in this order."""
    for receiver in receivers_:
        await publish(home, receiver, batches=2)
        turn = await take(home, "s", probes_max=0)
        await take(home, settled=[Settled(job, FAILED) for job in turn.jobs])
        home.shift_ms += 10


async def permitted(home: Partition, token: str, lease: str, *, limit: int = 1) -> Permit:
    return await receivers.take_permit(home, token, lease=lease, limit=limit, version=0, lease_ms=LEASE_MS)


def tokens(turn: Turn) -> list[str]:
    return [job.token for job in turn.jobs]


async def test_a_newcomer_is_served_before_all_that_were_served_this_round(plain: Partitions):
    for token in ("ann", "bob", "cid"):
        await publish(plain.home, a_receiver(token, 5), batches=5)
    served = await take(plain.home, "s1", "s2")
    await publish(plain.home, a_receiver("new", 5))

    turn = await take(plain.home, "s3", "s4", "s5")

    assert tokens(served) == ["ann", "bob"]
    assert tokens(turn) == ["cid", "new", "ann"]


@pytest.mark.parametrize("action", ["purge", "redrive"])
async def test_a_permit_whose_lease_is_over_comes_back_though_letters_were_asked_for_first(
    plain: Partitions, action: str
):
    home, receiver = plain.home, a_receiver("ann")
    await permitted(home, "ann", "lease-1")
    home.shift_ms += LEASE_MS + 1
    if action == "purge":
        await dead_letters.purge(home, "ann", ["0-none"], version=0)
    else:
        await dead_letters.redrive(home, receiver, ["0-none"], version=0)

    permit = await permitted(home, "ann", "lease-2")

    assert permit.answer is Answer.GO


@pytest.mark.parametrize("whose", ["new", "@queue"])
async def test_calls_on_leases_put_no_newcomer_behind_those_who_were_served(plain: Partitions, whose: str):
    """Each moved virtual time on, and its receiver's tag: by as many turns the newcomer waited."""
    await publish(plain.home, a_receiver("ann", 9), batches=9)
    await take(plain.home, "s1")
    for _ in range(5):
        await receivers.settle(plain.home, whose, await permitted(plain.home, whose, "lease"), RETURNED)
    await publish(plain.home, a_receiver("new"))

    turn = await take(plain.home, "s2", "s3")

    assert tokens(turn) == ["new", "ann"]


async def test_of_failing_receivers_the_one_that_was_due_first_is_probed(plain: Partitions):
    await fail(plain.home, a_receiver("bob"), a_receiver("ann"))

    turn = await take(plain.home, "s1", "s2")

    assert tokens(turn) == ["bob"]


async def test_a_settlement_sent_again_does_not_count_for_the_next_attempt_of_its_slot(plain: Partitions):
    await publish(plain.home, a_receiver("ann"))
    [job] = (await take(plain.home, "s1")).jobs
    refused = [Settled(job, Settlement("refused", retry_ms=0), "{}", {"tried": 1})]
    lost = await take(plain.home, "s1", settled=refused)

    turn = await take(plain.home, "s1", settled=refused)

    assert turn.results[0].is_ours
    assert [again.held for again in turn.jobs] == [given.held for given in lost.jobs] != [job.held]
    assert await plain.home.command("XLEN", plain.home.key("journal:attempts")) == 1
    assert await plain.home.command("HGET", plain.home.key("counters"), "tried") == b"1"


async def test_a_slot_named_twice_gets_one_job(plain: Partitions):
    await publish(plain.home, a_receiver("ann", 5), batches=5)

    turn = await take(plain.home, "s1", "s1")

    assert len(turn.jobs) == 1
    assert turn.wait_ms == 0


async def test_nobody_is_told_to_wait_for_longer_than_a_day(plain: Partitions):
    """A wait of ages was no number for an expiry: the turn had done its work, and failed for everybody."""
    home = plain.home
    ages_ms = 1e23
    await receivers.take_permit(home, "@queue", lease="1", limit=2, every=ages_ms, version=0, lease_ms=LEASE_MS)
    await publish(home, replace(a_receiver("ann"), rate_per_s=1000 / ages_ms), batches=2)
    [job] = (await take(home, "s")).jobs

    turn = await take(home, "s", settled=[Settled(job, DELIVERED)])
    again = await receivers.take_permit(home, "@queue", lease="2", limit=2, every=ages_ms, version=0, lease_ms=LEASE_MS)

    assert (turn.results[0].is_ours, turn.jobs, turn.wait_ms) == (True, [], DAY_MS)
    assert (again.answer, again.wait_ms) == (Answer.PACED, DAY_MS)


async def test_a_job_that_is_given_back_without_a_call_uses_up_none_of_the_rate(plain: Partitions):
    """One that was cut short does: its receiver may have been called."""
    home = plain.home
    await publish(home, replace(a_receiver("ann"), rate_per_s=0.001), batches=2)
    [job] = (await take(home, "s")).jobs

    [again] = (await take(home, "s", settled=[Settled(job, RETURNED)])).jobs
    cut = await take(home, "s", settled=[Settled(again, CUT)])

    assert (again.batch, cut.jobs) == (job.batch, [])


async def test_a_turn_gives_no_further_job_when_those_given_hold_enough(
    plain: Partitions, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(deliveries, "BYTES_MAX", 3)
    await publish(plain.home, a_receiver("ann", 5), batches=5)

    turn = await take(plain.home, "s1", "s2", "s3")

    assert [job.slot for job in turn.jobs] == ["s1", "s2"]
    assert turn.wait_ms == 0


@pytest.mark.parametrize("pieces", [1, 2, 7])
async def test_a_batch_is_given_whole_in_however_many_pieces_it_came(plain: Partitions, pieces: int):
    ann = a_receiver("ann", timeout_ms=1)
    for number in range(pieces):
        offer = RoutedEvent(Route(EventKind("widgets", "update", "default"), (ann,)), b'{"n":%d}' % number, "pam")
        await events.publish(plain.home, [offer, offer], version=0, limits=PublishLimits(id_window_ms=1, ids_max=1))
    plain.home.shift_ms += 10

    turn = await take(plain.home, "s")

    [job] = turn.jobs
    assert job.batch is not None
    assert job.batch.events == 2 * pieces
    assert list(job.batch.chunks) == [b'{"n":%d}\n{"n":%d}' % (n, n) for n in range(pieces)]


async def test_a_batch_of_several_pieces_that_is_dropped_before_they_are_read_is_gone(plain: Partitions):
    ann = a_receiver("ann", timeout_ms=1)
    await publish(plain.home, ann, batches=3)
    plain.home.shift_ms += 10
    [job] = (await take(plain.home, "s")).jobs
    assert job.batch is not None
    unread = structs.replace(job, batch=structs.replace(job.batch, chunks=()), unread_bytes=2)
    await batches.drop_oldest(
        plain.home, "ann", batches_max=1, created_max=None, bytes_enough=2**53, counter="events.autodropped"
    )

    [opened] = await deliveries.read(plain.home, [unread])

    assert opened.batch is None


async def test_probes_that_slots_already_hold_are_among_those_they_may_make(plain: Partitions):
    await fail(plain.home, a_receiver("ann"), a_receiver("bob"))
    await take(plain.home, "s1", probes_max=1)

    turn = await take(plain.home, "s2", "s1", probes_max=1)

    assert [(job.slot, job.token) for job in turn.jobs] == [("s1", "ann")]


async def test_a_receiver_whose_probe_died_with_its_lease_is_probed_again(plain: Partitions):
    """It was in no set, until something was published to it."""
    await fail(plain.home, a_receiver("ann", 3))
    await permitted(plain.home, "ann", "lease", limit=3)
    waiting = await take(plain.home, "s1")
    plain.home.shift_ms += LEASE_MS

    turn = await take(plain.home, "s1")

    assert not waiting.jobs
    assert waiting.wait_ms is not None
    assert [job.is_probe for job in turn.jobs] == [True]


async def test_a_receiver_is_not_probed_for_ever_by_a_lease_that_was_settled_beside_other_calls(plain: Partitions):
    """It was in no set, and never called again."""
    ann = a_receiver("ann", 3)
    await fail(plain.home, ann)
    permit = await permitted(plain.home, "ann", "lease", limit=3)
    await receivers.save(plain.home, ann.token, replace(ann, anew_since=1), version=0)
    [job] = (await take(plain.home, "s1")).jobs
    await receivers.settle(plain.home, "ann", permit, DELIVERED)
    await take(plain.home, settled=[Settled(job, FAILED, anew_since=1)])
    plain.home.shift_ms += 10

    turn = await take(plain.home, "s1")

    assert [job.is_probe for job in turn.jobs] == [True]


@pytest.mark.parametrize("outcome", [FAILED, DELIVERED])
async def test_a_late_answer_of_a_former_address_says_nothing_of_the_present_one(
    plain: Partitions, outcome: Settlement
):
    """It silenced the present one for as long as it had asked for, or called it well while it failed."""
    home, ann = plain.home, a_receiver("ann", 3)
    await publish(home, ann, batches=3)
    [job] = (await take(home, "s1")).jobs
    permit = await permitted(home, "ann", "lease", limit=3)
    await receivers.save(home, "ann", replace(ann, anew_since=7), version=0)
    if outcome is DELIVERED:
        [other] = (await take(home, "s2")).jobs
        await take(home, settled=[Settled(other, FAILED, anew_since=7)])

    await receivers.settle(home, "ann", permit, outcome)
    await take(home, settled=[Settled(job, outcome)])

    state = (await receivers.states(home, ["ann"]))["ann"]
    assert state.failures == (1 if outcome is DELIVERED else 0)
    assert state.calls == 0


@pytest.mark.parametrize("is_leased", [True, False])
async def test_the_first_answer_of_an_address_that_nobody_told_a_partition_ends_what_was_held_against_the_former(
    plain: Partitions, is_leased: bool
):
    home, ann = plain.home, a_receiver("ann")
    await publish(home, ann, batches=2)
    for _ in range(3):
        [job] = (await take(home, "s")).jobs
        await take(home, settled=[Settled(job, FAILED)])
        home.shift_ms += 10
    if not is_leased:
        [job] = (await take(home, "s")).jobs
        turn = await take(home, settled=[Settled(job, FAILED, anew_since=7)])
        failures = turn.results[0].failures
    else:
        lasting = Settlement("failed", raises=True, probe_ms=LEASE_MS)
        [job] = (await take(home, "s")).jobs
        await take(home, settled=[Settled(job, lasting)])
        permit = await receivers.take_permit(
            home, "ann", lease="lease", limit=1, anew_since=7, version=0, lease_ms=LEASE_MS
        )
        assert permit.answer is Answer.GO
        _, failures = await receivers.settle(home, "ann", permit, FAILED)

    assert failures == 1
    assert (await receivers.states(home, ["ann"]))["ann"].anew_since == 7


async def test_who_asks_again_for_a_permit_has_that_one(plain: Partitions):
    """It was told that the receiver was full, by its own permit; or had two, of which one was never given back."""
    permits = [await permitted(plain.home, "ann", "lease") for _ in range(2)]
    await receivers.settle(plain.home, "ann", permits[1], RETURNED)

    states = await receivers.states(plain.home, ["ann"])

    assert [permit.answer for permit in permits] == [Answer.GO, Answer.GO]
    assert states["ann"].leased == 0


async def test_calls_to_a_receiver_that_was_forgotten_hold_their_permits_until_they_end(plain: Partitions):
    permit = await permitted(plain.home, "@queue", "lease")
    await receivers.save(plain.home, "@queue", None, version=0)

    during = await permitted(plain.home, "@queue", "another")
    await receivers.settle(plain.home, "@queue", permit, RETURNED)
    after = await permitted(plain.home, "@queue", "another")

    assert (during.answer, after.answer) == (Answer.FULL, Answer.GO)


async def test_who_waits_is_told_of_what_is_due_earlier(plain: Partitions):
    """Who settles without a slot to offer does not wait for it; nobody listens here, so all are told."""
    await publish(plain.home, a_receiver("ann"), batches=2)
    [job] = (await take(plain.home, "s1", process="busy")).jobs
    await take(plain.home, "s2", process="idle")

    await take(plain.home, settled=[Settled(job, FAILED)], process="busy")

    assert await plain.home.command("SMEMBERS", plain.home.key("jobs:hungry:main")) == []


async def test_a_receiver_has_its_permits_with_its_first_batch(plain: Partitions):
    """It had but one while all its batches were closed by their deadline, and nobody had told how many."""
    await publish(plain.home, a_receiver("ann", 3, timeout_ms=1))
    plain.home.shift_ms += 10
    await take(plain.home, "s1")

    states = await receivers.states(plain.home, ["ann"])

    assert states["ann"].limit == 3


@pytest.mark.parametrize(("batches", "is_failing"), [(4, False), (5, True)])
async def test_a_receiver_that_refuses_five_different_batches_in_a_row_is_failing(
    plain: Partitions, batches: int, is_failing: bool
):
    await publish(plain.home, a_receiver("ann"), batches=batches)
    for _ in range(batches):
        [job] = (await take(plain.home, "s1")).jobs
        refused = Settlement("refused", raises=True, probe_ms=1, retry_ms=LEASE_MS)
        turn = await take(plain.home, settled=[Settled(job, refused)])

    assert (turn.results[0].failures > 0) == is_failing


async def test_a_batch_that_is_refused_often_says_no_more_than_once(plain: Partitions):
    await publish(plain.home, a_receiver("ann"))
    for attempt in range(9):
        [job] = (await take(plain.home, "s1")).jobs
        refused = Settlement("refused", raises=attempt == 0, probe_ms=1, retry_ms=0)
        turn = await take(plain.home, settled=[Settled(job, refused)])

    assert turn.results[0].failures == 0


async def test_who_learns_of_an_earlier_deadline_wakes_for_it_on_time(plain: Partitions):
    """It was told to wait longer than the process that owned the next deadline, which knew of a later one."""
    await publish(plain.home, a_receiver("late", timeout_ms=60_000))
    await take(plain.home, "s1", process="p")
    await publish(plain.home, a_receiver("soon", timeout_ms=1_000))

    turn = await take(plain.home, "s2", process="q")
    again = await take(plain.home, "s1", process="p")

    assert turn.wait_ms is not None
    assert again.wait_ms is not None
    assert turn.wait_ms <= 1_000 < again.wait_ms


@pytest.mark.parametrize("slots", [["s1"], []])
async def test_who_has_no_slot_left_tells_another_of_the_deadline_that_it_owned(plain: Partitions, slots: list[str]):
    """The others waited a little longer than it would have, and for something else."""
    await publish(plain.home, a_receiver("late", timeout_ms=60_000))
    await take(plain.home, "s1", process="p")
    await publish(plain.home, a_receiver("ann"))
    await plain.home.command("SADD", plain.home.key("jobs:hungry:main"), "q")
    await take(plain.home, *slots, process="p")

    hungry = await plain.home.command("SMEMBERS", plain.home.key("jobs:hungry:main"))
    turn = await take(plain.home, "s2", "s3", "s4", process="q")

    # Nobody listens here, so all are told.
    assert hungry == []
    assert turn.wait_ms is not None
    assert turn.wait_ms <= 60_000


async def test_a_probe_behind_many_batches_that_are_gone_waits_for_no_timer(plain: Partitions):
    ann = a_receiver("ann")
    await publish(plain.home, ann, batches=deliveries.DUE_MAX + 2)
    [job] = (await take(plain.home, "s1")).jobs
    await take(plain.home, settled=[Settled(job, FAILED)])
    many = {"created_max": None, "bytes_enough": 2**50, "counter": "dropped"}
    for _ in range(3):
        await batches.drop_oldest(plain.home, "ann", batches_max=deliveries.DUE_MAX // 2, **many)
    await publish(plain.home, ann)
    plain.home.shift_ms += 10

    first = await take(plain.home, "s1")
    second = await take(plain.home, "s1")

    assert (first.jobs, first.wait_ms) == ([], 0)
    assert tokens(second) == ["ann"]


async def test_a_receiver_without_a_job_in_the_ring_holds_up_nobody(plain: Partitions):
    """Every call of the partition failed, for good."""
    await publish(plain.home, a_receiver("ann"))
    await publish(plain.home, a_receiver("bob"))
    await plain.home.command("DEL", plain.home.key("jobs:instant:main:ann"))

    turn = await take(plain.home, "s1", "s2")

    assert tokens(turn) == ["bob"]
    assert await plain.home.command("ZCARD", plain.home.key("receivers:ring")) == 0


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_lease_gets_the_next_free_permit_beside_a_backlog_and_slots_the_one_after_it(
    plain: Partitions, limit: int
):
    """Slots settle and take in one call, so that no lease ever found a free permit."""
    await publish(plain.home, a_receiver("ann", limit), batches=9)
    turn = await take(plain.home, "s1", "s2")
    refused = await permitted(plain.home, "ann", "lease", limit=limit)

    done = Settled(turn.jobs[0], DELIVERED)
    left = await take(plain.home, done.job.slot, settled=[done])
    permit = await permitted(plain.home, "ann", "lease", limit=limit)
    again = await permitted(plain.home, "ann", "other", limit=limit)
    await receivers.settle(plain.home, "ann", permit, DELIVERED)
    after = await take(plain.home, done.job.slot)

    assert (refused.answer, left.jobs, permit.answer) == (Answer.FULL, [], Answer.GO)
    assert (again.answer, tokens(after)) == (Answer.FULL, ["ann"])


async def test_a_permit_that_no_lease_came_back_for_is_a_slot_s_again(plain: Partitions):
    await publish(plain.home, a_receiver("ann"), batches=2)
    [job] = (await take(plain.home, "s")).jobs
    await permitted(plain.home, "ann", "lease")

    left = await take(plain.home, "s", settled=[Settled(job, DELIVERED)])
    plain.home.shift_ms += receivers.WISH_MS
    after = await take(plain.home, "s")

    assert left.jobs == []
    assert left.wait_ms is not None
    assert 0 < left.wait_ms <= receivers.WISH_MS
    assert tokens(after) == ["ann"]


async def test_a_permit_whose_reply_was_lost_is_the_one_that_is_asked_for_next(
    plain: Partitions, monkeypatch: pytest.MonkeyPatch
):
    """Else it kept others from a receiver that takes one call at a time, until its lease ended."""
    permits = Permits("@queue", lease_ms=LEASE_MS)
    real = receivers.take_permit

    async def lost(*words: Any, **named: Any) -> Permit:
        await real(*words, **named)
        raise BusAway("the reply was lost")

    with monkeypatch.context() as patch:
        patch.setattr(receivers, "take_permit", lost)
        with pytest.raises(BusAway):
            await permits.take(plain.home, limit=1, version=0)
    first = await permits.take(plain.home, limit=1, version=0)
    second = await permits.take(plain.home, limit=1, version=0)

    assert (first.answer, second.answer) == (Answer.GO, Answer.FULL)


async def test_one_that_stumbled_is_probed_before_many_that_fail_again_and_again(plain: Partitions):
    home = plain.home
    many = [a_receiver(f"hangs{n}") for n in range(3)]
    await fail(home, *many)
    for _ in range(2):
        home.shift_ms += 1_000
        turn = await take(home, "a", "b", "c", probes_max=3)
        await take(home, settled=[Settled(job, FAILED) for job in turn.jobs])
    home.shift_ms += 1_000
    await fail(home, a_receiver("stumbles"))

    assert tokens(await take(home, "a")) == ["stumbles"]


async def test_jobs_of_thousands_of_dead_slots_are_all_taken_back(plain: Partitions):
    home, count = plain.home, 4_500
    # As many as a large fleet held when it died; each holds a permit of another receiver.
    state = msgspec.msgpack.encode(ReceiverRecord(limit=1, held=1))
    for first in range(0, count, 500):
        numbers = range(first, first + 500)
        held = {f"slot{n}": f"{n:020d} r{n} 1 0\n" for n in numbers}
        await home.write("HSET", home.key("jobs:pending:main"), *(word for pair in held.items() for word in pair))
        await home.write("HSET", home.key("receivers"), *(word for n in numbers for word in (f"r{n}", state)))

    assert await deliveries.scrub(home, dead_ms=1) == (count, count)
    assert await home.command("HLEN", home.key("jobs:pending:main")) == 0
    left = await receivers.states(home, [f"r{n}" for n in range(count)])
    assert sum(each.held for each in left.values()) == 0
