"""The law of ordered queues: a message is handed out only when all earlier ones of its key are done.

Whatever becomes of them: acked, given back at once or for later, expired, rejected, dropped, purged, dead. No two of a
key are in consumers' hands, none is left behind a key that nobody holds, and in the end nothing but counters stays.
"""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conftest import Topology
from doubledecker.model.event import AcceptedEvent, encode
from doubledecker.model.queue import FacetRule, RegisteredQueue
from doubledecker.model.routing import Route
from doubledecker.store import dead_letters, events, facets, queue_contents, queues
from doubledecker.store.events import PublishLimits, RoutedEvent
from doubledecker.store.queues import LeasedMessage, QueueMessage
from doubledecker.store.shared_connection import words
from laws.test_queue_law import NOTICED, STAYS
from laws.world import AGE_MS, World, hold_law, law

TENANTS = ("ann", "bob")
LANES = [(tenant, key) for tenant in TENANTS for key in ("a", "b", "")]
QUEUE = RegisteredQueue("law", "", (".*",), attempts_max=3, ordered=True, max_length=30)

some_tenant = st.sampled_from(TENANTS)
some_rule = st.sampled_from(
    [FacetRule(), FacetRule(paused=True), FacetRule(concurrency=1), FacetRule(rate_per_s=0.001)]
)


class OrderMachine(RuleBasedStateMachine):
    """Publishers, consumers and operators of one ordered queue."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.at = world.partitions.home
        self.begin()

    @initialize()
    def begin(self) -> None:
        self.world.empty()
        self.lane: dict[str, tuple[str, str]] = {}
        self.held: list[QueueMessage] = []
        self.redriven: set[str] = set()

    @rule(lanes=st.lists(st.sampled_from(LANES), min_size=1, max_size=8))
    def publish(self, lanes: list[tuple[str, str]]) -> None:
        made = [
            AcceptedEvent(topic="widgets", type="update", t=1, id=f"{len(self.lane)}.{n}", tenant=tenant, key=key)
            for n, (tenant, key) in enumerate(lanes)
        ]
        offers = [RoutedEvent(Route(each.kind, (), (QUEUE,)), encode(each), "ann", "") for each in made]
        self.world.run(events.publish(self.at, offers, version=0, limits=PublishLimits()))
        # Within a call messages are numbered tenant by tenant.
        for lane in sorted(lanes, key=lambda lane: [tenant for tenant, _ in lanes].index(lane[0])):
            self.lane[f"0-{len(self.lane) + 1}"] = lane

    @rule(most=st.sampled_from([1, 3, 50]))
    def pull(self, most: int) -> None:
        self.world.tick()
        pulled = self.world.run(queues.pull(self.at, QUEUE, most=most, lease_ms=AGE_MS))
        assert pulled.messages or pulled.wait_ms != 0, "something can be served, and was not"
        kept = set(self.all_in("HKEYS", "queue:data:law"))
        pending = self.all_in("ZRANGE", "queue:pending:law", 0, -1)
        for message in pulled.messages:
            mates = [id_ for id_, lane in self.lane.items() if lane == self.lane[message.id] and id_ != message.id]
            assert not set(mates).intersection(pending), "two of a key in hand"
            if message.id not in self.redriven:
                before = {id_ for id_ in mates if number(id_) < number(message.id)}
                assert not before & kept - self.redriven, "it came before its turn"
        self.held += pulled.messages

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(["ack", "ack", "nack", "later", "reject"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        self.world.tick()
        chosen = data.draw(st.lists(st.sampled_from(self.held), min_size=1, max_size=6, unique_by=lambda m: m.id))
        self.held = [message for message in self.held if message not in chosen]
        held = [LeasedMessage(m.id, m.attempt, AGE_MS if how == "later" else 0) for m in chosen]
        if how == "ack":
            self.world.run(queues.ack(self.at, QUEUE, held))
        else:
            self.world.run(queues.nack(self.at, QUEUE, held, why="", is_rejected=how == "reject"))

    @rule(ages=st.integers(1, 2))
    def time_passes(self, ages: int) -> None:
        self.world.pass_ages(ages)

    @rule(tenant=some_tenant, new=some_rule)
    def set_rule(self, tenant: str, new: FacetRule) -> None:
        self.world.run(facets.set_rule(self.at, QUEUE, tenant, new))

    @rule(tenant=some_tenant)
    def purge(self, tenant: str) -> None:
        self.world.run(queue_contents.purge(self.at, QUEUE, tenant))
        left = {id_ for id_ in self.all_in("HKEYS", "queue:data:law") if self.lane[id_][0] == tenant}
        assert left <= set(self.all_in("ZRANGE", "queue:pending:law", 0, -1))

    @rule(most=st.integers(1, 20))
    def drop(self, most: int) -> None:
        """Memory is short."""
        self.world.run(queues.drop_oldest(self.at, QUEUE, messages_max=most, bytes_enough=2**53))

    @rule()
    def redrive(self) -> None:
        letters = self.all_in("ZRANGE", "dead:index:@law", 0, -1)
        self.redriven.update(letters)
        self.world.run(dead_letters.revive(self.at, QUEUE, letters, version=0))

    @invariant()
    def every_message_is_somewhere(self) -> None:
        lanes = [each for each in self.all_in("HKEYS", "queue:lanes:law") if "/" in each or ":" in each]
        behind = [id_ for lane in lanes for id_ in self.all_in("LRANGE", f"queue:behind:law:{lane}", 0, -1)]
        records = dict(zip(*[iter(self.world.ask(self.at, ["HGETALL", "queue:facets:law"])[0])] * 2, strict=True))
        heads = [id_ for record in records.values() for id_ in facets.head(record)]
        tails = [id_ for tenant in TENANTS for id_ in self.all_in("LRANGE", f"queue:new:law:{tenant}", 0, -1)]
        away = [id_ for place in ("pending", "scheduled") for id_ in self.all_in("ZRANGE", f"queue:{place}:law", 0, -1)]
        assert sorted([*behind, *heads, *tails, *away]) == sorted(self.all_in("HKEYS", "queue:data:law"))

    def all_in(self, *command: str | int) -> list[str]:
        [reply] = self.world.ask(self.at, list(command))
        return words(reply)

    def teardown(self) -> None:
        """Let everything go on to its end."""
        for tenant in TENANTS:
            self.world.run(facets.set_rule(self.at, QUEUE, tenant, FacetRule()))
        for _ in range(200):
            self.world.pass_ages(3)
            pulled = self.world.run(queues.pull(self.at, QUEUE, most=200, lease_ms=AGE_MS))
            held = [LeasedMessage(m.id, m.attempt) for m in pulled.messages]
            if not held and pulled.wait_ms is None:
                break
            self.world.run(queues.ack(self.at, QUEUE, held))
        found = {key.decode().removeprefix("rm:") for key in self.world.run(self.at.command("KEYS", "*"))}
        assert {key for key in found - STAYS if not key.startswith("dead:")} <= NOTICED


def number(id_: str) -> int:
    return int(id_.removeprefix("0-"))


@pytest.mark.timeout(300)
def test_messages_of_a_key_are_handed_out_one_at_a_time_in_order(one: Topology):
    hold_law(one, OrderMachine, law(examples=60, steps=40))
