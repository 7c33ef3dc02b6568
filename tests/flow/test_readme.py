"""The README's first example, run as a newcomer would, ends with a delivery that one can see."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from doubledecker.store.machine import free_port
from flow.shells import a_shell
from harness import until_ready

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
async def test_the_first_example_ends_with_a_delivery_that_one_can_see(tmp_path: Path):
    start, use = re.findall(r"```sh\n(.*?)```", _section("Use it"), re.DOTALL)[:2]
    printed_before, *_ = re.findall(r"```\n(subscribed\n.*?)```", _section("Use it"), re.DOTALL)
    port = str(free_port())
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "examples").symlink_to(ROOT / "examples")

    # Spark would take half a minute of both cores, and has no part in this.
    start = start.replace("make setup && ", "").replace("--no-demo", "--no-demo --no-pipeline")
    async with a_shell(start, tmp_path, DOUBLEDECKER_PORT=port), aiohttp.ClientSession() as http:
        await until_ready(http, f"http://127.0.0.1:{port}", within_s=60)
        async with a_shell(use.replace("17890", port), tmp_path) as using:
            assert using.stdout is not None
            # What curl prints, the ids, stands among the lines.
            lines = [line async for line in _lines(using.stdout) if not line.startswith("{")]

    assert lines == printed_before.splitlines()


def _section(title: str) -> str:
    return (ROOT / "README.md").read_text().split(f"## {title}\n")[1].split("\n## ")[0]


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """What is printed up to the second event."""
    async with asyncio.timeout(60):
        async for line in stream:
            text = re.sub(r"\{.*?\]\}", "", line.decode()).strip()
            if text:
                yield text
            if "orders paid" in text:
                return
