"""Lanes that are held by example: by several dead letters, by batches that are dropped, and as many as may be."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import cast

import msgspec
import pytest

from doubledecker.delivery import parts
from doubledecker.model.dead_letter import DeadLetter
from doubledecker.model.outcome import Outcome, OutcomeKind
from doubledecker.model.settlement import DELIVERED, RETURNED, Settlement
from doubledecker.model.uid import uid
from doubledecker.store import batches, dead_letters, deliveries, losses, receivers, subscribers
from doubledecker.store.deliveries import DeliveryJob, Settled, Turn
from doubledecker.store.partitions import Partition, Partitions
from laws.test_order import ANN, ids_of, publish
from laws.world import strings

A, B, C = "default/a", "default/b", "default/c"
REFUSED = Outcome(OutcomeKind.REFUSED, 1, 400)
AGES_MS = 10_000_000
# Of an event here.
SIZE = len(b'{"id":"a1","topic":"widgets","key":"a"}')
# As lua/receiver_order.lua and lua/delivery_turn.lua have them.
LANES_MAX = 1_000
PAUSE_MS_MAX = 60_000


async def take(home: Partition, settled: Sequence[Settled] = ()) -> Turn:
    return await deliveries.turn(home, settled, ["s"], process="p", probes_max=1)


def attempted(job: DeliveryJob, *, aside: Collection[str] = (), dead: Collection[str] = ()) -> Settled:
    """What comes of a job: events are delivered, but some are put aside, and some given up, and block their lanes."""
    batch = job.batch
    assert batch is not None
    division = parts.division(batch.chunks, job.lanes)
    if division is not None:
        return Settled(job, RETURNED, division=division, size_max=(ANN.max_events, ANN.max_bytes))
    ids = {*ids_of(batch.chunks)}
    if ids <= {*aside}:
        return Settled(job, Settlement("refused", retry_ms=AGES_MS), lane=parts.lane(batch.chunks[0]))
    if ids <= {*dead}:
        lines = [line for chunk in batch.chunks for line in chunk.split(b"\n")]
        named = {"reason": "attempts", "attempts": 1, "accepted_at": 1, "batch": batch.bid, "partition": 0}
        letters = parts.letters(lines, REFUSED, **named)  # type: ignore[arg-type]
        return Settled(job, Settlement("refused"), letters=letters, blocked=[parts.lane(line) for line in lines])
    return Settled(job, DELIVERED)


async def drain(home: Partition, *, aside: Collection[str] = (), dead: Collection[str] = ()) -> list[str]:
    """Deliver all that is due; returns what the receiver took."""
    taken: list[str] = []
    settled: list[Settled] = []
    while (turn := await take(home, settled)).jobs:
        settled = [attempted(job, aside=aside, dead=dead) for job in turn.jobs]
        for each in settled:
            batch = each.job.batch
            taken += ids_of([*batch.chunks]) if batch and each.settlement is DELIVERED else []
    return taken


async def accept(home: Partition, *some: tuple[str, str]) -> None:
    await publish(home, list(some))
    home.shift_ms += 5_000


async def blocked(home: Partition, *of_a: str) -> dict[str, str]:
    """Letters that block lane `A`, with one that blocks another lane; and an event that waits behind them."""
    await accept(home, *((id_, A) for id_ in of_a))
    await drain(home, dead=of_a)
    await accept(home, ("c1", C))
    await drain(home, dead=["c1"])
    await accept(home, ("last", A))
    assert await drain(home) == []
    letters = dead_letters.each(home, "ann", most=100)
    return {msgspec.json.decode(letter.event)["id"]: letter.id async for letter in letters}


async def test_a_lane_is_held_until_none_of_its_letters_is_left(plain: Partitions):
    """It was let go by the first batch that was delivered, and others stood behind a lane that nobody held."""
    home = plain.home
    letters = await blocked(home, "a1", "a2")

    await dead_letters.redrive(home, ANN, [letters["a1"]], version=0)
    first = await drain(home)
    await dead_letters.redrive(home, ANN, [letters["a2"]], version=0)

    assert (first, await drain(home)) == (["a1"], ["a2", "last"])


async def test_letters_that_are_redriven_in_any_order_are_delivered_in_theirs(plain: Partitions):
    home = plain.home
    letters = await blocked(home, "a1", "a2", "a3", "a4")

    await dead_letters.redrive(home, ANN, [letters["a3"], letters["a2"]], version=0)
    early = await drain(home)
    await dead_letters.redrive(home, ANN, [letters["a1"]], version=0)
    then = await drain(home)
    await dead_letters.purge(home, "ann", [letters["a4"]], version=0)

    assert (early, then, await drain(home)) == ([], ["a1", "a2", "a3"], ["last"])


async def test_a_letter_that_is_destroyed_leaves_the_lane_to_the_batch_of_another(plain: Partitions):
    """The lane went over to a letter while a batch held it, and then was nobody's."""
    home = plain.home
    letters = await blocked(home, "a1", "a2", "a3")

    await dead_letters.redrive(home, ANN, [letters["a1"]], version=0)
    await dead_letters.purge(home, "ann", [letters["a2"]], version=0)
    first = await drain(home)
    await dead_letters.redrive(home, ANN, [letters["a3"]], version=0)

    assert (first, await drain(home)) == (["a1"], ["a3", "last"])


async def test_an_event_becomes_a_letter_though_as_many_lanes_are_held_as_may_be(plain: Partitions):
    home = plain.home
    await _hold_all_lanes(home, aside="a1")
    home.shift_ms += AGES_MS

    await drain(home, dead=["a1"])

    assert (await dead_letters.totals(home, "ann")).count == 1


async def test_an_event_beyond_the_lanes_that_may_be_held_waits_first_in_line_and_is_not_passed(plain: Partitions):
    """All others wait with it, until a lane is let go."""
    home = plain.home
    await _hold_all_lanes(home, aside="a1")
    await accept(home, ("b1", B))

    at_first = await drain(home, aside=["b1"])
    await accept(home, ("a2", A), ("b2", B), ("c1", C))
    home.shift_ms += PAUSE_MS_MAX
    again = await drain(home, aside=["b1"])
    home.shift_ms += AGES_MS
    then = await drain(home, aside=["b1"])
    held = (await receivers.states(home, ["ann"]))["ann"].lanes
    home.shift_ms += AGES_MS

    assert (at_first, again, then, held) == ([], [], ["a1", "a2", "c1"], LANES_MAX)
    assert await drain(home) == ["b1", "b2"]


async def test_a_letter_beyond_the_lanes_that_may_be_held_is_made_when_one_is_let_go(plain: Partitions):
    home = plain.home
    await _hold_all_lanes(home, aside="a1")
    await accept(home, ("b1", B))

    at_first = await drain(home, dead=["b1"])
    await accept(home, ("b2", B), ("c1", C))
    early = (await dead_letters.totals(home, "ann")).count
    home.shift_ms += AGES_MS
    then = await drain(home, dead=["b1"])
    [letter] = [each.id async for each in dead_letters.each(home, "ann", most=10)]
    await dead_letters.redrive(home, ANN, [letter], version=0)

    assert (at_first, early, then) == ([], 0, ["a1", "c1"])
    assert await drain(home) == ["b1", "b2"]


async def test_one_that_leaves_while_a_lane_is_served_waits_in_no_ring(plain: Partitions):
    """It was given turns for what had been set aside."""
    home = plain.home
    await accept(home, ("a1", A))
    await drain(home, aside=["a1"])
    for id_ in ("a2", "a3"):
        await accept(home, (id_, A))
        await drain(home)
    home.shift_ms += AGES_MS
    [job] = (await take(home)).jobs
    await deliveries.turn(home, [attempted(job)], [], process="p", probes_max=1)

    await subscribers.retire(home, "ann", version=0)

    assert await home.command("ZCARD", home.key("receivers:ring")) == 0
    assert await home.command("HLEN", home.key("receivers")) == 0


@pytest.mark.parametrize("how", ["bound", "memory"])
async def test_what_waits_behind_an_event_goes_on_once_that_is_dropped(plain: Partitions, how: str):
    """It waited until the event would have been tried again, for hours."""
    home = plain.home
    await accept(home, ("a1", A))
    await drain(home, aside=["a1"])
    if how == "bound":
        await losses.drop_oldest(home, "ann", bytes_enough=1, created_max=None)
    else:
        await batches.drop_oldest(
            home, "ann", batches_max=1, created_max=None, bytes_enough=2**53, counter="events.autodropped"
        )
    await accept(home, ("a2", A))

    assert await drain(home) == ["a2"]


async def test_a_lane_that_a_letter_holds_keeps_no_jobs_of_what_was_dropped(plain: Partitions):
    """They added up for as long as nobody looked after the letter."""
    home = plain.home
    await accept(home, ("a0", A))
    await drain(home, dead=["a0"])
    for number in range(1, 8):
        await accept(home, (f"a{number}", A))
        await drain(home)
        await losses.drop_oldest(home, "ann", bytes_enough=1, created_max=None)
    [letter] = [each.id async for each in dead_letters.each(home, "ann", most=10)]
    await accept(home, ("last", A))
    await drain(home)

    assert await home.command("LLEN", home.key(f"order:waiting:ann:{A}")) <= 2
    await dead_letters.redrive(home, ANN, [letter], version=0)
    assert await drain(home) == ["a0", "last"]


async def test_a_batch_that_is_divided_uses_up_no_call(plain: Partitions):
    home = plain.home
    paced = replace(ANN, rate_per_s=0.1)
    await publish(home, [("a1", A)], paced)
    home.shift_ms += 1_000
    await drain(home, aside=["a1"])
    await publish(home, [("a2", A), ("b1", B)], paced)
    home.shift_ms += 60_000

    assert await drain(home) == ["b1"]


async def test_what_was_lost_is_within_its_range_though_it_joined_an_older_batch(plain: Partitions):
    """An event joined a batch from long before, which took it along when it was dropped."""
    home = plain.home
    accepted: dict[str, int] = {}
    for some, wait_ms in (
        ([("a1", A)], 5_000),
        ([("a2", A), ("b1", B)], 200),
        ([("c1", C)], 300),
        ([("a3", A), ("b2", B)], 600_000),
        ([("a4", A), ("b3", B)], 0),
    ):
        accepted |= dict.fromkeys((id_ for id_, _ in some), await home.time_ms())
        await publish(home, some)
        await drain(home, aside=["a1", "c1"])
        home.shift_ms += wait_ms
    waiting = await _waiting(home)

    await losses.drop_oldest(home, "ann", bytes_enough=SIZE + 1, created_max=None)

    gone = waiting - await _waiting(home)
    [lost] = (await losses.of_subscribers(home, ["ann"]))["ann"]
    assert gone == {"a1", "a2", "a3"}
    assert all(lost.from_ms <= accepted[id_] < lost.upto_ms for id_ in gone)


async def test_what_was_lost_is_within_its_range_though_a_letter_was_redriven_while_its_batch_took_events(
    plain: Partitions,
):
    """The batch of the letter was taken for the one that followed."""
    home, receiver = plain.home, replace(ANN, max_events=3, timeout_ms=600_000, ordered=False)
    accepted: dict[str, int] = {}
    letter = DeadLetter(f"0-{uid()}", "widgets", "default", "attempts", b'{"id":"x","topic":"widgets"}', 1)
    await dead_letters.add(home, "ann", [letter])
    for step, id_ in enumerate(("a1", "a2", "a3", "a4")):
        accepted[id_] = await home.time_ms()
        await publish(home, [(id_, A)], receiver)
        home.shift_ms += 5_000
        if step == 0:
            await dead_letters.redrive(home, receiver, [letter.id], version=0)
            home.shift_ms += 5_000
    waiting = await _waiting(home)

    await losses.drop_oldest(home, "ann", bytes_enough=1, created_max=None)

    gone = waiting - await _waiting(home)
    [lost] = (await losses.of_subscribers(home, ["ann"]))["ann"]
    assert "a1" in gone
    assert all(lost.from_ms <= accepted[id_] < lost.upto_ms for id_ in gone)


async def test_events_of_many_lanes_are_taken_out_of_a_batch_some_lanes_at_a_time(
    plain: Partitions, monkeypatch: pytest.MonkeyPatch
):
    """A thousand at once held the server for 20 ms."""
    monkeypatch.setattr(parts, "LANES_DIVIDED_MAX", 2)
    home = plain.home
    held = [f"{key}1" for key in "abc"]
    for id_ in held:
        await accept(home, (id_, f"default/{id_[0]}"))
        await drain(home, aside=held)
    later = ["c2", "a2", "d2", "b2", "a3"]
    await accept(home, *((id_, f"default/{id_[0]}") for id_ in later))

    [job] = (await take(home)).jobs
    first = attempted(job).division
    assert first is not None
    assert [each.lane for each in first.lanes] == [C, A]
    assert first.events == 2
    assert await drain(home) == ["d2"]
    home.shift_ms += AGES_MS
    taken = await drain(home)
    assert [[id_ for id_ in taken if id_[0] == key] for key in "abc"] == [
        ["a1", "a2", "a3"],
        ["b1", "b2"],
        ["c1", "c2"],
    ]


async def _waiting(home: Partition) -> set[str]:
    bids = strings(await home.command("ZRANGE", home.key("batches:index:ann"), 0, -1))
    lines = await home.commands([["LRANGE", home.key(f"batch:{bid}"), 4, -1] for bid in bids])
    return {id_ for chunks in cast("list[list[bytes]]", lines) for id_ in ids_of(chunks)}


async def _hold_all_lanes(home: Partition, *, aside: str) -> None:
    """An event holds lane `A`, and as many others are held as may be."""
    await accept(home, (aside, A))
    await drain(home, aside=[aside])
    others = [word for n in range(LANES_MAX - 1) for word in (f"default/{n}", "x")]
    await home.command("HSET", home.key("order:held:ann"), *others)
    state = (await receivers.states(home, ["ann"]))["ann"]
    kept = msgspec.structs.replace(state, lanes=LANES_MAX)
    await home.command("HSET", home.key("receivers"), "ann", msgspec.msgpack.encode(kept))
