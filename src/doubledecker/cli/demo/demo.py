"""The demo: a shop that publishes, and four receivers of different character, against a running bus.

Clients, topics and the queue have names that begin with `demo`, so that they are nobody else's. Tokens are derived from
the root key: a demo that is started again is the same clients as before, at new addresses. When it stops, it
unsubscribes its receivers, so that the bus does not retry addresses where nothing listens; `unsubscribe` does so for
one that was killed.
"""

import asyncio
import contextlib
import hmac
from collections.abc import Sequence
from typing import Self

from doubledecker import log
from doubledecker.assembly.settings import Settings
from doubledecker.cli.demo import receivers, traffic
from doubledecker.cli.demo.receivers import DemoReceiver
from doubledecker.cli.serve.processes import load, until_stopped
from doubledecker.cli.up.board import url_of
from doubledecker.client import AsyncBus, BusAway, NotFound, Unauthenticated
from doubledecker.client.bus import Publication

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
            await clients.sign_off(receivers.cast())


async def _run(settings: Settings) -> None:
    async with contextlib.AsyncExitStack() as held:
        clients = await held.enter_async_context(_Clients(url_of(settings), settings.root_key))
        started = [await held.enter_async_context(receiver) for receiver in receivers.cast()]
        pause_s = _PAUSE_S_MIN
        while True:
            try:
                await clients.until_ready()
                await clients.sign_up(started)
                pause_s = _PAUSE_S_MIN
                await traffic.publish_forever(clients.publish)
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
