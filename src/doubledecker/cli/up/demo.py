"""The demo's receivers: real servers on loopback, each with a character, so that there is something of all to see.

One is quick, one slow, one fails now and then, one always, and one does not take every event: these become dead
letters. Five subscribe to topics. The sixth has a queue with a callback, so its tenants take turns.
"""

import asyncio
import contextlib
import hmac
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from doubledecker import log
from doubledecker.assembly.settings import Settings
from doubledecker.cli.live import url_of
from doubledecker.cli.serve.processes import load, until_stopped
from doubledecker.client import AsyncBus, BusAway, NotFound, Unauthenticated
from doubledecker.client.bus import Publication, SubscriptionOptions

# A batch is bounded by the subscription's own max_bytes, 1 MiB; this is well above.
_BODY_BYTES_MAX = 8_388_608
# Of invoices, whose amounts are up to 500.
_AMOUNT_MAX = 499.7
# Calls under way when the demo stops are cut; the bus sends them again to the next demo.
_GRACE_S = 0.1

# What a receiver makes of the events of a batch.
Mood = Callable[[Sequence[dict[str, Any]]], Awaitable[web.Response]]


def cast() -> list["DemoReceiver"]:
    """All of them, not yet started."""
    return [
        DemoReceiver("demo-billing", _quick, topics=("demo_orders", "demo_invoices"), timeout_ms=200, max_events=100),
        DemoReceiver("demo-search", _slow, topics=("demo_orders", "demo_customers"), timeout_ms=500, max_events=50),
        DemoReceiver(
            "demo-mailer", Moody().answer, topics=("demo_customers", "demo_invoices"), timeout_ms=500, max_events=100
        ),
        DemoReceiver(
            "demo-ledger",
            _strict,
            topics=("demo_invoices",),
            timeout_ms=200,
            max_events=50,
            options={"retry": [1_000, 1_000]},
        ),
        # Few events, as all that it gets waits for ever.
        DemoReceiver(
            "demo-legacy",
            _broken,
            topics=("demo_customers",),
            timeout_ms=200,
            max_events=100,
            options={"filter": {"tenant": ["hooli"], "type": ["delete"]}},
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
    options: SubscriptionOptions = field(default_factory=SubscriptionOptions)
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
            options: SubscriptionOptions = {"timeout": self.timeout_ms, "max": self.max_events, **self.options}
            await bus.subscribe(self.topics, callback, **options)

    async def sign_off(self, bus: AsyncBus) -> None:
        """End what it asked for; raises NotFound when there is no such thing."""
        if self.pattern:
            await bus.queue(self.name).delete(discard=True)
        else:
            await bus.unsubscribe()

    async def _receive(self, request: web.Request) -> web.Response:
        return await self.mood(await request.json())


async def _quick(_events: Sequence[dict[str, Any]]) -> web.Response:
    await asyncio.sleep(_between(0.002, 0.010))
    return web.Response()


async def _slow(_events: Sequence[dict[str, Any]]) -> web.Response:
    await asyncio.sleep(_between(0.05, 0.20))
    return web.Response()


async def _broken(_events: Sequence[dict[str, Any]]) -> web.Response:
    return web.Response(status=503, text="this service was switched off")


async def _strict(events: Sequence[dict[str, Any]]) -> web.Response:
    """It does not take invoices beyond an amount: one or two in a minute."""
    failed = [event["id"] for event in events if event["data"]["amount"] > _AMOUNT_MAX]
    return web.json_response({"failed": failed})


class Moody:
    """Well for half a minute or so, then failing for a few seconds; now and then a call hangs a while."""

    WELL_S, ILL_S, HANG_S = (15.0, 40.0), (2.0, 5.0), (1.0, 4.0)
    HANG_SHARE = 0.01

    def __init__(self) -> None:
        self._is_ill = True
        self._until_s = 0.0

    async def answer(self, _events: Sequence[dict[str, Any]]) -> web.Response:
        """500 while ill, else 200, sometimes late."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._until_s:
            self._is_ill = not self._is_ill
            self._until_s = now_s + _between(*(self.ILL_S if self._is_ill else self.WELL_S))
        if self._is_ill:
            return web.Response(status=500)
        hangs = _between(0, 1) < self.HANG_SHARE
        await asyncio.sleep(_between(*self.HANG_S) if hangs else _between(0.01, 0.05))
        return web.Response()


def _between(low: float, high: float) -> float:
    return random.uniform(low, high)  # noqa: S311 - a demo's chance needs no secrecy


# The demo's traffic: a stream of events that swells and ebbs, from tenants of uneven size.

TENANTS = {"acme": 50, "globex": 25, "initech": 14, "umbrella": 8, "hooli": 3}
TOPICS = {"demo_orders": 5, "demo_customers": 3, "demo_invoices": 2}
TYPES = {"create": 3, "update": 6, "delete": 1}
_MEAN_PER_S, _SWING_PER_S, _PERIOD_S = 200.0, 120.0, 45.0
_TICK_S = 0.1
# Things that events are about; few enough that the same one comes up again.
_THINGS = 500

_chance = random.Random()  # noqa: S311 - a demo's chance needs no secrecy


async def publish_forever(publish: Callable[[list[Publication]], Awaitable[None]]) -> None:
    """Publish small arrays, ten times a second; ends when `publish` raises."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    owed = 0.0
    while True:
        owed += per_second(loop.time() - began_s) * _TICK_S
        count, owed = int(owed), owed % 1
        await publish([an_event(_chance) for _ in range(count)])
        await asyncio.sleep(_TICK_S)


def per_second(at_s: float) -> float:
    """How many events a second are due: a sine wave with a little noise."""
    wave = _MEAN_PER_S + _SWING_PER_S * math.sin(2 * math.pi * at_s / _PERIOD_S)
    return wave * _chance.uniform(0.85, 1.15)


def an_event(chance: random.Random) -> Publication:
    """One event about one of a tenant's things."""
    tenant, topic, type_ = (_pick(chance, shares) for shares in (TENANTS, TOPICS, TYPES))
    number = chance.randrange(_THINGS)
    return {
        "topic": topic,
        "type": type_,
        "tenant": tenant,
        "key": f"{topic}-{number}",
        "url": f"https://{tenant}.example/{topic}/{number}",
        "data": {"number": number, "amount": round(chance.uniform(1, 500), 2), "currency": "EUR"},
    }


def _pick(chance: random.Random, shares: dict[str, int]) -> str:
    return chance.choices(list(shares), weights=list(shares.values()))[0]


# The demo: a shop that publishes, and receivers of different character, against a running bus.
#
# Clients, topics and the queue have names that begin with `demo`, so that they are nobody else's. Tokens are derived
# from the root key: a demo that is started again is the same clients as before, at new addresses. When it stops, it
# unsubscribes its receivers, so that the bus does not retry addresses where nothing listens; `unsubscribe` does so for
# one that was killed.

PUBLISHER = "demo-shop"
_GLANCE_S = 0.2
# Less than the grace that `up` gives the demo before it is killed.
_UNSUBSCRIBE_S_MAX = 0.8
# A bus that was away is asked again after this, and after twice as long each time, up to the second number.
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.5, 5.0

_log = log.get("demo")


def demo() -> None:
    """Run the demo until SIGINT or SIGTERM."""
    settings = load("demo")
    until_stopped(lambda stop: _until(stop, settings))


async def _until(stop: asyncio.Event, settings: Settings) -> None:
    running = asyncio.create_task(_run(settings))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        await running
    for task in (running, stopping):
        task.cancel()
    await asyncio.gather(running, stopping, return_exceptions=True)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_UNSUBSCRIBE_S_MAX):
            await unsubscribe(settings)


async def unsubscribe(settings: Settings) -> None:
    """End the subscriptions and the queue of this or a former demo; a bus that is away, or never had one, is left."""
    async with _Clients(url_of(settings), settings.root_key) as clients:
        with contextlib.suppress(BusAway, Unauthenticated):
            await clients.until_ready()
            await clients.sign_off(cast())


async def _run(settings: Settings) -> None:
    async with contextlib.AsyncExitStack() as held:
        clients = await held.enter_async_context(_Clients(url_of(settings), settings.root_key))
        started = [await held.enter_async_context(receiver) for receiver in cast()]
        pause_s = _PAUSE_S_MIN
        while True:
            try:
                await clients.until_ready()
                await clients.sign_up(started)
                pause_s = _PAUSE_S_MIN
                await publish_forever(clients.publish)
            except (BusAway, Unauthenticated) as error:
                # A bus that forgot us lost its data: we sign up again.
                _log.warning("demo.paused", error=str(error), pause_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(_PAUSE_S_MAX, pause_s * 2)


class _Clients:
    """The demo's clients and root, each with a connection of its own. What fails is tried again by `_run`."""

    def __init__(self, url: str, root_key: str) -> None:
        self._url = url
        self._root_key = root_key
        self._root = AsyncBus(url, root_key, patience_s=0)
        self._known: dict[str, AsyncBus] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for bus in (self._root, *self._known.values()):
            await bus.close()

    async def until_ready(self) -> None:
        while not await self._root.is_ready():  # noqa: ASYNC110 - another process sets no Event
            await asyncio.sleep(_GLANCE_S)

    async def sign_up(self, started: Sequence[DemoReceiver]) -> None:
        """Make the clients and the subscriptions; the same again changes nothing but the callbacks."""
        for name in (PUBLISHER, *(receiver.name for receiver in started)):
            await self._root.create_token(name, token=self._secret(name))
        for receiver in started:
            await receiver.sign_up(self._client(receiver.name))
        _log.info("demo.subscribed", subscribers=[receiver.name for receiver in started])

    async def sign_off(self, stopped: Sequence[DemoReceiver]) -> None:
        """End what the receivers asked for; what waited for them is deleted with it."""
        for receiver in stopped:
            with contextlib.suppress(NotFound):
                await receiver.sign_off(self._client(receiver.name))

    async def publish(self, events: Sequence[Publication]) -> None:
        await self._client(PUBLISHER).publish_many(events)

    def _client(self, name: str) -> AsyncBus:
        if name not in self._known:
            self._known[name] = AsyncBus(self._url, self._secret(name), patience_s=0)
        return self._known[name]

    def _secret(self, name: str) -> str:
        return f"{name}--{hmac.digest(self._root_key.encode(), name.encode(), 'sha256').hex()[:32]}"
