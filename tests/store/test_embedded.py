"""The embedded server with real processes: it answers, survives kills, never outlives or shares its data."""

import asyncio
import os
import signal
import sys
from binascii import crc_hqx
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote

import pytest
from redis.asyncio import Redis

from doubledecker.errors import DataOwned, ServerUnfit
from doubledecker.store import die_with_parent, embedded
from doubledecker.store.embedded import EmbeddedServer
from harness import within

OWNER = """
import asyncio, pathlib, sys
from doubledecker.store.embedded import EmbeddedServer
async def own():
    server = await EmbeddedServer.start(pathlib.Path(sys.argv[1]))
    print(server.pid, server.url, flush=True)
    await server.wait()
asyncio.run(own())
"""
# Says its id; when asked to end, says so and ends with 7.
POLITE = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"asked\\n"), os._exit(7)))
os.write(1, b"%d\\n" % os.getpid())
signal.pause()
"""
# The launcher of systems without prctl, and a parent without a launcher, around the command that follows.
WATCH = """
import os, sys
from doubledecker.store import die_with_parent
die_with_parent.watch(sys.argv[1:], parent_pid=os.getppid(), on_parent_death=15)
"""
PARENT = "import subprocess, sys; subprocess.run(sys.argv[1:])"


@asynccontextmanager
async def a_server(data: Path, **settings) -> AsyncIterator[EmbeddedServer]:
    server = await EmbeddedServer.start(data, **settings)
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def a_process(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def an_owner(data: Path):
    return a_process(*python(OWNER), str(data))


async def words(process: asyncio.subprocess.Process) -> list[str]:
    """The next line that it says."""
    return (await within(process.stdout.readline(), 5)).decode().split()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.01)


async def until_gone(pid: int) -> None:
    await until(lambda: not embedded._is_running(pid))


async def store(url: str, **values: str) -> None:
    async with Redis.from_url(url) as client, client.pipeline(transaction=False) as pipeline:
        for name, value in values.items():
            pipeline.set(name, value)
        await pipeline.execute()


async def stored(url: str, name: str) -> bytes | None:
    async with Redis.from_url(url) as client:
        return await client.get(name)


async def rewritten(url: str) -> None:
    """Returns when all that is stored stands in the base of the append-only file."""
    async with Redis.from_url(url) as client, asyncio.timeout(20):
        await client.bgrewriteaof()
        while (found := await client.info("persistence"))["aof_rewrite_in_progress"] or not found["aof_rewrites"]:
            await asyncio.sleep(0.01)


async def answers(url: str) -> bool:
    async with Redis.from_url(url) as client:
        return await client.ping()


async def crash(server: EmbeddedServer) -> None:
    server.kill()
    assert await server.wait() == -signal.SIGKILL


@pytest.mark.parametrize(("port", "scheme"), [(None, "unix:///"), (0, "redis://127.0.0.1:")])
async def test_it_answers_on_a_socket_or_a_port(tmp_path, port, scheme):
    async with a_server(tmp_path, port=port) as server:
        assert server.url.startswith(scheme)
        assert await answers(server.url)


@pytest.mark.parametrize(("durable", "fsync"), [(False, "no"), (True, "always")])
async def test_it_keeps_everything_and_evicts_nothing(tmp_path, durable, fsync):
    expected = {"appendonly": "yes", "appendfsync": fsync, "maxmemory-policy": "noeviction", "save": ""}
    async with a_server(tmp_path, durable=durable) as server, Redis.from_url(server.url) as client:
        found = await client.config_get(*expected)

    assert found == expected


async def test_a_terminals_signals_do_not_reach_it(tmp_path):
    async with a_server(tmp_path) as server:
        assert os.getsid(server.pid) != os.getsid(0)


@pytest.mark.parametrize("folder", ["50%25 'a' & b?c#d", "long" * 30])
async def test_any_data_path_works_and_keeps_its_socket_private(tmp_path, folder):
    async with a_server(tmp_path / folder) as server:
        socket = tmp_path / unquote(server.url.removeprefix("unix://"))
        assert await answers(server.url)
        assert socket.stat().st_mode & 0o777 == 0o700

    assert not socket.exists()


# Both are durable, for without it a killed server may lose what it acknowledged while an fsync ran.
async def test_a_killed_server_restarts_at_the_same_address_with_its_data(tmp_path):
    async with a_server(tmp_path, port=0, durable=True) as server:
        first_pid, first_url = server.pid, server.url
        await store(first_url, stop="Oxford Street")
        await crash(server)
        await server.restart()

        assert await stored(first_url, "stop") == b"Oxford Street"
        assert server.pid != first_pid


async def test_a_server_killed_before_its_memory_is_bounded_can_be_started_again(tmp_path, monkeypatch):
    until_ready = embedded._until_ready

    async def until_killed(process: asyncio.subprocess.Process, **more) -> None:
        await until_ready(process, **more)
        process.kill()
        await process.wait()

    async with a_server(tmp_path, maxmemory_bytes=50_000_000) as server:
        with monkeypatch.context() as patch:
            patch.setattr(embedded, "_until_ready", until_killed)
            with pytest.raises(ServerUnfit, match="went away"):
                await server.restart()
        await server.restart()

        assert await answers(server.url)


async def test_a_last_write_cut_short_does_not_prevent_a_start(tmp_path):
    async with a_server(tmp_path, durable=True) as server:
        await store(server.url, whole="1")
        await store(server.url, cut="1")
        await crash(server)
        (written,) = (tmp_path / "valkey" / "appendonlydir").glob("*.incr.aof")
        os.truncate(written, written.stat().st_size - 3)
        await server.restart()

        assert await stored(server.url, "whole") == b"1"
        assert await stored(server.url, "cut") is None


async def test_start_waits_for_all_to_be_loaded_longer_than_for_a_silent_server(tmp_path, monkeypatch):
    names = [f"stop-{i}" for i in range(10_000)]
    async with a_server(tmp_path) as server:
        await store(server.url, **dict.fromkeys(names, "1"))
        await rewritten(server.url)

    monkeypatch.setattr(embedded, "SILENCE_S_MAX", 1.0)
    # So many microseconds a key, however much longer the machine sleeps, and an answer every hundred keys or so.
    slowly = ["--key-load-delay", "100", "--loading-process-events-interval-bytes", "1024"]
    async with a_server(tmp_path, extra=slowly) as server:
        assert await stored(server.url, names[-1]) == b"1"


async def test_a_second_owner_is_refused_and_told_who_the_first_is(tmp_path):
    async with an_owner(tmp_path) as owner:
        _, url = await words(owner)
        with pytest.raises(DataOwned) as refusal:
            await EmbeddedServer.start(tmp_path)

        assert await answers(url)
    for part in (str(tmp_path), f"process {owner.pid}", "--data"):
        assert part in str(refusal.value)


async def test_a_killed_owner_leaves_no_server_behind(tmp_path):
    async with an_owner(tmp_path) as owner:
        server_pid = int((await words(owner))[0])
        owner.kill()

        await until_gone(server_pid)


async def test_a_new_owner_finds_the_data_of_a_killed_one(tmp_path):
    async with an_owner(tmp_path) as owner:
        _, url = await words(owner)
        await store(url, stop="Oxford Street")
        owner.kill()
        await owner.wait()

        async with a_server(tmp_path) as server:
            assert await stored(server.url, "stop") == b"Oxford Street"


async def test_a_server_that_outlives_its_owner_keeps_the_data(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "OWNER_WAIT_S", 0.2)
    async with an_owner(tmp_path) as owner:
        server_pid = int((await words(owner))[0])
        os.kill(server_pid, signal.SIGSTOP)
        owner.kill()
        await owner.wait()
        try:
            with pytest.raises(DataOwned, match=str(owner.pid)):
                await EmbeddedServer.start(tmp_path)
        finally:
            os.kill(server_pid, signal.SIGCONT)

        await until_gone(server_pid)


async def test_stop_leaves_no_process_frees_the_data_and_is_final(tmp_path):
    server = await EmbeddedServer.start(tmp_path)
    await server.stop()
    await server.stop()

    assert not embedded._is_running(server.pid)
    async with a_server(tmp_path):
        with pytest.raises(ServerUnfit, match="stopped"):
            await server.restart()


async def test_stop_ends_a_server_that_does_not_listen(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "STOP_WAIT_S", 0.1)
    async with a_server(tmp_path) as server:
        os.kill(server.pid, signal.SIGSTOP)
        await server.stop()

        assert await server.wait() == -signal.SIGKILL


async def test_a_start_given_up_half_way_leaves_nothing(tmp_path):
    start = asyncio.create_task(EmbeddedServer.start(tmp_path))
    await until((tmp_path / "valkey" / "valkey.log").exists)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start

    async with a_server(tmp_path) as server:
        assert await answers(server.url)


async def test_a_server_that_cannot_start_says_why(tmp_path):
    with pytest.raises(ServerUnfit, match="no-such-setting"):
        await EmbeddedServer.start(tmp_path, extra=["--no-such-setting", "1"])


async def test_a_port_that_a_stranger_has_is_not_taken_for_ours(tmp_path):
    async with a_server(tmp_path / "stranger", port=0) as stranger:
        port = int(stranger.url.rpartition(":")[2].removesuffix("/0"))
        with pytest.raises(ServerUnfit, match="in use"):
            await EmbeddedServer.start(tmp_path / "ours", port=port)


@pytest.mark.parametrize("launcher", [die_with_parent.wrapped([]), python(WATCH)], ids=["prctl", "no prctl"])
async def test_signals_and_the_exit_code_pass_through_the_launcher(launcher):
    async with a_process(*launcher, *python(POLITE)) as child:
        await words(child)
        child.terminate()

        assert await words(child) == ["asked"]
        assert await child.wait() == 7


async def test_a_child_whose_parent_is_already_gone_never_begins():
    of_another = [part.replace(str(os.getpid()), "1") for part in die_with_parent.wrapped(python(POLITE))]
    async with a_process(*of_another) as child:
        assert await words(child) == []


async def test_without_prctl_a_killed_parent_takes_its_child_along():
    async with a_process(*python(PARENT), *python(WATCH), *python(POLITE)) as parent:
        child_pid = int((await words(parent))[0])
        parent.kill()

        await until_gone(child_pid)


@pytest.mark.slow
async def test_a_cluster_of_three_answers_keys_in_all_slots(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    from cluster import ClusterOfThree

    key_of = {crc_hqx(b"%d" % i, 0) % 16_384: str(i) for i in range(300_000)}
    cluster = await ClusterOfThree.start(tmp_path)
    try:
        for node, first, end in zip(cluster.nodes, (0, 5_461, 10_922), (5_461, 10_922, 16_384), strict=True):
            await store(node.url, **{key_of[slot]: "1" for slot in range(first, end)})
    finally:
        await cluster.stop()
