"""The law of parts: whatever a batch is replaced with, its parts hold its events, each once and in order.

A batch of any shape, some publishes of some events each, is taken again and again by a slot. Each time it is delivered,
split, given up, kept in part or put back; replies are lost, and the same is sent twice. A model has the events of each
part; after each step everything in Redis is compared with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conftest import Topology
from doubledecker.delivery import parts
from doubledecker.model.batch_part import LETTERS_MAX
from doubledecker.model.event import EventKind
from doubledecker.model.job import MAIN
from doubledecker.model.outcome import Outcome, OutcomeKind
from doubledecker.model.routing import Route
from doubledecker.model.settlement import DELIVERED, Settlement
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import batches, dead_letters, deliveries, events
from doubledecker.store.deliveries import DeliveryJob, Settled
from doubledecker.store.events import PublishLimits, RoutedEvent
from doubledecker.store.partitions import Partition
from laws.world import World, hold_law, law, pairs, strings

ANN = Subscriber("ann", "https://ann", "ann", ("widgets",), 3_600_000, max_events=12, concurrency=1)
REFUSED = Outcome(OutcomeKind.REFUSED, 1, 400)


@dataclass
class Model:
    """Events by batch, the batches in line (the next one last), and what came of events that are in none."""

    held: dict[str, list[str]] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    line: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    done: int = 0


class PartsMachine(RuleBasedStateMachine):
    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.partition = world.partitions.home
        self.numbers = count(1)

    @initialize()
    def start(self) -> None:
        self.world.empty()
        self.model = Model()

    @rule(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
    def publish_a_batch(self, sizes: list[int]) -> None:
        """Of at most twelve events in chunks of these sizes; it is full, or closed by the slot that opens it."""
        ids: list[str] = []
        for size in sizes:
            some = [f"id-{next(self.numbers)}" for _ in range(min(size, 12 - len(ids)))]
            if some:
                self.world.run(publish(self.partition, some))
            ids += some
        [batch] = self.world.ask(self.partition, ["ZRANGE", "batches:index", -1, -1])
        [current] = self.world.ask(self.partition, ["SMEMBERS", "batches:current:ann"])
        bids = {*strings(batch), *strings(current)} - self.model.held.keys()
        assert len(bids) == 1
        bid = bids.pop()
        if current:  # its time has come
            self.world.run(due(self.partition, bid))
        self.model.held[bid], self.model.tries[bid] = ids, 0
        self.model.line.insert(0, bid)

    @precondition(lambda self: self.model.line)
    @rule(
        what=st.sampled_from(["delivered", "split", "split", "split", "dead", "keep", "back", "drop"]),
        is_twice=st.booleans(),
        data=st.data(),
    )
    def take_and_settle(self, what: str, is_twice: bool, data: st.DataObject) -> None:
        turn = self.world.run(deliveries.turn(self.partition, [], ["p1"], process="p", probes_max=1))
        [job] = turn.jobs
        assert job.batch is not None
        bid = self.model.line.pop()
        ids = self.model.held[bid]
        assert (job.batch.bid, job.batch.attempts, job.batch.events) == (bid, self.model.tries[bid], len(ids))
        assert ids_of(job.batch.chunks) == ids
        if what == "drop":
            self.world.run(dropped(self.partition))
            if bid not in self.bids():
                self.forget(bid)
                self.settle(job, Settled(job, DELIVERED), is_twice=is_twice)
                return
            gone = next(each for each in [*self.model.held] if each not in self.bids())
            self.forget(gone)
            what = "back"
        settled = self.decided(what, job, bid, ids, data)
        self.settle(job, settled, is_twice=is_twice)

    def decided(self, what: str, job: DeliveryJob, bid: str, ids: list[str], data: st.DataObject) -> Settled:
        batch, model = job.batch, self.model
        assert batch is not None
        if what == "split" and len(ids) > 1:
            attempts = data.draw(st.integers(0, 3))
            halves = parts.halves(batch.chunks, batch.events, attempts=attempts)
            self.forget(bid)
            path = "" if "." in bid else "."
            for end, some in (("1", ids[len(ids) // 2 :]), ("0", ids[: len(ids) // 2])):
                part = f"{bid}{path}{end}"
                model.held[part], model.tries[part] = some, attempts
                model.line.append(part)
            return Settled(job, Settlement("refused", is_split=True), halves=halves)
        if what == "keep":
            failed = data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))
            rest = parts.remainder(batch.chunks, set(failed))
            part = bid if len(failed) == len(ids) else f"{bid}{'' if '.' in bid else '.'}0"
            tries = model.tries[bid] + 1
            self.forget(bid)
            model.done += len(ids) - len(failed)
            model.held[part], model.tries[part] = [id_ for id_ in ids if id_ in failed], tries
            model.line.append(part)
            return Settled(job, Settlement("delivered"), remainder=rest)
        if what == "dead":
            assert len(ids) <= LETTERS_MAX
            lines = [line for chunk in batch.chunks for line in chunk.split(b"\n")]
            letters = parts.letters(
                lines, REFUSED, reason="attempts", attempts=1, accepted_at=1, batch=bid, partition=0
            )
            self.forget(bid)
            model.dead += ids
            return Settled(job, Settlement("refused", dead="attempts"), letters=letters)
        if what == "back":
            model.tries[bid] += 1
            model.line.append(bid)
            return Settled(job, Settlement("refused"))
        self.forget(bid)
        model.done += len(ids)
        return Settled(job, DELIVERED)

    def forget(self, bid: str) -> None:
        del self.model.held[bid], self.model.tries[bid]
        if bid in self.model.line:
            self.model.line.remove(bid)

    def settle(self, job: DeliveryJob, settled: Settled, *, is_twice: bool) -> None:
        """No slot asks for more; a reply may have been lost, and then the same is sent again."""
        for _ in range(1 + is_twice):
            turn = self.world.run(deliveries.turn(self.partition, [settled], [], process="p", probes_max=1))
            assert turn.results[0].is_ours
        del job

    def bids(self) -> list[str]:
        return strings(self.world.ask(self.partition, ["ZRANGE", "batches:index", 0, -1])[0])

    @invariant()
    def redis_is_as_the_model_says(self) -> None:
        model = self.model
        index, own, sizes, waiting, of_batches, line, receiver = self.world.ask(
            self.partition,
            ["ZRANGE", "batches:index", 0, -1],
            ["ZRANGE", "batches:index:ann", 0, -1],
            ["HGETALL", "batches:bytes"],
            ["HGET", "batches:gauges:event", "ann"],
            ["HGET", "batches:gauges:batch", "ann"],
            ["LRANGE", f"jobs:instant:{MAIN}:ann", 0, -1],
            ["ZRANGE", "dead:index:ann", 0, -1],
        )
        assert {*strings(index)} == {*strings(own)} == {*model.held}
        in_line = [bid for bid in strings(line) if bid in model.held]
        assert in_line == model.line
        assert int(waiting or 0) == sum(map(len, model.held.values()))
        assert int(of_batches or 0) == len(model.held)
        assert pairs(sizes) == {bid.encode(): self.bytes_of(bid) for bid in model.held}
        letters = self.world.run(dead_letters.read(self.partition, "ann", strings(receiver)))
        assert sorted(each for letter in letters for each in ids_of([letter.event])) == sorted(model.dead)

    def bytes_of(self, bid: str) -> int:
        head, *rest = self.world.ask(self.partition, ["LRANGE", f"batch:{bid}", 0, -1])[0][2:]
        assert int(head) == self.model.tries[bid]
        assert int(rest[0]) == len(self.model.held[bid])
        assert ids_of(rest[1:]) == self.model.held[bid]
        return sum(len(line) for chunk in rest[1:] for line in chunk.split(b"\n"))


def ids_of(chunks: Sequence[bytes]) -> list[str]:
    return [msgspec.json.decode(line)["id"] for chunk in chunks for line in chunk.split(b"\n")]


async def publish(partition: Partition, ids: list[str]) -> None:
    route = Route(EventKind("widgets", "update", "default"), (ANN,))
    # Of different lengths, one of them with letters of several bytes.
    offers = [
        RoutedEvent(route, f'{{"id":"{id_}","topic":"widgets","d":"{"é" * (n % 3)}"}}'.encode(), "pam")
        for n, id_ in enumerate(ids)
    ]
    await events.publish(partition, offers, version=0, limits=PublishLimits(id_window_ms=1, ids_max=1))


async def due(partition: Partition, bid: str) -> None:
    """A batch's time has come: its job is in line."""
    await partition.command("ZADD", partition.key(f"jobs:scheduled:{MAIN}"), 0, f"{bid} ann")
    await deliveries.turn(partition, [], [], process="q", probes_max=0)
    await partition.command("SREM", partition.key("batches:current:ann"), bid)


async def dropped(partition: Partition) -> None:
    await batches.drop_oldest(partition, "ann", batches_max=1, created_max=None, bytes_enough=2**53, counter="dropped")


def test_the_parts_of_a_batch_hold_its_events_each_once_and_in_order(one: Topology):
    hold_law(one, PartsMachine, law(examples=60, steps=30))
