"""Jobs over dead letters: one of a receiver runs at a time, at its rate, and goes when its receiver goes."""

import asyncio
from collections.abc import Callable

import pytest

from doubledecker.bus import dead_letters
from doubledecker.bus.dead_letters import LetterOwner
from doubledecker.bus.letter_jobs import LetterJobs
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import Conflict, NotFound, RetryLater
from doubledecker.model.dead_letter import LetterFilter
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.subscriber import Subscription
from doubledecker.model.token import Caller
from doubledecker.store import dead_letters as kept
from doubledecker.store import jobs, queue_contents, queues
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
        await live.subscribe(token, Subscription(topics=("widgets",), callback=DEAD_URL))
    owner = LetterOwner.find(live.snapshot, token, client="" if token.startswith("@") else token)
    assert owner is not None
    return owner


async def delete(live: LiveRegistry, token: str) -> None:
    if not token.startswith("@"):
        await live.unsubscribe(token)
        return
    await live.delete_queue(token[1:])
    for partition in live._partitions.all:
        await queue_contents.destroy(partition, token[1:])


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
        await running.step(ANN, job.id)

        assert (await running.find(owner, job.id)).state == "gone"
        assert await left_of(partitions, ANN) == 0
        await running.sweep()
        assert await kept_jobs.receivers(partitions.home) == []

    async def test_a_job_does_nothing_to_another_clients_queue_of_the_same_name(self, plain: Partitions):
        live = await a_process(plain)
        owner = await register(live, "@jobs")
        await add(plain, "@jobs", 3)
        running = LetterJobs(plain, live)
        job = await running.begin(owner, "purge", ALL, rate_per_s=1)
        await delete(live, "@jobs")
        made = await live.create_token("bob", "bob-secret-0123456789", now_ms=1)
        bob = Caller(made.id, "bob", is_root=False)
        await live.register_queue(RegisteredQueue("jobs", made.id, ("none",)), caller=bob)
        await add(plain, "@jobs", 3)
        its = LetterOwner.find(live.snapshot, "@jobs", client=made.id)
        assert its is not None

        await running.step("@jobs", job.id)
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
            await own.begin(await register(live, f"other{n}-00000001"), "purge", ALL, rate_per_s=1)
        owner = await register(live, ANN)
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
        assert taken.job.args == (ANN, job.id)

    async def test_one_that_is_cancelled_as_it_ends_stays_as_it_ended(self, plain: Partitions):
        live = await a_process(plain)
        own, owner = LetterJobs(plain, live), await register(live, ANN)
        job = await own.begin(owner, "purge", ALL, rate_per_s=1)
        await own.step(ANN, job.id)

        with pytest.raises(Conflict, match="it is done"):
            await own.cancel(owner, job.id)
        await own._end(job, "cancelled")

        assert (await own.find(owner, job.id)).state == "done"


async def settled(own: LetterJobs, job: LetterJob, partitions: Partitions) -> None:
    """Work on a job until it has ended; the time that it waits is moved by hand."""
    while True:
        try:
            await own.step(job.receiver, job.id)
        except RetryLater as later:
            for partition in partitions.all:
                partition.shift_ms += later.delay_ms
        else:
            return


async def read_bytes(home: Partition) -> int:
    """What the server has sent so far."""
    info = (await home.command("INFO", "stats")).decode()
    return int(info.partition("total_net_output_bytes:")[2].partition("\r")[0])
