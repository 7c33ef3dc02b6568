"""The examples do what they say, against a real bus."""

import asyncio
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from conftest import Topology
from doubledecker.store import machine
from feed import a_feed
from harness import TestBus, a_bus, within
from processes import Process

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


async def test_what_one_example_publishes_the_other_receives(one: Topology):
    async with a_bus(one) as bus:
        receiving = await _start("receive.py", bus.url, await bus.token("receiver"))
        assert receiving.stdout is not None
        assert await within(receiving.stdout.readline(), 20) == b"subscribed\n"

        publishing = await _start("publish.py", bus.url, await bus.token("publisher"))
        printed, _ = await within(publishing.communicate(), 20)
        lines = [await within(receiving.stdout.readline(), 20) for _ in range(3)]
        [subscriber] = await bus.get("/subscribers")
        forged = {"webhook-id": "1", "webhook-timestamp": str(int(time.time())), "webhook-signature": "v1,AAAA"}
        refused = [await _post(bus, subscriber["callback"], headers) for headers in ({}, forged)]

        receiving.terminate()
        rest, _ = await receiving.communicate()
        assert (refused, rest) == ([401, 401], b"")
        assert printed.startswith(b"accepted:")
        assert sorted(lines) == [b"orders create https://shop.example/orders/%d\n" % n for n in (1, 2, 3)]


@pytest.mark.parametrize("example", ["publish.py", "receive.py"])
async def test_an_example_that_fails_says_why_in_a_line(one: Topology, example: str):
    async with a_bus(one) as bus:
        ends = [await _start(example, *where, stderr=asyncio.subprocess.PIPE) for where in _unusable(bus)]
        said = [(await within(each.communicate(), 20))[1] for each in ends]

    assert [each.returncode for each in ends] == [1, 1]
    assert said[0].startswith(b"the bus refused: unknown token; send it as ")
    assert said[1].startswith(b"no bus at http://127.0.0.1:")
    assert [text.count(b"\n") for text in said] == [1, 1]


def _unusable(bus: TestBus) -> list[tuple[str, str]]:
    return [(bus.url, "unknown"), (f"http://127.0.0.1:{machine.free_port()}", "any")]


async def _post(bus: TestBus, callback: str, headers: dict[str, str]) -> int:
    async with bus.http.post(callback, json=[{"topic": "orders", "type": "forged"}], headers=headers) as response:
        return response.status


async def test_the_consumer_handles_what_is_published_and_stops_when_told(one: Topology):
    async with a_bus(one) as bus:
        consuming = await _start("consume.py", bus.url, await bus.token("billing"))
        assert consuming.stdout is not None
        assert await within(consuming.stdout.readline(), 30) == b"ready\n"

        publishing = await _start("publish.py", bus.url, await bus.token("publisher"))
        await within(publishing.communicate(), 20)
        lines = [await within(consuming.stdout.readline(), 20) for _ in range(3)]

        consuming.terminate()
        rest, _ = await within(consuming.communicate(), 20)
        attempts = {1: 1, 2: 2, 3: 1}
        assert sorted(lines) == [b"billed acme %d attempt %d\n" % (n, attempts[n]) for n in (1, 2, 3)]
        assert (rest, consuming.returncode) == (b"", 0)


async def test_a_plain_program_publishes_and_consumes(one: Topology):
    async with a_bus(one) as bus:
        program = await _start("consume_plain.py", bus.url, await bus.token("writer"))
        printed, _ = await within(program.communicate(), 40)

        assert printed == b"wrote 0\nwrote 1\nwrote 2\nwaiting: 0\n"
        assert program.returncode == 0


async def test_one_example_listens_to_what_the_other_publishes(one: Topology):
    async with a_bus(one, workers=0) as bus:
        listening = await _start("listen.py", bus.url, await bus.token("listener"), "acme:orders:*")
        assert listening.stdout is not None
        assert await within(listening.stdout.readline(), 20) == b"listening\n"

        publishing = await _start("publish.py", bus.url, await bus.token("publisher"))
        await within(publishing.communicate(), 20)
        lines = [await within(listening.stdout.readline(), 20) for _ in range(3)]

        listening.terminate()
        await listening.communicate()
        assert lines == [b"acme orders create https://shop.example/orders/%d\n" % n for n in (1, 2, 3)]


async def _start(
    name: str, url: str, token: str, *arguments: str, stderr: int | None = None
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / name),
        *arguments,
        env={**os.environ, "BUS": url, "TOKEN": token},
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_example_of_a_source_publishes_its_orders_and_keeps_the_one_it_cannot(one: Topology, tmp_path: Path):
    from sourcing import quarantined

    shutil.copytree(EXAMPLES / "sources", tmp_path / "sources")
    settings = {
        "DOUBLEDECKER_REDIS_URL": one.url,
        "DOUBLEDECKER_LAKE": str(tmp_path / "lake"),
        "DOUBLEDECKER_SOURCES": str(tmp_path / "sources" / "sources.toml"),
        "DOUBLEDECKER_SPARK_MASTER": "local[1]",
    }
    async with a_feed(one) as feed:
        await feed.bus.registry.clients.create("shop", "secret-of-the-shop", now_ms=0)
        once = Process("once", "pipeline", "run", "--once", environment={**os.environ, **settings}, logs=tmp_path)
        await once.start()
        assert await once.wait(within_s=300) == 0, once.log
        topics = {topic.name: topic.events async for topic in feed.bus.registry.topics.list_()}

    assert topics == {"orders": 2}
    assert [row["row"].split(",")[0] for row in quarantined(tmp_path)] == ['{"order": 3']
