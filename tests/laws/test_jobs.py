"""The law of jobs: each is in exactly one place, the same one is never there twice, and none is lost.

The machine keeps its own picture of every list and compares all of it with Redis after each step.
"""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conftest import Topology
from doubledecker.model.job import AUX, MAIN, RETRY, Job
from doubledecker.store import batches, jobs
from doubledecker.store.batches import Batch, Settled
from doubledecker.store.jobs import Taken, Unparked
from doubledecker.store.partitions import Partition
from laws.world import AGE_MS, World, a_world, hold_law, law, pairs, strings

QUEUES = (RETRY, MAIN, AUX)
TOKENS = ("ann", "bob")
# As a worker has them: all slots serve first tries, some serve retries too, one serves the aux queue.
SLOTS = {RETRY: ["s1", "s2"], MAIN: ["s1", "s2", "s3"], AUX: ["aux"]}
POOL = {
    MAIN: [Job("batch", (f"m{n}", TOKENS[n % 2])) for n in range(5)],
    RETRY: [Job("batch", (f"r{n}", TOKENS[n % 2])) for n in range(3)],
    AUX: [Job("purge", ("ann", "1")), Job("monitor")],
}
DEAD_MS = AGE_MS
SETTLED_LATE = ("ack", "nack", "nack now", "park", "deliver")

some_partition = st.integers(0, 2)
some_tokens = st.sampled_from([(), (), ("ann",), TOKENS])
some_slots = st.sampled_from([["s1"], ["s2", "s3"], ["aux", "s1"], ["aux", "s1", "s2", "s3"]])


@dataclass
class Queue:
    """One queue as it should be; `instant`, and `called` for those that were put back, have the next job last."""

    scheduled: dict[bytes, int] = field(default_factory=dict)
    instant: list[bytes] = field(default_factory=list)
    called: list[bytes] = field(default_factory=list)
    pending: dict[str, bytes] = field(default_factory=dict)
    parked: dict[str, list[bytes]] = field(default_factory=lambda: {token: [] for token in TOKENS})
    holders: set[str] = field(default_factory=set)

    @property
    def places(self) -> list[bytes]:
        """Every job of the queue, once for each place that it is in."""
        parked = [job for line in self.parked.values() for job in line]
        return [*self.scheduled, *self.instant, *self.called, *self.pending.values(), *parked]


@dataclass
class Model:
    """One partition as it should be."""

    partition: Partition
    queues: dict[str, Queue] = field(default_factory=lambda: {queue: Queue() for queue in QUEUES})
    ticks: dict[bytes, int] = field(default_factory=dict)
    beats: dict[str, int] = field(default_factory=dict)
    held: dict[str, Taken] = field(default_factory=dict)
    late: list[Taken] = field(default_factory=list)
    owner: str | None = None
    bell: bytes = b""

    def called_for(self, token: str) -> int:
        return sum(Job.decode(job).args[1] == token for queue in (RETRY, MAIN) for job in self.queues[queue].called)


class JobsMachine(RuleBasedStateMachine):
    """Pushes, takes and settles jobs in all partitions."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.age = 0
        self.models = [Model(partition) for partition in world.partitions.all]
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

    @rule(index=some_partition, queue=st.sampled_from(QUEUES), n=st.integers(0, 4), ages=st.integers(0, 2))
    def push(self, index: int, queue: str, n: int, ages: int) -> None:
        model = self.at(index)
        job = POOL[queue][n % len(POOL[queue])]
        packed = job.encode()
        if queue == MAIN and packed in model.queues[RETRY].places:
            return  # a batch's job is pushed once in its life
        before = self.now(model)
        is_added = self.world.run(jobs.push(model.partition, queue, job, delay_ms=ages * AGE_MS))
        after = self.now(model)

        kept = model.queues[queue]
        assert is_added == (packed not in kept.places)
        if is_added and ages:
            was_first = min(kept.scheduled.values(), default=None)
            score = self.score(model, queue, packed)
            assert before + ages * AGE_MS <= score <= after + ages * AGE_MS
            kept.scheduled[packed] = score
            self.expect_bell(model, must_ring=was_first is None or score < was_first)
        elif is_added:
            kept.instant.insert(0, packed)
            self.expect_bell(model, must_ring=len(kept.instant) == 1)

    @rule(index=some_partition, first=st.integers(0, 4), ages=st.integers(0, 1))
    def push_some(self, index: int, first: int, ages: int) -> None:
        """Hypothesis leaves each rule out of half of its examples; what all depends on is there twice."""
        for n in range(3):
            self.push(index, MAIN, (first + n) % 5, ages)
        self.push(index, RETRY, first, 0)

    @rule(index=some_partition, ages=st.integers(1, 2))
    def push_recurring(self, index: int, ages: int) -> None:
        model = self.at(index)
        job = Job("scrub")
        packed = job.encode()
        kept = model.queues[AUX]
        is_added = self.world.run(jobs.push(model.partition, AUX, job, every_ms=ages * AGE_MS))

        is_wanted = packed not in model.ticks or model.ticks[packed] + ages <= self.age
        assert is_added == (is_wanted and packed not in kept.places)
        if is_added:
            model.ticks[packed] = self.age
            kept.instant.insert(0, packed)
        self.expect_bell(model, must_ring=is_added and len(kept.instant) == 1)

    @rule(
        index=some_partition,
        slots=some_slots,
        process=st.sampled_from(["p1", "p2"]),
        busy=some_tokens,
        sated=st.sampled_from([(), ("s1", "s3"), ("s1", "s2", "s3")]),
    )
    def take(
        self,
        index: int,
        slots: list[str],
        process: str,
        busy: tuple[str, ...] = (),
        sated: tuple[str, ...] = (),
    ) -> None:
        """Slots that hold a job ask again, as they do when a reply was lost: they get the same one."""
        model = self.at(index)
        offers = {queue: [slot for slot in SLOTS[queue] if slot in slots] for queue in QUEUES}
        offers = {queue: offered for queue, offered in offers.items() if offered}
        before = self.now(model)
        take = self.world.run(jobs.take(model.partition, offers, process=process, busy=busy, sated=sated))
        after = self.now(model)

        expected, parked_for = _expected_take(model, offers, busy, sated, now=before)
        assert sorted((t.slot, t.queue, t.packed, t.is_called) for t in take.taken) == sorted(expected)
        assert sorted(take.parked_for) == sorted(parked_for)
        for taken in take.taken:
            model.held[taken.slot] = taken
            model.queues[taken.queue].holders.add(taken.slot)
        heads = [score for queue in offers for score in model.queues[queue].scheduled.values()]
        self.check_wait(model, process, take.wait_ms, min(heads, default=None), (before, after))

    @rule(index=some_partition, slots=some_slots)
    def beat_and_take(self, index: int, slots: list[str]) -> None:
        self.beat(index, slots)
        self.take(index, slots, "p1")

    def check_wait(
        self, model: Model, process: str, wait_ms: int | None, head: int | None, span: tuple[int, int]
    ) -> None:
        """The owner of a deadline waits for exactly it, the others a little longer."""
        if head is None:
            assert wait_ms is None
            return
        assert wait_ms is not None
        before, after = span
        model.owner = model.owner or process
        lag = (0, 0) if model.owner == process else (jobs.LAG_MS, 2 * jobs.LAG_MS - 1)
        assert head - after + lag[0] <= wait_ms <= head - before + lag[1]

    @precondition(lambda self: any(model.held for model in self.models))
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        model, taken = self.one_held(data)
        assert self.world.run(jobs.ack(taken))
        del model.queues[taken.queue].pending[taken.slot]

    @precondition(lambda self: any(model.held for model in self.models))
    @rule(data=st.data(), ages=st.integers(0, 2))
    def nack(self, data: st.DataObject, ages: int) -> None:
        model, taken = self.one_held(data)
        assert self.world.run(jobs.nack(taken, delay_ms=ages * AGE_MS))
        kept = model.queues[taken.queue]
        del kept.pending[taken.slot]
        if ages:
            was_first = min(kept.scheduled.values(), default=None)
            score = self.score(model, taken.queue, taken.packed)
            assert 0 <= self.now(model) + ages * AGE_MS - score < AGE_MS
            kept.scheduled[taken.packed] = score
            self.expect_bell(model, must_ring=was_first is None or score < was_first)
        else:
            kept.instant.append(taken.packed)
            self.expect_bell(model, must_ring=len(kept.instant) == 1)

    @precondition(lambda self: any(t.queue != AUX for model in self.models for t in model.held.values()))
    @rule(data=st.data(), places=st.integers(0, 2), yields=st.booleans())
    def deliver(self, data: st.DataObject, places: int, yields: bool) -> None:
        """A slot that goes on has the next job that is parked for the subscriber, retries before first tries."""
        model, taken = self.one_held(data, is_batch=True)
        settled = self.world.run(_delivered(taken, places=places, yields=yields))

        assert settled.is_ours
        token = taken.job.args[1]
        kept = model.queues[taken.queue]
        del kept.pending[taken.slot]
        line = kept.parked[token]
        goes_on = model.called_for(token) < places
        if yields and kept.instant and Job.decode(kept.instant[-1]).args[1] != token:
            goes_on = False
        if not goes_on or not line or (taken.queue == MAIN and model.queues[RETRY].parked[token]):
            assert settled.after is None
            return
        assert settled.after is not None
        assert (settled.after.slot, settled.after.queue) == (taken.slot, taken.queue)
        assert settled.after.packed == line.pop()
        kept.pending[taken.slot] = settled.after.packed
        model.held[taken.slot] = settled.after

    @precondition(lambda self: any(t.queue != AUX for model in self.models for t in model.held.values()))
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        self.park_one(*self.one_held(data, is_batch=True))

    def park_one(self, model: Model, taken: Taken) -> None:
        token = taken.job.args[1]
        assert self.world.run(jobs.park(taken, token=token))
        kept = model.queues[taken.queue]
        del kept.pending[taken.slot]
        # One that was put back too early is still the first in line.
        kept.parked[token].insert(len(kept.parked[token]) if taken.is_called else 0, taken.packed)

    @rule(
        index=some_partition,
        token=st.sampled_from(TOKENS),
        room=st.integers(0, 3),
        called_max=st.integers(0, 4),
        queues=st.sampled_from([(RETRY, MAIN), (MAIN, RETRY), (RETRY,), (MAIN,)]),
        is_probe=st.booleans(),
    )
    def unpark(
        self, index: int, token: str, room: int, called_max: int, queues: tuple[str, ...], is_probe: bool
    ) -> None:
        """No more are put back than would have `called_max` of them stand in line."""
        model = self.at(index)
        unparked = self.world.run(
            jobs.unpark(model.partition, token, room=room, called_max=called_max, queues=queues, is_probe=is_probe)
        )

        room = max(0, min(room, called_max - model.called_for(token)))
        expected = 0
        must_ring = False
        for queue in queues:
            line = model.queues[queue].parked[token]
            count = min(room - expected, len(line))
            chosen = line[len(line) - count :]
            del line[len(line) - count :]
            expected += count
            into = model.queues[RETRY if is_probe else queue].called
            must_ring = must_ring or (bool(chosen) and not into)
            into[:0] = chosen
        parked = sum(len(model.queues[queue].parked[token]) for queue in (RETRY, MAIN))
        assert unparked == Unparked(expected, room - expected, parked + model.called_for(token))
        self.expect_bell(model, must_ring=must_ring)

    @rule(index=some_partition, token=st.sampled_from(TOKENS), room=st.integers(1, 3), is_probe=st.booleans())
    def park_all_and_unpark(self, index: int, token: str, room: int, is_probe: bool) -> None:
        self.take(index, SLOTS[MAIN], "p1")
        model = self.at(index)
        for slot in [slot for slot, taken in model.held.items() if taken.queue != AUX]:
            self.park_one(model, model.held.pop(slot))
        self.unpark(index, token, room, 4, (RETRY, MAIN), is_probe)

    @rule(index=some_partition, slots=some_slots)
    def beat(self, index: int, slots: list[str]) -> None:
        model = self.at(index)
        self.world.run(jobs.beat(model.partition, slots))
        model.beats.update(dict.fromkeys(slots, self.age))

    @rule(ages=st.integers(1, 2))
    def time_passes(self, ages: int) -> None:
        self.world.pass_ages(ages)
        self.age += ages

    @rule(index=some_partition, queue=st.sampled_from(QUEUES))
    def scrub(self, index: int, queue: str) -> None:
        """Slots whose last beat is an age old lose what they hold; they do not know it yet."""
        model = self.at(index)
        self.world.run(jobs.scrub(model.partition, queue, dead_ms=DEAD_MS))

        kept = model.queues[queue]
        dead = {slot for slot in kept.holders if slot not in model.beats or model.beats[slot] + 1 <= self.age}
        kept.holders -= dead
        returned = {slot: kept.pending.pop(slot) for slot in dead & kept.pending.keys()}
        for slot, packed in returned.items():
            assert model.held[slot].packed == packed
            model.late.append(model.held.pop(slot))
        # Slots are scrubbed in no order that matters; what counts is that their jobs are next.
        if returned:
            [instant] = self.world.ask(model.partition, ["LRANGE", f"jobs:instant:{queue}", 0, -1])
            assert sorted(instant[len(kept.instant) :]) == sorted(returned.values())
            kept.instant.extend(instant[len(kept.instant) :])
        self.expect_bell(model, must_ring=bool(returned))

    @rule(index=some_partition, how=st.sampled_from([*SETTLED_LATE, "nothing"]))
    def all_slots_die_and_settle_late(self, index: int, how: str) -> None:
        self.take(index, SLOTS[MAIN], "p1")
        self.time_passes(1)
        for queue in QUEUES:
            self.scrub(index, queue)
        while self.touched.late and how != "nothing":
            self.settle_one_late(self.touched, how)

    @precondition(lambda self: any(model.late for model in self.models))
    @rule(data=st.data(), how=st.sampled_from(SETTLED_LATE))
    def settle_late(self, data: st.DataObject, how: str) -> None:
        """A slot that was taken for dead settles what is no longer its own: nothing changes."""
        model = self.at(data.draw(st.sampled_from([i for i, m in enumerate(self.models) if m.late])))
        self.settle_one_late(model, how)

    def settle_one_late(self, model: Model, how: str) -> None:
        taken = model.late.pop()
        if model.queues[taken.queue].pending.get(taken.slot) == taken.packed:
            return  # the same slot has taken the same job again, so it is its own
        settle = {
            "ack": jobs.ack(taken),
            "nack": jobs.nack(taken, delay_ms=AGE_MS),
            "nack now": jobs.nack(taken, delay_ms=0),
            "park": jobs.park(taken, token="ann"),
            "deliver": _is_delivered(taken),
        }
        chosen = settle.pop(how)
        for other in settle.values():
            other.close()
        assert not self.world.run(chosen)
        self.expect_bell(model, must_ring=False)

    @invariant()
    def redis_is_as_the_model_says(self) -> None:
        model = self.touched
        for queue, kept in model.queues.items():
            self.check_queue(model, queue, kept)
        holders = [slot for kept in model.queues.values() for slot in kept.pending]
        assert len(holders) == len(set(holders)), "a slot holds two jobs"
        index, called = self.world.ask(
            model.partition, ["SMEMBERS", "jobs:parked:index"], ["HGETALL", "jobs:called:index"]
        )
        parked = {token for kept in model.queues.values() for token, line in kept.parked.items() if line}
        assert set(strings(index)) == parked
        counts = {token: model.called_for(token) for token in TOKENS}
        assert dict(zip(called[0::2], map(int, called[1::2]), strict=True)) == {
            token.encode(): count for token, count in counts.items() if count
        }

    def check_queue(self, model: Model, queue: str, kept: Queue) -> None:
        slots = SLOTS[queue]
        index, scheduled, instant, called, holders, *lists = self.world.ask(
            model.partition,
            ["SMEMBERS", f"jobs:index:{queue}"],
            ["ZRANGE", f"jobs:scheduled:{queue}", 0, -1, "WITHSCORES"],
            ["LRANGE", f"jobs:instant:{queue}", 0, -1],
            ["LRANGE", f"jobs:called:{queue}", 0, -1],
            ["SMEMBERS", f"jobs:pending:index:{queue}"],
            *(["LRANGE", f"jobs:pending:{queue}:{slot}", 0, -1] for slot in slots),
            *(["LRANGE", f"jobs:parked:{queue}:{token}", 0, -1] for token in TOKENS),
        )
        assert len(kept.places) == len(set(kept.places)), "a job is in two places"
        assert set(index) == set(kept.places)
        assert pairs(scheduled) == kept.scheduled
        assert instant == kept.instant
        assert called == kept.called
        assert set(strings(holders)) == kept.holders
        assert lists[: len(slots)] == [[kept.pending[slot]] if slot in kept.pending else [] for slot in slots]
        assert lists[len(slots) :] == [kept.parked[token] for token in TOKENS]

    def one_held(self, data: st.DataObject, *, is_batch: bool = False) -> tuple[Model, Taken]:
        held = [
            (index, slot)
            for index, model in enumerate(self.models)
            for slot, taken in model.held.items()
            if taken.queue != AUX or not is_batch
        ]
        index, slot = data.draw(st.sampled_from(held))
        model = self.at(index)
        return model, model.held.pop(slot)

    def score(self, model: Model, queue: str, packed: bytes) -> int:
        [score] = self.world.run(
            model.partition.commands([["ZSCORE", model.partition.key(f"jobs:scheduled:{queue}"), packed]])
        )
        return int(score)

    def expect_bell(self, model: Model, *, must_ring: bool) -> None:
        """The bell rings when someone who sleeps would otherwise not know, and only then."""
        [entries] = self.world.ask(model.partition, ["XRANGE", "jobs:bell", "-", "+"])
        last = entries[-1][0] if entries else b""
        assert len(entries) <= 1
        assert (last != model.bell) == must_ring
        model.bell = last


async def _delivered(taken: Taken, *, places: int, yields: bool = False) -> Settled:
    bid, token = taken.job.args if taken.queue != AUX else ("none", "ann")
    batch = Batch(bid, token, 0, 0, ())
    return await batches.delivered(taken, batch, attempt=b"{}", counts={}, places=places, yields=yields)


async def _is_delivered(taken: Taken) -> bool:
    return (await _delivered(taken, places=4)).is_ours


def _expected_take(
    model: Model, offers: dict[str, list[str]], busy: tuple[str, ...], sated: tuple[str, ...], *, now: int
) -> tuple[list[tuple[str, str, bytes, bool]], set[str]]:
    """Move jobs in the model as a call to take should; say what it gives, and whose first tries it parks."""
    parked_for: set[str] = set()
    given = {
        slot: (queue, model.queues[queue].pending[slot], False)
        for queue, slots in offers.items()
        for slot in slots
        if slot in model.queues[queue].pending
    }
    for queue, slots in offers.items():
        kept = model.queues[queue]
        due = sorted((score, packed) for packed, score in kept.scheduled.items() if score <= now)
        for _, packed in due:
            del kept.scheduled[packed]
            kept.instant.insert(0, packed)
        for slot in [slot for slot in slots if slot not in given]:
            if kept.called and slot not in sated:
                given[slot] = (queue, kept.called.pop(), True)
            elif (packed := _next_uncalled(kept, busy if queue == MAIN else (), parked_for)) is not None:
                given[slot] = (queue, packed, False)
            elif kept.called:
                given[slot] = (queue, kept.called.pop(), True)
            if slot in given:
                kept.pending[slot] = given[slot][1]
    return [(slot, *what) for slot, what in given.items()], parked_for


def _next_uncalled(kept: Queue, busy: tuple[str, ...], parked_for: set[str]) -> bytes | None:
    while kept.instant:
        packed = kept.instant.pop()
        token = Job.decode(packed).args[1] if busy else ""
        if token not in busy:
            return packed
        kept.parked[token].insert(0, packed)
        parked_for.add(token)
    return None


def test_each_job_is_in_exactly_one_place_and_none_is_lost(topology: Topology):
    hold_law(topology, JobsMachine, law(examples=25, steps=40))


def test_a_slot_whose_take_reply_was_lost_gets_that_job_before_one_of_a_preferred_queue(topology: Topology):
    """With its first job in hand the slot was given a retry as well, and the first was left lying."""
    with a_world(topology) as world:
        world.empty()
        home = world.partitions.home
        first, retry = POOL[MAIN][0], POOL[RETRY][0]
        world.run(jobs.push(home, MAIN, first))
        offers = {RETRY: ["s1"], MAIN: ["s1"]}
        world.run(jobs.take(home, offers, process="p"))
        world.run(jobs.push(home, RETRY, retry))

        again = world.run(jobs.take(home, offers, process="p"))

        assert [(taken.queue, taken.job) for taken in again.taken] == [(MAIN, first)]
