"""Dead letters are redriven at once or by a job, and none for a receiver that is deleted meanwhile."""

from collections.abc import Callable

import pytest

from doubledecker.bus import dead_letters
from doubledecker.bus.dead_letters import LetterOwner
from doubledecker.bus.letter_jobs import LetterJobs
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import NotFound
from doubledecker.model.dead_letter import LetterFilter
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.subscriber import Subscription
from doubledecker.model.token import Caller
from doubledecker.store import dead_letters as kept
from doubledecker.store import queue_contents, queues
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
        await running.step(job.id)

        assert (await running.find(owner, job.id)).state == "gone"
        assert await left_of(partitions, ANN) == 0


def before_each_piece(monkeypatch: pytest.MonkeyPatch, act: Callable) -> None:
    """Have something happen when letters were chosen, and are about to be redriven."""
    real = kept.choose

    async def choose(partition: Partition, *args: object, **named: object) -> list[kept.Stamped]:
        found = await real(partition, *args, **named)  # type: ignore[arg-type]
        await act(partition)
        return found

    monkeypatch.setattr(kept, "choose", choose)
