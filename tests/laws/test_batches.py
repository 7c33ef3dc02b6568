"""The law of events and batches: an accepted event is, for each receiver, in exactly one place until it is delivered.

The machine has its own picture of every batch, and compares it with everything that Redis counts after each step.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conftest import Topology
from doubledecker.model.event import Kind
from doubledecker.model.job import MAIN, RETRY, Job
from doubledecker.model.routing import Route
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import batches, events, jobs, journal, offers, registry, subscribers
from doubledecker.store.batches import Batch, Lost
from doubledecker.store.events import Accepted, PublishLimits
from doubledecker.store.jobs import Taken
from doubledecker.store.offers import Offer
from doubledecker.store.partitions import Partition
from laws.world import AGE_MS, World, a_world, hold_law, law, pairs, strings

TOPICS = ("widgets", "gadgets")
PUBLISHERS = ("pam", "pip")
# Every way to close: by count, by bytes, by deadline, at once; and one that gets both topics.
SUBSCRIBERS = (
    Subscriber("count", "https://a", "a", ("widgets",), timeout_ms=AGE_MS, max_events=3, max_bytes=10_000),
    Subscriber("bytes", "https://b", "b", ("widgets",), timeout_ms=2 * AGE_MS, max_events=100, max_bytes=60),
    Subscriber("now", "https://c", "c", ("widgets", "gadgets"), timeout_ms=0, max_events=2, max_bytes=45),
    Subscriber("deadline", "https://d", "d", ("gadgets",), timeout_ms=AGE_MS, max_events=1000, max_bytes=10_000),
)
BY_TOKEN = {subscriber.token: subscriber for subscriber in SUBSCRIBERS}
ID_WINDOW_AGES = 2
LIMITS = PublishLimits(id_window_ms=ID_WINDOW_AGES * AGE_MS, ids_max=4)
ATTEMPT = b'{"attempt":1}'

some_partition = st.integers(0, 2)
some_events = st.lists(
    st.tuples(
        st.sampled_from(TOPICS),
        st.sampled_from(PUBLISHERS),
        st.sampled_from([None, None, None, "id-1", "id-2", "id-3"]),
        st.integers(1, 70),
    ),
    min_size=1,
    max_size=8,
)


@dataclass(eq=False)
class Kept:
    """A batch as it should be; `bid` is learnt from Redis by its first message."""

    token: str
    messages: list[bytes]
    is_current: bool = True
    attempts: int = 0
    bid: str = ""
    created_at: int = 0
    # What waited for a subscriber when it went: set aside, to be purged; its job may end before it does.
    is_retired: bool = False
    has_job: bool = True

    @property
    def size(self) -> int:
        return sum(map(len, self.messages))

    @property
    def job(self) -> bytes:
        return Job("batch", (self.bid, self.token)).encode()


@dataclass
class Model:
    """One partition as it should be."""

    partition: Partition
    batches: list[Kept] = field(default_factory=list)
    # What was set aside, by the name of the purge, in its order; some of it may be delivered or dropped meanwhile.
    retired: dict[str, list[Kept]] = field(default_factory=dict)
    # Jobs of batches that were dropped: whoever takes one finds nothing.
    orphans: set[bytes] = field(default_factory=set)
    held: dict[str, Taken] = field(default_factory=dict)
    opened: dict[str, Batch] = field(default_factory=dict)
    late: list[tuple[Taken, Batch]] = field(default_factory=list)
    journal: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    attempts: int = 0
    published: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    added: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seen: dict[tuple[str, str], int] = field(default_factory=dict)

    def accept(self, token: str, message: bytes) -> None:
        """Put a message into a subscriber's current batch, one at a time, by the rules as they are written down."""
        wants = BY_TOKEN[token]
        self.added[token] += 1
        current = next((kept for kept in self.batches if kept.token == token and kept.is_current), None)
        if current and current.size + len(message) > wants.max_bytes:
            current.is_current = False
            current = None
        if current is None:
            current = Kept(token, [])
            self.batches.append(current)
        current.messages.append(message)
        if len(current.messages) >= wants.max_events or current.size >= wants.max_bytes:
            current.is_current = False

    def drop(self, gone: list[Kept]) -> list[Lost]:
        self.orphans |= {kept.job for kept in gone if kept.has_job}
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
        self.version = self.world.run(subscribers.save(self.world.partitions.home, SUBSCRIBERS[0]))
        self.world.run(registry.copy_version(self.world.partitions, self.version))

    @rule(index=some_partition, drawn=some_events)
    def publish(self, index: int, drawn: list[tuple[str, str, str | None, int]]) -> None:
        model = self.at(index)
        offers = [self.an_offer(*each) for each in drawn]
        reply = self.world.run(events.publish(model.partition, offers, version=self.version, limits=LIMITS))

        repeats = self.expected_repeats(model, offers)
        assert reply.outcome is Accepted.OK
        assert reply.repeats == repeats
        for i, offer in enumerate(offers):
            if i in repeats:
                continue
            model.journal[offer.publisher].append(offer.message)
            model.published[offer.route.kind.topic] += 1
            for receiver in offer.route.receivers:
                model.accept(receiver.token, offer.message)
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
        take = self.world.run(jobs.take(model.partition, {RETRY: names, MAIN: names}, process="p"))

        now = self.world.run(model.partition.time_ms())
        for taken in take.taken:
            model.held[taken.slot] = taken
            kept = self.kept(model, taken.packed)
            if kept is None:
                assert taken.packed in model.orphans
            elif kept.is_current:
                assert kept.created_at + BY_TOKEN[kept.token].timeout_ms <= now, "taken before its deadline"
        if len(take.taken) < slots:
            left = self.world.ask(
                model.partition,
                ["LLEN", f"jobs:instant:{MAIN}"],
                ["LLEN", f"jobs:instant:{RETRY}"],
                ["LLEN", f"jobs:called:{MAIN}"],
                ["LLEN", f"jobs:called:{RETRY}"],
                ["ZCOUNT", f"jobs:scheduled:{MAIN}", "-inf", now],
                ["ZCOUNT", f"jobs:scheduled:{RETRY}", "-inf", now],
            )
            assert left == [0] * 6, "a slot stayed free although a job was due"

    @precondition(lambda self: any(m.held for m in self.models))
    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        self.open_one(*self.one(data, "held"))

    @rule(index=some_partition)
    def open_all_that_is_due(self, index: int) -> None:
        """Hypothesis leaves each rule out of half of its examples; what all depends on is there twice."""
        self.redis_is_as_the_model_says()
        self.time_passes(2)
        self.take(index, 3)
        model = self.at(index)
        for taken in list(model.held.values()):
            self.open_one(model, taken)

    def open_one(self, model: Model, taken: Taken) -> None:
        bid, token = taken.job.args
        batch = self.world.run(batches.open_(model.partition, bid, token=token))
        kept = self.kept(model, taken.packed)
        if kept is None or kept.is_retired:
            assert batch is None
            assert self.world.run(jobs.ack(taken))
            del model.held[taken.slot]
            model.opened.pop(taken.slot, None)
            model.orphans.discard(taken.packed)
            if kept is not None:
                kept.has_job = False
            return
        kept.is_current = False
        assert batch == Batch(bid, token, kept.created_at, kept.attempts, tuple(kept.messages))
        model.opened[taken.slot] = batch

    @precondition(lambda self: any(m.opened for m in self.models))
    @rule(data=st.data(), is_delivered=st.booleans(), ages=st.integers(0, 2))
    def settle(self, data: st.DataObject, is_delivered: bool, ages: int) -> None:
        model, batch = self.one(data, "opened")
        slot = next(slot for slot, opened in model.opened.items() if opened is batch)
        self.settle_one(model, slot, is_delivered=is_delivered, ages=ages)

    @rule(index=some_partition, ages=st.integers(0, 1))
    def settle_all(self, index: int, ages: int) -> None:
        """Every other one is delivered, the rest fail."""
        self.open_all_that_is_due(index)
        for i, slot in enumerate(sorted(self.touched.opened)):
            self.settle_one(self.touched, slot, is_delivered=i % 2 == 0, ages=ages)

    @rule(index=some_partition, is_delivered=st.booleans())
    def all_slots_die_and_settle_late(self, index: int, is_delivered: bool) -> None:
        self.open_all_that_is_due(index)
        self.scrub(index)
        while self.touched.late:
            self.settle_one_late(self.touched, is_delivered=is_delivered)

    def settle_one(self, model: Model, slot: str, *, is_delivered: bool, ages: int) -> None:
        batch = model.opened[slot]
        taken = model.held.pop(slot)
        del model.opened[slot]
        settled = self.world.run(self.settling(taken, batch, is_delivered=is_delivered, ages=ages))

        model.attempts += 1
        assert settled.is_ours
        assert settled.journal_bytes == model.attempts * len(ATTEMPT)
        kept = self.kept(model, taken.packed)
        if kept is None:
            model.orphans.discard(taken.packed)
        elif is_delivered:
            model.batches.remove(kept)
        else:
            kept.attempts += 1

    @precondition(lambda self: any(m.held for m in self.models))
    @rule(data=st.data())
    def park_and_unpark(self, data: st.DataObject) -> None:
        """A batch that waits for its subscriber, current or not, still takes and keeps what it takes."""
        model, taken = self.one(data, "held")
        del model.held[taken.slot]
        model.opened.pop(taken.slot, None)
        assert self.world.run(jobs.park(taken, token=taken.job.args[1]))
        if data.draw(st.booleans()):
            self.world.run(jobs.unpark(model.partition, taken.job.args[1], room=10, is_probe=False))

    @rule(index=some_partition)
    def scrub(self, index: int) -> None:
        """All slots are taken for dead; those that are not go on with what is no longer theirs."""
        model = self.at(index)
        for queue in (MAIN, RETRY):
            self.world.run(jobs.scrub(model.partition, queue, dead_ms=AGE_MS))
        model.late += [(model.held[slot], batch) for slot, batch in model.opened.items()]
        model.held, model.opened = {}, {}

    @precondition(lambda self: any(m.late for m in self.models))
    @rule(data=st.data(), is_delivered=st.booleans())
    def settle_late(self, data: st.DataObject, is_delivered: bool) -> None:
        model = self.at(data.draw(st.sampled_from([i for i, m in enumerate(self.models) if m.late])))
        self.settle_one_late(model, is_delivered=is_delivered)

    def settle_one_late(self, model: Model, *, is_delivered: bool) -> None:
        taken, batch = model.late.pop()
        settled = self.world.run(self.settling(taken, batch, is_delivered=is_delivered, ages=1))
        assert not settled.is_ours

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

    @rule(index=some_partition, token=st.sampled_from(list(BY_TOKEN)))
    def retire(self, index: int, token: str) -> None:
        """A subscriber goes, and what waits for it is set aside; what comes later is another subscription's."""
        model = self.at(index)
        its_own = [kept for kept in model.batches if kept.token == token and not kept.is_retired]
        is_needed = self.world.run(subscribers.retire(model.partition, token))
        assert is_needed == bool(its_own)
        for kept in its_own:
            kept.is_retired, kept.is_current = True, False
        if is_needed:
            [packed] = self.world.ask(model.partition, ["LINDEX", "jobs:instant:aux", 0])
            name, (whose, rid) = (job := Job.decode(packed)).name, job.args
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
        self.a_job_exists_exactly_for_each_batch()
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
        by_first = {(parts[0], parts[3]): bid for bid, parts in lists.items()}
        assert len(by_first) == len(lists) == len(model.batches)
        for kept in model.batches:
            bid = by_first[kept.token.encode(), kept.messages[0]]
            assert kept.bid in {"", bid}
            kept.bid, kept.created_at = bid, created[bid]
            header = [kept.token.encode(), str(kept.created_at).encode(), str(kept.attempts).encode()]
            assert lists[bid] == [*header, *kept.messages]

    def a_job_exists_exactly_for_each_batch(self) -> None:
        model = self.touched
        main, retry, scheduled, again, tokens, *instant = self.world.ask(
            model.partition,
            ["SMEMBERS", f"jobs:index:{MAIN}"],
            ["SMEMBERS", f"jobs:index:{RETRY}"],
            ["ZRANGE", f"jobs:scheduled:{MAIN}", 0, -1, "WITHSCORES"],
            ["ZRANGE", f"jobs:scheduled:{RETRY}", 0, -1],
            ["SMEMBERS", "jobs:parked:index"],
            *(["LRANGE", f"jobs:{line}:{queue}", 0, -1] for line in ("instant", "called") for queue in (MAIN, RETRY)),
        )
        parked = self.world.ask(
            model.partition,
            *(
                ["LRANGE", f"jobs:parked:{queue}:{token.decode()}", 0, -1]
                for token in tokens
                for queue in (MAIN, RETRY)
            ),
        )
        held = [taken.packed for taken in model.held.values()]
        places = [*pairs(scheduled), *again, *held, *(job for line in (*instant, *parked) for job in line)]
        assert not set(main) & set(retry)
        assert sorted(places) == sorted([*main, *retry])
        assert set(places) == {kept.job for kept in model.batches if kept.has_job} | model.orphans
        for kept in model.batches:
            deadline = pairs(scheduled).get(kept.job)
            if kept.is_current and deadline is not None:
                assert deadline == kept.created_at + BY_TOKEN[kept.token].timeout_ms
            assert kept.is_current or kept.is_retired or deadline is None, "a full batch waits for its deadline"

    def the_journal_and_the_counters_hold_every_accepted_event_once(self) -> None:
        model = self.touched
        state, entries, counters, attempts = self.world.ask(
            model.partition,
            ["HGETALL", "journal"],
            ["XRANGE", "journal:events", "-", "+"],
            ["HGETALL", "counters"],
            ["XLEN", "journal:attempts"],
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
        assert pairs(state).get(b"attempts_bytes", 0) == model.attempts * len(ATTEMPT)
        assert attempts == model.attempts
        numbers = pairs(counters)
        for name, counted in zip(TOPICS, topics, strict=True):
            assert int(counted or 0) == model.published[name]
            assert numbers.get(f"events.published:topic={name}".encode(), 0) == model.published[name]
        for token in BY_TOKEN:
            added = numbers.get(f"events.added:subscriber={token}".encode(), 0)
            removed = numbers.get(f"events.removed:subscriber={token}".encode(), 0)
            waiting = sum(len(kept.messages) for kept in model.batches if kept.token == token)
            assert added == model.added[token]
            assert added - removed == waiting

    def an_offer(self, topic: str, publisher: str, id_: str | None, length: int) -> Offer:
        number = next(self.numbers)
        message = b"%d" % number + b"." * length
        receivers = tuple(subscriber for subscriber in SUBSCRIBERS if topic in subscriber.topics)
        return Offer(Route(Kind(topic, "update", "default"), receivers), message, publisher, id_ or "")

    def expected_repeats(self, model: Model, offers: list[Offer]) -> frozenset[int]:
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

    def settling(self, taken: Taken, batch: Batch, *, is_delivered: bool, ages: int):
        if is_delivered:
            return batches.delivered(taken, batch, attempt=ATTEMPT, counts={"delivery.batches": 1})
        return batches.retry(taken, batch, delay_ms=ages * AGE_MS, attempt=ATTEMPT, counts={"delivery.batches": 1})

    def kept(self, model: Model, packed: bytes) -> Kept | None:
        return next((kept for kept in model.batches if kept.job == packed), None)

    def one(self, data: st.DataObject, where: str):
        """One of the values of a dictionary of some model."""
        index = data.draw(st.sampled_from([i for i, m in enumerate(self.models) if getattr(m, where)]))
        model = self.at(index)
        slot = data.draw(st.sampled_from(sorted(getattr(model, where))))
        return model, getattr(model, where)[slot]


def test_every_accepted_event_is_in_exactly_one_place_until_it_is_delivered(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
):
    numbers = count()
    # Batches of one millisecond are ordered by their names: with random ones an example is not repeatable.
    monkeypatch.setattr(offers, "uids", lambda many: "".join(f"{next(numbers):020}" for _ in range(many)))
    hold_law(topology, BatchesMachine, law(examples=30, steps=30))


def test_gauges_of_a_subscriber_that_came_back_survive_the_purge_of_its_former_self(topology: Topology):
    """A purge that runs with an old registry must not forget what waits for the new subscription."""
    with a_world(topology) as world:
        world.empty()
        home = world.partitions.home
        offer = Offer(Route(Kind("widgets", "update", "default"), (SUBSCRIBERS[0],)), b"m", "pam")
        world.run(events.publish(home, [offer], version=0, limits=LIMITS))

        is_forgotten = world.run(batches.forget_gauges(home, "count"))

        assert not is_forgotten
        assert world.run(batches.gauges(home)) == ({"count": 1}, {"count": 1})


def test_the_ids_of_a_publisher_that_fell_silent_are_forgotten_with_its_window(topology: Topology):
    with a_world(topology) as world:
        world.empty()
        home = world.partitions.home
        offer = Offer(Route(Kind("widgets", "update", "default")), b"m", "pam", "mine")
        world.run(events.publish(home, [offer], version=0, limits=LIMITS))

        [lifetime_ms] = world.ask(home, ["PTTL", "ids:pam"])

        assert 0 < lifetime_ms <= LIMITS.id_window_ms
