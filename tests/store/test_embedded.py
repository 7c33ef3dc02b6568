"""The embedded server with real processes: it answers, survives kills, never outlives or shares its data."""

import asyncio
import os
import signal
import sys
from binascii import crc_hqx
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from doubledecker.errors import DataOwned, ServerUnfit
from doubledecker.store import embedded, tether
from doubledecker.store.embedded import EmbeddedServer

OWNER = """
import asyncio, sys
from pathlib import Path
from doubledecker.store.embedded import EmbeddedServer

async def own():
    server = await EmbeddedServer.start(Path(sys.argv[1]))
    print(server.pid, server.url, flush=True)
    await server.wait()

asyncio.run(own())
"""
# Says its id; when asked to end, says so and ends with 7.
POLITE = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: (print("asked", flush=True), os._exit(7)))
print(os.getpid(), flush=True)
signal.pause()
"""
# The tether of systems without prctl, and a parent that has no tether, around the command that follows.
WATCH = """
import os, sys
from doubledecker.store import tether
tether.watch(sys.argv[1:], parent_pid=os.getppid(), on_parent_death=15)
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


def an_owner(data: Path) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    return a_process(*python(OWNER), str(data))


async def words(process: asyncio.subprocess.Process) -> list[str]:
    """The next line that it says."""
    line = await asyncio.wait_for(process.stdout.readline(), 5)
    return line.decode().split()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110  another process sets no Event
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


@pytest.mark.parametrize(("durable", "fsync"), [(False, "everysec"), (True, "always")])
async def test_it_keeps_everything_and_evicts_nothing(tmp_path, durable, fsync):
    expected = {"appendonly": "yes", "appendfsync": fsync, "maxmemory": "5000000"}
    expected |= {"maxmemory-policy": "noeviction", "save": ""}
    async with a_server(tmp_path, durable=durable, maxmemory_bytes=5_000_000) as server:
        async with Redis.from_url(server.url, decode_responses=True) as client:
            found = await client.config_get(*expected)

    assert found == expected


async def test_only_its_user_reaches_its_socket_and_files_and_no_terminal_its_process(tmp_path):
    async with a_server(tmp_path) as server:
        assert (tmp_path / "valkey.sock").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "valkey").stat().st_mode & 0o777 == 0o700
        assert os.getsid(server.pid) != os.getsid(0)


@pytest.mark.parametrize("folder", ["50% 'a b' & more", "long" * 30])
async def test_any_data_path_works(tmp_path, folder):
    async with a_server(tmp_path / folder) as server:
        assert await answers(server.url)
        assert (tmp_path / folder / "valkey" / "appendonlydir").is_dir()


async def test_a_socket_outside_a_long_data_path_is_private_and_removed(tmp_path):
    async with a_server(tmp_path / ("long" * 30)) as server:
        folder = Path(server.url.removeprefix("unix://")).parent
        assert folder.stat().st_mode & 0o777 == 0o700

    assert not folder.exists()


async def test_a_killed_server_restarts_at_the_same_address_with_its_data(tmp_path):
    async with a_server(tmp_path, port=0) as server:
        first_pid, first_url = server.pid, server.url
        await store(first_url, stop="Oxford Street")
        await crash(server)
        await server.restart()

        assert await stored(first_url, "stop") == b"Oxford Street"
        assert (server.url, server.pid) != (first_url, first_pid)
        assert server.url == first_url


async def test_a_last_write_cut_short_does_not_prevent_a_start(tmp_path):
    async with a_server(tmp_path) as server:
        await store(server.url, whole="1")
        await store(server.url, cut="1")
        await crash(server)
        (written,) = (tmp_path / "valkey" / "appendonlydir").glob("*.incr.aof")
        os.truncate(written, written.stat().st_size - 3)
        await server.restart()

        assert await stored(server.url, "whole") == b"1"
        assert await stored(server.url, "cut") is None


async def test_start_returns_only_when_all_is_loaded(tmp_path):
    names = [f"stop-{i}" for i in range(200)]
    async with a_server(tmp_path) as server:
        await store(server.url, **dict.fromkeys(names, "1"))

    a_millisecond_each = ("--key-load-delay", "1000")
    async with a_server(tmp_path, extra=a_millisecond_each) as server:
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
        assert embedded._is_running(server_pid)
        owner.kill()

        await until_gone(server_pid)


async def test_a_new_owner_finds_the_data_of_a_killed_one(tmp_path):
    async with an_owner(tmp_path) as owner:
        _, url = await words(owner)
        await store(url, stop="Oxford Street")
        owner.kill()

        async with a_server(tmp_path) as server:
            assert await stored(server.url, "stop") == b"Oxford Street"


async def test_a_server_that_outlives_its_owner_keeps_the_data(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "OWNER_WAIT_S", 0.2)
    async with an_owner(tmp_path) as owner:
        server_pid = int((await words(owner))[0])
        os.kill(server_pid, signal.SIGSTOP)
        owner.kill()
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


async def test_the_tether_becomes_the_command():
    async with a_process(*tether.tethered(python(POLITE))) as child:
        assert await words(child) == [str(child.pid)]
        child.terminate()

        assert await child.wait() == 7


async def test_a_child_whose_parent_is_already_gone_never_begins():
    of_another = [part.replace(str(os.getpid()), "1") for part in tether.tethered(python(POLITE))]
    async with a_process(*of_another) as child:
        assert await words(child) == []


async def test_without_prctl_signals_and_the_exit_code_are_passed_on():
    async with a_process(*python(WATCH), *python(POLITE)) as child:
        assert await words(child) != [str(child.pid)]
        child.terminate()

        assert await words(child) == ["asked"]
        assert await child.wait() == 7


async def test_without_prctl_a_killed_parent_takes_its_child_along():
    async with a_process(*python(PARENT), *python(WATCH), *python(POLITE)) as parent:
        child_pid = int((await words(parent))[0])
        parent.kill()

        await until_gone(child_pid)


async def test_a_cluster_of_three_answers_keys_in_all_slots(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    from cluster import ClusterOfThree

    a_key_per_slot = {crc_hqx(b"%d" % i, 0) % 16_384: str(i) for i in range(300_000)}
    cluster = await ClusterOfThree.start(tmp_path)
    try:
        assert len(a_key_per_slot) == 16_384
        for node, slots in zip(cluster.nodes, (range(5_461), range(5_461, 10_922), range(10_922, 16_384)), strict=True):
            await store(node.url, **{a_key_per_slot[slot]: "1" for slot in slots})
    finally:
        await cluster.stop()
