"""Receivers, their permits and their turns in plain Python: what the law of receivers compares the real ones with.

A moment is an age and the step of the machine in which it was named: no two steps share a millisecond, and no example
lasts an age, so moments are in the order of the milliseconds that scripts write.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple

from doubledecker.model.settlement import Settlement

REFUSALS_MAX = 5
WISH_AGES = 1
NOWHERE, RING, PROBES, WAKE = "", "ring", "probes", "wake"


class Moment(NamedTuple):
    age: int
    step: int = 0

    def after(self, ages: int) -> "Moment":
        return Moment(self.age + ages, self.step)


BEGINNING = Moment(0)


@dataclass(eq=False)
class Batch:
    """A batch with one event; `number` is by acceptance. One that is gone was dropped, or its receiver retired."""

    bid: str
    token: str
    number: int
    attempts: int = 0
    was_aside: bool = False
    is_gone: bool = False
    is_dropped: bool = False

    @property
    def job(self) -> str:
        return f"{self.bid} {self.token}"


@dataclass(frozen=True, eq=False)
class Given:
    """A job in a slot's hands, once; the same batch in the same slot another time is another."""

    slot: str
    batch: Batch
    is_probe: bool


@dataclass(frozen=True)
class Done:
    """A settlement as it is sent; `failures` are those that the receiver had when the call began."""

    failures: int
    settlement: Settlement
    ages: int
    probe_ages: int
    is_attempt: bool
    # The receiver's as it was called.
    anew_since: int = 0
    # Of a slot; a lease has none.
    given: Given | None = None

    @property
    def root(self) -> str:
        return self.given.batch.bid if self.given else ""


class Result(NamedTuple):
    is_ours: bool
    before: int
    after: int


@dataclass(frozen=True)
class Lease:
    ends: Moment
    is_probe: bool


@dataclass(eq=False)
class Receiver:
    """How one receiver should stand; `line` has the next batch last. `passed` is who was called while it waited."""

    token: str
    limit: int = 0
    failures: int = 0
    refusals: int = 0
    retry: Moment = BEGINNING
    failing_since: int | None = None
    tag: int = 0
    calls: int = 0
    line: list[Batch] = field(default_factory=list)
    leases: dict[str, Lease] = field(default_factory=dict)
    place: str = NOWHERE
    until: Moment = BEGINNING
    # Until when the next free permit is left to a lease.
    wish: Moment = BEGINNING
    halt: int = 0
    # The batch that was refused or failed last, and how many times in a row.
    root: str = ""
    parts: int = 0
    anew_since: int = 0
    # How many permits it has so soon after it failed; 0 for all.
    ramp: int = 0
    # How many ages apart its calls begin, 0 for no bound, and when the next may.
    every: int = 0
    next: Moment = BEGINNING
    passed: Counter[str] = field(default_factory=Counter)

    def begin_anew(self, anew_since: int) -> None:
        self.anew_since = anew_since
        self.failures, self.refusals, self.retry, self.failing_since = 0, 0, BEGINNING, None
        self.root, self.parts, self.ramp = "", 0, 0

    def succeed(self) -> None:
        """After it failed it has one permit, then twice as many with each success, until it has all."""
        ramp = 1 if self.failures else 2 * self.ramp if 2 * self.ramp < self.limit else 0
        self.begin_anew(self.anew_since)
        self.ramp = ramp

    @property
    def permits(self) -> int:
        return min(self.ramp or self.limit, max(1, self.limit)) or 1

    def pace(self, every: int, now: Moment) -> None:
        self.every, self.next = every, min(self.next, now.after(every))

    def begin_call(self, now: Moment) -> None:
        self.calls += 1
        self.next = now.after(self.every) if self.every else self.next

    def end_leases(self, now: Moment) -> None:
        self.leases = {name: lease for name, lease in self.leases.items() if lease.ends.age > now.age}

    def end_call(self, done: Done, now: Moment) -> None:
        """What a call says of its receiver."""
        what, raises = done.settlement.what, done.settlement.raises
        if what == "returned" and self.next != BEGINNING:
            self.next = self.next.after(-self.every)
        if what in {"returned", "gone", "cut"} or done.anew_since < self.anew_since:
            return
        is_newer = done.anew_since > self.anew_since
        if is_newer:
            self.begin_anew(done.anew_since)
        if what == "delivered":
            self.succeed()
        if what == "delivered" or self.failures != (0 if is_newer else done.failures):
            return
        is_many = False
        if raises and done.root and done.root == self.root:
            self.parts += 1
            raises = is_many = self.parts > done.settlement.parts_max
        elif raises:
            self.root, self.parts = done.root, 1
        if what == "refused" and self.failures == 0:
            self.refusals += raises
            raises = is_many or self.refusals >= REFUSALS_MAX
        self.failures = max(what == "failed", self.failures + raises)
        if self.failures:
            self.retry = now.after(done.probe_ages)
            self.failing_since = now.age if self.failing_since is None else self.failing_since


@dataclass
class Model:
    """One partition as it should be; `now` is set before each step."""

    now: Moment = BEGINNING
    present: int = 0
    receivers: dict[str, Receiver] = field(default_factory=dict)
    scheduled: dict[str, tuple[Moment, Batch]] = field(default_factory=dict)
    pending: dict[str, Given] = field(default_factory=dict)
    last: dict[str, Given] = field(default_factory=dict)
    hungry: set[str] = field(default_factory=set)
    # Who wakes for the next deadline, and when.
    owner: tuple[str, Moment] | None = None
    batches: list[Batch] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    accepted: "count[int]" = field(default_factory=count)
    # Of this step: whom it concerns, whether any of them may now be called, and whether there is an earlier moment
    # than all others to wait for.
    touched: dict[str, Receiver] = field(default_factory=dict)
    is_news: bool = False
    is_sooner: bool = False
    # Of the last turn: whether more could be taken at once, and whether another process wakes for the next deadline.
    is_more: bool = False
    is_owned: bool = False

    def of(self, token: str) -> Receiver:
        """A receiver that this step is about."""
        it = self.receivers.setdefault(token, Receiver(token))
        self.touched[token] = it
        it.end_leases(self.now)
        return it

    def held(self, token: str) -> list[Given]:
        return [given for given in self.pending.values() if given.batch.token == token]

    def at(self, place: str) -> list[Receiver]:
        return [it for it in self.receivers.values() if it.place == place]

    # What publishing, saving and retiring do.

    def accept(self, bid: str, token: str, permits: int, every: int) -> None:
        it = self.of(token)
        if not it.limit:
            it.limit = permits
            it.pace(every, self.now)
        batch = Batch(bid, token, next(self.accepted))
        it.line.insert(0, batch)
        self.batches.append(batch)
        self.finish()

    def save(self, token: str, limit: int, every: int, *, anew_since: int, halt: int) -> None:
        it = self.of(token)
        it.limit, it.halt = limit, halt
        it.pace(every, self.now)
        if not limit or it.anew_since != anew_since:
            it.begin_anew(anew_since)
        self.finish()

    def retire(self, token: str) -> None:
        it = self.of(token)
        it.line, it.limit, it.halt = [], 0, 0
        it.pace(0, self.now)
        it.begin_anew(0)
        for batch in self.batches:
            batch.is_gone = batch.is_gone or batch.token == token
        self.finish()

    def drop(self, token: str, many: int) -> int:
        """Lose the oldest batches; returns how many."""
        lost = [batch for batch in self.batches if batch.token == token and not batch.is_gone][:many]
        for batch in lost:
            batch.is_gone = batch.is_dropped = True
            self.batches.remove(batch)
            self.counts[f"events.removed:subscriber={token}"] += 1
        return len(lost)

    # What those who hold leases do.

    def take_permit(self, token: str, lease: str, limit: int, every: int, ages: int, anew_since: int) -> str:
        """Give a permit, to one who asks again the same; else say why not."""
        it = self.of(token)
        it.limit = limit
        it.pace(every, self.now)
        if it.anew_since < anew_since:
            it.begin_anew(anew_since)
        if lease in it.leases:
            it.leases[lease] = replace(it.leases[lease], ends=self.now.after(ages))
            answer = "go"
        elif it.halt:
            answer = "paused"
        elif it.failures and it.retry.age > self.now.age:
            answer = "failing"
        elif len(self.held(token)) + len(it.leases) >= (1 if it.failures else it.permits):
            answer = "failing" if it.failures else "full"
            if not it.failures and len(it.leases) < len(self.held(token)):
                it.wish = self.now.after(WISH_AGES)
        elif it.next.age > self.now.age:
            answer = "paced"
        else:
            it.wish = BEGINNING
            it.begin_call(self.now)
            it.leases[lease] = Lease(self.now.after(ages), is_probe=it.failures > 0)
            answer = "go"
        self.finish()
        return answer

    def renew(self, token: str, names: Sequence[str], ages: int) -> int:
        """Keep permits; returns how many were there to keep."""
        its = self.receivers[token].leases if token in self.receivers else {}
        kept = [name for name in names if name in its]
        its.update({name: replace(its[name], ends=self.now.after(ages)) for name in kept})
        return len(kept)

    def settle_permit(self, token: str, lease: str, done: Done) -> tuple[int, int]:
        it = self.of(token)
        before = it.failures
        it.leases.pop(lease, None)
        it.end_call(done, self.now)
        self.count(done, token)
        after = it.failures
        self.finish()
        return before, after

    # What slots do.

    def turn(
        self, done: Sequence[Done], slots: Sequence[str], process: str, probes_max: int
    ) -> tuple[list[Result], list[Given]]:
        results = [self.settle(each) for each in done]
        self.promote()
        self.seat_all()
        probes_max -= sum(self.pending[slot].is_probe for slot in set(slots) & self.pending.keys())
        self.look(len(slots), probes_max)
        for slot in dict.fromkeys(slots):
            if slot in self.pending:
                self.of(self.pending[slot].batch.token)
            else:
                probes_max -= self.take(slot, probes_max)
        self.seat_all()
        given = [self.pending[slot] for slot in dict.fromkeys(slots) if slot in self.pending]
        self.wait(process, probes_max, is_full=len(given) == len(slots), is_told=bool(given) or not slots)
        self.save_all()
        return results, given

    def wait(self, process: str, probes_max: int, *, is_full: bool, is_told: bool) -> None:
        """Who has slots left waits, and owns the next deadline unless another does; who has none tells the others."""
        deadlines = [*(at for at, _ in self.scheduled.values()), *(it.until for it in self.at(WAKE))]
        earliest = min(deadlines, default=None)
        is_others = self.owner is not None and self.owner[0] != process and self.owner[1] > self.now
        self.is_owned = is_others and (earliest is None or self.owner[1] <= earliest)
        self.is_more = bool(self.at(RING) or (probes_max > 0 and self.at(PROBES)))
        if is_full:
            self.hungry.discard(process)
            self.owner = None if self.owner and self.owner[0] == process else self.owner
        is_left_over = bool(self.at(RING) or self.at(PROBES))
        is_deadline_left = is_full and earliest is not None and not self.is_owned
        if is_deadline_left or (is_left_over and (self.is_news or is_told)):
            self.hungry.clear()
        if not is_full:
            self.hungry.add(process)
        if not is_full and not self.is_more and earliest is not None and not self.is_owned:
            self.owner = (process, earliest)

    def settle(self, done: Done) -> Result:
        assert done.given is not None
        slot, batch = done.given.slot, done.given.batch
        if self.pending.get(slot) is not done.given:
            return Result(self.last.get(slot) is done.given, 0, 0)
        self.last[slot] = self.pending.pop(slot)
        it = self.of(batch.token)
        before = it.failures
        it.end_call(done, self.now)
        self.count(done, batch.token)
        what = done.settlement.what
        if batch.is_dropped:
            return Result(is_ours=True, before=before, after=it.failures)
        if what == "delivered":
            self.batches.remove(batch)
            self.counts[f"events.removed:subscriber={batch.token}"] += 1
        elif what != "gone" and not batch.is_gone:
            batch.attempts += done.settlement.is_counted
            # Returned with a delay: an error of our own that nobody foresaw.
            batch.was_aside = batch.was_aside or done.ages >= 0
            self.put_back(batch, done.ages)
        return Result(is_ours=True, before=before, after=it.failures)

    def put_back(self, batch: Batch, ages: int) -> None:
        if ages < 0:
            self.receivers[batch.token].line.append(batch)
            return
        at = self.now.after(ages)
        is_first = all(at < other for other, _ in self.scheduled.values())
        self.is_sooner = self.is_sooner or (ages > 0 and is_first)
        self.scheduled[batch.job] = (at, batch)

    def count(self, done: Done, token: str) -> None:
        if done.is_attempt:
            self.attempts += 1
            self.counts[f"tried:{token}"] += 1

    def promote(self) -> None:
        due = sorted((at, job) for job, (at, _) in self.scheduled.items() if at.age <= self.now.age)
        for _, job in due:
            _, batch = self.scheduled.pop(job)
            it = self.of(batch.token)
            if not batch.is_gone:
                it.line.insert(len(it.line) if batch.attempts and not it.failures else 0, batch)
        for it in sorted(self.at(WAKE), key=lambda it: it.until):
            if it.until.age <= self.now.age:
                self.of(it.token)

    def look(self, slots: int, probes_max: int) -> None:
        """Whoever is among the next is looked at, so that leases that have ended are seen."""
        for it in sorted(self.at(PROBES), key=probe_order)[: slots if probes_max > 0 else 0]:
            self.of(it.token)
        for it in sorted(self.at(RING), key=lambda it: (it.tag, it.token))[:slots]:
            self.of(it.token)

    def take(self, slot: str, probes_max: int) -> bool:
        """Give the first job of the next receiver; jobs whose batches are gone end here. Returns if it is a probe."""
        while (it := self.next_receiver(probes_max)) is not None:
            batch = it.line.pop()
            if not batch.is_gone:
                self.begin_call(it, Given(slot, batch, is_probe=it.failures > 0))
            self.seat(it)
            if slot in self.pending:
                return self.pending[slot].is_probe
        return False

    def begin_call(self, it: Receiver, given: Given) -> None:
        self.pending[given.slot] = given
        it.begin_call(self.now)
        if not given.is_probe:
            self.present = max(self.present, it.tag)
            it.tag += 1
            self.pass_others(it)

    def pass_others(self, called: Receiver) -> None:
        called.passed.clear()
        for other in self.at(RING):
            if other is not called:
                other.passed[called.token] += 1

    def next_receiver(self, probes_max: int) -> Receiver | None:
        if probes_max > 0 and self.at(PROBES):
            return self.of(min(self.at(PROBES), key=probe_order).token)
        if self.at(RING):
            return self.of(min(self.at(RING), key=lambda it: (it.tag, it.token)).token)
        return None

    def scrub(self, dead: Iterable[str]) -> None:
        """The jobs of dead slots are first in line again, in the order in which their slots are found."""
        for slot in dead:
            self.last.pop(slot, None)
            given = self.pending.pop(slot, None)
            if given is not None:
                self.of(given.batch.token).line += [] if given.batch.is_gone else [given.batch]
        self.finish()

    # Where receivers are.

    def seat_of(self, it: Receiver) -> tuple[str, Moment]:
        """Where a receiver belongs: who may be called and has a due job is in the ring, or probed when it is due."""
        own = self.held(it.token)
        if not it.line or it.halt:
            return NOWHERE, BEGINNING
        free = it.permits - len(own) - len(it.leases)
        if free <= (it.wish.age > self.now.age):
            ends = [lease.ends for lease in it.leases.values()] + [it.wish] * (free > 0)
            return (WAKE, min(ends)) if ends else (NOWHERE, BEGINNING)
        if not it.failures:
            return (WAKE, it.next) if it.next.age > self.now.age else (RING, BEGINNING)
        probing = [lease.ends for lease in it.leases.values() if lease.is_probe]
        if probing:
            return WAKE, min(probing)
        if any(given.is_probe for given in own):
            return NOWHERE, BEGINNING
        begins = max(it.retry, it.next)
        return (WAKE, begins) if begins.age > self.now.age else (PROBES, BEGINNING)

    def seat(self, it: Receiver) -> None:
        place, until = self.seat_of(it)
        if place == WAKE:
            self.is_sooner = self.is_sooner or all(until < other.until for other in self.at(WAKE))
        if place != it.place and place in {RING, PROBES}:
            self.is_news = True
        if place != it.place and place == RING:
            it.tag = max(it.tag, self.present - 1)
            it.passed.clear()
        it.place, it.until = place, until

    def seat_all(self) -> None:
        for it in self.touched.values():
            self.seat(it)

    def save_all(self) -> None:
        """Forget receivers that are gone, and begin a new step."""
        for token, it in self.touched.items():
            if not (it.limit or self.held(token) or it.leases or it.place):
                del self.receivers[token]
                for other in self.receivers.values():
                    del other.passed[token]
        self.touched, self.is_news, self.is_sooner = {}, False, False

    def finish(self) -> None:
        """End a step that no process waits for."""
        self.seat_all()
        if self.is_news or self.is_sooner:
            self.hungry.clear()
        self.save_all()


def probe_order(it: Receiver) -> tuple[int, int, Moment, str]:
    """Who was due first is probed first, but a failure more counts for longer than any step of a test."""
    return it.retry.age, min(it.failures, 11), it.retry, it.token
