"""A whole bus for a measurement: a fresh Valkey over TCP, one web process, and a worker when asked for."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bench import children, events
from bench.children import Child, Loaded
from bench.load import Spec
from doubledecker.store import embedded
from doubledecker.store.embedded import EmbeddedServer

ROOT_KEY = "root-key-of-the-bench"
_START_S_MAX = 30.0
_FILL_EVENTS = 100  # a request's events while a backlog is made


@dataclass
class Bus:
    """A running bus, and how to talk to it."""

    server: EmbeddedServer
    web: Child
    port: int
    environment: dict[str, str]
    http: aiohttp.ClientSession
    publisher: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pids(self) -> dict[str, int]:
        return {"web": self.web.pid, "valkey": self.server.pid}

    async def subscribe(self, count: int, callback: str, *, topic: str = events.TOPIC, **fields: object) -> None:
        """That many subscribers to a topic."""
        for number in range(count):
            body = {"topics": [topic], "callback": callback, **fields}
            headers = {"Authorization": await self.authorization(f"{topic}-subscriber-{number}")}
            async with self.http.post(f"{self.url}/subscription", json=body, headers=headers) as answer:
                answer.raise_for_status()

    async def fill(self, count: int) -> None:
        """Queue events; `count` is a multiple of what a request carries."""
        spec = Spec(
            port=self.port,
            authorization=self.publisher,
            kind="events",
            events_per_request=_FILL_EVENTS,
            connections=4,
            warm_s=0.0,
            measure_s=120.0,
            requests_max=count // _FILL_EVENTS,
        )
        await children.loaded(spec, {})

    async def loaded(self, spec: Spec) -> Loaded:
        return await children.loaded(spec, self.pids)

    async def publish(self, topic: str, count: int, *, per_request: int) -> None:
        """Queue events of any topic, so many in a request."""
        headers = {"Authorization": self.publisher, "Content-Type": "application/json"}
        for first in range(0, count, per_request):
            numbers = range(first, min(count, first + per_request))
            body = events.encode([{**events.event(number), "topic": topic} for number in numbers])
            async with self.http.post(f"{self.url}/events", data=body, headers=headers) as answer:
                answer.raise_for_status()

    @contextlib.asynccontextmanager
    async def a_worker(self, **settings: int) -> AsyncIterator[Child]:
        """A running worker; settings are those of the bus, by name."""
        more = {f"DOUBLEDECKER_{name.upper()}": str(value) for name, value in settings.items()}
        async with children.started("doubledecker", "worker", environment={**self.environment, **more}) as worker:
            yield worker

    async def authorization(self, name: str) -> str:
        """The header of a new client."""
        headers = {"Authorization": aiohttp.encode_basic_auth(ROOT_KEY, "x")}
        async with self.http.post(f"{self.url}/api_tokens", json={"name": name}, headers=headers) as answer:
            answer.raise_for_status()
            return aiohttp.encode_basic_auth((await answer.json())["token"], "x")


@contextlib.asynccontextmanager
async def a_server() -> AsyncIterator[EmbeddedServer]:
    """A fresh Valkey with the persistence that `doubledecker up` gives it, listening on TCP as peers need it."""
    with tempfile.TemporaryDirectory() as folder:
        server = await EmbeddedServer.start(Path(folder), port=0)
        try:
            yield server
        finally:
            await server.stop()


@contextlib.asynccontextmanager
async def a_bus(*options: str, seed: Callable[[str], Awaitable[None]] | None = None) -> AsyncIterator[Bus]:
    """An empty bus with default settings, ready to be published to.

    `options` are those of `doubledecker web`. `seed` may fill the server, whose URL it gets, before web starts.
    """
    port = embedded.free_port()
    async with a_server() as server, aiohttp.ClientSession() as http:
        if seed is not None:
            await seed(server.url)
        environment = {
            "DOUBLEDECKER_REDIS_URL": server.url,
            "DOUBLEDECKER_ROOT_KEY": ROOT_KEY,
            "DOUBLEDECKER_PORT": str(port),
            "DOUBLEDECKER_PRIVATE_CALLBACKS": "true",
        }
        async with children.started("doubledecker", "web", *options, environment=environment) as web:
            bus = Bus(server, web, port, environment, http)
            await _until_connected(bus)
            bus.publisher = await bus.authorization("publisher")
            yield bus


async def _until_connected(bus: Bus) -> None:
    """Wait until web answers and has its Redis; it answers before it has."""
    headers = {"Authorization": aiohttp.encode_basic_auth(ROOT_KEY, "x")}
    async with asyncio.timeout(_START_S_MAX):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with bus.http.get(f"{bus.url}/pulse", headers=headers) as answer:
                    if answer.status == 204:
                        return
            await asyncio.sleep(0.02)
