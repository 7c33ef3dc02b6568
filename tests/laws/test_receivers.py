"""The law of receivers: who may be called and has a due job is in the ring, and nobody else is.

The machine has its own picture of every receiver, line, slot and lease (tests/laws/receiver_model.py), which says what
each call gives, and compares it with everything in Redis after each step. Processes settle and take, lose replies and
send the same again, die and come late; receivers fail, refuse, recover, get other limits, go and come back.
"""

from dataclasses import dataclass, field
from itertools import count

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conftest import Topology
from doubledecker.model.event import EventKind
from doubledecker.model.job import MAIN
from doubledecker.model.routing import Route
from doubledecker.model.settlement import DELIVERED, FIRST, GONE, Settlement, What
from doubledecker.model.subscriber import Halt, Subscriber
from doubledecker.store import batches, deliveries, events, jobs, receivers, subscribers
from doubledecker.store.deliveries import DeliveryJob, Settled, Turn
from doubledecker.store.events import PublishLimits, RoutedEvent
from doubledecker.store.partitions import Partition
from doubledecker.store.receivers import Answer, Permit, ReceiverRecord
from laws.receiver_model import PROBES, RING, WAKE, WISH_AGES, Done, Given, Model, Moment, Receiver, Result, probe_order
from laws.world import AGE_MS, World, hold_law, law, pairs, strings

TOKENS = ("ann", "bob", "cid")
PROCESSES = ("p", "q")
SLOTS = {process: [f"{process}{n}" for n in range(3)] for process in PROCESSES}
LEASE_AGES = 2
FAILED = Settlement("failed", raises=True)
THEN = ("it is settled", "it ends", "it has moved")
ATTEMPT = '{"attempt":1}'
# A receiver that waits in the ring is passed by each other at most so often: once for its tie, and twice because it may
# have been called twice in this round, when it came in. One that was never called is passed but for a tie.
PASSED_MAX, NEW_PASSED_MAX = 3, 1

some_partition = st.integers(0, 2)
some_token = st.sampled_from(TOKENS)
some_process = st.sampled_from(PROCESSES)
some_ages = st.integers(0, 2)


@st.composite
def some_settlement(draw: st.DrawFn) -> Settlement:
    what = draw(st.sampled_from(["delivered", "delivered", "refused", "failed", "failed", "returned", "cut"]))
    if what == "delivered":
        return DELIVERED
    retry_ages = draw(st.integers(0, 2) if what == "refused" else st.integers(-1, 1))
    retry_ms = FIRST if retry_ages < 0 else retry_ages * AGE_MS
    if what in {"returned", "cut"}:
        return Settlement(what, retry_ms=retry_ms, is_counted=draw(st.booleans()))
    probe_ms = draw(some_ages) * AGE_MS
    kind: What = "refused" if what == "refused" else "failed"
    parts_max, is_counted = draw(st.integers(0, 2)), draw(st.booleans())
    return Settlement(kind, draw(st.booleans()), probe_ms, retry_ms, parts_max=parts_max, is_counted=is_counted)


@dataclass
class Process:
    """What a process knows: what its slots do, and what it sent without hearing an answer.

    With a job goes since when its receiver, as it is called, has begun anew.
    """

    name: str
    doing: dict[str, tuple[Given, DeliveryJob, int]] = field(default_factory=dict)
    unheard: list[tuple[Done, Settled]] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)

    @property
    def idle(self) -> list[str]:
        return [slot for slot in SLOTS[self.name] if slot not in self.doing and slot not in self.doubtful]


@dataclass(frozen=True)
class Call:
    """What a process sends in one call."""

    process: str
    sent: list[tuple[Done, Settled]]
    slots: list[str]
    probes_max: int


@dataclass
class Ground:
    """A partition, how it should be, and what the processes know of it."""

    partition: Partition
    model: Model = field(default_factory=Model)
    processes: dict[str, Process] = field(default_factory=lambda: {name: Process(name) for name in PROCESSES})
    calls: list[Call] = field(default_factory=list)
    permits: dict[tuple[str, str], Permit] = field(default_factory=dict)
    beats: dict[str, int] = field(default_factory=dict)
    # Of receivers that never had more than one permit: the last batch that each was given.
    in_order: dict[str, int] = field(default_factory=dict)
    was_wide: set[str] = field(default_factory=set)


class ReceiversMachine(RuleBasedStateMachine):
    """Publishes to receivers of several partitions, and delivers from several processes."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.age = 0
        self.steps = count(1)
        self.concurrency = dict(zip(TOKENS, (1, 2, 6), strict=True))
        # How many ages apart the calls of each begin; 0 is no bound.
        self.every = dict.fromkeys(TOKENS, 0)
        # As home has them: since when each has begun anew, and whether it is paused or disabled.
        self.anew = dict.fromkeys(TOKENS, 0)
        self.halts = dict.fromkeys(TOKENS, Halt.NONE)
        self.grounds = [Ground(partition) for partition in world.partitions.all]
        self.touched = self.grounds[0]

    @initialize()
    def start(self) -> None:
        self.world.empty()
        self.began_at = self.world.run(self.world.partitions.home.time_ms())

    def at(self, index: int) -> Ground:
        """Begin a step in a partition, in a millisecond of its own."""
        self.world.tick()
        self.touched = self.grounds[index % len(self.grounds)]
        self.touched.model.now = Moment(self.age, next(self.steps))
        return self.touched

    # What comes in, and how many may be called.

    @rule(index=some_partition, token=some_token, many=st.integers(1, 3))
    def publish(self, index: int, token: str, many: int) -> None:
        for _ in range(many):
            ground = self.at(index)
            who = self.receiver(token)
            self.world.run(publish(ground.partition, who))
            [bid] = self.world.ask(ground.partition, ["LINDEX", f"jobs:instant:{MAIN}:{token}", 0])
            permits = receivers.permits(who.concurrency, ground.partition)
            ground.model.accept(bid.decode(), token, permits, self.apart(ground, token))

    @rule(index=some_partition, many=st.integers(1, 2))
    def publish_to_all(self, index: int, many: int) -> None:
        """Hypothesis leaves each rule out of half of its examples; what all depends on is there twice."""
        for token in TOKENS:
            self.publish(index, token, many)

    @rule(token=some_token, concurrency=st.integers(1, 9), has_moved=st.booleans())
    def save_but_tell_nobody(self, token: str, concurrency: int, has_moved: bool) -> None:
        """A process died on the way: partitions hear of it with the next permit, call or sweep."""
        self.concurrency[token] = concurrency
        self.anew[token] += has_moved

    @rule(token=some_token, concurrency=st.integers(1, 9), has_moved=st.booleans())
    def save(self, token: str, concurrency: int, has_moved: bool) -> None:
        self.concurrency[token] = concurrency
        self.anew[token] += has_moved
        for ground in self.grounds:
            self.save_one(ground, token)

    def save_one(self, ground: Ground, token: str) -> None:
        self.world.tick()
        who = self.receiver(token)
        assert self.world.run(receivers.save(ground.partition, token, who, version=0))
        ground.model.now = Moment(self.age, next(self.steps))
        limit = receivers.permits(who.concurrency, ground.partition)
        self.model_save(ground, token, limit)

    def model_save(self, ground: Ground, token: str, limit: int) -> None:
        every, anew_since = self.apart(ground, token), self.anew[token]
        ground.model.save(token, limit, every, anew_since=anew_since, halt=self.halts[token])

    def receiver(self, token: str) -> Subscriber:
        """As home has it."""
        return a_receiver(
            token, self.concurrency[token], self.halts[token], every=self.every[token], anew_since=self.anew[token]
        )

    def apart(self, ground: Ground, token: str) -> int:
        """Its rate is divided among partitions, so in each its calls begin further apart."""
        return self.every[token] * ground.partition.count

    @rule(token=some_token, every=some_ages)
    def pace(self, token: str, every: int) -> None:
        """Its calls begin so many ages apart from now on."""
        self.every[token] = every
        for ground in self.grounds:
            self.save_one(ground, token)

    @rule(token=some_token, halt=st.sampled_from([Halt.PAUSED, Halt.DISABLED]), reached=st.integers(0, 3))
    def halt(self, token: str, halt: Halt, reached: int) -> None:
        """Also while it fails, and while it is called; who does it may die before all partitions know."""
        self.halts[token] = halt
        for ground in self.grounds[:reached]:
            self.save_one(ground, token)

    @rule(token=some_token, is_anew=st.booleans())
    def go_on(self, token: str, is_anew: bool) -> None:
        """It is resumed, or enabled again, and called as before."""
        self.halts[token] = Halt.NONE
        self.anew[token] += is_anew
        for ground in self.grounds:
            self.save_one(ground, token)

    @rule(index=some_partition)
    def reconcile(self, index: int) -> None:
        """What nobody told a partition, the sweep does: of those that differ permits, halts, and who began anew."""
        ground = self.at(index)
        known = {token: self.receiver(token) for token in TOKENS}
        self.world.run(receivers.reconcile(ground.partition, known, version=0))
        for token in TOKENS:
            it = ground.model.receivers.get(token, Receiver(token))
            limit = receivers.permits(self.concurrency[token], ground.partition)
            every = self.apart(ground, token)
            is_changed = (it.limit, it.every, it.anew_since) != (limit, every, self.anew[token])
            if (it.limit and is_changed) or it.halt != self.halts[token]:
                self.model_save(ground, token, limit)

    @rule(index=some_partition, token=some_token)
    def forget(self, index: int, token: str) -> None:
        """Calls under way still hold their permits, if it comes back."""
        ground = self.at(index)
        self.world.run(receivers.save(ground.partition, token, None, version=0))
        ground.model.save(token, 0, 0, anew_since=0, halt=Halt.NONE)

    @rule(index=some_partition, token=some_token)
    def retire(self, index: int, token: str) -> None:
        """What waits is set aside; calls under way go on, and hold their permits against those of its next self."""
        ground = self.at(index)
        self.world.run(subscribers.retire(ground.partition, token, version=0))
        ground.model.retire(token)

    @rule(index=some_partition, token=some_token, many=st.integers(1, 3))
    def drop(self, index: int, token: str, many: int) -> None:
        """The oldest are lost, those under way among them; their jobs end when they are due."""
        ground = self.at(index)
        lost = self.world.run(dropped(ground.partition, token, many))
        assert lost == ground.model.drop(token, many)

    # What processes do.

    @rule(
        index=some_partition,
        name=some_process,
        data=st.data(),
        asks=st.integers(0, 3),
        probes_max=st.integers(0, 2),
        is_lost=st.booleans(),
    )
    def turn(self, index: int, name: str, data: st.DataObject, asks: int, probes_max: int, is_lost: bool) -> None:
        """Settle some, and take as many as there are slots; what was sent before without an answer is sent again."""
        process = self.grounds[index % len(self.grounds)].processes[name]
        ended = data.draw(st.lists(st.sampled_from(sorted(process.doing)), unique=True)) if process.doing else []
        how = {slot: data.draw(some_settlement()) for slot in ended}
        slots = [*ended, *process.idle][:asks]
        is_twice = bool(slots) and data.draw(st.booleans())
        self.one_turn(index, name, how, slots + slots[:is_twice], probes_max, is_lost=is_lost)

    @rule(index=some_partition, probes_max=st.integers(0, 2), settlement=some_settlement())
    def all_processes_take_and_settle(self, index: int, probes_max: int, settlement: Settlement) -> None:
        """All ask; then every other call is delivered, of the rest the same becomes, and slots go on."""
        for name in PROCESSES:
            process = self.grounds[index % len(self.grounds)].processes[name]
            self.one_turn(index, name, {}, process.idle, probes_max)
            how = {slot: settlement if i % 2 else DELIVERED for i, slot in enumerate(process.doing)}
            self.one_turn(index, name, how, list(how), probes_max)

    @rule(index=some_partition, times=st.integers(1, 8), settlement=some_settlement())
    def the_same_becomes_of_many(self, index: int, times: int, settlement: Settlement) -> None:
        """One slot goes on and on, and all that it is given ends in the same way."""
        self.publish_to_all(index, 2)
        process = self.grounds[index % len(self.grounds)].processes["p"]
        self.one_turn(index, "p", {}, process.idle[:1], 1)
        for _ in range(times):
            how = dict.fromkeys([*process.doing][:1], settlement)
            self.one_turn(index, "p", how, [*how, *process.idle][:1], 1)

    @rule(index=some_partition, token=some_token, times=st.integers(3, 7), raises=st.sampled_from([True, True, False]))
    def one_refuses_in_a_row(self, index: int, token: str, times: int, raises: bool) -> None:
        """Different batches, or the same once more, while all others take theirs."""
        self.publish(index, token, times)
        process = self.touched.processes["p"]
        refused = Settlement("refused", raises=raises, retry_ms=AGE_MS)
        for _ in range(times):
            self.one_turn(index, "p", {}, process.idle, 1)
            how = {slot: refused if job.token == token else DELIVERED for slot, (_, job, _) in process.doing.items()}
            self.one_turn(index, "p", how, [], 1)

    @rule(index=some_partition, alive=st.sampled_from([(), ("p",)]), settlement=some_settlement())
    def slots_die_and_settle_late(self, index: int, alive: tuple[str, ...], settlement: Settlement) -> None:
        self.publish_to_all(index, 2)
        for name in PROCESSES:
            self.one_turn(index, name, {}, self.touched.processes[name].idle, 1)
        self.time_passes(1)
        self.scrub(index, alive)
        for name in PROCESSES:
            self.one_turn(index, name, dict.fromkeys(self.touched.processes[name].doing, settlement), [], 1)

    @rule(index=some_partition, sooner=st.permutations([1, 2]), token=some_token)
    def others_wait_while_one_settles(self, index: int, sooner: list[int], token: str) -> None:
        """Who settles offers no slot, so it is the other who has to know what to wait for."""
        self.publish(index, token, 2)
        process = self.touched.processes["p"]
        self.one_turn(index, "p", {}, process.idle, 1)
        for ages in sooner:
            self.one_turn(index, "q", {}, self.touched.processes["q"].idle, 0)
            how = dict.fromkeys([*process.doing][:1], Settlement("refused", retry_ms=ages * AGE_MS))
            self.one_turn(index, "p", how, [], 0)

    @rule(index=some_partition, token=some_token, settlement=some_settlement())
    def a_receiver_goes_during_its_calls(self, index: int, token: str, settlement: Settlement) -> None:
        self.publish(index, token, 2)
        process = self.touched.processes["p"]
        self.one_turn(index, "p", {}, process.idle, 1)
        self.retire(index, token)
        how = {slot: settlement for slot, (_, job, _) in process.doing.items() if job.token == token}
        self.one_turn(index, "p", how, [], 0)

    @rule(index=some_partition, token=some_token, settlement=some_settlement(), has_ended=st.booleans())
    def slots_wait_for_a_lease(self, index: int, token: str, settlement: Settlement, has_ended: bool) -> None:
        """It is given back, or ends, and another is asked for."""
        while (lease := f"lease-{next(self.steps)}") and self.take_one_permit(self.at(index), token, lease):
            pass
        self.publish(index, token, 1)
        for name in PROCESSES:
            self.one_turn(index, name, {}, self.touched.processes[name].idle, 0)
        if has_ended:
            self.time_passes(LEASE_AGES)
            self.take_one_permit(self.at(index), token, f"lease-{next(self.steps)}")
        mine = [lease for whose, lease in self.touched.permits if whose == token]
        for lease in mine[:1]:
            self.settle_one_permit(self.at(index), token, lease, settlement)

    @rule(index=some_partition, token=some_token, has_ended=st.booleans(), asks=st.integers(1, 3))
    def leases_are_wished_for_beside_a_backlog(self, index: int, token: str, has_ended: bool, asks: int) -> None:
        """Slots leave one free, which is taken in time, or not."""
        self.publish(index, token, 4)
        process = self.touched.processes["p"]
        for _ in range(asks):
            self.one_turn(index, "p", {}, process.idle, 0)
            self.take_one_permit(self.at(index), token, f"lease-{next(self.steps)}")
            self.one_turn(index, "p", dict.fromkeys(process.doing, DELIVERED), list(process.doing), 0)
            if has_ended:
                self.time_passes(WISH_AGES)
            self.take_one_permit(self.at(index), token, f"lease-{next(self.steps)}")

    @rule(index=some_partition, probe_ages=st.integers(0, 1), settlement=some_settlement())
    def all_fail_and_are_probed(self, index: int, probe_ages: int, settlement: Settlement) -> None:
        """By slots of both processes, of which one loses its replies."""
        self.all_fail(index, probe_ages)
        for is_lost in (True, True, False):
            for name in PROCESSES:
                idle = self.grounds[index % len(self.grounds)].processes[name].idle
                self.one_turn(index, name, {}, idle, 1, is_lost=is_lost)
        doing = self.touched.processes["q"].doing
        self.one_turn(index, "q", dict.fromkeys(doing, settlement), [], 0, is_lost=True)

    @rule(index=some_partition, token=some_token, probe_ages=st.integers(0, 1), then=st.sampled_from(THEN))
    def all_fail_and_are_probed_on_leases(self, index: int, token: str, probe_ages: int, then: str) -> None:
        """The probe comes to its end in some way, while the receiver has more to be delivered."""
        self.all_fail(index, probe_ages)
        ground = self.at(index)
        lease = f"lease-{next(self.steps)}"
        self.take_one_permit(ground, token, lease)
        if then == "it ends":
            self.time_passes(LEASE_AGES)
        if then == "it has moved":
            self.save(token, 9, has_moved=True)
        self.one_turn(index, "q", {}, ground.processes["q"].idle, 1)
        if (token, lease) in ground.permits:
            self.settle_one_permit(self.at(index), token, lease, FAILED)
        self.one_turn(index, "q", dict.fromkeys(ground.processes["q"].doing, FAILED), [], 0)

    def all_fail(self, index: int, probe_ages: int) -> None:
        """With a slot of one process, while the others may go on."""
        self.publish_to_all(index, 2)
        self.one_turn(index, "q", {}, self.touched.processes["q"].idle[:1], 0)
        process = self.touched.processes["p"]
        self.one_turn(index, "p", {}, process.idle, 1)
        failed = Settlement("failed", raises=True, probe_ms=probe_ages * AGE_MS)
        self.one_turn(index, "p", dict.fromkeys(process.doing, failed), [], 1)
        if probe_ages:
            self.time_passes(probe_ages)

    def one_turn(
        self,
        index: int,
        name: str,
        how: dict[str, Settlement],
        slots: list[str],
        probes_max: int,
        *,
        is_lost: bool = False,
    ) -> None:
        ground = self.at(index)
        process = ground.processes[name]
        new = [settled(*process.doing.pop(slot), settlement) for slot, settlement in how.items()]
        sent = [*process.unheard, *new]
        asked = [*process.doubtful, *(slot for slot in slots if slot not in process.doubtful)]
        call = Call(name, sent, asked, probes_max)
        found = self.make(ground, call)
        ground.calls.append(call)
        if is_lost:
            process.unheard = sent
            process.doubtful = list(dict.fromkeys([*asked, *how]))
        else:
            process.unheard, process.doubtful = [], []
            process.doing |= found

    @precondition(lambda self: any(ground.calls for ground in self.grounds))
    @rule(data=st.data())
    def an_old_call_arrives(self, data: st.DataObject) -> None:
        """It was on its way when its process gave up on it, and sent it again: nobody hears the answer."""
        index = data.draw(st.sampled_from([i for i, ground in enumerate(self.grounds) if ground.calls]))
        self.make(ground := self.at(index), data.draw(st.sampled_from(ground.calls[-3:])))

    def make(self, ground: Ground, call: Call) -> dict[str, tuple[Given, DeliveryJob, int]]:
        """Make a call to Redis and to the model, and compare what they say; returns what slots hold by it."""
        ground.was_wide |= {it.token for it in ground.model.receivers.values() if it.limit > 1}
        again = {slot for slot in call.slots if slot in ground.model.pending}
        before = self.world.run(ground.partition.time_ms())
        turn = self.world.run(
            deliveries.turn(
                ground.partition,
                [each for _, each in call.sent],
                call.slots,
                process=call.process,
                probes_max=call.probes_max,
            )
        )
        after = self.world.run(ground.partition.time_ms())

        done = [each for each, _ in call.sent]
        results, given = ground.model.turn(done, call.slots, call.process, call.probes_max)
        assert [Result(each.is_ours, each.failures_before, each.failures) for each in turn.results] == results
        self.check_jobs(ground, turn, given)
        fresh = [each for each in given if each.slot not in again]
        self.check_permits(ground, {each.batch.token for each in fresh})
        self.check_order(ground, fresh)
        assert sum(each.is_probe for each in fresh) <= call.probes_max
        is_full = len(given) == len(call.slots)
        self.check_wait(ground, turn.wait_ms, is_full=is_full, span=(before, after))
        return {each.slot: (each, job, self.anew[job.token]) for each, job in zip(given, turn.jobs, strict=True)}

    # What callers without slots do.

    @rule(index=some_partition, token=some_token, data=st.data(), is_stale=st.booleans())
    def take_permit(self, index: int, token: str, data: st.DataObject, is_stale: bool) -> None:
        """Those who have one ask again, as they do when a reply was lost: it is the same permit."""
        ground = self.at(index)
        mine = [lease for whose, lease in ground.permits if whose == token]
        lease = data.draw(st.sampled_from([*mine, f"lease-{next(self.steps)}"]))
        if is_stale:
            permit = self.world.run(permitted(ground.partition, token, lease, limit=1, version=-1))
            assert permit.answer is Answer.STALE
        else:
            self.take_one_permit(ground, token, lease)

    def take_one_permit(self, ground: Ground, token: str, lease: str) -> bool:
        limit = receivers.permits(self.concurrency[token], ground.partition)
        every = self.apart(ground, token)
        known = {"every": every * AGE_MS, "anew_since": self.anew[token]}
        permit = self.world.run(permitted(ground.partition, token, lease, limit=limit, version=0, **known))
        answer = ground.model.take_permit(token, lease, limit, every, LEASE_AGES, self.anew[token])
        assert permit.answer.value == answer
        if permit.answer is Answer.GO:
            assert permit.failures == ground.model.receivers[token].failures
            self.check_permits(ground, {token} if (token, lease) not in ground.permits else set())
            ground.permits[token, lease] = permit
        else:
            assert (permit.wait_ms > 0) == (permit.answer is not Answer.PAUSED)
        return permit.answer is Answer.GO

    @rule(index=some_partition, token=some_token)
    def renew(self, index: int, token: str) -> None:
        """A permit that has ended is kept if nobody has noticed."""
        ground = self.at(index)
        mine = [lease for whose, lease in ground.permits if whose == token]
        kept = self.world.run(receivers.renew(ground.partition, token, mine, lease_ms=LEASE_AGES * AGE_MS))
        assert kept == ground.model.renew(token, mine, LEASE_AGES)

    @precondition(lambda self: any(ground.permits for ground in self.grounds))
    @rule(data=st.data(), settlement=some_settlement())
    def settle_permit(self, data: st.DataObject, settlement: Settlement) -> None:
        """Also of a permit that has ended meanwhile: the call was made."""
        ground = self.at(data.draw(st.sampled_from([i for i, ground in enumerate(self.grounds) if ground.permits])))
        token, lease = data.draw(st.sampled_from(sorted(ground.permits)))
        self.settle_one_permit(ground, token, lease, settlement)

    def settle_one_permit(self, ground: Ground, token: str, lease: str, settlement: Settlement) -> None:
        permit = ground.permits.pop((token, lease))
        is_attempt = settlement.what != "returned"

        def settle() -> tuple[int, int]:
            attempt, counts = (ATTEMPT, {f"tried:{token}": 1}) if is_attempt else ("", {})
            return self.world.run(
                receivers.settle(ground.partition, token, permit, settlement, attempt=attempt, counts=counts)
            )

        done = Done(permit.failures, settlement, FIRST, settlement.probe_ms // AGE_MS, is_attempt, permit.anew_since)
        assert settle() == ground.model.settle_permit(token, lease, done)
        if is_attempt:
            # The reply was lost, and it is sent again: it counts once. A receiver that is gone has no failures.
            failures = ground.model.receivers.get(token, Receiver(token)).failures
            assert settle() == (failures, failures)

    # What time does.

    @rule(ages=st.integers(1, 2))
    def time_passes(self, ages: int) -> None:
        self.world.pass_ages(ages)
        self.age += ages

    @rule(index=some_partition, alive=st.sampled_from([(), ("p",), PROCESSES]))
    def scrub(self, index: int, alive: tuple[str, ...]) -> None:
        """Slots whose last beat is an age old lose what they hold; they do not know it yet."""
        ground = self.at(index)
        slots = [slot for process in alive for slot in SLOTS[process]]
        if slots:
            self.world.run(jobs.beat(ground.partition, slots))
            ground.beats |= dict.fromkeys(slots, self.age)
        [known] = self.world.ask(ground.partition, ["HKEYS", f"jobs:pending:{MAIN}"])
        scrubbed = self.world.run(deliveries.scrub(ground.partition, dead_ms=AGE_MS))

        dead = [slot for slot in strings(known) if slot not in ground.beats or ground.beats[slot] < self.age]
        assert scrubbed == (len(dead), len(ground.model.pending.keys() & set(dead)))
        ground.model.scrub(dead)

    # What must hold.

    def check_jobs(self, ground: Ground, turn: Turn, given: list[Given]) -> None:
        assert [job.slot for job in turn.jobs] == [each.slot for each in given]
        for job, each in zip(turn.jobs, given, strict=True):
            batch = each.batch
            found = job.batch and (job.batch.bid, job.batch.token, job.batch.attempts)
            assert found == (None if batch.is_dropped else (batch.bid, batch.token, batch.attempts))
            assert (job.token, job.is_probe) == (batch.token, each.is_probe)
            assert job.failures == ground.model.receivers[batch.token].failures

    def check_permits(self, ground: Ground, called: set[str]) -> None:
        """No more calls at a time than the limit, and one probe."""
        for token in called:
            it = ground.model.receivers[token]
            assert not it.halt, "called while halted"
            assert not it.every or it.next == ground.model.now.after(it.every), "called before its rate allows"
            calls = ground.model.held(token)
            assert len(calls) + len(it.leases) <= max(1, it.limit)
            if it.failures:
                assert it.retry.age <= self.age, "called before its probe was due"
                assert sum(call.is_probe for call in (*calls, *it.leases.values())) == 1

    def check_order(self, ground: Ground, fresh: list[Given]) -> None:
        """One at a time, batches are given in order of acceptance, but for those put aside; and nobody is passed."""
        for each in fresh:
            token, number = each.batch.token, each.batch.number
            if token not in ground.was_wide and not each.batch.was_aside:
                assert number >= ground.in_order.get(token, 0), "a line was overtaken"
                ground.in_order[token] = number
        for it in ground.model.at(RING):
            assert max(it.passed.values(), default=0) <= (PASSED_MAX if it.calls else NEW_PASSED_MAX)

    def check_wait(self, ground: Ground, wait_ms: int | None, *, is_full: bool, span: tuple[int, int]) -> None:
        """The owner of a deadline waits for exactly it, the others a little longer; nobody when there is more."""
        heads = self.world.ask(
            ground.partition,
            ["ZRANGE", f"jobs:scheduled:{MAIN}", 0, 0, "WITHSCORES"],
            ["ZRANGE", "receivers:wake", 0, 0, "WITHSCORES"],
        )
        deadlines = [at for head in heads for at in pairs(head).values()]
        if is_full or not (deadlines or ground.model.is_more):
            assert wait_ms is None
            return
        assert wait_ms is not None
        if ground.model.is_more:
            assert wait_ms == 0
            return
        before, after = span
        lag = (deliveries.LAG_MS, 2 * deliveries.LAG_MS - 1) if ground.model.is_owned else (0, 0)
        assert min(deadlines) > after, "what is due waits on"
        assert min(deadlines) - after + lag[0] <= wait_ms <= min(deadlines) - before + lag[1]

    @invariant()
    def redis_is_as_the_model_says(self) -> None:
        ground, model = self.touched, self.touched.model
        packed, pending, scheduled, hungry, counters, attempts, journal, *each = self.world.ask(
            ground.partition,
            ["HMGET", "receivers", *TOKENS],
            ["HGETALL", f"jobs:pending:{MAIN}"],
            ["ZRANGE", f"jobs:scheduled:{MAIN}", 0, -1, "WITHSCORES"],
            ["SMEMBERS", f"jobs:hungry:{MAIN}"],
            ["HGETALL", "counters"],
            ["XLEN", "journal:attempts"],
            ["HGET", "journal", "attempts_bytes"],
            *(["LRANGE", f"jobs:instant:{MAIN}:{token}", 0, -1] for token in TOKENS),
            *(["ZRANGE", f"permits:{token}", 0, -1, "WITHSCORES"] for token in TOKENS),
        )
        self.check_slots(model, pending)
        assert self.ages(scheduled) == {job: at.age for job, (at, _) in model.scheduled.items()}
        assert set(strings(hungry)) == model.hungry
        counted = {name.decode(): number for name, number in pairs(counters).items()}
        assert {name: counted.get(name, 0) for name in model.counts} == model.counts
        assert (attempts, int(journal or 0)) == (model.attempts, model.attempts * len(ATTEMPT))
        lines, leases = each[: len(TOKENS)], each[len(TOKENS) :]
        for token, state, line, its in zip(TOKENS, packed, lines, leases, strict=True):
            it = model.receivers.get(token, Receiver(token))
            assert (state is not None) == (token in model.receivers)
            assert strings(line) == [batch.bid for batch in it.line]
            assert self.ages(its) == {name: lease.ends.age for name, lease in it.leases.items()}
            self.check_state(
                model, it, msgspec.msgpack.decode(state, type=ReceiverRecord) if state else ReceiverRecord()
            )
        self.check_places(ground)

    def check_slots(self, model: Model, pending: list[bytes]) -> None:
        """Each slot has its job, and the one that it settled last."""
        found = {}
        for slot, text in zip(pending[0::2], pending[1::2], strict=True):
            now, last = (" ".join(job.split(" ")[:2]) for job in text.decode().split("\n"))
            found[slot.decode()] = (now, last)
        assert found == {
            slot: tuple(held[slot].batch.job if slot in held else "" for held in (model.pending, model.last))
            for slot in model.pending.keys() | model.last.keys()
        }

    def check_state(self, model: Model, it: Receiver, state: ReceiverRecord) -> None:
        held = model.held(it.token)
        assert (state.held, state.leased, state.limit) == (len(held), len(it.leases), it.limit)
        assert state.halt == it.halt
        assert (state.every_ms, self.age_of(state.next_at) if state.next_at else 0) == (it.every * AGE_MS, it.next.age)
        assert (state.failures, state.refusals, state.tag) == (it.failures, it.refusals, it.tag)
        assert state.anew_since == it.anew_since
        assert (state.root, state.parts, state.ramp) == (it.root, it.parts, it.ramp)
        assert (self.age_of(state.wish) if state.wish else 0) == it.wish.age
        is_probed = any(call.is_probe for call in (*held, *it.leases.values()))
        assert bool(state.prober) == is_probed
        if it.failures:
            assert self.age_of(state.retry_at) == it.retry.age
            assert self.age_of(state.failing_since) == it.failing_since

    def check_places(self, ground: Ground) -> None:
        """Who may be called and has a due job is in the ring, and nobody else is."""
        ring, probes, waiting, turn = self.world.ask(
            ground.partition,
            ["ZRANGE", "receivers:ring", 0, -1, "WITHSCORES"],
            ["ZRANGE", "receivers:probes", 0, -1],
            ["ZRANGE", "receivers:wake", 0, -1, "WITHSCORES"],
            ["GET", "receivers:turn"],
        )
        model = ground.model
        halted = {it.token for it in model.receivers.values() if it.halt}
        seated = {name.decode() for name in (*pairs(ring), *probes, *pairs(waiting))}
        assert not halted & seated
        assert int(turn or 0) == model.present
        assert {name.decode(): tag for name, tag in pairs(ring).items()} == {it.token: it.tag for it in model.at(RING)}
        assert strings(probes) == [it.token for it in sorted(model.at(PROBES), key=probe_order)]
        assert self.ages(waiting) == {it.token: it.until.age for it in model.at(WAKE)}

    def ages(self, flat: list[bytes]) -> dict[str, int]:
        """A sorted set by time, as ages."""
        return {name.decode(): self.age_of(at) for name, at in pairs(flat).items()}

    def age_of(self, at: float) -> int:
        return int(at - self.began_at) // AGE_MS


def a_receiver(
    token: str, concurrency: int, halt: Halt = Halt.NONE, *, every: int = 0, anew_since: int = 0
) -> Subscriber:
    """One whose every event is a batch, and due at once."""
    return Subscriber(
        token,
        f"https://{token}",
        token,
        ("widgets",),
        0,
        max_events=1,
        concurrency=concurrency,
        rate_per_s=1000 / (every * AGE_MS) if every else 0.0,
        paused=halt is Halt.PAUSED,
        disabled_at=int(halt is Halt.DISABLED),
        anew_since=anew_since,
    )


async def publish(partition: Partition, *whom: Subscriber) -> None:
    offer = RoutedEvent(Route(EventKind("widgets", "update", "default"), whom), b"{}", "pam")
    await events.publish(partition, [offer], version=0, limits=PublishLimits(id_window_ms=1, ids_max=1))


async def dropped(partition: Partition, token: str, many: int) -> int:
    lost = await batches.drop_oldest(
        partition, token, batches_max=many, created_max=None, bytes_enough=2**53, counter="dropped"
    )
    return lost.batches


async def permitted(
    partition: Partition, token: str, lease: str, *, limit: int, every: float = 0, anew_since: int = 0, version: int
) -> Permit:
    lease_ms = LEASE_AGES * AGE_MS
    return await receivers.take_permit(
        partition,
        token,
        lease=lease,
        limit=limit,
        every=every,
        anew_since=anew_since,
        version=version,
        lease_ms=lease_ms,
    )


def settled(given: Given, job: DeliveryJob, anew_since: int, settlement: Settlement) -> tuple[Done, Settled]:
    """A settlement for the model, and the same for Redis.

    Nobody is called with a batch that was dropped; of those whose receiver is gone, some are tried and some are not.
    """
    if job.batch is None or (given.batch.is_gone and settlement.what == "returned"):
        settlement = GONE
    is_attempt = settlement.what not in {"returned", "gone"}
    ages = settlement.retry_ms // AGE_MS if settlement.retry_ms >= 0 else FIRST
    done = Done(job.failures, settlement, ages, settlement.probe_ms // AGE_MS, is_attempt, anew_since, given)
    if is_attempt:
        counts = {f"tried:{given.batch.token}": 1}
        return done, Settled(job, settlement, ATTEMPT, counts, anew_since=anew_since)
    return done, Settled(job, settlement)


@pytest.fixture(autouse=True)
def batches_are_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of one millisecond are ordered by their names: with random ones an example is not repeatable."""
    numbers = count()
    monkeypatch.setattr(receivers, "WISH_MS", WISH_AGES * AGE_MS)
    monkeypatch.setattr(events, "uids", lambda many: "".join(f"{next(numbers):020}" for _ in range(many)))


# A limit that is reached amid an example would be taken for a law that does not hold.
@pytest.mark.timeout(1200)
def test_who_may_be_called_and_has_a_due_job_is_in_the_ring_and_nobody_else(topology: Topology):
    hold_law(topology, ReceiversMachine, law(examples=50, steps=40))
