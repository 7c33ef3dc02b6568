"""Kill -9 of consumers and of Valkey in mid-flow: every message is delivered, acked exactly once, and none is stuck.

What must hold in any order: each event that was accepted is on the queue once; each message was in some consumer's
hands; the journal of settlements has exactly one ack for each; and at the end nothing is left anywhere.
"""

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cluster import ClusterOfThree
from doubledecker.errors import BusAway
from doubledecker.model.event import AcceptedEvent, encode
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.routing import Route
from doubledecker.store import die_with_parent, events, facets, journal, queues
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.store.events import Accepted, PublishLimits, RoutedEvent
from doubledecker.store.partitions import Partition, Partitions, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SHAPES = ["one", "three", "cluster"]
KILLS = 8
QUEUE = RegisteredQueue("work", "", (".*",), lease_ms=1_000, attempts_max=1_000)


@dataclass
class Ground:
    """Servers that can be killed, the bus on them, and its consumers."""

    url: str
    servers: tuple[EmbeddedServer, ...]
    partitions: Partitions
    books: Path
    consumers: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)
    accepted: int = 0
    in_flight_at_kills: list[int] = field(default_factory=list)

    async def hire(self) -> None:
        """Start another consumer, with a book of its own."""
        number = len(list(self.books.iterdir()))
        book = self.books / f"{number}.txt"
        book.touch()
        words = [sys.executable, str(Path(__file__).with_name("consumer.py")), self.url]
        words += [str(len(self.partitions.all)), str(book)]
        self.consumers[number] = await asyncio.create_subprocess_exec(*die_with_parent.wrapped(words))

    async def kill_consumer(self) -> None:
        number = random.choice(list(self.consumers))
        victim = self.consumers.pop(number)
        os.kill(victim.pid, signal.SIGKILL)
        await victim.wait()
        await self.hire()

    async def kill_server(self) -> None:
        victim = random.choice(self.servers)
        victim.kill()
        await victim.wait()
        await victim.restart()

    def written(self) -> list[list[str]]:
        """What all consumers wrote; a line that a kill cut off is not one."""
        texts = [book.read_text() for book in self.books.iterdir()]
        return [line.split() for text in texts for line in text.split("\n")[:-1]]


@pytest.mark.parametrize("shape", SHAPES)
async def test_every_message_is_acked_once_when_consumers_are_killed(shape: str, tmp_path: Path):
    async with a_ground(shape, tmp_path) as ground:
        await kill_in_mid_flow(ground, ground.kill_consumer)


@pytest.mark.parametrize("shape", SHAPES)
async def test_every_message_is_acked_once_when_valkey_is_killed(shape: str, tmp_path: Path):
    async with a_ground(shape, tmp_path) as ground:
        await kill_in_mid_flow(ground, ground.kill_server)


async def kill_in_mid_flow(ground: Ground, kill: Callable[[], Awaitable[None]]) -> None:
    over = asyncio.Event()
    publishing = asyncio.create_task(publish_for_ever(ground, over))
    for _ in range(3):
        await ground.hire()
    for _ in range(KILLS):
        await until_flowing(ground)
        await asyncio.sleep(random.uniform(0.05, 0.4))
        ground.in_flight_at_kills.append(sum([await in_flight(partition) for partition in ground.partitions.all]))
        await kill()
    over.set()
    await publishing
    try:
        async with asyncio.timeout(60):
            while sum(ground_length := [await length(partition) for partition in ground.partitions.all]):
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"messages are stuck: {ground_length}")
    for consumer in ground.consumers.values():
        os.kill(consumer.pid, signal.SIGKILL)
        await consumer.wait()

    await check_ledger(ground)
    assert sum(count > 0 for count in ground.in_flight_at_kills) > KILLS // 2, "nothing was in flight"


async def check_ledger(ground: Ground) -> None:
    lines = ground.written()
    delivered = {line[1] for line in lines if line[0] == "got"}
    told = Counter(line[1] for line in lines if line[0] == "acked")
    settled: dict[str, Counter[str]] = {"acked": Counter(), "dead": Counter()}
    pushed = 0
    for partition in ground.partitions.all:
        pushed += (await facets.look(partition, [QUEUE]))[0].counters.get("sequence", 0)
        for kind, rows in await settlements(partition):
            if kind in settled:
                settled[kind].update(row.split(" ")[0] for row in rows)
        await check_empty(partition)

    assert pushed == ground.accepted > 500, "accepted events are on the queue exactly once"
    assert set(settled["acked"]) == delivered, "every message was in some consumer's hands"
    assert len(settled["acked"]) == pushed
    assert set(settled["acked"].values()) == {1}, "a message was acked twice"
    assert set(told.values()) <= {1}, "two consumers were told that the same message was theirs"
    assert set(told) <= set(settled["acked"])
    assert not settled["dead"]


async def settlements(partition: Partition) -> list[tuple[str, list[str]]]:
    found, after = [], "0-0"
    while entries := await journal.read(partition, "settlements", after=after, count=1000):
        after = entries[-1].id
        found += [(entry.fields[1][0], entry.fields[1][1].decode().split("\n")) for entry in entries]
    return found


async def check_empty(partition: Partition) -> None:
    # One more pull, as of a consumer that comes later, tidies up.
    await queues.pull(partition, QUEUE, most=1, lease_ms=1_000)
    pattern = partition.key("queue:*").replace("{", "?").replace("}", "?")
    left = {key.decode().removeprefix(partition.prefix) for key in await partition.command("KEYS", pattern)}
    assert left <= {"queue:state:work"}


async def publish_for_ever(ground: Ground, over: asyncio.Event) -> None:
    """Every event has an id, so that what may have been written before a kill is offered again without harm."""
    number = 0
    while not over.is_set():
        tenant = f"tenant-{number % 23}"
        made = [AcceptedEvent("widgets", "update", t=number + n, id=str(number + n), tenant=tenant) for n in range(10)]
        number += 10
        offers = [RoutedEvent(Route(event.kind, (), (QUEUE,)), encode(event), "ann", event.id) for event in made]
        partition = ground.partitions.of(made[0].kind)
        while True:
            try:
                reply = await events.publish(partition, offers, version=10**9, limits=PublishLimits())
            except BusAway:
                await asyncio.sleep(0.02)
                continue
            assert reply.outcome is Accepted.OK
            break
        ground.accepted += len(offers)
        await asyncio.sleep(0.01)


async def until_flowing(ground: Ground) -> None:
    """Until something new was accepted and something new was acked."""
    accepted, acked = ground.accepted, len(ground.written())
    async with asyncio.timeout(30):
        while ground.accepted == accepted or len(ground.written()) == acked:
            await asyncio.sleep(0.02)


async def length(partition: Partition) -> int:
    try:
        return (await facets.look(partition, [QUEUE]))[0].length
    except BusAway:
        return 1


async def in_flight(partition: Partition) -> int:
    try:
        return (await facets.look(partition, [QUEUE]))[0].in_flight
    except BusAway:
        return 0


@asynccontextmanager
async def a_ground(shape: str, directory: Path) -> AsyncIterator[Ground]:
    books = directory / "books"
    books.mkdir()
    cluster = await ClusterOfThree.start(directory / "cluster") if shape == "cluster" else None
    servers = cluster.nodes if cluster else (await EmbeddedServer.start(directory / "valkey"),)
    url = ",".join(server.url for server in servers)
    partitions = await wait_for(url, namespace="rm:", count=1 if shape == "one" else 3, patience_s=9)
    ground = Ground(url, tuple(servers), partitions, books)
    try:
        yield ground
    finally:
        for consumer in ground.consumers.values():
            if consumer.returncode is None:
                consumer.kill()
                await consumer.wait()
        await partitions.close()
        await (cluster.stop() if cluster else servers[0].stop())
