"""The demo's receivers: real servers on loopback, each with a character: quick, slow, or moody.

Three subscribe to topics. The fourth has a queue with a callback, so its tenants take turns.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from aiohttp import web

from doubledecker.client import AsyncBus

# A batch is bounded by the subscription's own max_bytes, 1 MiB; this is well above.
_BODY_BYTES_MAX = 8_388_608
# Calls under way when the demo stops are cut; the bus sends them again to the next demo.
_GRACE_S = 0.1

Mood = Callable[[], Awaitable[int]]


def cast() -> list["DemoReceiver"]:
    """The four of them, not yet started."""
    return [
        DemoReceiver("demo-billing", _quick, topics=("demo_orders", "demo_invoices"), timeout_ms=200, max_events=100),
        DemoReceiver("demo-search", _slow, topics=("demo_orders", "demo_customers"), timeout_ms=500, max_events=50),
        DemoReceiver(
            "demo-mailer", Moody().answer, topics=("demo_customers", "demo_invoices"), timeout_ms=500, max_events=100
        ),
        DemoReceiver("demo-partners", _slow, pattern=".*:demo_(orders|invoices):create", timeout_ms=200, max_events=20),
    ]


@dataclass
class DemoReceiver:
    """One receiver: its server, and what it has of the bus: topics, or a queue with a pattern."""

    name: str
    mood: Mood
    timeout_ms: int
    max_events: int
    topics: Sequence[str] = ()
    pattern: str = ""
    _runner: web.AppRunner | None = field(default=None, init=False)

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=_BODY_BYTES_MAX)
        app.router.add_post("/events", self._receive)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_GRACE_S)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def sign_up(self, bus: AsyncBus) -> None:
        """Subscribe to the topics, or register the queue, with where this receiver listens."""
        assert self._runner is not None, "asked after the start"
        callback = f"http://127.0.0.1:{self._runner.addresses[0][1]}/events"
        if self.pattern:
            queue = bus.queue(self.name)
            await queue.register(self.pattern, callback=callback, timeout=self.timeout_ms, max=self.max_events)
        else:
            await bus.subscribe(self.topics, callback, timeout=self.timeout_ms, max=self.max_events)

    async def sign_off(self, bus: AsyncBus) -> None:
        """End what it asked for; raises NotFound when there is no such thing."""
        if self.pattern:
            await bus.queue(self.name).delete(discard=True)
        else:
            await bus.unsubscribe()

    async def _receive(self, request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=await self.mood())


async def _quick() -> int:
    await asyncio.sleep(_between(0.002, 0.010))
    return 200


async def _slow() -> int:
    await asyncio.sleep(_between(0.05, 0.20))
    return 200


class Moody:
    """Well for half a minute or so, then failing for a few seconds; now and then a call hangs a while."""

    WELL_S, ILL_S, HANG_S = (15.0, 40.0), (2.0, 5.0), (1.0, 4.0)
    HANG_SHARE = 0.01

    def __init__(self) -> None:
        self._is_ill = True
        self._until_s = 0.0

    async def answer(self) -> int:
        """500 while ill, else 200, sometimes late."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._until_s:
            self._is_ill = not self._is_ill
            self._until_s = now_s + _between(*(self.ILL_S if self._is_ill else self.WELL_S))
        if self._is_ill:
            return 500
        hangs = _between(0, 1) < self.HANG_SHARE
        await asyncio.sleep(_between(*self.HANG_S) if hangs else _between(0.01, 0.05))
        return 200


def _between(low: float, high: float) -> float:
    return random.uniform(low, high)  # noqa: S311 - a demo's chance needs no secrecy
