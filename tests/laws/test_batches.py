"""The law of events and batches: an accepted event is, for each receiver, in exactly one place until it is delivered.

The machine has its own picture of every batch, and compares it with everything that Redis counts after each step.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conftest import Topology
from doubledecker.model import token as tokens
from doubledecker.model.event import EventKind
from doubledecker.model.job import MAIN
from doubledecker.model.job import Job as AuxJob
from doubledecker.model.routing import Route
from doubledecker.model.settlement import DELIVERED, FIRST, GONE, RETURNED, Settlement
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import batches, deliveries, events, journal, losses, registry, subscribers
from doubledecker.store.batches import Lost
from doubledecker.store.deliveries import DeliveryJob, OpenedBatch, Settled
from doubledecker.store.events import Accepted, PublishLimits, RoutedEvent
from doubledecker.store.losses import Dropped
from doubledecker.store.partitions import Partition
from laws.world import AGE_MS, World, a_world, hold_law, law, pairs, strings

TOPICS = ("widgets", "gadgets")
PUBLISHERS = ("pam", "pip")
# Every way to close: by count, by bytes, by deadline, at once; and one that gets both topics.
# None ever has too few permits, which is a matter of tests/laws/test_receivers.py.
SUBSCRIBERS = tuple(
    Subscriber(token, f"https://{token}", token, topics, timeout_ms, max_events, max_bytes, concurrency=1000)
    for token, topics, timeout_ms, max_events, max_bytes in (
        ("count", ("widgets",), AGE_MS, 3, 10_000),
        ("bytes", ("widgets",), 2 * AGE_MS, 100, 60),
        ("now", ("widgets", "gadgets"), 0, 2, 45),
        ("deadline", ("gadgets",), AGE_MS, 1000, 10_000),
    )
)
BY_TOKEN = {subscriber.token: subscriber for subscriber in SUBSCRIBERS}
ID_WINDOW_AGES = 2
LIMITS = PublishLimits(id_window_ms=ID_WINDOW_AGES * AGE_MS, ids_max=4)
ATTEMPT = '{"attempt":1}'
ATTEMPTED = ("delivered", "refused", "failed")

some_partition = st.integers(0, 2)
some_events = st.lists(
    st.tuples(
        st.sampled_from(TOPICS),
        st.sampled_from(PUBLISHERS),
        st.sampled_from([None, None, None, "id-1", "id-2", "id-3"]),
        # Bounds of bytes are met exactly, missed and exceeded.
        st.sampled_from([6, 15, 15, 29, 30, 45, 60, 70]),
    ),
    min_size=1,
    max_size=8,
)


# None makes its receiver failing: these are about batches.
some_settlements = st.sampled_from(
    [
        DELIVERED,
        Settlement("refused", retry_ms=0),
        Settlement("refused", retry_ms=AGE_MS),
        Settlement("refused", retry_ms=FIRST),
        Settlement("refused", retry_ms=2 * AGE_MS),
        Settlement("returned", retry_ms=AGE_MS),
        RETURNED,
    ]
)


@dataclass(eq=False)
class Kept:
    """A batch as it should be: a chunk for each publish; `bid` is learnt from Redis by its first message."""

    token: str
    chunks: dict[int, list[bytes]] = field(default_factory=dict)
    is_current: bool = True
    attempts: int = 0
    bid: str = ""
    created_at: int = 0
    # Tried, or given back, and to be tried again by its own schedule.
    is_aside: bool = False
    # What waited for a subscriber when it went: set aside, to be purged; its job may end before it does.
    is_retired: bool = False

    @property
    def messages(self) -> list[bytes]:
        return [message for chunk in self.chunks.values() for message in chunk]

    @property
    def lines(self) -> list[bytes]:
        return [b"\n".join(chunk) for chunk in self.chunks.values()]

    @property
    def size(self) -> int:
        return sum(map(len, self.messages))


@dataclass
class Model:
    """One partition as it should be."""

    partition: Partition
    batches: list[Kept] = field(default_factory=list)
    # What was set aside, by the name of the purge, in its order; some of it may be delivered or dropped meanwhile.
    retired: dict[str, list[Kept]] = field(default_factory=dict)
    # Batches that were dropped: their jobs end when they are due.
    dropped: set[str] = field(default_factory=set)
    held: dict[str, DeliveryJob] = field(default_factory=dict)
    late: list[DeliveryJob] = field(default_factory=list)
    journal: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    attempts: int = 0
    # Calls that dropped something beyond a bound; each is an entry of the attempts' journal.
    overflows: int = 0
    published: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    added: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seen: dict[tuple[str, str], int] = field(default_factory=dict)

    def kept(self, job: DeliveryJob) -> Kept | None:
        return next((kept for kept in self.batches if kept.bid == job.held[:20]), None)

    def accept(self, token: str, message: bytes, publish: int) -> None:
        """Put a message into a subscriber's current batch, one at a time, by the rules as they are written down."""
        wants = BY_TOKEN[token]
        self.added[token] += 1
        current = next((kept for kept in self.batches if kept.token == token and kept.is_current), None)
        if current and current.size + len(message) > wants.max_bytes:
            current.is_current = False
            current = None
        if current is None:
            current = Kept(token)
            self.batches.append(current)
        current.chunks.setdefault(publish, []).append(message)
        if len(current.messages) >= wants.max_events or current.size >= wants.max_bytes:
            current.is_current = False

    def drop(self, gone: list[Kept]) -> list[Lost]:
        self.dropped |= {kept.bid for kept in gone}
        self.batches = [kept for kept in self.batches if kept not in gone]
        of = {kept.token: [each for each in gone if each.token == kept.token] for kept in gone}
        return [
            Lost(token, len(lost), sum(len(each.messages) for each in lost), sum(each.size for each in lost))
            for token, lost in of.items()
        ]


class BatchesMachine(RuleBasedStateMachine):
    """Publishes, delivers, fails, drops and purges in all partitions."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.age = 0
        self.version = 0
        self.numbers = count()
        self.models = [Model(partition) for partition in world.partitions.all]
        self.touched = self.models[0]

    @initialize()
    def start(self) -> None:
        self.world.empty()
        self.change_registry()

    def at(self, index: int) -> Model:
        self.world.tick()
        self.touched = self.models[index % len(self.models)]
        return self.touched

    @rule()
    def change_registry(self) -> None:
        home, token = self.world.partitions.home, tokens.make(SUBSCRIBERS[0].token, "s", "secret", now_ms=0)
        seen = self.world.run(registry.version(home))
        seen = self.world.run(registry.save_token(home, token, seen=seen))
        self.version = self.world.run(subscribers.save(home, SUBSCRIBERS[0], seen=seen))
        self.world.run(registry.copy_version(self.world.partitions, self.version))

    @rule(index=some_partition, drawn=some_events)
    def publish(self, index: int, drawn: list[tuple[str, str, str | None, int]]) -> None:
        model = self.at(index)
        offers = [self.an_offer(*each) for each in drawn]
        reply = self.world.run(events.publish(model.partition, offers, version=self.version, limits=LIMITS))

        repeats = self.expected_repeats(model, offers)
        assert reply.outcome is Accepted.OK
        assert reply.repeats == repeats
        publish = next(self.numbers)
        for i, offer in enumerate(offers):
            if i in repeats:
                continue
            model.journal[offer.publisher].append(offer.message)
            model.published[offer.route.kind.topic] += 1
            for receiver in offer.route.receivers:
                model.accept(receiver.token, offer.message, publish)
        self.learn_ids(model)

    @rule(index=some_partition, drawn=some_events)
    def publish_with_an_old_registry(self, index: int, drawn: list[tuple[str, str, str | None, int]]) -> None:
        model = self.at(index)
        offers = [self.an_offer(*each) for each in drawn]
        reply = self.world.run(events.publish(model.partition, offers, version=self.version - 1, limits=LIMITS))
        assert reply.outcome is Accepted.STALE

    @rule(index=some_partition, drawn=some_events)
    def publish_while_the_archive_is_behind(self, index: int, drawn: list[tuple[str, str, str | None, int]]) -> None:
        model = self.at(index)
        if not model.journal:
            return
        offers = [self.an_offer(*each) for each in drawn]
        limits = replace(LIMITS, journal_bytes_max=1)
        self.world.run(journal.register_archive(model.partition, "lake"))
        reply = self.world.run(events.publish(model.partition, offers, version=self.version, limits=limits))
        self.world.run(journal.unregister_archive(model.partition))
        assert reply.outcome is Accepted.FULL

    @rule(index=some_partition, slots=st.integers(1, 3))
    def take(self, index: int, slots: int) -> None:
        model = self.at(index)
        names = [f"slot-{next(self.numbers)}" for _ in range(slots)]
        self.turn(model, [], names)

        if len(model.held.keys() & set(names)) < slots:
            now = self.world.run(model.partition.time_ms())
            left = self.world.ask(
                model.partition,
                *(["LLEN", f"jobs:instant:{MAIN}:{token}"] for token in BY_TOKEN),
                ["ZCOUNT", f"jobs:scheduled:{MAIN}", "-inf", now],
            )
            assert not any(left), "a slot stayed free although a job was due"

    @rule(index=some_partition)
    def take_all_that_is_due(self, index: int) -> None:
        """Hypothesis leaves each rule out of half of its examples; what all depends on is there twice."""
        self.redis_is_as_the_model_says()
        self.time_passes(2)
        self.take(index, 4)

    @precondition(lambda self: any(m.held for m in self.models))
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        """A slot whose reply was lost gets the job that it holds, and the batch as it is by now."""
        model, job = self.one_held(data)
        before = dict(model.held)
        self.turn(model, [], [job.slot])
        assert model.held.keys() == before.keys()
        assert model.held[job.slot].held == job.held

    @precondition(lambda self: any(m.held for m in self.models))
    @rule(data=st.data(), settlement=some_settlements, times=st.integers(1, 2), slots=st.integers(0, 1))
    def settle(self, data: st.DataObject, settlement: Settlement, times: int, slots: int) -> None:
        """Twice, if the first reply was lost; and what is free takes the next."""
        model, job = self.one_held(data)
        settled = _settled(job, settlement)
        self.note(model, settled)
        for _ in range(times):
            self.turn(model, [settled], [])
        if slots:
            self.turn(model, [settled], [f"slot-{next(self.numbers)}"])

    @rule(index=some_partition, settlement=some_settlements)
    def settle_all(self, index: int, settlement: Settlement) -> None:
        """Every other one is delivered, of the rest the same becomes; in one call, which gives their slots the next."""
        self.take_all_that_is_due(index)
        model = self.at(index)
        settled = [_settled(job, settlement if i % 2 else DELIVERED) for i, job in enumerate(model.held.values())]
        for each in settled:
            self.note(model, each)
        self.turn(model, settled, [each.job.slot for each in settled])

    @rule(index=some_partition, settlement=some_settlements, is_dropped=st.booleans())
    def what_is_under_way_goes(self, index: int, settlement: Settlement, is_dropped: bool) -> None:
        """Its batch is dropped, or set aside with its subscriber: it is settled none the less."""
        self.take_all_that_is_due(index)
        for token in BY_TOKEN:
            if is_dropped:
                self.autodrop(index, token, 3, 2**53)
            else:
                self.retire(index, token)
        model = self.at(index)
        for job in list(model.held.values()):
            self.note(model, settled := _settled(job, settlement))
            self.turn(model, [settled], [])

    @rule(index=some_partition, settlement=some_settlements)
    def all_slots_die_and_settle_late(self, index: int, settlement: Settlement) -> None:
        self.take_all_that_is_due(index)
        self.scrub(index)
        while self.touched.late:
            self.settle_one_late(self.touched, settlement)

    def note(self, model: Model, settled: Settled) -> None:
        """What a settlement should change."""
        del model.held[settled.job.slot]
        model.attempts += bool(settled.attempt)
        kept = model.kept(settled.job)
        if kept is not None and settled.settlement.what == "delivered":
            model.batches.remove(kept)
        elif kept is not None:
            # Of one whose subscriber is gone nobody counts: it is purged.
            kept.attempts += settled.settlement.is_counted and not kept.is_retired
            kept.is_aside = settled.settlement.retry_ms >= 0

    def turn(self, model: Model, settled: list[Settled], slots: list[str]) -> None:
        turn = self.world.run(deliveries.turn(model.partition, settled, slots, process="p", probes_max=0))
        now = self.world.run(model.partition.time_ms())
        assert all(result.is_ours for result in turn.results)
        given = [job.slot for job in turn.jobs]
        assert len(given) == len(set(given))
        assert set(given) <= set(slots)
        for job in turn.jobs:
            is_again = job.slot in model.held
            model.held[job.slot] = job
            kept = model.kept(job)
            if kept is None:
                assert is_again, "the job of a batch that is gone was given"
                assert job.batch is None
                continue
            assert is_again or not kept.is_retired
            assert not kept.is_current or kept.created_at + BY_TOKEN[kept.token].timeout_ms <= now, (
                "before its deadline"
            )
            kept.is_current = False
            assert job.batch == OpenedBatch(
                kept.bid, kept.token, kept.created_at, kept.attempts, len(kept.messages), kept.lines
            )

    @rule(index=some_partition)
    def scrub(self, index: int) -> None:
        """All slots are taken for dead; those that are not go on with what is no longer theirs."""
        model = self.at(index)
        _, returned = self.world.run(deliveries.scrub(model.partition, dead_ms=AGE_MS))
        assert returned == len(model.held)
        model.late += model.held.values()
        model.held = {}

    @precondition(lambda self: any(m.late for m in self.models))
    @rule(data=st.data(), settlement=some_settlements)
    def settle_late(self, data: st.DataObject, settlement: Settlement) -> None:
        model = self.at(data.draw(st.sampled_from([i for i, m in enumerate(self.models) if m.late])))
        self.settle_one_late(model, settlement)

    def settle_one_late(self, model: Model, settlement: Settlement) -> None:
        late = _settled(model.late.pop(), settlement)
        turn = self.world.run(deliveries.turn(model.partition, [late], [], process="p", probes_max=0))
        assert [result.is_ours for result in turn.results] == [False]

    @rule(
        index=some_partition,
        token=st.sampled_from(list(BY_TOKEN)),
        most=st.integers(1, 3),
        bytes_enough=st.sampled_from([1, 50, 2**53]),
    )
    def autodrop(self, index: int, token: str, most: int, bytes_enough: int) -> None:
        model = self.at(index)
        gone: list[Kept] = []
        its_own = [kept for kept in model.batches if kept.token == token and not kept.is_retired]
        for kept in sorted(its_own, key=lambda kept: (kept.created_at, kept.bid))[:most]:
            if sum(each.size for each in gone) < bytes_enough:
                gone.append(kept)
        lost = self.world.run(
            batches.drop_oldest(
                model.partition,
                token,
                batches_max=most,
                created_max=None,
                bytes_enough=bytes_enough,
                counter="events.autodropped",
            )
        )
        assert [lost] == (model.drop(gone) or [Lost(token, 0, 0, 0)])

    @rule(index=some_partition, token=st.sampled_from(list(BY_TOKEN)), bytes_enough=st.sampled_from([1, 50, 50, 2**53]))
    def lose_what_is_beyond_a_bound(self, index: int, token: str, bytes_enough: int) -> None:
        """The oldest of what waits; a batch that is under way, or still takes events, stays."""
        model = self.at(index)
        under_way = {job.held[:20] for job in model.held.values()}
        gone: list[Kept] = []
        its_own = [kept for kept in model.batches if kept.token == token and not (kept.is_retired or kept.is_current)]
        for kept in sorted(its_own, key=lambda kept: (kept.created_at, kept.bid)):
            if kept.bid not in under_way and sum(each.size for each in gone) < bytes_enough:
                gone.append(kept)
        dropped = self.world.run(
            losses.drop_oldest(model.partition, token, bytes_enough=bytes_enough, created_max=None)
        )
        [lost] = model.drop(gone) or [Lost(token, 0, 0, 0)]
        assert dropped == Dropped(lost.batches, lost.events, lost.bytes)
        model.overflows += bool(gone)

    @rule(index=some_partition, token=st.sampled_from(list(BY_TOKEN)))
    def retire(self, index: int, token: str) -> None:
        """A subscriber goes, and what waits for it is set aside; what comes later is another subscription's."""
        model = self.at(index)
        its_own = [kept for kept in model.batches if kept.token == token and not kept.is_retired]
        assert self.world.run(subscribers.retire(model.partition, token, version=self.version - 1)) is None
        is_needed = self.world.run(subscribers.retire(model.partition, token, version=self.version))
        assert is_needed == bool(its_own)
        for kept in its_own:
            kept.is_retired, kept.is_current = True, False
        if is_needed:
            [packed] = self.world.ask(model.partition, ["LINDEX", "jobs:instant:aux", 0])
            name, (whose, rid) = (job := AuxJob.decode(packed)).name, job.args
            assert (name, whose) == ("purge", token)
            model.retired[rid] = sorted(its_own, key=lambda kept: (kept.created_at, kept.bid))

    @precondition(lambda self: any(m.retired for m in self.models))
    @rule(data=st.data(), most=st.integers(1, 3))
    def purge(self, data: st.DataObject, most: int) -> None:
        """A bounded call at a time; the gauges are forgotten only when nothing is left, of any former self."""
        model = self.at(data.draw(st.sampled_from([i for i, m in enumerate(self.models) if m.retired])))
        rid = next(iter(model.retired))
        token = model.retired[rid][0].token
        page, model.retired[rid] = model.retired[rid][:most], model.retired[rid][most:]
        if not model.retired[rid]:
            del model.retired[rid]
        left = self.world.run(batches.purge(model.partition, rid, batches_max=most, counter="events.purged"))
        model.drop([kept for kept in page if kept in model.batches])
        assert left == len(model.retired.get(rid, []))
        is_forgotten = self.world.run(batches.forget_gauges(model.partition, token))
        assert is_forgotten == all(kept.token != token for kept in model.batches)

    @rule(ages=st.integers(1, 2))
    def time_passes(self, ages: int) -> None:
        self.world.pass_ages(ages)
        self.age += ages

    @invariant()
    def redis_is_as_the_model_says(self) -> None:
        self.every_event_is_in_exactly_one_batch()
        self.the_job_of_each_batch_is_in_exactly_one_place()
        self.the_journal_and_the_counters_hold_every_accepted_event_once()

    def every_event_is_in_exactly_one_batch(self) -> None:
        model = self.touched
        tokens = list(BY_TOKEN)
        index, sizes, gauge_events, gauge_batches, *rest = self.world.ask(
            model.partition,
            ["ZRANGE", "batches:index", 0, -1, "WITHSCORES"],
            ["HGETALL", "batches:bytes"],
            ["HGETALL", "batches:gauges:event"],
            ["HGETALL", "batches:gauges:batch"],
            *(["SMEMBERS", f"batches:current:{token}"] for token in tokens),
            *(["ZRANGE", f"batches:index:{token}", 0, -1, "WITHSCORES"] for token in tokens),
        )
        created = {bid.decode(): at for bid, at in pairs(index).items()}
        lists = self.world.ask(model.partition, *(["LRANGE", f"batch:{bid}", 0, -1] for bid in created))
        self.match(model, created, dict(zip(created, lists, strict=True)))
        current = dict(zip(tokens, rest[: len(tokens)], strict=True))
        token_index = dict(zip(tokens, rest[len(tokens) :], strict=True))
        for token in tokens:
            own = [kept for kept in model.batches if kept.token == token]
            assert strings(current[token]) == [kept.bid for kept in own if kept.is_current]
            waiting = [kept for kept in own if not kept.is_retired]
            assert pairs(token_index[token]) == {kept.bid.encode(): kept.created_at for kept in waiting}
            assert pairs(gauge_batches).get(token.encode(), 0) == len(own)
            assert pairs(gauge_events).get(token.encode(), 0) == sum(len(kept.messages) for kept in own)
        retired = self.world.ask(
            model.partition, *(["ZRANGE", f"batches:retired:{rid}", 0, -1] for rid in model.retired)
        )
        assert [strings(bids) for bids in retired] == [[kept.bid for kept in line] for line in model.retired.values()]
        assert pairs(sizes) == {kept.bid.encode(): kept.size for kept in model.batches}

    def match(self, model: Model, created: dict[str, int], lists: dict[str, list[bytes]]) -> None:
        """Find each batch of the model by its first message: all there, nothing else, in the same order."""
        by_first = {(parts[0], parts[4].split(b"\n")[0]): bid for bid, parts in lists.items()}
        assert len(by_first) == len(lists) == len(model.batches)
        for kept in model.batches:
            bid = by_first[kept.token.encode(), kept.messages[0]]
            assert kept.bid in {"", bid}
            kept.bid, kept.created_at = bid, created[bid]
            numbers = [b"%d" % number for number in (kept.created_at, kept.attempts, len(kept.messages))]
            assert lists[bid] == [kept.token.encode(), *numbers, *kept.lines]

    def the_job_of_each_batch_is_in_exactly_one_place(self) -> None:
        model = self.touched
        scheduled, pending, *lines = self.world.ask(
            model.partition,
            ["ZRANGE", f"jobs:scheduled:{MAIN}", 0, -1, "WITHSCORES"],
            ["HGETALL", f"jobs:pending:{MAIN}"],
            *(["LRANGE", f"jobs:instant:{MAIN}:{token}", 0, -1] for token in BY_TOKEN),
        )
        held = {slot.decode(): jobs for slot, jobs in zip(pending[0::2], pending[1::2], strict=True)}
        held = {slot: jobs.decode().split("\n")[0] for slot, jobs in held.items() if not jobs.startswith(b"\n")}
        assert held == {slot: job.held for slot, job in model.held.items()}
        deadlines = {job.decode(): at for job, at in pairs(scheduled).items()}
        waiting = [f"{bid.decode()} {token}" for token, line in zip(BY_TOKEN, lines, strict=True) for bid in line]
        under_way = [" ".join(job.split(" ")[:2]) for job in held.values()]
        places = Counter([*deadlines, *waiting, *under_way])
        assert not places or max(places.values()) == 1, "a job is in two places"
        living = {f"{kept.bid} {kept.token}": kept for kept in model.batches if not kept.is_retired}
        assert living.keys() <= places.keys()
        retired = {kept.bid for kept in model.batches if kept.is_retired}
        assert {job[:20] for job in places.keys() - living.keys()} <= model.dropped | retired
        for job, kept in living.items():
            if kept.is_current and job in deadlines:
                assert deadlines[job] == kept.created_at + BY_TOKEN[kept.token].timeout_ms
            assert kept.is_current or kept.is_aside or job not in deadlines, "a full batch waits for its deadline"

    def the_journal_and_the_counters_hold_every_accepted_event_once(self) -> None:
        model = self.touched
        state, entries, counters, attempts = self.world.ask(
            model.partition,
            ["HGETALL", "journal"],
            ["XRANGE", "journal:events", "-", "+"],
            ["HGETALL", "counters"],
            ["XRANGE", "journal:attempts", "-", "+"],
        )
        topics = self.world.ask(model.partition, *(["HGET", f"topic:{name}", "counter"] for name in TOPICS))
        found: dict[str, list[bytes]] = defaultdict(list)
        size = 0
        for _, fields in entries:
            for publisher, lines in zip(fields[0::2], fields[1::2], strict=True):
                found[publisher.decode()] += lines.split(b"\n")
                size += len(publisher) + len(lines)
        assert found == model.journal
        assert pairs(state).get(b"events_bytes", 0) == size
        assert pairs(state).get(b"attempts_bytes", 0) == sum(len(text) for _, (_, text) in attempts)
        assert [text for _, (_, text) in attempts].count(ATTEMPT.encode()) == model.attempts
        assert len(attempts) == model.attempts + model.overflows
        numbers = pairs(counters)
        assert numbers.get(b"delivery.batches", 0) == model.attempts
        for name, counted in zip(TOPICS, topics, strict=True):
            assert int(counted or 0) == model.published[name]
            assert numbers.get(f"events.published:topic={name}".encode(), 0) == model.published[name]
        for token in BY_TOKEN:
            added = numbers.get(f"events.added:subscriber={token}".encode(), 0)
            removed = numbers.get(f"events.removed:subscriber={token}".encode(), 0)
            waiting = sum(len(kept.messages) for kept in model.batches if kept.token == token)
            assert added == model.added[token]
            assert added - removed == waiting

    def an_offer(self, topic: str, publisher: str, id_: str | None, length: int) -> RoutedEvent:
        number = next(self.numbers)
        message = (b"%06d" % number).ljust(length, b".")
        receivers = tuple(subscriber for subscriber in SUBSCRIBERS if topic in subscriber.topics)
        return RoutedEvent(Route(EventKind(topic, "update", "default"), receivers), message, publisher, id_ or "")

    def expected_repeats(self, model: Model, offers: list[RoutedEvent]) -> frozenset[int]:
        now = self.world.run(model.partition.time_ms())
        repeats = set()
        known = {key for key, at in model.seen.items() if at + LIMITS.id_window_ms > now}
        for i, offer in enumerate(offers):
            key = (offer.publisher, offer.id)
            if offer.id and key in known:
                repeats.add(i)
            elif offer.id:
                known.add(key)
        return frozenset(repeats)

    def learn_ids(self, model: Model) -> None:
        replies = self.world.ask(model.partition, *(["ZRANGE", f"ids:{p}", 0, -1, "WITHSCORES"] for p in PUBLISHERS))
        for flat in replies:
            assert len(flat) // 2 <= LIMITS.ids_max
        model.seen = {
            (publisher, id_.decode()): at
            for publisher, flat in zip(PUBLISHERS, replies, strict=True)
            for id_, at in pairs(flat).items()
        }

    def one_held(self, data: st.DataObject) -> tuple[Model, DeliveryJob]:
        model = self.at(data.draw(st.sampled_from([i for i, m in enumerate(self.models) if m.held])))
        return model, model.held[data.draw(st.sampled_from(sorted(model.held)))]


def _settled(job: DeliveryJob, settlement: Settlement) -> Settled:
    """A batch that was dropped meanwhile is not tried; what was tried is written down."""
    if job.batch is None:
        return Settled(job, GONE)
    if settlement.what in ATTEMPTED:
        return Settled(job, settlement, ATTEMPT, {"delivery.batches": 1})
    return Settled(job, settlement)


def test_every_accepted_event_is_in_exactly_one_place_until_it_is_delivered(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
):
    numbers = count()
    # Batches of one millisecond are ordered by their names: with random ones an example is not repeatable.
    monkeypatch.setattr(events, "uids", lambda many: "".join(f"{next(numbers):020}" for _ in range(many)))
    hold_law(topology, BatchesMachine, law(examples=100, steps=30))


def test_gauges_of_a_subscriber_that_came_back_survive_the_purge_of_its_former_self(topology: Topology):
    """A purge that runs with an old registry must not forget what waits for the new subscription."""
    with a_world(topology) as world:
        world.empty()
        home = world.partitions.home
        offer = RoutedEvent(Route(EventKind("widgets", "update", "default"), (SUBSCRIBERS[0],)), b"m", "pam")
        world.run(events.publish(home, [offer], version=0, limits=LIMITS))

        is_forgotten = world.run(batches.forget_gauges(home, "count"))

        assert not is_forgotten
        assert world.run(batches.gauges(home)) == ({"count": 1}, {"count": 1})


def test_the_ids_of_a_publisher_that_fell_silent_are_forgotten_with_its_window(topology: Topology):
    with a_world(topology) as world:
        world.empty()
        home = world.partitions.home
        offer = RoutedEvent(Route(EventKind("widgets", "update", "default")), b"m", "pam", "mine")
        world.run(events.publish(home, [offer], version=0, limits=LIMITS))

        [lifetime_ms] = world.ask(home, ["PTTL", "ids:pam"])

        assert 0 < lifetime_ms <= LIMITS.id_window_ms
