"""A whole bus inside a test: the real web server and worker on the test's own loop, and a client to talk to it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import aiohttp

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.assembly.settings import Settings
from doubledecker.model.queue import RegisteredQueue
from doubledecker.store import registry
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.web import listening, server
from doubledecker.web.server import WebBounds
from doubledecker.web.stream import StreamRules
from doubledecker.worker import process

T = TypeVar("T")

ROOT_KEY = "root-key-of-the-tests"


@dataclass
class TestBus:
    """A running bus: its address, a session, and a look into its store."""

    __test__ = False

    url: str
    http: aiohttp.ClientSession
    partitions: Partitions
    settings: Settings

    async def token(self, name: str, **scopes: object) -> str:
        """Make a client and return its secret."""
        body = {"name": name, "scopes": scopes or None}
        async with self.http.post(f"{self.url}/api_tokens", json=body, headers=basic(ROOT_KEY)) as response:
            assert response.status == 201, await response.text()
            return str((await response.json())["token"])

    async def subscribe(self, secret: str, callback: str, *topics: str, **fields: object) -> None:
        body = {"topics": list(topics), "callback": callback, **fields}
        async with self.http.post(f"{self.url}/subscription", json=body, headers=basic(secret)) as response:
            assert response.status == 204, await response.text()

    async def publish(self, secret: str, events: list[dict[str, object]]) -> list[str]:
        """Publish with `POST /events` and return the ids."""
        async with self.http.post(f"{self.url}/events", json=events, headers=basic(secret)) as response:
            assert response.status == 202, await response.text()
            return list((await response.json())["ids"])

    async def get(self, path: str, secret: str = ROOT_KEY) -> object:
        async with self.http.get(self.url + path, headers=basic(secret)) as response:
            assert response.status == 200, await response.text()
            return await response.json()


async def within(awaitable: Awaitable[T], limit_s: float) -> T:
    """What it gives, in time; not `wait_for`, which may lose a cancellation."""
    async with asyncio.timeout(limit_s):
        return await awaitable


def basic(secret: str) -> dict[str, str]:
    """Headers that say who asks, as Routemaster's clients do."""
    return {"Authorization": aiohttp.encode_basic_auth(secret, "x")}


def an_event(number: int = 0, topic: str = "widgets", **fields: object) -> dict[str, object]:
    return {"topic": topic, "type": "update", "url": f"https://example.org/{number}", **fields}


async def save_queues(home: Partition, queues: Sequence[RegisteredQueue]) -> None:
    """Register many queues as old data has them, some at a time: all at once would wait longer than a call may take."""
    for start in range(0, len(queues), 100):
        some = queues[start : start + 100]
        await asyncio.gather(*(registry.save_queue(home, queue, former=None) for queue in some))


def quick_settings(topology: Topology, **changes: object) -> Settings:
    """Settings for tests: private callbacks, small delays."""
    settings = Settings(
        redis_url=topology.url,
        partitions=topology.partitions,
        root_key=ROOT_KEY,
        private_callbacks=True,
        port=0,
        backoff_base_ms=20,
        backoff_cap_ms=200,
        worker_threads=8,
        shutdown_s=1.0,
        log_level="error",
    )
    return replace(settings, **changes)  # type: ignore[arg-type]


@asynccontextmanager
async def a_bus(topology: Topology, *, workers: int = 1, **changes: object) -> AsyncIterator[TestBus]:
    """Run web and workers on an empty store until the block ends; changes are settings, or bounds of web."""
    await topology.clear()
    bounds = _taken(WebBounds, changes)
    bounds = replace(bounds, stream=_taken(StreamRules, changes))
    settings = quick_settings(topology, **changes)
    stop = asyncio.Event()
    with listening.bind("127.0.0.1", 0) as listener:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.run(settings, listener, stop, bounds=bounds))
            for _ in range(workers):
                tasks.create_task(process.run(settings, stop))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with aiohttp.ClientSession() as http, build.open_bus(settings) as bus:
                await until_ready(http, url, path="/readyz" if workers else "/version")
                try:
                    yield TestBus(url, http, bus.partitions, settings)
                finally:
                    stop.set()


def _taken(kind: type[T], changes: dict[str, object]) -> T:
    """A value with those of the changes that it has fields for, which are removed."""
    names = {field.name for field in fields(kind)} & changes.keys()  # type: ignore[arg-type]  # a dataclass
    return kind(**{name: changes.pop(name) for name in names})


async def until_ready(http: aiohttp.ClientSession, url: str, *, path: str = "/readyz", within_s: float = 20.0) -> None:
    """Wait until the bus answers 200."""
    async with asyncio.timeout(within_s):
        while True:
            try:
                async with http.get(url + path) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.02)
