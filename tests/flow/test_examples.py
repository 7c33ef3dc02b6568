"""The examples do what they say, against a real bus."""

import asyncio
import os
import sys
from pathlib import Path

from conftest import Topology
from harness import a_bus

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


async def test_what_one_example_publishes_the_other_receives(one: Topology):
    async with a_bus(one) as bus:
        receiving = await _start("receive.py", bus.url, await bus.token("receiver"))
        assert receiving.stdout is not None
        assert await asyncio.wait_for(receiving.stdout.readline(), 20) == b"subscribed\n"

        publishing = await _start("publish.py", bus.url, await bus.token("publisher"))
        printed, _ = await asyncio.wait_for(publishing.communicate(), 20)
        lines = [await asyncio.wait_for(receiving.stdout.readline(), 20) for _ in range(3)]

        receiving.terminate()
        await receiving.communicate()
        assert printed.startswith(b"accepted:")
        assert sorted(lines) == [b"orders create https://shop.example/orders/%d\n" % n for n in (1, 2, 3)]


async def test_one_example_listens_to_what_the_other_publishes(one: Topology):
    async with a_bus(one, workers=0) as bus:
        listening = await _start("listen.py", bus.url, await bus.token("listener"), "acme:orders:*")
        assert listening.stdout is not None
        assert await asyncio.wait_for(listening.stdout.readline(), 20) == b"listening\n"

        publishing = await _start("publish.py", bus.url, await bus.token("publisher"))
        await asyncio.wait_for(publishing.communicate(), 20)
        lines = [await asyncio.wait_for(listening.stdout.readline(), 20) for _ in range(3)]

        listening.terminate()
        await listening.communicate()
        assert lines == [b"acme orders create https://shop.example/orders/%d\n" % n for n in (1, 2, 3)]


async def _start(name: str, url: str, token: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / name),
        *arguments,
        env={**os.environ, "BUS": url, "TOKEN": token},
        stdout=asyncio.subprocess.PIPE,
    )
