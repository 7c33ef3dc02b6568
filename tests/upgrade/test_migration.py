"""Data of format 1 becomes format 2: all of it, once, in order, whoever dies on the way; and format 1 writes no more.

What must hold in any order: every batch that waits for somebody has one job, and one that was accepted earlier stands
before one that was accepted later.
"""

import asyncio
import base64
import contextlib
import json
import random
import sys
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis.asyncio as redis
from redis.exceptions import ResponseError

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.errors import BusAway, ServerUnfit
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.token import Caller
from doubledecker.store import batches, dead_letters, layout, migration, older_processes
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.store.partitions import Partition, Partitions
from harness import quick_settings
from upgrade import format_one
from upgrade.format_one import World

HERE = Path(__file__).parent
CALLS = json.loads((HERE / "0.1.0.calls.json").read_text())


async def a_world(topology: Topology, *, size: int = 3, beat_at: int = format_one.CREATED_AT) -> World:
    await topology.clear()
    is_cluster = topology.name == "cluster"
    url = topology.url.split(",")[0]
    return await format_one.write(url, topology.partitions, size=size, is_cluster=is_cluster, beat_at=beat_at)


async def connected(topology: Topology, migrate: Callable[[Partitions], Awaitable[None]] | None = None) -> Partitions:
    return await Partitions.connect(topology.url, namespace="rm:", count=topology.partitions, migrate=migrate)


async def migrated(topology: Topology, *, dead_s: float = 15.0) -> Partitions:
    return await connected(topology, partial(migration.run, dead_s=dead_s))


async def check(topology: Topology, world: World) -> None:
    """Compare, in a process that does not migrate."""
    partitions = await connected(topology)
    await format_one.check(partitions, world)
    await partitions.close()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small store takes many steps."""
    monkeypatch.setattr(migration, "_PIECE_BATCHES", 4)
    monkeypatch.setattr(migration, "_PAGE", 20)
    monkeypatch.setattr(migration, "_LINE_PIECE", 5)


async def test_jobs_of_every_state_come_where_they_belong(topology: Topology):
    world = await a_world(topology, size=150)

    await (await migrated(topology)).close()

    await check(topology, world)


async def test_a_store_of_format_one_that_holds_nothing_is_migrated(topology: Topology):
    await topology.clear()
    url = topology.url.split(",")[0]
    kind = redis.RedisCluster if topology.name == "cluster" else redis.Redis
    async with kind.from_url(url) as client:
        await client.hset("rm:layout", "partitions", topology.partitions)

    partitions = await migrated(topology)

    assert (await partitions.layout()).format == 2
    assert await partitions.home.command("HGET", partitions.home.key("registry"), "version") == b"format 2"
    await partitions.close()


async def test_memory_that_is_full_does_not_keep_data_from_being_migrated(one: Topology):
    world = await a_world(one)
    async with redis.from_url(one.url) as client:
        await client.config_set("maxmemory", 1)
        try:
            await (await migrated(one)).close()
        finally:
            await client.config_set("maxmemory", 0)

    await check(one, world)


class Killed(Exception):
    """The process was killed; nothing that it does from here on reaches the server."""


class Frail:
    """Kills a migration at one of its calls to Redis: before the server has it, or before the reply comes."""

    def __init__(self, at: int, *, is_sent: bool) -> None:
        self.calls = 0
        self._at = at
        self._is_sent = is_sent

    async def migrate(self, partitions: Partitions) -> None:
        whole = partitions._nodes.call

        async def call(*words: Any) -> Any:
            self.calls += 1
            if self.calls > self._at:
                if self.calls == self._at + 1 and self._is_sent:
                    await whole(*words)
                raise Killed
            return await whole(*words)

        partitions._nodes.call = call  # type: ignore[method-assign]
        await migration.run(partitions, dead_s=15.0)


async def lock_ends(topology: Topology) -> None:
    """As it does by itself a few seconds after its process was killed."""
    partitions = await connected(topology, lambda _: asyncio.sleep(0))
    await partitions.home.command("DEL", partitions.home.key("migration:lock"))
    await partitions.close()


@pytest.mark.slow
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("is_sent", [False, True], ids=["before a call", "after a call"])
@pytest.mark.parametrize("shape", ["one", "three"])
async def test_a_migration_that_is_killed_at_any_step_is_resumed(shape: str, is_sent: bool, one: Topology):
    topology = Topology(shape, one.url, 1 if shape == "one" else 3, one.node_urls)
    await a_world(topology)
    whole = Frail(10**9, is_sent=False)
    await (await connected(topology, whole.migrate)).close()

    # With three partitions there are some hundred steps: every third, beginning anywhere.
    step = 1 if shape == "one" else 3
    for at in range(random.randrange(step), whole.calls - 1, step):
        world = await a_world(topology)
        with contextlib.suppress(Killed):
            await (await connected(topology, Frail(at, is_sent=is_sent).migrate)).close()
        await lock_ends(topology)
        await (await migrated(topology)).close()
        await check(topology, world)

    assert whole.calls > 40


@pytest.mark.slow
@pytest.mark.usefixtures("small_pieces")
async def test_a_batch_that_becomes_due_between_a_kill_and_the_next_start_has_one_job(one: Topology):
    async def much_later(partitions: Partitions) -> None:
        partitions.home.shift_ms = 2 * format_one.HOUR_MS
        await migration.run(partitions, dead_s=15.0)

    await a_world(one)
    whole = Frail(10**9, is_sent=False)
    await (await connected(one, whole.migrate)).close()

    for at in range(whole.calls - 1):
        world = await a_world(one)
        with contextlib.suppress(Killed):
            await (await connected(one, Frail(at, is_sent=True).migrate)).close()
        await lock_ends(one)
        partitions = await connected(one, much_later)
        jobs = await format_one.jobs_of(partitions.home)
        await partitions.close()

        assert sorted(jobs) == sorted({*world.shares[0].batches} - {*world.shares[0].retired})


@pytest.mark.slow
@pytest.mark.usefixtures("small_pieces")
async def test_a_process_that_lost_the_lock_while_it_was_held_up_changes_nothing(one: Topology):
    """Another has migrated the data meanwhile, and the bus is at work."""
    await a_world(one)
    whole = Frail(10**9, is_sent=False)
    await (await connected(one, whole.migrate)).close()

    for at in range(whole.calls - 1):
        world = await a_world(one)
        late = HeldUp(at)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(connected(one, late.migrate))
            await late.is_held_up.wait()
            await lock_ends(one)
            other = await migrated(one)
            await format_one.check(other, world)
            await other.home.command("LPOP", other.home.key("jobs:instant:main:steady-00000000"))
            before = await format_one.everything(other)
            late.may_go_on.set()
            with contextlib.suppress(BusAway):
                await (await task).close()

            assert await format_one.everything(other) == before
            await other.close()


class HeldUp:
    """Holds a migration up at one of its calls."""

    def __init__(self, at: int) -> None:
        self.is_held_up = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self._left = at

    async def migrate(self, partitions: Partitions) -> None:
        whole = partitions._nodes.call

        async def call(*words: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                self.is_held_up.set()
                await self.may_go_on.wait()
            return await whole(*words)

        partitions._nodes.call = call  # type: ignore[method-assign]
        with contextlib.suppress(BusAway):
            await migration.run(partitions, dead_s=15.0)


async def test_a_partition_that_lost_its_migration_in_a_crash_is_migrated_again(one: Topology):
    """It was on a server of its own; and by then the bus was at work again."""
    topology = Topology("three", one.url, 3, one.node_urls)
    world = await a_world(topology)
    before = await connected(topology, lambda _: asyncio.sleep(0))
    lost = before.all[1]
    kept = {key: dump for key, dump in (await format_one.everything(before)).items() if key.startswith(lost.prefix)}
    await (await migrated(topology)).close()
    await lost.command("DEL", *await format_one.keys(lost))
    await lost.commands([["RESTORE", key, 0, dump] for key, dump in kept.items()])
    job = next(iter(world.shares[1].scheduled))
    await lost.command("ZADD", lost.key("jobs:scheduled:main"), world.now_ms + format_one.HOUR_MS, job)
    with pytest.raises(ServerUnfit, match="has format 1"):
        await connected(topology)

    await (await migrated(topology)).close()

    assert sorted(await format_one.jobs_of(lost)) == sorted({*world.shares[1].batches} - {*world.shares[1].retired})
    await before.close()


@pytest.mark.slow
async def test_a_process_that_is_killed_is_followed_by_the_next(topology: Topology):
    """Really killed, again and again, and its lock ends by itself."""
    if topology.name == "cluster":
        pytest.skip("a cluster differs in where keys are, not in what a kill leaves behind")
    world = await a_world(topology, size=20)
    command = [sys.executable, str(HERE / "migrate.py"), topology.url, str(topology.partitions)]
    kills = 0
    async with asyncio.timeout(120):
        while True:
            process = await asyncio.create_subprocess_exec(*command)
            began = await until_work(process, topology)
            if began:
                await asyncio.sleep(random.uniform(0, 0.05))
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                kills += 1
            if await process.wait() == 0:
                break
            if kills >= 8:
                process = await asyncio.create_subprocess_exec(*command)
                assert await process.wait() == 0
                break
        # One that was killed when all was done has left it: it ends by itself.
        async with redis.from_url(topology.url) as client:
            while await client.exists("rm:migration:lock"):
                await asyncio.sleep(0.05)

    await check(topology, world)
    assert kills > 1


async def until_work(process: asyncio.subprocess.Process, topology: Topology) -> bool:
    """Until the process has the lock; False when it ended before it was seen with it."""
    partitions = await connected(topology, lambda _: asyncio.sleep(0))
    try:
        while process.returncode is None:
            holder = await partitions.home.command("GET", partitions.home.key("migration:lock"))
            if holder and f":{process.pid}:".encode() in holder:
                return True
            await asyncio.sleep(0.002)
    finally:
        await partitions.close()
    return False


async def test_of_processes_that_start_together_one_migrates_and_all_go_on(topology: Topology):
    world = await a_world(topology, size=40)

    started = await asyncio.gather(*(migrated(topology) for _ in range(4)))

    await asyncio.gather(*(each.close() for each in started))
    await check(topology, world)


async def test_a_process_that_is_told_to_stop_does_not_wait_for_the_migration(one: Topology):
    await a_world(one)
    holder = await connected(one, lambda _: asyncio.sleep(0))
    await holder.home.command("SET", holder.home.key("migration:lock"), "somebody:1:x", "PX", 60_000)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(_opened(one, stop))
        await asyncio.sleep(0)
        stop.set()

        assert "stopped" in await task
    await holder.close()


async def _opened(topology: Topology, stop: asyncio.Event) -> str:
    settings = quick_settings(topology)
    try:
        async with build.open_bus(settings, stop=stop, migrate=build.migrating(settings, stop)):
            return "opened"
    except BusAway as error:
        return str(error)


async def test_data_of_format_one_is_refused_by_those_that_do_not_serve_the_bus(one: Topology):
    await a_world(one)

    with pytest.raises(ServerUnfit, match="has format 1, and this version uses 2: start `doubledecker up`"):
        await connected(one)


async def test_data_of_a_newer_format_is_refused(one: Topology):
    await one.clear()
    await (await connected(one)).close()
    async with redis.from_url(one.url) as client:
        await client.hset("rm:layout", "format", 3)

    with pytest.raises(ServerUnfit, match=r"has format 3, which a newer version wrote.* start the newer version"):
        await migrated(one)


async def test_another_number_of_partitions_is_refused_before_anything_is_migrated(one: Topology):
    await a_world(one)

    with pytest.raises(ServerUnfit, match="has 1 partitions, the settings say 3"):
        await Partitions.connect(one.url, namespace="rm:", count=3, migrate=partial(migration.run, dead_s=15.0))


@contextlib.asynccontextmanager
async def beating(url: str, beat: Callable[[Any, int], Awaitable[Any]]) -> AsyncIterator[None]:
    """A process of an older version: it has a connection, and is heard of ten times a second."""

    async def forever() -> None:
        async with redis.from_url(url) as client:
            while True:
                seconds, micros = await client.time()
                await beat(client, seconds * 1000 + micros // 1000)
                await asyncio.sleep(0.1)

    task = asyncio.create_task(forever())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("beat", "said"),
    [
        (lambda client, now: client.hset("rm:workers", "slot", now), "1 slots of workers"),
        (lambda client, now: client.zadd("rm:watchers", {"watch": now}), "1 watches"),
        (lambda client, now: client.zadd("rm:processes", {"web:1": now}), "1 processes"),
    ],
    ids=["a worker", "a watch", "web"],
)
async def test_data_is_not_migrated_while_an_older_version_is_at_work(beat: Any, said: str, one: Topology):
    await a_world(one)
    async with beating(one.url, beat):
        with pytest.raises(ServerUnfit, match=f"an older version is at work on this data .{said} seen lately"):
            await migrated(one, dead_s=2.0)

        async with redis.from_url(one.url) as client:
            kept = await client.hgetall("rm:layout"), await client.hgetall("rm:registry")
            lock = await client.exists("rm:migration:lock")
    assert kept == ({b"partitions": b"1"}, {b"version": b"20"})
    assert lock == 0


async def test_a_migration_that_was_refused_is_refused_until_the_older_version_has_left(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    """A worker started while the first start looked; the data was closed by then, and the second did not look."""
    world = await a_world(one)
    begin = migration.Migration._begin

    async def begin_while_one_starts(self: migration.Migration) -> dict[Partition, str]:
        phases = await begin(self)
        await home_of(self).command("HSET", home_of(self).key("workers"), "late", await home_of(self).time_ms())
        return phases

    with monkeypatch.context() as patch:
        patch.setattr(migration.Migration, "_begin", begin_while_one_starts)
        with pytest.raises(ServerUnfit, match="an older version is at work"):
            await migrated(one, dead_s=2.0)
    async with beating(one.url, lambda client, now: client.hset("rm:workers", "late", now)):
        with pytest.raises(ServerUnfit, match="an older version is at work"):
            await migrated(one, dead_s=2.0)

    partitions = await migrated(one, dead_s=0.5)
    barred = await partitions.home.command("GETDEL", partitions.home.key("jobs:pending:main:late"))
    await partitions.close()
    assert barred == b"format 2"
    await check(one, world)


def home_of(its: migration.Migration) -> Partition:
    return its._partitions.home


async def test_data_is_not_migrated_while_a_web_process_of_the_older_version_reads_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It has no heartbeat, but asks twice a second what has changed."""
    monkeypatch.setattr(older_processes, "READERS_S", 4.0)
    async with a_dump(tmp_path) as url, redis.from_url(url, protocol=2) as web:
        topology = Topology("one", url, 1, (url,))

        async def follow() -> None:
            while True:
                await as_recorded(web, "registry_changes")
                await asyncio.sleep(0.5)

        following = asyncio.create_task(follow())
        with pytest.raises(ServerUnfit, match=r"an older version is at work on this data \(something reads"):
            await migrated(topology, dead_s=0.1)
        kept = await web.hgetall("rm:layout"), await web.hget("rm:registry", "version")
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        partitions = await migrated(topology, dead_s=0.1)
        now = await partitions.layout()

        assert kept == ({b"partitions": b"1"}, b"20")
        assert now.format == layout.FORMAT
        await partitions.close()


async def test_beats_that_do_not_advance_are_waited_for_until_they_are_old(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(older_processes, "REPORT_DEAD_S", 0.5)
    loop = asyncio.get_running_loop()
    # A connection of somebody else's: it might be a process of the older version.
    async with redis.from_url(one.url) as client:
        seconds, micros = await client.time()
        world = await a_world(one, beat_at=seconds * 1000 + micros // 1000)
        await client.ping()
        began_s = loop.time()
        await (await migrated(one, dead_s=1.0)).close()
        took_s = loop.time() - began_s

    assert took_s > 0.5
    await check(one, world)


async def test_nobody_is_waited_for_when_all_connections_are_ours(one: Topology):
    async with redis.from_url(one.url) as client:
        seconds, _ = await client.time()
    world = await a_world(one, beat_at=seconds * 1000)
    others = await connected(one, lambda _: asyncio.sleep(0))
    async with asyncio.timeout(10):
        await (await migrated(one, dead_s=60.0)).close()

    await others.close()
    await check(one, world)


@contextlib.asynccontextmanager
async def a_dump(folder: Path) -> AsyncIterator[str]:
    """A server on the data of 0.1.0; gives its URL."""
    with tarfile.open(HERE / "0.1.0.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    server = await EmbeddedServer.start(folder / "data")
    try:
        yield server.url
    finally:
        await server.stop()


async def as_recorded(client: Any, name: str, *, changed: dict[bytes, bytes] | None = None) -> Any:
    """Call a script as a process of 0.1.0 did."""
    call = CALLS[name]
    arguments = [base64.b64decode(word) for word in call["arguments"]]
    arguments = [(changed or {}).get(word, word) for word in arguments]
    return await client.eval(call["text"], len(call["keys"]), *call["keys"], *arguments)


async def test_dead_letters_that_a_build_of_format_two_kept_with_their_queue_are_moved_at_start(
    topology: Topology, small_pieces: None
):
    """Builds before 0.2.0 wrote format 2, with dead letters where 0.1.0 had them."""
    await topology.clear()
    async with build.open_bus(quick_settings(topology)) as bus:
        for name in ("jobs", "calm"):
            await bus.registry.register_queue(
                RegisteredQueue(name, "", ("no:no:no",)), caller=Caller("", "root", is_root=True)
            )
        for partition in bus.partitions.all:
            for n in range(9):
                await keep_with_queue(partition, "jobs", f"{partition.index}-{n}", died_at=1_763_000_000_000 + n)

    async with build.open_bus(quick_settings(topology)) as bus, build.open_bus(quick_settings(topology)):
        for partition in bus.partitions.all:
            found = await dead_letters.read(partition, "@jobs", [f"{partition.index}-{n}" for n in range(9)])
            left = await partition.command("KEYS", partition.key("queue:dead:*"))

            assert [letter.died_at - 1_763_000_000_000 for letter in found] == list(range(9))
            assert {(letter.topic, letter.tenant, letter.reason, letter.attempts) for letter in found} == {
                ("widgets", "acme", "lease", 5)
            }
            assert left == []


async def keep_with_queue(partition: Partition, queue: str, id_: str, *, died_at: int) -> None:
    record = msgspec.msgpack.encode(["acme", 5, "the lease of attempt 5 ended", died_at, '{"topic":"widgets"}'])
    await partition.command("HSET", partition.key(f"queue:dead:{queue}"), id_, record)
    await partition.command("ZADD", partition.key(f"queue:dead:index:{queue}"), died_at, id_)


async def test_calls_of_the_older_version_are_as_it_made_them(tmp_path: Path):
    """They are taken by its own data, so that it says something when they are refused by ours."""
    async with a_dump(tmp_path) as url, redis.from_url(url) as client:
        published = await as_recorded(client, "event_publish")
        taken = await as_recorded(client, "job_take")
        changes = await as_recorded(client, "registry_changes")

    assert published[0] == b"ok"
    assert len(taken[1]) > 0
    assert changes == [20, 0, []]


async def test_a_process_of_the_older_version_that_comes_back_writes_nothing(tmp_path: Path):
    async with a_dump(tmp_path) as url, redis.from_url(url, protocol=2) as client:
        topology = Topology("one", url, 1, (url,))
        partitions = await migrated(topology)
        before = await format_one.everything(partitions)

        for version in (b"20", b"21", str(2**53).encode()):
            with pytest.raises(ResponseError, match="attempt to compare"):
                await as_recorded(client, "event_publish", changed={b"20": version})
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await as_recorded(client, "job_take")
        changes = await as_recorded(client, "registry_changes")
        await client.hsetnx("rm:layout", "partitions", 1)
        partitions_told = await client.hget("rm:layout", "partitions")

        # It unpacks three values, finds none, and ends. Started again, it finds another number of partitions.
        assert changes == []
        assert partitions_told == b"0"
        assert await format_one.everything(partitions) == before
        await partitions.close()


async def test_a_web_process_of_the_older_version_publishes_until_the_migration_begins_and_never_again(tmp_path: Path):
    """It was suspended for so long that the migration went on beside it."""
    async with a_dump(tmp_path) as url, redis.from_url(url, protocol=2) as web:
        before = await web.xlen("rm:journal:events")
        published = await as_recorded(web, "event_publish")
        accepted = await web.xlen("rm:journal:events")
        partitions = await migrated(Topology("one", url, 1, (url,)))
        gauges, _ = await batches.gauges(partitions.home)
        for _ in range(2):
            with pytest.raises(ResponseError, match="attempt to compare"):
                await as_recorded(web, "event_publish")
        changes = await as_recorded(web, "registry_changes")
        after = await web.xlen("rm:journal:events")

        assert published[0] == b"ok"
        assert after == accepted > before
        assert (await batches.gauges(partitions.home))[0] == gauges
        # There is no version of the registry for it any more: it unpacks three values, finds none, and ends.
        assert changes == []
        await partitions.close()
