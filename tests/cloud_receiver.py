"""A subscriber that reads what it gets with the `cloudevents` package, or as a Routemaster drain does."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web
from cloudevents.core.bindings import http
from cloudevents.core.bindings.http import HTTPMessage
from cloudevents.core.v1.event import CloudEvent

ROUTEMASTER, BATCH, BINARY = "routemaster", "cloudevents-batch", "cloudevents-binary"


@dataclass(frozen=True)
class Got:
    """One request, what it says of its format, and the events that were read from it."""

    headers: dict[str, str]
    body: bytes
    format: str
    events: list[CloudEvent] | list[dict[str, Any]]

    @property
    def ids(self) -> list[str]:
        return [each["id"] if isinstance(each, dict) else each.get_id() for each in self.events]


def read(headers: dict[str, str], body: bytes) -> Got:
    """What a receiver makes of a request; raises for what it cannot read."""
    kind = headers.get("Content-Type", "")
    if kind == "application/cloudevents-batch+json":
        return Got(headers, body, BATCH, [_structured(each) for each in json.loads(body)])
    if "ce-id" in {name.lower() for name in headers}:
        return Got(headers, body, BINARY, [http.from_binary_event(HTTPMessage(headers, body))])
    assert kind == "application/json"
    events = json.loads(body)
    # As Routemaster's drain does; it answers 400 to the whole otherwise.
    assert all(each.get("t") and each.get("type") and each.get("topic") and each.get("url") for each in events)
    return Got(headers, body, ROUTEMASTER, events)


def _structured(event: object) -> CloudEvent:
    said = {"content-type": "application/cloudevents+json"}
    return http.from_structured_event(HTTPMessage(said, json.dumps(event).encode()))


@dataclass
class CloudReceiver:
    """`plan` says, by the number of a request and what was read, the status and a body in JSON.

    What it cannot read is kept as `unread`, and answered 400.
    """

    plan: Callable[[int, Got], tuple[int, object]] = lambda _number, _got: (200, None)
    url: str = ""
    attempts: list[Got] = field(default_factory=list)
    taken: list[Got] = field(default_factory=list)
    unread: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    _runner: web.AppRunner | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/callback", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/callback"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def events(self) -> list[Any]:
        return [event for got in self.taken for event in got.events]

    @property
    def ids(self) -> list[str]:
        return [id_ for got in self.taken for id_ in got.ids]

    async def until(self, is_enough: Callable[[], bool], *, within_s: float = 15.0) -> None:
        async with asyncio.timeout(within_s):
            while not is_enough():
                self._news.clear()
                await self._news.wait()

    async def _handle(self, request: web.Request) -> web.Response:
        headers, body = dict(request.headers), await request.read()
        try:
            got = read(headers, body)
        except Exception:  # noqa: BLE001 - whatever is wrong with it, a receiver says 400
            self.unread.append((headers, body))
            return web.Response(status=400)
        finally:
            self._news.set()
        self.attempts.append(got)
        status, answer = self.plan(len(self.attempts), got)
        if status < 300:
            self.taken.append(got)
        self._news.set()
        return web.json_response(answer, status=status)
