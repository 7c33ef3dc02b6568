"""The law of holds: never more calls to a subscriber than it allows, one while it fails, and a dead caller's ends."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conftest import Topology
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import subscribers
from doubledecker.store.subscribers import Entry, Invited, Left, Waiting
from laws.world import AGE_MS, World, a_world, hold_law, law, pairs

SLOTS = ("s1", "s2", "s3", "s4", "s5")
SUBSCRIBER = Subscriber("ann", "https://a", "a", ("widgets",), concurrency=3)
LEASE_AGES = 2
INVITE_AGES = 1
HEAL, DAMAGE = 1, -2


@dataclass
class Model:
    """The subscriber as it should be; holds by the age in which they end."""

    holds: dict[str, int] = field(default_factory=dict)
    invitations: list[int] = field(default_factory=list)
    waiting: dict[int, str] = field(default_factory=dict)
    health: int = 100
    failures: int = 0


class HoldsMachine(RuleBasedStateMachine):
    """Slots enter and leave, die and come late, while the subscriber fails and recovers."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.home = world.partitions.home
        self.age = 0
        self.model: Model | None = None

    @initialize()
    def start(self) -> None:
        self.world.empty()
        self.subscribe()

    @rule()
    def subscribe(self) -> None:
        """Subscribing anew changes what was asked for, not how the subscriber fares."""
        self.world.run(subscribers.save(self.home, SUBSCRIBER))
        self.model = self.model or Model()

    @precondition(lambda self: self.model is not None)
    @rule(chance=st.integers(0, 9))
    def unsubscribe(self, chance: int) -> None:
        if chance == 0:
            self.world.run(subscribers.delete(self.home, "ann"))
            self.model = None

    @rule(slot=st.sampled_from(SLOTS), partition=st.integers(0, 2), is_retry=st.booleans(), is_called=st.booleans())
    def enter(self, slot: str, partition: int, is_retry: bool, is_called: bool) -> None:
        entry = self.world.run(
            subscribers.enter(
                self.home,
                SUBSCRIBER,
                slot=slot,
                lease_ms=LEASE_AGES * AGE_MS,
                partition=partition,
                is_retry=is_retry,
                is_called=is_called,
            )
        )
        if self.model is None:
            assert entry is Entry.GONE
            return
        self.expire()
        # A slot that enters again has lost the end of its former call: that place is its own.
        self.model.holds.pop(slot, None)
        if is_called and self.model.invitations:
            self.model.invitations.pop(0)
        must_queue = partition in self.model.waiting and not is_retry and not is_called
        assert entry is self.expected_entry(is_retry=is_retry, must_queue=must_queue)
        if entry is Entry.GO:
            self.model.holds[slot] = self.age + LEASE_AGES
            assert len(self.model.holds) + len(self.model.invitations) <= (
                1 if self.model.failures else SUBSCRIBER.concurrency
            )

    @rule(partition=st.integers(0, 2))
    def wait(self, partition: int) -> None:
        invited = self.world.run(subscribers.wait(self.home, SUBSCRIBER, partition=partition))
        if self.model is None:
            assert invited == Invited(0, 0)
            return
        self.expire()
        [mark] = self.world.ask(self.home, ["HGET", "waiting:ann", partition])
        assert mark.decode() != self.model.waiting.get(partition)
        self.model.waiting[partition] = mark.decode()
        if self.model.failures:
            assert invited == Invited(0, 0)
        else:
            assert invited == Invited(self.invite(), len(self.model.invitations))

    def expected_entry(self, *, is_retry: bool, must_queue: bool) -> Entry:
        assert self.model is not None
        if self.model.failures and not is_retry:
            return Entry.FAILING
        if must_queue:
            return Entry.FULL
        places = 1 if self.model.failures else SUBSCRIBER.concurrency
        return Entry.GO if len(self.model.holds) + len(self.model.invitations) < places else Entry.FULL

    def invite(self, places: int = SUBSCRIBER.concurrency) -> int:
        """Keep all free places for parked jobs; says how many that are."""
        assert self.model is not None
        free = max(0, places - len(self.model.holds) - len(self.model.invitations))
        self.model.invitations += [self.age + INVITE_AGES] * free
        return free

    @rule(
        slot=st.sampled_from(SLOTS),
        points=st.sampled_from([HEAL, HEAL, DAMAGE, 0]),
        delay_ages=st.integers(0, 2),
        goes_on=st.booleans(),
        places=st.sampled_from([1, 3]),
    )
    def leave(self, slot: str, points: int, delay_ages: int, goes_on: bool, places: int) -> None:
        """Also by slots whose hold has ended, or that never had one: the score counts, the place is not theirs."""
        before_ms = self.world.run(self.home.time_ms())
        left = self.world.run(
            subscribers.leave(
                self.home,
                replace(SUBSCRIBER, concurrency=places),
                slot=slot,
                points=points,
                delay_ms=delay_ages * AGE_MS,
                lease_ms=LEASE_AGES * AGE_MS if goes_on else 0,
            )
        )
        if self.model is None:
            assert left == Left(0, 0, has_place=False, invited=Invited(0, 0), waiting=())
            return
        self.expire()
        failures_before = self.model.failures
        if points > 0:
            self.model.failures = 0
        elif points < 0:
            self.model.failures += 1
        self.model.health = max(0, min(100, self.model.health + points))
        taken = len(self.model.holds) + len(self.model.invitations)
        assert left.has_place == (goes_on and slot in self.model.holds and not self.model.failures and taken <= places)
        if left.has_place:
            self.model.holds[slot] = self.age + LEASE_AGES
        else:
            self.model.holds.pop(slot, None)
        waiting = dict(self.model.waiting)
        invited = self.invite(places) if waiting and not self.model.failures else 0
        assert left.failures_before == failures_before
        assert left.failures == self.model.failures
        assert left.invited == Invited(invited, len(self.model.invitations))
        assert {each.partition: each.mark for each in left.waiting} == waiting
        if points < 0:
            condition = self.world.run(subscribers.conditions(self.home, ["ann"], now_ms=before_ms))["ann"]
            assert 0 <= condition.retry_at - delay_ages * AGE_MS - before_ms < AGE_MS

    @precondition(lambda self: self.model is not None)
    @rule(times=st.integers(1, 60), points=st.sampled_from([HEAL, DAMAGE]))
    def fare_for_long(self, times: int, points: int) -> None:
        """Health has a floor and a ceiling."""
        assert self.model is not None
        for _ in range(times):
            self.leave("s1", points, 0, goes_on=False, places=SUBSCRIBER.concurrency)

    @precondition(lambda self: self.model is not None)
    @rule(partition=st.integers(0, 2), has_missed=st.booleans())
    def resume(self, partition: int, has_missed: bool) -> None:
        """Whoever looked before some more were parked must not say that there are none."""
        assert self.model is not None
        mark = "an older mark" if has_missed else self.model.waiting.get(partition, "none")
        is_done = self.world.run(subscribers.resume(self.home, "ann", Waiting(partition, mark)))
        assert is_done == (not has_missed and partition in self.model.waiting)
        if is_done:
            self.model.waiting.pop(partition, None)

    @rule(ages=st.integers(1, LEASE_AGES))
    def time_passes(self, ages: int) -> None:
        self.world.pass_ages(ages)
        self.age += ages

    @invariant()
    def redis_is_as_the_model_says(self) -> None:
        holds, waiting, exists = self.world.ask(
            self.home,
            ["ZRANGE", "holds:ann", 0, -1, "WITHSCORES"],
            ["HGETALL", "waiting:ann"],
            ["EXISTS", "subscriber:ann"],
        )
        now_ms = self.world.run(self.home.time_ms())
        live = {slot.decode() for slot, ends in pairs(holds).items() if ends > now_ms}
        if self.model is None:
            assert (holds, waiting, exists) == ([], [], 0)
            return
        self.expire()
        assert live == self.model.holds.keys()
        marks = dict(zip(waiting[0::2], waiting[1::2], strict=True))
        assert {int(index): mark.decode() for index, mark in marks.items()} == self.model.waiting
        condition = self.world.run(subscribers.conditions(self.home, ["ann"], now_ms=now_ms))["ann"]
        assert (condition.health, condition.failures) == (self.model.health, self.model.failures)
        assert 0 <= condition.health <= 100
        assert condition.calls == len(live)

    def expire(self) -> None:
        assert self.model is not None
        self.model.holds = {slot: ends for slot, ends in self.model.holds.items() if ends > self.age}
        self.model.invitations = [ends for ends in self.model.invitations if ends > self.age]


@pytest.fixture(autouse=True)
def invitations_last_an_age(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subscribers, "INVITE_MS", INVITE_AGES * AGE_MS)


def test_a_subscriber_never_gets_more_calls_than_it_allows(topology: Topology):
    hold_law(topology, HoldsMachine, law(examples=20, steps=30))


def test_a_slot_that_lost_the_end_of_its_call_is_not_in_its_own_way(topology: Topology):
    """With one place, it waited for its own hold to end: half a minute."""
    with a_world(topology) as world:
        world.empty()
        home = world.partitions.home
        one_at_a_time = Subscriber("ann", "https://a", "a", ("widgets",), concurrency=1)
        world.run(subscribers.save(home, one_at_a_time))
        for expected in (Entry.GO, Entry.GO):
            entering = subscribers.enter(home, one_at_a_time, slot="s1", lease_ms=AGE_MS, partition=0, is_retry=False)
            assert world.run(entering) is expected


def test_a_hold_that_has_ended_does_not_count_against_the_free_places(topology: Topology):
    with a_world(topology) as world:
        world.empty()
        home = world.partitions.home
        world.run(subscribers.save(home, SUBSCRIBER))
        for slot in ("dead", "alive"):
            world.run(subscribers.enter(home, SUBSCRIBER, slot=slot, lease_ms=AGE_MS, partition=0, is_retry=False))
        world.pass_ages(1)

        world.run(subscribers.wait(home, SUBSCRIBER, partition=0))
        world.pass_ages(INVITE_AGES)
        left = world.run(subscribers.leave(home, SUBSCRIBER, slot="alive", points=1))

        assert left.invited.count == SUBSCRIBER.concurrency
