"""Dead letters by the client: of a subscriber and of a queue, all of them however many, at once or at a rate."""

import asyncio
import itertools
from typing import Any

import pytest

from conftest import Topology
from doubledecker.bus import dead_letters as pieces
from doubledecker.client import AsyncBus, NotFound
from doubledecker.store import dead_letters
from harness import TestBus, a_bus
from letters import a_letter
from receiver import Receiver


async def a_subscriber(bus: TestBus, receiver: Receiver, count: int) -> str:
    """Its secret; it has so many letters."""
    secret = await bus.token("mail")
    await bus.subscribe(secret, receiver.url, "widgets", timeout=0, max=10)
    [row] = await bus.get("/subscribers", secret)
    letters = [a_letter(n, topic=f"t{n % 2}") for n in range(count)]
    await dead_letters.add(bus.partitions.home, row["subscriber"], letters)
    return secret


async def test_letters_are_read_page_by_page_and_all_redriven_whatever_a_request_takes(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pieces, "SETTLED_MAX", 7)
    async with a_bus(one, workers=0) as bus, Receiver() as receiver:
        secret = await a_subscriber(bus, receiver, 30)
        async with AsyncBus(bus.url, secret) as client:
            letters = client.dead_letters()
            found = [letter async for letter in letters.each(page=4, topic="t1")]

            assert [letter.event.id for letter in found] == [f"e{n}" for n in range(1, 30, 2)]
            assert await letters.show(found[0].id) == found[0]
            assert (found[0].status, found[0].reason, found[0].topic) == (500, "attempts", "t1")
            assert await letters.count(topic="t1") == 15
            assert await letters.redrive(topic="t1") == 15
            assert await letters.purge([found[0].id, "0-none"]) == 0
            assert await letters.purge() == 15
            with pytest.raises(NotFound):
                await letters.show(found[0].id)


@pytest.mark.parametrize("action", ["purge", "redrive"])
async def test_letters_that_died_since_the_first_request_are_not_meant(
    one: Topology, monkeypatch: pytest.MonkeyPatch, action: str
):
    """The bus does a piece a request; others die between two of them, and before whoever was asked says yes."""
    monkeypatch.setattr(pieces, "SETTLED_MAX", 7)
    async with a_bus(one, workers=0) as bus, Receiver() as receiver:
        secret = await a_subscriber(bus, receiver, 30)
        home, (row,) = bus.partitions.home, await bus.get("/subscribers", secret)
        async with AsyncBus(bus.url, secret) as client:
            letters = client.dead_letters()
            meant = await letters.meant(topic="t1")
            whole, numbers = letters._settle, itertools.count(100)

            async def settle(*asked: Any) -> Any:
                answer = await whole(*asked)
                # Surely in a later millisecond than the one up to which letters are meant.
                home.shift_ms += 10
                await dead_letters.add(home, row["subscriber"], [a_letter(next(numbers), topic="t1")])
                return answer

            monkeypatch.setattr(letters, "_settle", settle)
            done = await getattr(letters, action)(topic="t1")

            assert (meant.count, done) == (15, 15)
            assert await letters.count(topic="t1", end=meant.until) == 0
            assert await letters.count(topic="t0") == 15


async def test_a_job_is_begun_looked_at_and_cancelled(one: Topology):
    async with a_bus(one) as bus, Receiver() as receiver:
        secret = await a_subscriber(bus, receiver, 30)
        async with AsyncBus(bus.url, secret) as client:
            letters = client.dead_letters()
            job = await letters.begin("purge", rate_per_s=0.5)
            async with asyncio.timeout(10):
                while (await letters.job(job.id)).done == 0:
                    await asyncio.sleep(0.05)

            assert (await letters.cancel(job.id)).state == "cancelled"
            assert [each.id for each in await letters.jobs()] == [job.id]
            assert await letters.count() == 29
