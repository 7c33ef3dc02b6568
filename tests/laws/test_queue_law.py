"""The law of queues: every message is in exactly one place, facets are served in their turn, and nothing leaks.

After each step all keys of the queue are compared with a model in plain Python, tags and places exactly. Some things
are then checked once more without the model's help, as the model may be wrong in the same way.
"""

from collections import Counter
from itertools import groupby

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conftest import Topology
from doubledecker.model.event import AcceptedEvent, encode
from doubledecker.model.queue import FacetRule, RegisteredQueue
from doubledecker.model.routing import Route
from doubledecker.store import dead_letters, events, facets, queue_contents, queues
from doubledecker.store.events import Accepted, PublishLimits, RoutedEvent
from doubledecker.store.facets import FACET
from doubledecker.store.queues import RECORD, LeasedMessage, QueueMessage
from doubledecker.store.shared_connection import words
from laws.queue_model import Facet, QueueModel, Ruled, Tried
from laws.world import AGE_MS, World, hold_law, law

TENANTS = ("ann", "bob", "cy", "facets")
PLACES = ("ring", "parked", "wake")
# What may stay when all is done: counters, journals, bells, and the shape of the store.
STAYS = {"queue:state:law", "queues:index", "queues:bell", "journal", "journal:events", "journal:settlements", "layout"}
STAYS |= {"topic:widgets", "counters"}

# Of a queue that has had a dead letter.
NOTICED = {"notices", "notices:letter:@law"}

some_tenant = st.sampled_from(TENANTS)
some_rule = st.builds(
    FacetRule,
    weight=st.sampled_from([0.5, 1.0, 1.0, 3.0]),
    concurrency=st.sampled_from([0, 0, 1, 2]),
    # One message an age, or as good as no bound.
    rate_per_s=st.sampled_from([0.0, 0.0, 1000 / AGE_MS, 1_000_000.0]),
    paused=st.sampled_from([False, False, False, True]),
)
some_queue = st.builds(
    RegisteredQueue,
    name=st.just("law"),
    owner=st.just(""),
    patterns=st.just((".*",)),
    attempts_max=st.integers(1, 3),
    charge=st.sampled_from(["time", "count"]),
    max_length=st.sampled_from([1_000, 1_000, 12]),
    facet_max_length=st.sampled_from([0, 0, 5]),
    overflow=st.sampled_from(["drop_oldest", "refuse"]),
)


class QueueMachine(RuleBasedStateMachine):
    """Publishers, consumers and operators of one queue."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.at = world.partitions.home
        self.held: list[QueueMessage] = []
        self.late: list[QueueMessage] = []
        self.settled_upto = "-"
        self.model = QueueModel(RegisteredQueue("law", "", (".*",)))

    @initialize(queue=some_queue)
    def start(self, queue: RegisteredQueue) -> None:
        self.world.empty()
        self.model = QueueModel(queue)

    @property
    def queue(self) -> RegisteredQueue:
        return self.model.queue

    def now(self) -> int:
        return self.world.run(self.at.time_ms())

    def took(self) -> dict[int, int]:
        """How long each message was held that was settled since the last time, as the journal says."""
        found = {}
        entries = self.world.ask(self.at, ["XRANGE", "journal:settlements", self.settled_upto, "+"])[0]
        for entry_id, (_, name, kind, text) in entries:
            assert name == b"law"
            self.settled_upto = "(" + entry_id.decode()
            for row in text.decode().split("\n"):
                id_, tenant, _, took_ms = row.split(" ")
                assert self.model.owner[number(id_)] == tenant
                if kind in {b"acked", b"nacked", b"expired"}:
                    found[number(id_)] = int(took_ms)
        for id_, took_ms in found.items():
            assert 0 <= took_ms <= self.now() - self.model.tried[id_].pulled_at
        return found

    @rule(tenants=st.lists(some_tenant, min_size=1, max_size=8), data=st.data())
    def push(self, tenants: list[str], data: st.DataObject) -> None:
        self.world.tick()
        wholes = []
        if data.draw(st.booleans(), label="is_whole"):
            first = data.draw(st.integers(0, len(tenants) - 1))
            wholes = [(first, data.draw(st.integers(first, len(tenants) - 1)))]
        reply = self.publish(tenants, wholes)

        refused = self.model.refused(tenants, wholes)
        assert reply.outcome is Accepted.OK
        assert reply.refused == dict.fromkeys(sorted(refused), "queue law")
        accepted = [tenant for i, tenant in enumerate(tenants) if i not in refused]
        # Tenants are numbered in the order of the call, also where their first events were refused.
        self.model.push(sorted(accepted, key=tenants.index), now=self.now())

    @rule(tenant=some_tenant, count=st.sampled_from([1, 3, 70]))
    def push_many(self, tenant: str, count: int) -> None:
        """Enough that not all leases of one pull end in one call."""
        self.world.tick()
        reply = self.publish([tenant] * count, [])
        refused = self.model.refused([tenant] * count, [])
        assert set(reply.refused) == refused
        self.model.push([tenant] * (count - len(refused)), now=self.now())

    def publish(self, tenants: list[str], wholes: list[tuple[int, int]]) -> events.PublishReply:
        made = [AcceptedEvent(id=str(n), topic="widgets", type="update", tenant=t, t=n) for n, t in enumerate(tenants)]
        offers = [RoutedEvent(Route(event.kind, (), (self.queue,)), encode(event), "ann") for event in made]
        return self.world.run(events.publish(self.at, offers, version=0, limits=PublishLimits(), wholes=wholes))

    @rule(
        portions=st.sampled_from([[0], [1], [2], [3], [10], [100], [1, 1, 1], [2, 1, 3], [1, 9, 40]]),
        ages=st.integers(1, 2),
        ahead=st.sampled_from([-1.0, -1.0, -1.0, 0.0, 2.5]),
        is_alone=st.booleans(),
    )
    def pull(self, portions: list[int], ages: int, ahead: float, is_alone: bool) -> None:
        self.world.tick()
        floor = max(0.0, self.model.v + ahead)
        before, most, lease_ms = self.now(), sum(portions), ages * AGE_MS
        asked = {"portions": portions, "floor": floor, "is_alone": is_alone}
        pulled = self.world.run(queues.pull(self.at, self.queue, most=most, lease_ms=lease_ms, **asked))
        now = pulled.messages[0].lease_until - lease_ms if pulled.messages else self.now()
        expected = self.model.pull(most, lease_ms, now=now, took=self.took(), **asked)

        assert [(number(m.id), m.attempt, m.tenant) for m in pulled.messages] == expected
        self.check_caps({message.tenant for message in pulled.messages})
        self.check_wait(pulled.wait_ms, before)
        assert pulled.head == min(self.model.ring.values(), default=None)
        assert pulled.facets == len(self.model.ring)
        self.check_forgotten()
        lost = [m for m in self.held if (number(m.id), m.attempt) not in self.model_holds()]
        self.late += lost
        self.held = [m for m in self.held if m not in lost] + list(pulled.messages)

    def model_holds(self) -> set[tuple[int, int]]:
        return {(id_, self.model.tried[id_].attempt) for id_ in self.model.pending}

    def check_forgotten(self) -> None:
        """Nobody is remembered longer than virtual time asks for."""
        keys = ["HKEYS", "queue:facets:law"], ["ZRANGE", "queue:idle:law", "-inf", self.model.v, "BYSCORE"]
        kept, past = self.world.ask(self.at, *keys)
        assert past == []
        self.model.forget(self.model.facets.keys() - {name.decode() for name in kept})

    def check_caps(self, tenants: set[str]) -> None:
        in_flight = Counter(self.model.owner[id_] for id_ in self.model.pending)
        for tenant in tenants:
            cap = self.model.rules.get(tenant, Ruled()).rule.concurrency
            assert not cap or in_flight[tenant] <= cap

    def check_wait(self, wait_ms: int | None, before: int) -> None:
        heads = [*self.model.pending.values(), *self.model.scheduled.values(), *self.model.wake.values()]
        if self.model.ring:
            assert wait_ms == 0
        elif not heads:
            assert wait_ms is None
        else:
            assert wait_ms is not None
            assert max(0, min(heads) - self.now() - 1) <= wait_ms <= max(0, min(heads) - before)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        self.world.tick()
        chosen = self.some_held(data)
        acked = self.world.run(queues.ack(self.at, self.queue, [LeasedMessage(m.id, m.attempt) for m in chosen]))
        expected = self.model.ack(pairs(chosen), now=self.now(), took=self.took())
        assert [number(id_) for id_ in acked] == expected

    @precondition(lambda self: self.held)
    @rule(data=st.data(), ages=st.lists(st.integers(0, 2), min_size=1, max_size=3))
    def nack(self, data: st.DataObject, ages: list[int]) -> None:
        """Several at once, each with its own delay."""
        self.world.tick()
        chosen = self.some_held(data)
        held = [LeasedMessage(m.id, m.attempt, ages[i % len(ages)] * AGE_MS) for i, m in enumerate(chosen)]
        before = self.now()
        nacked = self.world.run(queues.nack(self.at, self.queue, held, why="a reason"))
        after = self.now()
        first = {number(each.id): each.delay_ms for each in reversed(held)}
        delays = {id_: delay_ms for id_, delay_ms in first.items() if delay_ms}
        [flat] = self.world.ask(self.at, ["ZRANGE", "queue:scheduled:law", 0, -1, "WITHSCORES"])
        due = {number(id_.decode()): int(at) for id_, at in zip(flat[0::2], flat[1::2], strict=True)}
        due = {id_: due.get(id_, 0) for id_ in delays}
        expected = self.model.nack(pairs(chosen), due=due, now=after, took=self.took())
        assert [number(id_) for id_ in nacked] == expected
        for id_ in set(expected) & delays.keys() & self.model.scheduled.keys():
            assert before + delays[id_] <= due[id_] <= after + delays[id_]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), ages=st.integers(1, 3))
    def extend(self, data: st.DataObject, ages: int) -> None:
        self.world.tick()
        chosen = self.some_held(data, is_kept=True)
        held = [LeasedMessage(m.id, m.attempt) for m in chosen]
        until, kept = self.world.run(queues.extend(self.at, self.queue, held, lease_ms=ages * AGE_MS))
        assert [number(id_) for id_ in kept] == self.model.still_held(pairs(chosen))
        self.model.pending.update(dict.fromkeys((number(id_) for id_ in kept), until))

    def some_held(self, data: st.DataObject, *, is_kept: bool = False) -> list[QueueMessage]:
        """Some of what is held, at times also what is held no more, what nobody has, and one of them twice."""
        chosen = data.draw(st.lists(st.sampled_from(self.held), min_size=1, max_size=6, unique_by=lambda m: m.id))
        if data.draw(st.booleans(), label="all"):
            chosen = list(self.held)
        if not is_kept:
            self.held = [message for message in self.held if message not in chosen]
            self.late += chosen
        extra = [QueueMessage("0-99999", 1, "ann", b"", 0), chosen[0]]
        extra += [m for m in self.late if (number(m.id), m.attempt) not in self.model_holds()]
        return chosen + data.draw(st.lists(st.sampled_from(extra), max_size=3))

    @precondition(lambda self: self.late)
    @rule(how=st.sampled_from(["ack", "nack", "extend"]))
    def settle_late(self, how: str) -> None:
        """Whoever lost a message to its lease, or has settled it already, changes nothing."""
        gone = [m for m in self.late if (number(m.id), m.attempt) not in self.model_holds()]
        held = [LeasedMessage(m.id, m.attempt) for m in gone]
        if how == "ack":
            assert self.world.run(queues.ack(self.at, self.queue, held)) == []
        elif how == "nack":
            assert self.world.run(queues.nack(self.at, self.queue, held, why="late")) == []
        else:
            assert self.world.run(queues.extend(self.at, self.queue, held, lease_ms=AGE_MS))[1] == []

    @rule(ages=st.integers(1, 2))
    def time_passes(self, ages: int) -> None:
        self.world.pass_ages(ages)

    @rule(tenant=some_tenant, new=some_rule)
    def set_rule(self, tenant: str, new: FacetRule) -> None:
        self.world.run(facets.set_rule(self.at, self.queue, tenant, new))
        self.model.set_rule(tenant, new, now=self.now())
        assert self.world.run(facets.rule(self.at, self.queue, tenant)) == new

    @rule(tenant=some_tenant)
    def purge(self, tenant: str) -> None:
        gone = self.world.run(queue_contents.purge(self.at, self.queue, tenant))
        assert gone == self.model.purge(tenant, now=self.now())

    @rule(most=st.integers(1, 40))
    def drop(self, most: int) -> None:
        """Memory is short."""
        dropped, _ = self.world.run(queues.drop_oldest(self.at, self.queue, messages_max=most, bytes_enough=2**53))
        assert dropped == self.model.drop(most, now=self.now())

    @precondition(lambda self: self.model.dead)
    @rule(data=st.data())
    def redrive(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from([*self.model.dead, 99_999]), min_size=1, unique=True))
        words = [f"0-{id_}" for id_ in ids]
        came = self.world.run(dead_letters.revive(self.at, self.queue, words, version=0)).letters
        assert came == len(self.model.redrive(ids, now=self.now()))

    @invariant()
    def redis_is_as_the_model_says(self) -> None:
        model = self.model
        names = ["queue:data:law", "queue:tried:law", "queue:facets:law", "queue:rules:law", "dead:letters:@law"]
        hashes = self.world.ask(self.at, *(["HGETALL", name] for name in [*names, "queue:state:law"]))
        data, tried, kept, rules, dead, state = (
            {k.decode(): v for k, v in zip(h[0::2], h[1::2], strict=True)} for h in hashes
        )
        assert {number(id_) for id_ in data} == model.data
        assert {number(id_): _tried(record) for id_, record in tried.items()} == model.tried
        assert {name: Facet(*FACET.unpack_from(record)[:2]) for name, record in kept.items()} == model.facets
        under = {name: tuple(msgspec.msgpack.decode(record)[4:]) for name, record in rules.items()}
        assert under == {name: (ruled.held, ruled.next_at) for name, ruled in model.rules.items()}
        letters = {number(id_): msgspec.msgpack.decode(record) for id_, record in dead.items()}
        assert {id_: (letter[1], letter[4]) for id_, letter in letters.items()} == model.dead
        assert float(state.pop("v", 0)) == model.v
        assert float(state.pop("mean", 0)) == model.mean
        state.pop("acked_at", None)
        assert int(state.pop("sequence", 0)) == model.sequence
        assert {name: int(value) for name, value in state.items()} == +model.counters
        self.check_places()
        self.check_without_the_model({number(id_) for id_ in data}, state, kept)

    def check_places(self) -> None:
        for name in (*PLACES, "pending", "scheduled"):
            [flat] = self.world.ask(self.at, ["ZRANGE", f"queue:{name}:law", 0, -1, "WITHSCORES"])
            found = {member.decode(): float(score) for member, score in zip(flat[0::2], flat[1::2], strict=True)}
            if name in PLACES:
                assert found == getattr(self.model, name), name
            else:
                assert {number(id_): int(at) for id_, at in found.items()} == getattr(self.model, name), name

    def check_without_the_model(self, data: set[int], state: dict[str, bytes], kept: dict[str, bytes]) -> None:
        lines = self.world.ask(self.at, *(["LRANGE", f"queue:new:law:{tenant}", 0, -1] for tenant in TENANTS))
        waiting = {
            tenant: [number(id_) for id_ in [*facets.head(kept.get(tenant)), *words(tail)]]
            for tenant, tail in zip(TENANTS, lines, strict=True)
        }
        for tenant, tail in zip(TENANTS, lines, strict=True):
            assert not tail or FACET.unpack_from(kept[tenant])[2], "a tail that nobody would look for"
            assert not tail or facets.head(kept[tenant]), "a tail without a head"
        places = self.world.ask(self.at, *(["ZRANGE", f"queue:{name}:law", 0, -1] for name in PLACES))
        ring, parked, wake = ([name.decode() for name in members] for members in places)
        [resting] = self.world.ask(self.at, ["ZRANGE", "queue:idle:law", 0, -1, "WITHSCORES"])
        idle = [(names.decode().split(), float(tag)) for names, tag in zip(resting[0::2], resting[1::2], strict=True)]
        pending, scheduled = self.world.ask(
            self.at, ["ZRANGE", "queue:pending:law", 0, -1], ["ZRANGE", "queue:scheduled:law", 0, -1]
        )
        everywhere = [id_ for line in waiting.values() for id_ in line]
        everywhere += [number(id_.decode()) for id_ in [*pending, *scheduled]]

        assert len(everywhere) == len(set(everywhere)) == len(data)
        assert set(everywhere) == data
        assert all(line == sorted(line) for line in waiting.values())
        for tenant, line in waiting.items():
            assert [*ring, *parked, *wake].count(tenant) == 1 if line else tenant not in {*ring, *parked}
        in_flight = Counter(self.model.owner[number(id_.decode())] for id_ in pending)
        assert self.world.run(facets.in_flight(self.at, self.queue)) == in_flight
        for tenant in TENANTS:
            assert tenant not in self.model.rules or self.model.rules[tenant].held == in_flight[tenant]
            if tenant in kept and not waiting[tenant] and tenant not in wake:
                ends = [tag for names, tag in idle if tenant in names]
                assert self.model.facets[tenant].tag <= max(ends), "a leak"
        counts = Counter({name: int(value) for name, value in state.items()})
        [dead] = self.world.ask(self.at, ["ZCARD", "dead:index:@law"])
        assert dead == counts["dead"] - counts["redriven"]
        assert self.model.sequence == len(data) + dead + counts["acked"] + counts["dropped"] + counts["purged"]
        assert counts["pulled"] == len(pending) + counts["acked"] + counts["nacked"] + counts["expired"]

    def teardown(self) -> None:
        """Let everything go on to its end: nothing but counters and journals stays."""
        for tenant in TENANTS:
            self.world.run(facets.set_rule(self.at, self.queue, tenant, FacetRule()))
        for _ in range(100):
            self.world.pass_ages(3)
            pulled = self.world.run(queues.pull(self.at, self.queue, most=200, lease_ms=AGE_MS))
            if pulled.messages:
                held = [LeasedMessage(m.id, m.attempt) for m in pulled.messages]
                for message in pulled.messages:
                    assert message.event
                assert len(self.world.run(queues.ack(self.at, self.queue, held))) == len(held)
            elif pulled.wait_ms is None:
                break
        found = {key.decode().removeprefix("rm:") for key in self.world.run(self.at.command("KEYS", "*"))}
        assert {key for key in found - STAYS if not key.startswith("dead:")} <= NOTICED


def number(id_: str) -> int:
    return int(id_.removeprefix("0-"))


def pairs(messages: list[QueueMessage]) -> list[tuple[int, int]]:
    return [(number(message.id), message.attempt) for message in messages]


def _tried(record: bytes) -> Tried:
    attempt, together, forgiven, pulled_at, charged, tag = RECORD.unpack_from(record)
    return Tried(attempt, record[RECORD.size :].decode(), pulled_at, together, charged, forgiven, tag)


@pytest.mark.timeout(300)
def test_a_fair_queue_is_at_all_times_as_the_model_says(one: Topology):
    hold_law(one, QueueMachine, law(examples=40, steps=30))


def test_the_model_serves_in_turn_on_its_own():
    model = QueueModel(RegisteredQueue("law", "", (".*",), charge="count"))
    model.push([tenant for tenant in ("ann", "bob", "cy") for _ in range(3)], now=0)
    served = [model.pull(1, 1000, portions=[], now=0, took={}, floor=0.0, is_alone=True)[0][2] for _ in range(9)]

    assert [tenant for tenant, _ in groupby(served)] == ["ann", "bob", "cy"] * 3
