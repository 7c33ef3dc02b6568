"""The law of order: an ordered receiver gets the events of a key in the order of acceptance, whatever becomes of some.

Batches of events of several keys are taken, divided, delivered, split, put aside, named in part, given up and dropped,
by the slots of two processes that lose replies, die, and call late; leases are taken and end, letters are redriven,
destroyed and dropped. For each key, an event that arrives for the first time finds all earlier ones done: delivered,
dead or dropped. No event is lost, each is in one batch, and each batch where its job is found. The receiver is where
it is found while it has a job, and what a bound dropped was accepted within the time that is kept.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import cast

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conftest import Topology
from doubledecker.delivery import parts
from doubledecker.model.event import EventKind
from doubledecker.model.job import MAIN
from doubledecker.model.outcome import Outcome, OutcomeKind
from doubledecker.model.routing import Route
from doubledecker.model.settlement import DELIVERED, RETURNED, Settlement
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import batches, dead_letters, deliveries, events, losses, receivers, subscribers
from doubledecker.store.deliveries import DeliveryJob, Settled
from doubledecker.store.events import PublishLimits, RoutedEvent
from doubledecker.store.partitions import Partition
from doubledecker.store.receivers import Answer, Permit, ReceiverRecord
from laws.world import AGE_MS, World, hold_law, law, strings

ANN = Subscriber("ann", "https://ann", "ann", ("widgets", "gadgets"), 0, max_events=5, ordered=True, concurrency=9)
REFUSED = Outcome(OutcomeKind.REFUSED, 1, 400)
KINDS = ("delivered", "delivered", "split", "aside", "aside", "aside", "dead", "failed", "named", "drop", "nothing")
# Keys, and topics of events without one.
LANES = ("default/a", "default/b", "default:widgets", "default:gadgets")
SLOTS = ("p", "q")

some_lane = st.sampled_from(LANES)
some_lanes = st.one_of(
    st.lists(some_lane, min_size=1, max_size=7),
    st.builds(lambda lane, many: [lane] * many, some_lane, st.integers(1, 7)),
)


@dataclass
class Ledger:
    """What was accepted, and what came of it; `late` are calls of slots that were taken for dead."""

    lane: dict[str, str] = field(default_factory=dict)
    arrived: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    doing: dict[str, DeliveryJob] = field(default_factory=dict)
    late: list[list[str]] = field(default_factory=list)
    # Of a subscriber that left: what waits to be purged.
    set_aside: int = 0
    # Events whose letters block their lanes, and those that were redriven though they did not: these come late.
    blocking: dict[str, str] = field(default_factory=dict)
    letters: dict[str, str] = field(default_factory=dict)
    loose: set[str] = field(default_factory=set)
    # When each was accepted: not before the first time, nor after the second; but for those that were redriven.
    accepted: dict[str, tuple[int, int]] = field(default_factory=dict)
    leases: list[str] = field(default_factory=list)

    @property
    def waiting(self) -> set[str]:
        """Events that some batch must hold."""
        return {id_ for id_ in self.lane if id_ not in self.ended}

    def call(self, ids: list[str]) -> None:
        """A receiver takes these, in their order."""
        order = [*self.lane]
        for id_ in ids:
            if id_ not in self.arrived | self.ended | self.loose:
                earlier = order[: order.index(id_)]
                mine = [each for each in earlier if self.lane[each] == self.lane[id_]]
                done = self.arrived | (self.ended - self.blocking.keys()) | self.loose
                assert {*mine} <= done, f"{id_} of {self.lane[id_]} came before {mine}"
            self.arrived.add(id_)


class OrderMachine(RuleBasedStateMachine):
    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.partition = world.partitions.home
        self.numbers = count(1)

    @initialize()
    def start(self) -> None:
        self.world.empty()
        self.ledger = Ledger()

    @rule(lanes=some_lanes)
    def publish(self, lanes: list[str]) -> None:
        self.world.tick()
        for lane in lanes:
            self.ledger.lane[f"id-{next(self.numbers)}"] = lane
        some = [*self.ledger.lane.items()][-len(lanes) :]
        before = self.world.run(self.partition.time_ms())
        self.world.run(publish(self.partition, some))
        after = self.world.run(self.partition.time_ms())
        self.ledger.accepted |= {id_: (before, after) for id_, _ in some}

    @rule(slot=st.sampled_from(SLOTS))
    def take(self, slot: str) -> None:
        """Also one that has a job already, whose reply was lost."""
        self.world.tick()
        turn = self.world.run(deliveries.turn(self.partition, [], [slot], process=slot, probes_max=1))
        self.ledger.doing |= {job.slot: job for job in turn.jobs}
        assert len(self.ledger.doing) <= 1, "called twice at a time"

    @rule(lanes=some_lanes, ages=st.integers(1, 2), more=st.lists(some_lanes, max_size=4), data=st.data())
    def one_is_put_aside_and_others_go_on(
        self, lanes: list[str], ages: int, more: list[list[str]], data: st.DataObject
    ) -> None:
        """What the slot has, or the next, is split until its first event stands alone."""
        self.publish(lanes)
        for _ in range(4):
            self.take("p")
            if self.ledger.doing:
                self.work("aside", again=False, ages=ages, data=data)
        for some in more:
            self.publish(some)
            self.take("p")
            if self.ledger.doing:
                self.work("delivered", again=True, ages=0, data=data)

    @rule(lane=some_lane, lanes=some_lanes, is_late=st.booleans(), data=st.data())
    def what_holds_a_lane_is_dropped_while_a_batch_is_in_hand(
        self, lane: str, lanes: list[str], is_late: bool, data: st.DataObject
    ) -> None:
        """The lane is let go, and then the slot that has later events of it dies."""
        self.one_is_put_aside_and_others_go_on([lane], 1, [[lane, lane], lanes, [lane]], data)
        self.publish([lane, *lanes])
        self.take("p")
        self.drop()
        self.time_passes(2)
        self.take("q")
        if self.ledger.doing:
            self.die(has_called=False, is_late=is_late)

    @rule(kinds=st.lists(st.sampled_from(KINDS), max_size=8), ages=st.integers(0, 2), data=st.data())
    def several_are_worked_on(self, kinds: list[str], ages: int, data: st.DataObject) -> None:
        for kind in kinds:
            self.take("p")
            if self.ledger.doing:
                self.work(kind, again=False, ages=ages, data=data)

    @precondition(lambda self: self.ledger.doing)
    @rule(kind=st.sampled_from(KINDS), again=st.booleans(), ages=st.integers(0, 2), data=st.data())
    def work(self, kind: str, again: bool, ages: int, data: st.DataObject) -> None:
        """As a worker does: what is held is taken out before a batch is posted; its reply may be lost."""
        self.world.tick()
        [(slot, job)] = self.ledger.doing.items()
        if kind == "drop":
            self.drop()
            return
        settled = self.attempted(job, kind, ages, data)
        del self.ledger.doing[slot]
        slots = [slot] if again else []
        for _ in range(1 + again):
            self.world.tick()
            turn = self.world.run(deliveries.turn(self.partition, [settled], slots, process=slot, probes_max=1))
        assert turn.results[0].is_ours or not job.batch
        self.ledger.doing |= {each.slot: each for each in turn.jobs}

    def attempted(  # noqa: PLR0911 - a line a kind
        self, job: DeliveryJob, kind: str, ages: int, data: st.DataObject
    ) -> Settled:
        batch, ledger = job.batch, self.ledger
        assert batch is not None
        division = parts.division(batch.chunks, job.lanes)
        if division is not None:
            return Settled(job, RETURNED, division=division, size_max=(ANN.max_events, ANN.max_bytes))
        ids = ids_of(batch.chunks)
        line = batch.chunks[0]
        later = Settlement("refused", retry_ms=ages * AGE_MS)
        if kind == "aside" and len(ids) == 1:
            return Settled(job, later, lane=parts.lane(line))
        if kind in {"split", "aside"} and len(ids) > 1:
            return Settled(job, Settlement("failed", is_split=True), halves=parts.halves(batch.chunks, batch.events))
        if kind == "dead":
            ledger.ended |= {*ids}
            lines = [line for chunk in batch.chunks for line in chunk.split(b"\n")]
            named = {"reason": "attempts", "attempts": 1, "accepted_at": 1, "batch": batch.bid, "partition": 0}
            letters = parts.letters(lines, REFUSED, **named)
            ledger.letters |= {id_: letter.id for id_, letter in zip(ids, letters, strict=True)}
            if not data.draw(st.booleans()):
                return Settled(job, later, letters=letters)
            ledger.blocking |= {id_: ledger.letters[id_] for id_ in ids}
            return Settled(job, later, letters=letters, blocked=[parts.lane(line) for line in lines])
        if kind == "failed":
            return Settled(job, Settlement("failed", raises=True, probe_ms=ages * AGE_MS))
        if kind == "named":
            failed = data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))
            taken = [id_ for id_ in ids if id_ not in failed]
            # The receiver took what comes after one that it did not: that is its own order, and not the bus's.
            ledger.ended |= {*taken} & ledger.waiting
            rest = parts.remainder(batch.chunks, set(failed))
            if len(failed) == 1:
                return Settled(
                    job,
                    Settlement("delivered", retry_ms=ages * AGE_MS),
                    remainder=rest,
                    lane=parts.lane(rest.text.encode()),
                )
            return Settled(job, Settlement("delivered", pause_ms=ages * AGE_MS), remainder=rest)
        if kind == "delivered":
            ledger.call(ids)
            ledger.ended |= {*ids}
            return Settled(job, DELIVERED)
        return Settled(job, RETURNED)

    @precondition(lambda self: self.ledger.doing)
    @rule(has_called=st.booleans(), is_late=st.booleans())
    def die(self, has_called: bool, is_late: bool) -> None:
        """A slot dies: before its call, after it, or it is only taken for dead, and calls when others have gone on."""
        [(_, job)] = self.ledger.doing.items()
        batch = job.batch
        assert batch is not None
        if parts.division(batch.chunks, job.lanes) is None:
            ids = ids_of(batch.chunks)
            if has_called:
                self.ledger.call(ids)
            elif is_late:
                self.ledger.late.append(ids)
        self.time_passes(1)
        self.world.run(deliveries.scrub(self.partition, dead_ms=AGE_MS))
        self.ledger.doing.clear()

    @precondition(lambda self: self.ledger.late)
    @rule()
    def call_late(self) -> None:
        self.ledger.call(self.ledger.late.pop())

    @rule()
    def drop(self) -> None:
        """The oldest batch is lost, whoever has it; if it holds a lane, its job is due, and lets that go."""
        before = {*self.held()}
        self.world.run(
            batches.drop_oldest(
                self.partition, "ann", batches_max=1, created_max=None, bytes_enough=2**53, counter="dropped"
            )
        )
        self.ledger.ended |= before - {*self.held()}
        self.holders_let_go()

    @rule(size=st.integers(1, 400))
    def drop_beyond_a_bound(self, size: int) -> None:
        """The oldest batches are lost but for those in hand; all of it was accepted within the time that is kept."""
        before = {*self.held()}
        self.world.tick()
        self.world.run(losses.drop_oldest(self.partition, "ann", bytes_enough=size, created_max=None))
        gone = before - {*self.held()}
        self.ledger.ended |= gone
        kept = self.world.run(losses.of_subscribers(self.partition, ["ann"])).get("ann", [])
        for id_ in gone & self.ledger.accepted.keys():
            first, last = self.ledger.accepted[id_]
            assert any(lost.from_ms <= last and first < lost.upto_ms for lost in kept), f"{id_} is in no range"
        self.holders_let_go()

    def holders_let_go(self) -> None:
        """What holds a lane and was dropped has its job due now."""
        now = self.world.run(self.partition.time_ms())
        holders, later = self.world.ask(
            self.partition,
            ["HKEYS", "order:holders:ann"],
            ["ZRANGE", f"jobs:scheduled:{MAIN}", f"({now}", "+inf", "BYSCORE"],
        )
        assert {job.split(" ")[0] for job in strings(later)} & {*strings(holders)} <= {*self.bids()}
        # A slot may have what was dropped in its hands; it delivers it, or not.
        for slot, job in [*self.ledger.doing.items()]:
            if f"{job.held.split(' ')[0]}" not in self.bids():
                self.world.run(
                    deliveries.turn(self.partition, [Settled(job, DELIVERED)], [], process=slot, probes_max=0)
                )
                del self.ledger.doing[slot]

    @precondition(lambda self: self.ledger.letters)
    @rule(data=st.data(), is_redriven=st.booleans())
    def letters_are_redriven_or_destroyed(self, data: st.DataObject, is_redriven: bool) -> None:
        """Those that block their lanes take their places again, before all that waits."""
        ledger = self.ledger
        ids = data.draw(st.lists(st.sampled_from([*ledger.letters]), min_size=1, unique=True))
        ids = [id_ for id_ in ledger.lane if id_ in ids]
        self.world.tick()
        letters = [ledger.letters.pop(id_) for id_ in ids]
        if is_redriven:
            redriven = self.world.run(dead_letters.redrive(self.partition, ANN, letters, version=0))
            assert redriven.letters == len(letters)
            ledger.ended -= {*ids}
            ledger.loose |= {*ids} - ledger.blocking.keys()
            ledger.accepted = {id_: when for id_, when in ledger.accepted.items() if id_ not in ids}
        else:
            assert self.world.run(dead_letters.purge(self.partition, "ann", letters, version=0)).letters == len(letters)
        for id_ in ids:
            ledger.blocking.pop(id_, None)

    @precondition(lambda self: self.ledger.letters)
    @rule(lane=some_lane, size=st.integers(1, 400), data=st.data())
    def letters_are_redriven_while_a_batch_takes_events(self, lane: str, size: int, data: st.DataObject) -> None:
        """The batch that they make is not the one that follows it."""
        self.publish([lane])
        self.time_passes(1)
        self.letters_are_redriven_or_destroyed(data, is_redriven=True)
        self.time_passes(1)
        self.publish([lane] * (ANN.max_events + 1))
        self.drop_beyond_a_bound(size)

    @precondition(lambda self: self.ledger.letters)
    @rule(most=st.integers(1, 3))
    def letters_are_dropped(self, most: int) -> None:
        """The oldest, as there are too many: lanes that they hold are let go."""
        ledger = self.ledger
        self.world.tick()
        self.world.run(dead_letters.drop_oldest(self.partition, "ann", letters_max=most))
        left = {*strings(self.world.ask(self.partition, ["HKEYS", "dead:letters:ann"])[0])}
        gone = {id_ for id_, letter in ledger.letters.items() if letter not in left}
        assert len(gone) == min(most, len(ledger.letters))
        for id_ in gone:
            del ledger.letters[id_]
            ledger.blocking.pop(id_, None)

    @rule(ages=st.integers(1, 2))
    def lease_is_taken(self, ages: int) -> None:
        """By a caller without a slot, as a Spark task is; it ends by itself, if it is not settled."""
        self.world.tick()
        lease = f"lease-{next(self.numbers)}"
        permit = self.world.run(
            receivers.take_permit(self.partition, "ann", lease=lease, limit=1, version=0, lease_ms=ages * AGE_MS)
        )
        if permit.answer is Answer.GO:
            assert not self.ledger.doing, "called twice at a time"
            self.ledger.leases.append(lease)

    @precondition(lambda self: self.ledger.leases)
    @rule(settlement=st.sampled_from((DELIVERED, RETURNED, Settlement("failed", raises=True, probe_ms=AGE_MS))))
    def lease_is_settled(self, settlement: Settlement) -> None:
        """It may have ended before."""
        self.world.tick()
        lease = self.ledger.leases.pop()
        self.world.run(receivers.settle(self.partition, "ann", Permit(Answer.GO, lease), settlement))

    @precondition(lambda self: self.ledger.set_aside)
    @rule()
    def what_was_set_aside_is_purged(self) -> None:
        """What the subscriber has got since it came back stays."""
        [keys] = [self.world.run(self.partition.command("KEYS", self.partition.key("batches:retired:*")))]
        for key in strings(cast("list[bytes]", keys)):
            rid = key.rpartition(":")[2]
            assert self.world.run(batches.purge(self.partition, rid, batches_max=1000, counter="purged")) == 0
        self.ledger.set_aside = 0

    @rule(lane=some_lane, more=some_lanes, data=st.data())
    def letters_of_a_lane_are_redriven_one_by_one(self, lane: str, more: list[str], data: st.DataObject) -> None:
        """They hold it together, whatever the order in which they are brought back."""
        self.publish([lane] * data.draw(st.integers(2, 4)))
        self.several_are_worked_on(["dead"] * 3, 1, data)
        self.publish([*more, lane])
        for _ in range(2):
            if self.ledger.letters:
                self.letters_are_redriven_or_destroyed(data, data.draw(st.booleans()))
            self.several_are_worked_on(["delivered"] * 2, 1, data)

    @rule()
    def retire(self) -> None:
        """The subscriber leaves: what waits is set aside, also in lanes."""
        self.ledger.blocking.clear()
        self.ledger.set_aside += len(self.ledger.waiting)
        self.ledger.ended |= self.ledger.waiting
        self.world.run(subscribers.retire(self.partition, "ann", version=0))
        for slot, job in self.ledger.doing.items():
            self.world.run(deliveries.turn(self.partition, [Settled(job, RETURNED)], [], process=slot, probes_max=0))
        self.ledger.doing.clear()
        [keys] = [self.world.run(self.partition.command("KEYS", self.partition.key("order:*")))]
        assert keys == []

    @rule(ages=st.integers(1, 2))
    def time_passes(self, ages: int) -> None:
        self.world.tick()
        self.world.pass_ages(ages)

    @rule()
    def all_is_delivered(self) -> None:
        """Once the receiver takes everything, and no letter blocks a lane, nothing stays behind."""
        blocking, ledger = [*self.ledger.blocking.values()], self.ledger
        self.world.run(dead_letters.purge(self.partition, "ann", blocking, version=0))
        ledger.letters = {id_: letter for id_, letter in ledger.letters.items() if id_ not in ledger.blocking}
        ledger.blocking.clear()
        for _ in range(400):
            if not self.ledger.waiting:
                break
            for slot, job in [*self.ledger.doing.items()]:
                settled = self.attempted(job, "delivered", 0, st.data()) if job.batch else Settled(job, DELIVERED)
                self.world.tick()
                turn = self.world.run(deliveries.turn(self.partition, [settled], [slot], process=slot, probes_max=1))
                self.ledger.doing = {each.slot: each for each in turn.jobs}
            if not self.ledger.doing:
                self.world.pass_ages(3)
                self.take("p")
        assert not self.ledger.waiting
        self.teardown_lanes()

    def teardown_lanes(self) -> None:
        """Whoever holds a lane was dropped, if any: its job ends when it is due."""
        for slot, job in [*self.ledger.doing.items()]:
            self.world.run(deliveries.turn(self.partition, [Settled(job, RETURNED)], [], process=slot, probes_max=0))
            self.ledger.doing.clear()
        for _ in range(3):
            self.world.pass_ages(3)
            self.world.run(deliveries.turn(self.partition, [], ["p"], process="p", probes_max=1))
        assert self.world.run(self.partition.command("KEYS", self.partition.key("order:*"))) == []
        state = self.world.run(receivers.states(self.partition, ["ann"]))["ann"]
        assert (state.lanes, state.served, state.held) == (0, "", 0)

    def bids(self) -> list[str]:
        return strings(self.world.ask(self.partition, ["ZRANGE", "batches:index:ann", 0, -1])[0])

    def held(self) -> list[str]:
        """The events of all batches."""
        bids = self.bids()
        lines = self.world.ask(self.partition, *(["LRANGE", f"batch:{bid}", 4, -1] for bid in bids)) if bids else []
        return [id_ for chunks in lines for id_ in ids_of(chunks)]

    @invariant()
    def each_event_is_in_one_batch_and_each_batch_where_its_job_is(self) -> None:
        held = Counter(self.held())
        assert held == Counter(self.ledger.waiting)
        line, scheduled, pending, lanes, holders, let_go, gauge = self.world.ask(
            self.partition,
            ["LRANGE", f"jobs:instant:{MAIN}:ann", 0, -1],
            ["ZRANGE", f"jobs:scheduled:{MAIN}", 0, -1],
            ["HVALS", f"jobs:pending:{MAIN}"],
            ["HGETALL", "order:held:ann"],
            ["HGETALL", "order:holders:ann"],
            ["LRANGE", "order:let_go:ann", 0, -1],
            ["HGET", "batches:gauges:event", "ann"],
        )
        by_lane = dict(zip(strings(lanes[0::2]), strings(lanes[1::2]), strict=True))
        by_holder = dict(zip(strings(holders[0::2]), strings(holders[1::2]), strict=True))
        behind = [
            bid
            for lane in LANES
            for bid in strings(self.world.ask(self.partition, ["LRANGE", f"order:waiting:ann:{lane}", 0, -1])[0])
            if lane in by_lane
        ]
        jobs_ = [*strings(line), *(job.split(" ")[0] for job in strings(scheduled))]
        jobs_ += [job.split(" ")[0] for job in strings(pending) if not job.startswith("\n")]
        # Redriven behind a letter that holds the lane before them: they come into the line in their turn.
        in_turn = [
            holder
            for lane in LANES
            for holder in strings(self.world.ask(self.partition, ["LRANGE", f"order:behind:ann:{lane}", 0, -1])[0])
        ]
        assert {*in_turn} <= {*by_holder}
        found = Counter([*jobs_, *behind, *in_turn])
        assert all(found[bid] == 1 for bid in self.bids())
        assert {(holder, lane) for lane, holder in by_lane.items() if holder} <= {*by_holder.items()}
        assert {*by_holder.values()} <= {*by_lane}
        assert {*strings(let_go)} <= {*by_lane}
        assert int(gauge or 0) == sum(held.values()) + self.ledger.set_aside
        state = self.world.run(receivers.states(self.partition, ["ann"]))["ann"]
        assert (state.lanes, state.limit in {0, 1}) == (len(by_lane), True)
        self.receiver_is_where_it_is_found(state)
        # Whoever holds a lane will be found again, if only to be missed: its job is somewhere.
        assert {*by_holder} <= {*jobs_, *in_turn, *self.ledger.blocking.values()}

    def receiver_is_where_it_is_found(self, state: ReceiverRecord) -> None:
        """While a job is due and nobody calls it, it waits in one place; without one, in none."""
        line, served, pending, leases, *scores = self.world.ask(
            self.partition,
            ["LLEN", f"jobs:instant:{MAIN}:ann"],
            ["LLEN", f"order:waiting:ann:{state.served}"],
            ["HVALS", f"jobs:pending:{MAIN}"],
            ["ZCARD", "permits:ann"],
            *(["ZSCORE", f"receivers:{seat}", "ann"] for seat in ("ring", "probes", "wake")),
        )
        assert state.held == sum(not job.startswith("\n") for job in strings(pending))
        assert state.leased == leases
        assert [seat for seat, score in enumerate(scores, 1) if score is not None] == (
            [state.seat] if state.seat else []
        )
        is_due = line + (served if state.served else 0) > 0
        assert state.seat == 0 or is_due
        assert state.seat > 0 or not is_due or state.held > 0


def ids_of(chunks: list[bytes]) -> list[str]:
    return [msgspec.json.decode(line)["id"] for chunk in chunks for line in chunk.split(b"\n")]


async def publish(partition: Partition, some: list[tuple[str, str]], receiver: Subscriber = ANN) -> None:
    offers = []
    for id_, lane in some:
        topic, key = ("widgets", lane.partition("/")[2]) if "/" in lane else (lane.partition(":")[2], "")
        event = {"id": id_, "topic": topic} | ({"key": key} if key else {})
        offers.append(
            RoutedEvent(Route(EventKind(topic, "update", "default"), (receiver,)), msgspec.json.encode(event), "pam")
        )
    await events.publish(partition, offers, version=0, limits=PublishLimits(id_window_ms=1, ids_max=1))


@pytest.fixture(autouse=True)
def batches_are_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is of one millisecond is ordered by name: with random ones an example is not repeatable."""
    numbers = count()
    monkeypatch.setattr(events, "uids", lambda many: "".join(f"{next(numbers):020}" for _ in range(many)))
    monkeypatch.setattr(parts, "uid", lambda: f"{next(numbers):020}")
    monkeypatch.setattr(parts, "LANES_DIVIDED_MAX", 2)
    # For so long a permit is left to a lease that found none: by the real clock, an example would not be repeatable.
    monkeypatch.setattr(receivers, "WISH_MS", 0)


def test_events_of_a_key_arrive_in_the_order_of_acceptance(one: Topology):
    hold_law(one, OrderMachine, law(examples=60, steps=40))
