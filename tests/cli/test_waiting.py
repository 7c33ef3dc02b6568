"""Processes that start before their Redis: they say that they wait, and stop when told."""

import asyncio
import json
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from conftest import Topology
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.store.machine import free_port
from harness import until_ready
from processes import Fleet, Process

pytestmark = pytest.mark.slow


# What is promised. The process itself says how long it had tried, so that neither what Python's imports take on a busy
# machine counts, nor what the test waits for.
SAID_S_MAX = 2.0


@pytest.mark.parametrize("redis", ["nobody listens", "nobody answers"])
@pytest.mark.parametrize("name", ["web", "worker", "watch"])
async def test_a_process_reports_soon_that_it_waits_for_redis_and_stops_when_told(
    tmp_path: Path, name: str, redis: str
):
    async with AsyncExitStack() as held:
        port = free_port()
        if redis == "nobody answers":
            # Connections are made by the system, and never accepted.
            listening = held.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = listening.getsockname()[1]
        process = _fleet(port, tmp_path, name)
        await process.start()
        held.push_async_callback(process.kill)
        said = await _logged(process, "redis.awaited")

        await process.stop()

    assert "Traceback" not in process.log
    assert "Redis at redis://127.0.0.1" in said["error"]
    assert "; start it, or set DOUBLEDECKER_REDIS_URL to where it is\n" in process.log
    assert said["waited_s"] < SAID_S_MAX


async def test_web_is_alive_but_not_ready_while_it_waits_and_serves_once_redis_is_there(tmp_path: Path):
    port = free_port()
    fleet = Fleet(Topology("one", f"redis://127.0.0.1:{port}/0", 1, ()), tmp_path, workers=1)
    async with fleet, aiohttp.ClientSession() as http:
        await until_ready(http, fleet.url, path="/livez", within_s=60)
        async with http.get(f"{fleet.url}/topics") as early:
            problem = json.loads(await early.text())
        server = await EmbeddedServer.start(tmp_path / "data", port=port)
        await until_ready(http, fleet.url, within_s=60)
        await server.stop()

    assert (early.status, early.headers["Retry-After"]) == (503, "1")
    assert "waits for Redis" in problem["detail"]


def _fleet(redis_port: int, logs: Path, name: str) -> Process:
    fleet = Fleet(
        Topology("one", f"redis://127.0.0.1:{redis_port}/0", 1, ()), logs, workers=1, watches=1, log_json="true"
    )
    return {"web": fleet.web, "worker": fleet.workers[0], "watch": fleet.watches[0]}[name]


async def _logged(process: Process, event: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            lines = [
                json.loads(line) for line in process.log.splitlines() if line.startswith("{") and line.endswith("}")
            ]
            for line in lines:
                if line["event"] == event:
                    return line
            await asyncio.sleep(0.05)
