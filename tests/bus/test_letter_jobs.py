"""Jobs over dead letters: one of a receiver runs at a time, at its rate, and goes when its receiver goes."""

import asyncio
import contextlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubledecker.bus import dead_letters, letter_jobs
from doubledecker.bus.dead_letters import Action, LetterOwner
from doubledecker.bus.letter_jobs import LetterJobs, catch_up, due, wait_ms
from doubledecker.bus.publish_rate import Pacer
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import Conflict, NotFound, QuotaExceeded, RetryLater
from doubledecker.model import token as tokens
from doubledecker.model.dead_letter import LetterFilter
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.quota import Quotas
from doubledecker.model.subscriber import Subscription
from doubledecker.model.token import Caller
from doubledecker.store import dead_letters as kept
from doubledecker.store import jobs, queues, registry
from doubledecker.store import letter_jobs as kept_jobs
from doubledecker.store.letter_jobs import LetterJob
from doubledecker.store.partitions import Partition, Partitions
from letters import a_letter

ALL = LetterFilter()
ROOT = Caller("", "root", is_root=True)
ANN = "ann-00000001"
DEAD_URL = "http://127.0.0.1:9/"


async def a_process(partitions: Partitions) -> LiveRegistry:
    live = LiveRegistry(partitions)
    await live.refresh()
    return live


async def register(live: LiveRegistry, token: str) -> LetterOwner:
    """A subscriber, or a queue as `@` and its name."""
    if token.startswith("@"):
        await live.register_queue(RegisteredQueue(token[1:], "", ("none",)), caller=ROOT)
    else:
        client, home = tokens.make(token, "ann", token, now_ms=1), live._partitions.home
        await registry.save_token(home, client, seen=await registry.version(home))
        await live.subscriptions.put(token, Subscription(topics=("widgets",), callback=DEAD_URL))
    owner = LetterOwner.find(live.snapshot, token, client="" if token.startswith("@") else token)
    assert owner is not None
    return owner


async def delete(live: LiveRegistry, token: str) -> None:
    if token.startswith("@"):
        await live.delete_queue(await live.queue(token[1:], caller=ROOT), discard=True)
    else:
        await live.subscriptions.delete(token)


async def add(partitions: Partitions, token: str, count: int) -> None:
    """So many letters in each partition."""
    for partition in partitions.all:
        letters = [a_letter(n, id=f"{partition.index}-{n}") for n in range(count)]
        await kept.add(partition, token, letters)


async def left_of(partitions: Partitions, token: str) -> int:
    """How many events there are for a receiver, as letters or waiting again; not what is set aside to be purged."""
    found = 0
    for partition in partitions.all:
        found += (await kept.counts(partition, [token]))[token]
        found += (await queues.lengths(partition, [token]))[token]
        for bid in await partition.command("ZRANGE", partition.key(f"batches:index:{token}"), 0, -1):
            found += int(await partition.command("LINDEX", partition.key(f"batch:{bid.decode()}"), 3))
    return found


class TestDeleted:
    """The receiver is deleted between the look at its letters and what is done with them."""

    @pytest.mark.parametrize("token", [ANN, "@jobs"])
    async def test_nothing_is_left_of_a_receiver_that_goes_while_its_letters_are_redriven(
        self, partitions: Partitions, monkeypatch: pytest.MonkeyPatch, token: str
    ):
        """Batches of a deleted subscriber waited for ever, or for another that took its id."""
        live, other = await a_process(partitions), await a_process(partitions)
        owner = await register(other, token)
        await live.refresh()
        await add(partitions, token, 20)
        at_last = partitions.all[-1]

        async def goes(partition: Partition) -> None:
            if partition is at_last:
                await delete(other, token)

        before_each_piece(monkeypatch, goes)
        with pytest.raises(NotFound, match="was deleted meanwhile"):
            await dead_letters.settle(partitions, live, owner, "redrive", ALL, most=100, until_ms=2**45)

        assert await left_of(partitions, token) == 0

    async def test_letters_are_redriven_though_others_subscribe_meanwhile(
        self, partitions: Partitions, monkeypatch: pytest.MonkeyPatch
    ):
        live, other = await a_process(partitions), await a_process(partitions)
        owner = await register(other, ANN)
        await live.refresh()
        await add(partitions, ANN, 20)

        async def others_come(partition: Partition) -> None:
            await register(other, f"other{partition.index}-00000001")

        before_each_piece(monkeypatch, others_come)
        done = await dead_letters.settle(partitions, live, owner, "redrive", ALL, most=100, until_ms=2**45)

        count = 20 * len(partitions.all)
        assert (done, await left_of(partitions, ANN)) == (count, count)

    async def test_a_job_ends_when_its_receiver_goes(self, partitions: Partitions, monkeypatch: pytest.MonkeyPatch):
        live, other = await a_process(partitions), await a_process(partitions)
        owner = await register(other, ANN)
        await live.refresh()
        await add(partitions, ANN, 20)
        running = LetterJobs(partitions, live)
        job = await running.begin(owner, "redrive", ALL, rate_per_s=10_000)

        async def goes(_: Partition) -> None:
            if ANN in other.snapshot.subscribers:
                await delete(other, ANN)

        before_each_piece(monkeypatch, goes)
        await a_step(running)

        assert (await running.find(owner, job.id)).state == "gone"
        assert await left_of(partitions, ANN) == 0
        await running.sweep()
        assert await kept_jobs.receivers(partitions.home) == []

    async def test_a_job_does_nothing_to_another_clients_queue_of_the_same_name(self, plain: Partitions):
        live = await a_process(plain)
        owner = await register(live, "@jobs")
        await add(plain, "@jobs", 3)
        running = LetterJobs(plain, live)
        await running.begin(owner, "purge", ALL, rate_per_s=1)
        await delete(live, "@jobs")
        made = await live.clients.create("bob", "bob-secret-0123456789", now_ms=1)
        bob = Caller(made.id, "bob", is_root=False)
        await live.register_queue(RegisteredQueue("jobs", made.id, ("none",)), caller=bob)
        await add(plain, "@jobs", 3)
        its = LetterOwner.find(live.snapshot, "@jobs", client=made.id)
        assert its is not None

        await a_step(running, "@jobs")
        seen = await running.of(its)
        await running.begin(its, "purge", ALL, rate_per_s=1)

        assert (seen, (await kept.counts(plain.home, ["@jobs"]))["@jobs"]) == ([], 3)


def before_each_piece(monkeypatch: pytest.MonkeyPatch, act: Callable) -> None:
    """Have something happen when letters were chosen, and are about to be redriven."""
    real = kept.choose

    async def choose(partition: Partition, *args: object, **named: object) -> list[kept.Stamped]:
        found = await real(partition, *args, **named)  # type: ignore[arg-type]
        await act(partition)
        return found

    monkeypatch.setattr(kept, "choose", choose)


class TestKept:
    async def test_of_many_that_are_begun_at_once_one_runs(self, plain: Partitions):
        """In any order: one begins, and the others name it."""
        live = await a_process(plain)
        owner = await register(live, ANN)
        await add(plain, ANN, 3)
        begun = [LetterJobs(plain, live).begin(owner, "redrive", ALL, rate_per_s=1) for _ in range(8)]

        ended = await asyncio.gather(*begun, return_exceptions=True)

        [job] = [each for each in ended if isinstance(each, LetterJob)]
        refused = [str(each) for each in ended if isinstance(each, Conflict)]
        assert len(refused) == 7
        assert all(job.id in why for why in refused)
        assert await LetterJobs(plain, live).of(owner) == [job]

    async def test_so_many_are_remembered_and_nothing_of_those_before(self, partitions: Partitions):
        live = await a_process(partitions)
        owner = await register(live, ANN)
        own = LetterJobs(partitions, live)
        begun: list[str] = []
        for _ in range(24):
            await add(partitions, ANN, 1)
            job = await own.begin(owner, "purge", ALL, rate_per_s=10_000)
            await settled(own, job, partitions)
            begun.append(job.id)

        assert [job.id for job in await own.of(owner)] == begun[:3:-1]
        counted = [await partition.command("HKEYS", partition.key("dead:done")) for partition in partitions.all]
        assert {id_.decode() for each in counted for id_ in each} == {*begun[4:]}
        assert (await own.done(begun))[begun[-1]] == len(partitions.all)

    async def test_a_look_at_jobs_reads_no_others(self, plain: Partitions):
        live = await a_process(plain)
        own = LetterJobs(plain, live)
        for n in range(30):
            other = await register(live, f"other{n}-00000001")
            await add(plain, other.token, 1)
            await own.begin(other, "purge", ALL, rate_per_s=1)
        owner = await register(live, ANN)
        await add(plain, ANN, 1)
        job = await own.begin(owner, "purge", ALL, rate_per_s=1)
        before = await read_bytes(plain.home)

        await own.of(owner)
        await own.find(owner, job.id)

        assert await read_bytes(plain.home) - before < 8_000

    async def test_what_was_begun_by_a_process_that_died_is_carried_out(
        self, plain: Partitions, monkeypatch: pytest.MonkeyPatch
    ):
        live = await a_process(plain)
        own, owner = LetterJobs(plain, live), await register(live, ANN)
        await add(plain, ANN, 1)

        async def dies(_: LetterJob) -> None:
            raise OSError

        with monkeypatch.context() as patched:
            patched.setattr(own, "_push", dies)
            with pytest.raises(OSError):  # noqa: PT011 - the death
                await own.begin(owner, "purge", ALL, rate_per_s=1)
        assert (await jobs.counts(plain.home))["aux", "index"] == 0

        await own.sweep()
        await own.sweep()

        [taken] = (await jobs.take(plain.home, ["aux"], process="p")).taken
        [job] = await own.of(owner)
        assert (taken.job.args, job.state) == ((ANN,), "running")

    async def test_those_that_are_begun_and_cancelled_again_and_again_leave_one_aux_job(self, plain: Partitions):
        """Each left one that waited for its next letter, for up to 100 seconds, and kept workers from others' jobs."""
        live = await a_process(plain)
        own, owner = LetterJobs(plain, live), await register(live, ANN)
        await add(plain, ANN, 30)
        for _ in range(25):
            job = await own.begin(owner, "purge", ALL, rate_per_s=0.01)
            [taken] = (await jobs.take(plain.home, ["aux"], process="p")).taken
            with pytest.raises(RetryLater) as later:
                await own.step(*taken.job.args)
            await jobs.nack(taken, delay_ms=later.value.delay_ms)
            plain.home.shift_ms += later.value.delay_ms
            await own.cancel(owner, job.id)

        assert (await jobs.counts(plain.home))["aux", "index"] == 1
        await settled(own, job, plain)
        assert [job.state for job in await own.of(owner)] == ["cancelled"] * 20

    async def test_of_no_time_no_letter_is_meant(self, plain: Partitions):
        """One that was asked for until 1970 did away with all."""
        live = await a_process(plain)
        own, owner = LetterJobs(plain, live), await register(live, ANN)
        await add(plain, ANN, 3)
        job = await own.begin(owner, "purge", LetterFilter(to_ms=0), rate_per_s=1)
        await settled(own, job, plain)

        assert (job.count, await left_of(plain, ANN)) == (0, 3)

    async def test_one_that_is_cancelled_as_it_ends_stays_as_it_ended(self, plain: Partitions):
        live = await a_process(plain)
        own, owner = LetterJobs(plain, live), await register(live, ANN)
        await add(plain, ANN, 1)
        job = await own.begin(owner, "purge", ALL, rate_per_s=1)
        await a_step(own)

        with pytest.raises(Conflict, match="it is done"):
            await own.cancel(owner, job.id)
        await own._end(job, "cancelled")

        assert (await own.find(owner, job.id)).state == "done"


async def a_step(own: LetterJobs, receiver: str = ANN) -> None:
    with contextlib.suppress(RetryLater):
        await own.step(receiver)


async def settled(own: LetterJobs, job: LetterJob, partitions: Partitions) -> None:
    """Work on a job until it has ended; the time that it waits is moved by hand."""
    while True:
        try:
            await own.step(job.receiver)
        except RetryLater as later:
            for partition in partitions.all:
                partition.shift_ms += later.delay_ms
        else:
            return


async def read_bytes(home: Partition) -> int:
    """What the server has sent so far."""
    info = (await home.command("INFO", "stats")).decode()
    return int(info.partition("total_net_output_bytes:")[2].partition("\r")[0])


MINUTE_MS = 60_000


@dataclass(frozen=True)
class Work:
    """A minute of a job, by a clock that is given by hand: when letters were taken, and how many each time."""

    taken: list[tuple[int, int]]

    def within(self, begin_ms: int, end_ms: int) -> int:
        return sum(count for at, count in self.taken if begin_ms <= at < end_ms)


def worked(rate_per_s: float, took_ms: Callable[[int], float]) -> Work:
    """Each step takes its time, and its letters are gone when half of that is over; the next begins when it may."""
    job = a_job(rate_per_s)
    now, done, taken = job.asked_at, 0, []
    while now < job.asked_at + MINUTE_MS:
        job = catch_up(job, done=done, now_ms=now)
        count = due(job, done=done, now_ms=now)
        took = math.ceil(took_ms(count))
        taken.append((now + took // 2 - job.asked_at, count))
        now, done = now + took, done + count
        now += wait_ms(job, done=done, now_ms=now)
    return Work(taken)


def a_job(rate_per_s: float) -> LetterJob:
    return LetterJob("j" * 20, ANN, ANN, "redrive", rate_per_s, 10**9, 1_763_000_000_000, 1_763_000_000_000)


class TestRate:
    @pytest.mark.parametrize("rate_per_s", [0.05, 0.2, 0.9, 1.5, 2.2, 37.3, 1_000, 10_000])
    @pytest.mark.parametrize("share", [0, 0.3, 0.8])
    @pytest.mark.parametrize("late_ms", [0, 20, 300])
    def test_over_a_minute_it_is_what_was_asked_for(self, rate_per_s: float, share: float, late_ms: int):
        """Of 1.5 a second there were 2.2: what a step took was rounded, and the time of its work was not counted."""
        most = letter_jobs._TAKEN_MAX / rate_per_s * 1_000
        # A step that is as late as its letters take to be due, again and again, is more than a worker can do.
        late = min(late_ms, max(0, 0.9 - share) * most)
        work = worked(rate_per_s, lambda count: min(500, count / rate_per_s * 1_000 * share) + late)

        asked = rate_per_s * MINUTE_MS / 1_000
        # What is due between two steps is still to come.
        assert asked * 0.98 - rate_per_s - 1 <= work.within(0, MINUTE_MS) <= asked + 1

    @given(
        rate_per_s=st.floats(0.01, 10_000),
        steps=st.lists(st.integers(0, 1_000) | st.integers(2_000, 20_000), min_size=1, max_size=40),
        window=st.tuples(st.integers(0, MINUTE_MS), st.integers(0, MINUTE_MS)),
        seed=st.integers(0, 99),
    )
    @settings(deadline=None)
    def test_it_is_never_faster_than_asked_whoever_dies_and_for_however_long(
        self, rate_per_s: float, steps: list[int], window: tuple[int, int], seed: int
    ):
        """In any stretch of time, but for what is made up for; a step may take long, as one whose worker dies."""
        chance = random.Random(seed)
        work = worked(rate_per_s, lambda _: chance.choice(steps))

        begin, end = sorted(window)
        # Those that were due as a step began are gone when half of it is over.
        slack_ms = letter_jobs._BURST_MS + max(steps)
        assert work.within(begin, end) <= rate_per_s * (end - begin + slack_ms) / 1_000 + 1

    def test_what_was_due_while_nobody_worked_is_not_made_up_for(self):
        job = a_job(100)
        later = job.asked_at + 600_000

        caught_up = catch_up(job, done=50, now_ms=later)

        assert due(job, done=50, now_ms=later) == letter_jobs._TAKEN_MAX
        assert due(caught_up, done=50, now_ms=later) == 101
        assert catch_up(caught_up, done=50, now_ms=later) == caught_up

    @pytest.mark.parametrize("action", ["redrive", "purge"])
    async def test_a_worker_that_dies_between_steps_or_in_one_takes_nothing_twice(
        self, partitions: Partitions, action: Action
    ):
        """By the server's clock, moved by hand: each step runs twice, as after a worker that died before its end."""
        live = await a_process(partitions)
        owner = await register(live, ANN)
        await add(partitions, ANN, 60)
        own = LetterJobs(partitions, live)
        job = await own.begin(owner, action, ALL, rate_per_s=1.5)
        home, begun = partitions.home, job.paced_from
        while await home.time_ms() < begun + 20_000:
            for _ in range(2):
                with pytest.raises(RetryLater) as later:
                    await LetterJobs(partitions, live).step(ANN)
            home.shift_ms += later.value.delay_ms

        seconds = (await home.time_ms() - begun) / 1_000
        done = (await own.done([job.id]))[job.id]
        assert 28 <= done <= 1.5 * seconds + 1
        assert replace(await own.find(owner, job.id), paced_from=begun) == job

    async def test_a_job_waits_while_its_owner_publishes_as_much_as_it_may(self, plain: Partitions):
        live = LiveRegistry(plain, Quotas(client_events_per_s=10))
        await live.refresh()
        own, owner = LetterJobs(plain, live), await register(live, ANN)
        await add(plain, ANN, 20)
        job = await own.begin(owner, "redrive", ALL, rate_per_s=10_000)
        assert await Pacer(plain, live).wait_ms(ANN, 1_000) == 0

        with pytest.raises(RetryLater) as later:
            await own.step(ANN)

        assert later.value.delay_ms >= 1_000
        assert (await own.done([job.id]))[job.id] == 0
        await settled(own, job, plain)
        assert (await own.done([job.id]))[job.id] == 20

    async def test_more_may_wait_for_no_subscriber_but_a_queues_letters_wait_already(self, plain: Partitions):
        live = await a_process(plain)
        ann, queue = await register(live, ANN), await register(live, "@jobs")
        live.overfull = {ANN: 2**40}
        pacer = Pacer(plain, live)

        with pytest.raises(QuotaExceeded, match="CLIENT_WAITING_BYTES_MAX"):
            await dead_letters.admit(pacer, ann, "redrive", 1)
        await dead_letters.admit(pacer, ann, "purge", 1)
        own = replace(queue, receiver=replace(queue.receiver, owner=ANN))
        await dead_letters.admit(pacer, own, "redrive", 1)

    async def test_a_job_ends_with_its_last_letter(self, plain: Partitions):
        """It waited for the time of another one: at 0.01 a second for 100 seconds."""
        live = await a_process(plain)
        own, owner = LetterJobs(plain, live), await register(live, ANN)
        await add(plain, ANN, 1)
        job = await own.begin(owner, "purge", ALL, rate_per_s=0.01)

        await a_step(own)

        assert (await own.find(owner, job.id)).state == "done"
