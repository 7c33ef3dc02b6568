"""A Redis that is not ours: found by URL, checked at start."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.errors import ServerUnfit
from doubledecker.store import machine
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.store.partitions import Partitions, wait_for
from harness import a_bus, an_event, quick_settings
from receiver import Receiver


@pytest.fixture
async def redis_seven(tmp_path: Path) -> AsyncIterator[Topology]:
    """A real Redis, where the machine has one."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("there is no redis-server on this machine; all other tests run on Valkey")
    port = machine.free_port()
    process = await asyncio.create_subprocess_exec(
        binary,
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--dir",
        str(tmp_path),
        stdout=asyncio.subprocess.DEVNULL,
    )
    url = f"redis://127.0.0.1:{port}/0"
    partitions = await wait_for(url, namespace="rm:", count=1, patience_s=20)
    await partitions.close()
    yield Topology("redis", url, 1, (url,))
    process.terminate()
    await process.wait()


async def test_events_flow_through_a_plain_redis(redis_seven: Topology):
    async with a_bus(redis_seven) as bus, Receiver(plan=lambda n: 500 if n == 1 else 200) as receiver:
        await bus.subscribe(await bus.token("s"), receiver.url, "widgets", timeout=5, max=10)

        ids = await bus.publish(await bus.token("publisher"), [an_event(n, id=f"given-{n}") for n in range(50)])
        await receiver.until(lambda: set(receiver.ids) >= set(ids))

        assert sorted(set(receiver.ids)) == sorted(ids)


async def test_a_server_that_evicts_is_refused(data_dir: Path):
    server = await EmbeddedServer.start(data_dir, extra=("--maxmemory-policy", "allkeys-lru"))

    with pytest.raises(ServerUnfit, match="noeviction"):
        await Partitions.connect(server.url, namespace="rm:", count=1)
    await server.stop()


async def test_another_number_of_partitions_than_the_data_has_is_refused(one: Topology):
    await one.clear()
    first = await Partitions.connect(one.url, namespace="rm:", count=1)

    with pytest.raises(ServerUnfit, match="has 1 partitions, the settings say 3"):
        await Partitions.connect(one.url, namespace="rm:", count=3)
    await first.close()


@pytest.mark.parametrize("is_durable", [True, False])
async def test_durable_insists_on_a_server_that_writes_before_it_answers(data_dir: Path, is_durable: bool):
    server = await EmbeddedServer.start(data_dir, durable=is_durable)
    settings = quick_settings(Topology("own", server.url, 1, (server.url,)), durable=True)

    if is_durable:
        async with build.open_bus(settings):
            pass
    else:
        with pytest.raises(ServerUnfit, match="appendfsync always"):
            async with build.open_bus(settings):
                pass
    await server.stop()
