"""Lists of many: whole unless a page is asked for, and from a snapshot when there are very many."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from starlette.datastructures import QueryParams

from conftest import Topology
from doubledecker.bus.registry import LiveRegistry
from doubledecker.bus.snapshots import ROWS_MAX
from doubledecker.model.queue import RegisteredQueue
from doubledecker.queues import view
from doubledecker.stages.bound import Bound
from doubledecker.stages.statistics import Snapshot
from doubledecker.store import registry
from doubledecker.store.partitions import Partitions
from doubledecker.web import queue_shapes
from doubledecker.web.paging import EncodedRows
from harness import a_bus, save_queues
from web.asking import ask

COUNT = ROWS_MAX + 100


async def test_lists_of_many_are_whole_and_in_pages_when_asked(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        home = bus.partitions.home
        names = [f"q{n:04}" for n in range(COUNT)]
        for name in names:
            await registry.save_queue(home, RegisteredQueue(name, "ann-1", ("no:no:no",)), former=None)
        await registry.claim_topics(home, names, publisher="ann-1")
        for path in ("/queues", "/topics"):
            whole = await bus.get(path)
            first = await bus.get(f"{path}?limit=400")
            second = await bus.get(f"{path}?limit=400&after={first[-1]['name']}")

            assert [row["name"] for row in whole] == names
            assert first + second == whole
        text = (await ask(bus, "GET", "/metrics")).body.decode()
        assert text.count('doubledecker_queue_messages{queue="q0') == 4 * COUNT


async def test_all_who_ask_share_one_look_at_many_queues(one: Topology, monkeypatch: pytest.MonkeyPatch):
    looks: list[int] = []
    look_all = view.look_all

    async def noted(partitions: Partitions, queues: Sequence[RegisteredQueue]) -> list[view.QueueOverview]:
        looks.append(len(queues))
        return await look_all(partitions, queues)

    monkeypatch.setattr(view, "look_all", noted)
    async with a_bus(one, workers=0) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        ids = {token["name"]: token["token"] for token in await bus.get("/api_tokens")}
        owned = [RegisteredQueue(f"q{n:04}", ids["bob" if n < 3 else "ann"], ("no:no:no",)) for n in range(COUNT)]
        await save_queues(bus.partitions.home, owned)
        # The first look takes some time, and is kept for ten times as long: these all come within it.
        shown = await asyncio.gather(*(bus.get("/queues", ann) for _ in range(5)), bus.get("/queues"))
        few = await bus.get("/queues", bob)

        assert [len(rows) for rows in shown] == [COUNT - 3] * 5 + [COUNT]
        assert [row["name"] for row in few] == ["q0000", "q0001", "q0002"]
        assert (sum(looks), looks[-1]) == (COUNT + 3, 3)


async def test_others_have_their_turn_while_many_queues_are_looked_at_and_encoded(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    turns = [0]
    seen: list[int] = []
    encode = queue_shapes.encoded

    def noted(row: view.QueueOverview) -> queue_shapes.EncodedQueue:
        seen.append(turns[0])
        return encode(row)

    monkeypatch.setattr(queue_shapes, "encoded", noted)
    async with a_bus(one, workers=0) as bus, counting(turns):
        await save_queues(
            bus.partitions.home, [RegisteredQueue(f"q{n:04}", "ann-1", ("no:no:no",)) for n in range(COUNT)]
        )
        assert len(await bus.get("/queues")) == len(seen) == COUNT

    assert max(Counter(seen).values()) <= 50


async def test_others_have_their_turn_while_many_topics_are_listed(partitions: Partitions):
    names = [f"t{n * 7919 % 5000:04}" for n in range(5000)]
    await registry.claim_topics(partitions.home, names, publisher="ann-1")
    turns = [0]
    async with counting(turns):
        found = [(topic.name, turns[0]) async for topic in LiveRegistry(partitions).topics.list_()]

    assert [name for name, _ in found] == sorted(names)
    assert max(Counter(turn for _, turn in found).values()) <= 500


def test_a_whole_list_is_put_together_once_and_a_page_has_those_that_follow():
    rows = EncodedRows(["a", "b", "c"], [b"1", b"2", b"3"])

    assert rows.answer(QueryParams()).body == b"[1,2,3]"
    assert rows.answer(QueryParams()).body is rows.answer(QueryParams()).body
    for query, body in {"limit=2": b"[1,2]", "limit=2&after=a": b"[2,3]", "limit=2&after=bb": b"[3]"}.items():
        assert rows.answer(QueryParams(query)).body == body


async def test_the_uuids_of_many_queues_are_shown_to_their_owner_alone(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ann = await bus.token("ann")
        [token] = await bus.get("/api_tokens")
        pushed = {"callback": "http://127.0.0.1:9/", "uuid": "secret"}
        queues = [RegisteredQueue(f"q{n:04}", token["token"], ("no:no:no",), **pushed) for n in range(COUNT)]
        await save_queues(bus.partitions.home, queues)
        own, all_ = await bus.get("/queues", ann), await bus.get("/queues")

        assert {row["uuid"] for row in own} == {"secret"}
        assert [row for row in all_ if "uuid" in row] == []
        assert (len(own), len(all_)) == (COUNT, COUNT)


@asynccontextmanager
async def counting(turns: list[int]) -> AsyncIterator[None]:
    """Count how often another task has its turn."""

    async def count() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count())
    try:
        yield
    finally:
        task.cancel()


async def test_a_page_that_cannot_be_is_refused(one: Topology):
    async with a_bus(one, workers=0) as bus:
        for query in ("limit=0", "limit=many", "limit=100000", "after=a"):
            for path in ("/queues", "/topics"):
                assert (await ask(bus, "GET", f"{path}?{query}")).status == 400


async def test_few_queues_are_shown_as_they_are_now(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("ann")
        await ask(bus, "PUT", "/queues/jobs", secret, json={"pattern": ".*"})
        counts = []
        for _ in range(3):
            await bus.publish(secret, [{"topic": "pages", "type": "view"}])
            [row], [topic] = await asyncio.gather(bus.get("/queues"), bus.get("/topics"))
            counts.append((row["waiting"], topic["events"]))

        assert counts == [(1, 1), (2, 2), (3, 3)]


async def test_metrics_read_the_chains_of_the_process_in_the_thread_that_changes_them(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    threads: list[int] = []
    look = Bound.snapshots

    def noted(bound: Bound) -> tuple[Snapshot, ...]:
        threads.append(threading.get_ident())
        return look(bound)

    monkeypatch.setattr(Bound, "snapshots", noted)
    async with a_bus(one, workers=0) as bus:
        answer = await ask(bus, "GET", "/metrics", await bus.token("shop"))

    assert answer.status == 200
    assert set(threads) == {threading.get_ident()}
