"""The law of aux jobs: each is in exactly one place, the same one is never there twice, and none is lost.

The machine keeps its own picture of every list and compares all of it with Redis after each step. Of its three
processes two listen for their bells; the third is dead, and does not.
"""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conftest import Topology
from doubledecker.model.job import AUX, Job
from doubledecker.store import jobs
from doubledecker.store.jobs import Taken
from doubledecker.store.partitions import Partition
from laws.world import AGE_MS, Ear, World, hold_law, law, pairs, strings

POOL = [Job("purge", ("ann", "1")), Job("purge", ("bob", "2")), Job("fanout", ("3",)), Job("monitor")]
TICK = Job("repair")
LISTENING, DEAD = ("p1", "p2"), "p3"
SLOTS = ("s1", "s2", "s3")
DEAD_MS = AGE_MS

some_partition = st.integers(0, 2)
some_slots = st.sampled_from([["s1"], ["s2", "s3"], ["s1", "s2", "s3"]])
some_process = st.sampled_from([*LISTENING, DEAD])


@dataclass
class Model:
    """One partition as it should be; `instant` has the next job last."""

    partition: Partition
    ears: dict[str, Ear]
    scheduled: dict[bytes, int] = field(default_factory=dict)
    instant: list[bytes] = field(default_factory=list)
    pending: dict[str, bytes] = field(default_factory=dict)
    holders: set[str] = field(default_factory=set)
    hungry: set[str] = field(default_factory=set)
    ticks: dict[bytes, int] = field(default_factory=dict)
    beats: dict[str, int] = field(default_factory=dict)
    held: dict[str, Taken] = field(default_factory=dict)
    late: list[Taken] = field(default_factory=list)

    @property
    def places(self) -> list[bytes]:
        """Every job, once for each place that it is in."""
        return [*self.scheduled, *self.instant, *self.pending.values()]

    def promote(self, *, now: int) -> None:
        for _, packed in sorted((score, packed) for packed, score in self.scheduled.items() if score <= now):
            del self.scheduled[packed]
            self.instant.insert(0, packed)


class JobsMachine(RuleBasedStateMachine):
    """Pushes, takes and settles jobs in all partitions."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.age = 0
        self.models = [
            Model(each, {process: world.ear(each, process) for process in LISTENING}) for each in world.partitions.all
        ]
        self.touched = self.models[0]

    @initialize()
    def start(self) -> None:
        self.world.empty()

    def at(self, index: int) -> Model:
        self.world.tick()
        self.touched = self.models[index % len(self.models)]
        return self.touched

    def now(self, model: Model) -> int:
        return self.world.run(model.partition.time_ms())

    @rule(index=some_partition, n=st.integers(0, 3), ages=st.integers(0, 2))
    def push(self, index: int, n: int, ages: int) -> None:
        model = self.at(index)
        packed = POOL[n].encode()
        before = self.now(model)
        is_added = self.world.run(jobs.push(model.partition, POOL[n], delay_ms=ages * AGE_MS))
        after = self.now(model)

        assert is_added == (packed not in model.places)
        if is_added and ages:
            score = self.schedule(model, packed)
            assert before + ages * AGE_MS <= score <= after + ages * AGE_MS
        elif is_added:
            model.instant.insert(0, packed)
            self.expect_bell(model)

    @rule(index=some_partition, ages=st.integers(0, 1))
    def push_all(self, index: int, ages: int) -> None:
        """Hypothesis leaves each rule out of half of its examples; what all depends on is there twice."""
        for n in range(len(POOL)):
            self.push(index, n, ages)

    @rule(index=some_partition, ages=st.integers(0, 2))
    def push_while_all_wait(self, index: int, ages: int) -> None:
        for process in (*LISTENING, DEAD):
            self.take(index, list(SLOTS), process)
        self.push(index, ages, ages)

    @rule(index=some_partition, ages=st.integers(1, 2))
    def push_recurring(self, index: int, ages: int) -> None:
        model = self.at(index)
        packed = TICK.encode()
        is_added = self.world.run(jobs.push(model.partition, TICK, every_ms=ages * AGE_MS))

        is_wanted = packed not in model.ticks or model.ticks[packed] + ages <= self.age
        assert is_added == (is_wanted and packed not in model.places)
        if is_added:
            model.ticks[packed] = self.age
            model.instant.append(packed)
            self.expect_bell(model)

    @rule(index=some_partition, slots=some_slots, process=some_process)
    def take(self, index: int, slots: list[str], process: str) -> None:
        """Slots that hold a job ask again, as they do when a reply was lost: they get the same one."""
        model = self.at(index)
        before = self.now(model)
        take = self.world.run(jobs.take(model.partition, slots, process=process))
        after = self.now(model)

        model.promote(now=before)
        for slot in slots:
            if slot not in model.pending and model.instant:
                model.pending[slot] = model.instant.pop()
        expected = {slot: model.pending[slot] for slot in slots if slot in model.pending}
        assert {taken.slot: taken.packed for taken in take.taken} == expected
        model.held |= {taken.slot: taken for taken in take.taken}
        model.holders |= expected.keys()
        model.hungry = model.hungry - {process} if len(expected) == len(slots) else model.hungry | {process}
        head = min(model.scheduled.values(), default=None)
        if head is None:
            assert take.wait_ms is None
        else:
            assert take.wait_ms is not None
            assert head - after <= take.wait_ms <= head - before

    @rule(index=some_partition, slots=some_slots)
    def beat_and_take(self, index: int, slots: list[str]) -> None:
        self.beat(index, slots)
        self.take(index, slots, LISTENING[0])

    @precondition(lambda self: any(model.held for model in self.models))
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        self.ack_one(*self.one_held(data))

    def ack_one(self, model: Model, taken: Taken) -> None:
        assert self.world.run(jobs.ack(taken))
        del model.pending[taken.slot]

    @rule(index=some_partition, ages=st.integers(0, 2))
    def a_recurring_job_is_pushed_again_after_it_was_run(self, index: int, ages: int) -> None:
        self.push_recurring(index, 1)
        self.take(index, list(SLOTS), LISTENING[0])
        model = self.at(index)
        while model.held:
            self.ack_one(model, model.held.popitem()[1])
        if ages:
            self.time_passes(ages)
        self.push_recurring(index, 1)

    @precondition(lambda self: any(model.held for model in self.models))
    @rule(data=st.data(), ages=st.integers(0, 2))
    def nack(self, data: st.DataObject, ages: int) -> None:
        model, taken = self.one_held(data)
        assert self.world.run(jobs.nack(taken, delay_ms=ages * AGE_MS))
        del model.pending[taken.slot]
        if ages:
            score = self.schedule(model, taken.packed)
            assert 0 <= self.now(model) + ages * AGE_MS - score < AGE_MS
        else:
            model.instant.append(taken.packed)
            self.expect_bell(model)

    @rule(index=some_partition, slots=some_slots)
    def beat(self, index: int, slots: list[str]) -> None:
        model = self.at(index)
        self.world.run(jobs.beat(model.partition, slots))
        model.beats.update(dict.fromkeys(slots, self.age))

    @rule(ages=st.integers(1, 2))
    def time_passes(self, ages: int) -> None:
        self.world.pass_ages(ages)
        self.age += ages

    @rule(index=some_partition)
    def scrub(self, index: int) -> None:
        """Slots whose last beat is an age old lose what they hold; they do not know it yet."""
        model = self.at(index)
        scrubbed = self.world.run(jobs.scrub(model.partition, dead_ms=DEAD_MS))

        dead = {slot for slot in model.holders if slot not in model.beats or model.beats[slot] + 1 <= self.age}
        model.holders -= dead
        returned = {slot: model.pending.pop(slot) for slot in dead & model.pending.keys()}
        assert scrubbed == (len(dead), len(returned))
        model.late += [model.held.pop(slot) for slot in returned]
        # Slots are scrubbed in no order that matters; what counts is that their jobs are next.
        if returned:
            [instant] = self.world.ask(model.partition, ["LRANGE", f"jobs:instant:{AUX}", 0, -1])
            assert sorted(instant[len(model.instant) :]) == sorted(returned.values())
            model.instant.extend(instant[len(model.instant) :])
            self.expect_bell(model)

    @rule(index=some_partition, delay_ages=st.sampled_from([None, 0, 1]))
    def all_slots_die_and_settle_late(self, index: int, delay_ages: int | None) -> None:
        self.take(index, list(SLOTS), LISTENING[0])
        self.time_passes(1)
        self.scrub(index)
        while self.touched.late:
            self.settle_one_late(self.touched, delay_ages)

    @precondition(lambda self: any(model.late for model in self.models))
    @rule(data=st.data(), delay_ages=st.sampled_from([None, 0, 1]))
    def settle_late(self, data: st.DataObject, delay_ages: int | None) -> None:
        """A slot that was taken for dead settles what is no longer its own: nothing changes."""
        model = self.at(data.draw(st.sampled_from([i for i, m in enumerate(self.models) if m.late])))
        self.settle_one_late(model, delay_ages)

    def settle_one_late(self, model: Model, delay_ages: int | None) -> None:
        taken = model.late.pop()
        if model.pending.get(taken.slot) == taken.packed:
            return  # the same slot has taken the same job again, so it is its own
        settle = jobs.ack(taken) if delay_ages is None else jobs.nack(taken, delay_ms=delay_ages * AGE_MS)
        assert not self.world.run(settle)

    @invariant()
    def redis_is_as_the_model_says(self) -> None:
        model = self.touched
        index, scheduled, instant, holders, hungry, *lists = self.world.ask(
            model.partition,
            ["SMEMBERS", f"jobs:index:{AUX}"],
            ["ZRANGE", f"jobs:scheduled:{AUX}", 0, -1, "WITHSCORES"],
            ["LRANGE", f"jobs:instant:{AUX}", 0, -1],
            ["SMEMBERS", f"jobs:pending:index:{AUX}"],
            ["SMEMBERS", f"jobs:hungry:{AUX}"],
            *(["LRANGE", f"jobs:pending:{AUX}:{slot}", 0, -1] for slot in SLOTS),
        )
        assert len(model.places) == len(set(model.places)), "a job is in two places"
        assert set(index) == set(model.places)
        assert pairs(scheduled) == model.scheduled
        assert instant == model.instant
        assert set(strings(holders)) == model.holders
        assert set(strings(hungry)) == model.hungry
        assert lists == [[model.pending[slot]] if slot in model.pending else [] for slot in SLOTS]
        assert not self.heard(model), "a bell that nobody expected"

    def one_held(self, data: st.DataObject) -> tuple[Model, Taken]:
        held = [(index, slot) for index, model in enumerate(self.models) for slot in model.held]
        index, slot = data.draw(st.sampled_from(held))
        model = self.at(index)
        return model, model.held.pop(slot)

    def schedule(self, model: Model, packed: bytes) -> int:
        """Learn when a job was scheduled for; the bell rings if that is before all others."""
        was_first = min(model.scheduled.values(), default=None)
        [score] = self.world.run(
            model.partition.commands([["ZSCORE", model.partition.key(f"jobs:scheduled:{AUX}"), packed]])
        )
        model.scheduled[packed] = int(score)
        if was_first is None or int(score) < was_first:
            self.expect_bell(model)
        return int(score)

    def expect_bell(self, model: Model) -> None:
        """One that waits and listens is told; the dead who waited may be forgotten on the way."""
        heard = self.heard(model)
        can_hear = model.hungry & set(LISTENING)
        assert len(heard) == min(1, len(can_hear))
        assert set(heard) <= can_hear
        [hungry] = self.world.ask(model.partition, ["SMEMBERS", f"jobs:hungry:{AUX}"])
        kept = set(strings(hungry))
        assert kept - {DEAD} == can_hear - set(heard)
        assert kept <= (model.hungry if heard else set())
        model.hungry = kept

    def heard(self, model: Model) -> list[str]:
        """Who was told since this was last asked, as often as it was."""
        return [process for process, ear in model.ears.items() for _ in range(self.world.run(ear.heard()))]


def test_each_job_is_in_exactly_one_place_and_none_is_lost(topology: Topology):
    hold_law(topology, JobsMachine, law(examples=40, steps=40))
