"""A subscriber for tests: a real HTTP server on loopback that keeps what it gets, and misbehaves on order."""

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from aiohttp import web

Plan = Callable[[int], int | str]
Answer = Callable[[list[dict[str, object]]], object]
Noted = Callable[[Mapping[str, str], list[str]], object]


@dataclass(frozen=True)
class Batch:
    """One request as it came in."""

    uuid: str
    content_type: str
    events: list[dict[str, object]]
    at: float
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Receiver:
    """`plan` says, by the number of the request, which status to answer, or `hang`, `late`, `endless` or `cut`.

    `answer` gives the body of a 2xx, as JSON, by the events; `attempted` has the ids of every request, in its order.
    `noted` is told of every request too, by its headers and ids.
    """

    plan: Plan = lambda _: 200
    answer: Answer | None = None
    noted: Noted = lambda _headers, _ids: None
    port: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    attempts: int = 0
    attempted: list[list[str]] = field(default_factory=list)
    in_flight: int = 0
    in_flight_max: int = 0
    delay_s: float = 0.0
    url: str = ""
    _runner: web.AppRunner | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/callback", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/callback"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._released.set()
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def events(self) -> list[dict[str, object]]:
        """Every event received with a 2xx, in order of arrival, repeats included."""
        return [event for batch in self.batches for event in batch.events]

    @property
    def ids(self) -> list[str]:
        return [str(event["id"]) for event in self.events]

    async def until(self, is_enough: Callable[[], bool], *, within_s: float = 10.0) -> None:
        """Wait until the condition holds, looking again whenever a request comes in."""
        async with asyncio.timeout(within_s):
            while not is_enough():
                self._news.clear()
                await self._news.wait()

    def release(self) -> None:
        """Have those requests that wait answered."""
        self._released.set()

    async def until_events(self, count: int, *, within_s: float = 10.0) -> None:
        await self.until(lambda: len(self.events) >= count, within_s=within_s)

    async def until_attempts(self, count: int, *, within_s: float = 10.0) -> None:
        await self.until(lambda: self.attempts >= count, within_s=within_s)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.attempts += 1
        number = self.attempts
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            events = json.loads(await request.read())
            self.attempted.append([str(event["id"]) for event in events])
            self.noted(request.headers, self.attempted[-1])
            what = self.plan(number)
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            return await self._answer(request, events, what)
        finally:
            self.in_flight -= 1
            self._news.set()

    async def _answer(
        self, request: web.Request, events: list[dict[str, object]], what: int | str
    ) -> web.StreamResponse:
        self._news.set()
        if what == "hang":
            await self._released.wait()
            return web.Response(status=500)
        if what == "late":
            await self._released.wait()
            return web.Response(status=503, headers=self.headers)
        if what == "cut":
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        if what == "endless":
            return await self._endless(request)
        if isinstance(what, int) and 200 <= what < 300:
            scheme, _, rest = request.headers.get("Authorization", "").partition(" ")
            uuid = base64.b64decode(rest).decode().partition(":")[0] if scheme == "Basic" else ""
            at = asyncio.get_running_loop().time()
            content_type, body = request.headers.get("Content-Type", ""), await request.read()
            self.batches.append(Batch(uuid, content_type, events, at, body, dict(request.headers)))
            if self.answer is not None:
                return web.json_response(self.answer(events), status=what, headers=self.headers)
        return web.Response(status=int(what), headers=self.headers)

    async def _endless(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        while not self._released.is_set():
            await response.write(b"x" * 1024)
            await asyncio.sleep(0.01)
        return response
