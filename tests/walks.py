"""Which files an event passes when it is published, delivered, pulled and landed, traced on a running bus.

    .venv/bin/python tests/walks.py

prints each walk: its files in the order of their first call, and how often a call leads from one file to another. A
script counts as a file, and so does each part that it is made of. What Spark's tasks run is traced where they run.

Web and worker have chores of their own, which may come in between: of several events, the one whose walk is shortest
is taken.
"""

import asyncio
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import redis.asyncio as redis

from conftest import Topology
from doubledecker.store.embedded import EmbeddedServer
from harness import ROOT_KEY, TestBus, a_bus, an_event, basic
from receiver import Receiver

SOURCE = "/doubledecker/"
# As often as makes it likely that no chore came in between once.
TRIES = 5
QUEUE = {"pattern": ".*:.*:.*"}


@dataclass
class Walk:
    """The calls from one file to another, in order."""

    steps: list[tuple[str, str]] = field(default_factory=list)

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(to for _, to in self.steps))

    @property
    def changes(self) -> int:
        return len(self.steps)


@dataclass
class Tracer:
    """Records while it is set as the profiler of a thread."""

    walk: Walk = field(default_factory=Walk)
    # Frames that have begun: a coroutine is called again whenever it goes on.
    _begun: dict[int, FrameType] = field(default_factory=dict)
    _last: str = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        file = _file(frame)
        if event != "call" or not file or id(frame) in self._begun:
            return
        self._begun[id(frame)] = frame
        self._step(_caller(frame) or self._last, file)
        self._last = file
        if frame.f_code.co_qualname == "Script.arguments":
            names = [name for name, _ in frame.f_locals["self"].files]
            for before, after in pairwise([file, *(f"lua/{name}.lua" for name in reversed(names))]):
                self._step(before, after)

    def _step(self, before: str, after: str) -> None:
        if before != after:
            self.walk.steps.append((before, after))


def _file(frame: FrameType) -> str:
    """Its file, as of our package; empty for others."""
    return frame.f_code.co_filename.partition(SOURCE)[2]


def _caller(frame: FrameType) -> str:
    """The file of ours that called, perhaps through others."""
    before = frame.f_back
    while before is not None and not _file(before):
        before = before.f_back
    return _file(before) if before is not None else ""


@contextmanager
def traced() -> Iterator[Walk]:
    """Trace this thread while the block runs."""
    tracer = Tracer()
    sys.setprofile(tracer)
    try:
        yield tracer.walk
    finally:
        sys.setprofile(None)


def shortest(walks: Iterable[Walk]) -> Walk:
    return min(walks, key=lambda walk: len(walk.files))


async def again(act: Callable[[], Awaitable[Any]], *, before: Callable[[], Awaitable[Any]] | None = None) -> list[Walk]:
    """Several walks; the first ones also fill what is kept for later ones."""
    found = []
    for _ in range(TRIES):
        if before is not None:
            await before()
        with traced() as walk:
            await act()
        found.append(walk)
    return found


async def publish(topology: Topology) -> list[Walk]:
    """From the request to its answer: one event for a subscriber with a filter and a queue."""
    async with a_bus(topology, workers=0) as bus, Receiver() as receiver:
        secret = await bus.token("shop")
        await bus.publish(secret, [an_event(topic="others")])
        await bus.subscribe(
            await bus.token("mail"),
            receiver.url,
            "widgets",
            filter={"data": {"n": [{"exists": True}, {"exists": False}]}},
        )
        await register(bus)
        return await again(lambda: bus.publish(secret, [an_event()]))


async def deliver(topology: Topology) -> list[Walk]:
    """From the moment when a batch is due until it is settled; the receiver refuses the last one."""
    async with a_bus(topology, workers=1) as bus, Receiver() as receiver:
        secret = await bus.token("shop")
        await bus.publish(secret, [an_event()])
        await bus.subscribe(await bus.token("mail"), receiver.url, "widgets", timeout=100)
        # Asked for by a connection of its own: what the bus does for an answer is no part of the walk.
        store, journal = redis.from_url(topology.url), bus.partitions.home.key("journal:attempts")

        async def settled() -> None:
            before = await store.xlen(journal)
            async with asyncio.timeout(10):
                while await store.xlen(journal) == before:
                    await asyncio.sleep(0.005)

        walks = await again(settled, before=lambda: bus.publish(secret, [an_event()]))
        receiver.plan = lambda _: 400
        with traced() as refused:
            await bus.publish(secret, [an_event(1), an_event(2)])
            await settled()
        await store.aclose()
        return [*walks, refused]


async def pull(topology: Topology) -> list[Walk]:
    """From the request to the answer with one message."""
    async with a_bus(topology, workers=0) as bus:
        secret = await bus.token("shop")
        await register(bus)

        async def pulled() -> None:
            path = f"{bus.url}/queues/jobs/pull"
            async with bus.http.post(path, json={"max": 1}, headers=basic(ROOT_KEY)) as answer:
                assert len((await answer.json())["messages"]) == 1

        return await again(pulled, before=lambda: bus.publish(secret, [an_event()]))


async def register(bus: TestBus) -> None:
    async with bus.http.put(f"{bus.url}/queues/jobs", json=QUEUE, headers=basic(ROOT_KEY)) as answer:
        assert answer.status == 201, await answer.text()


async def land(spark: Any, topology: Topology, folder: Path) -> Walk:
    """A round of the pipeline's step that lands events: in the driver, and in its tasks."""
    from pyspark import cloudpickle

    from doubledecker.pipeline.lake import files
    from feed import a_feed
    from lakes import a_lake

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    notes = folder / "tasks"
    in_tasks = files.in_tasks
    files.in_tasks = lambda spark, work, jobs: in_tasks(spark, partial(_noted, work=work, notes=notes), jobs)
    try:
        async with a_feed(topology) as feed:
            mine = await a_lake(spark, feed, folder)
            await feed.publish(10)
            walk = await asyncio.to_thread(_landing, mine)
    finally:
        files.in_tasks = in_tasks
    lines = [line.split() for line in notes.read_text().splitlines()]
    return Walk(walk.steps + [(before, after) for before, after in lines])


def _landing(mine: Any) -> Walk:
    from doubledecker.pipeline.land import landing

    with traced() as walk:
        landing.land(mine.spark, mine.access, mine.root, "events", archive=mine.archive)
    return walk


def _noted(job: object, *, work: Callable[[object], Iterable[object]], notes: Path) -> Iterator[object]:
    """In a task: what it yields, and its steps to a file."""
    with traced() as walk:
        found = list(work(job))
    with notes.open("a") as file:
        file.writelines(f"{before} {after}\n" for before, after in walk.steps)
    yield from found


def described(title: str) -> list[str]:
    """The files that ARCHITECTURE.md names in the walk of this title."""
    page = (Path(__file__).parent.parent / "ARCHITECTURE.md").read_text()
    walk = page.partition(f"\n**{title}.** ")[2].partition("\n**")[0]
    return re.findall(r"`([\w/]+\.(?:py|lua))`", walk)


async def main() -> None:
    from doubledecker.pipeline.session import SessionPlan, open_session

    with tempfile.TemporaryDirectory() as folder:
        server = await EmbeddedServer.start(Path(folder) / "store")
        one = Topology("one", server.url, 1, (server.url,))
        walks = {walk.__name__: shortest(await walk(one)) for walk in (publish, deliver, pull)}
        walks["land"] = await land(open_session(SessionPlan(master="local[1]")), one, Path(folder))
        await server.stop()
    for name, walk in walks.items():
        head = f"{name}: {len(walk.files)} files, {walk.changes} changes of file\n"
        sys.stdout.write(head + "".join(f"    {file}\n" for file in walk.files))


if __name__ == "__main__":
    asyncio.run(main())
