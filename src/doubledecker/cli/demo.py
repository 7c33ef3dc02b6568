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

import aiohttp

from doubledecker import log
from doubledecker.assembly.settings import Settings
from doubledecker.cli import demo_receivers as receivers
from doubledecker.cli import demo_traffic as traffic
from doubledecker.cli.board import is_ready, url_of
from doubledecker.cli.demo_receivers import Receiver
from doubledecker.cli.processes import load, until_stopped
from doubledecker.errors import BusAway, NotFound, Refused, Unauthenticated

PUBLISHER = "demo-shop"
_GLANCE_S = 0.2
_ANSWER_S_MAX = 5.0
# Less than the grace that `up` gives the demo before it is killed.
_UNSUBSCRIBE_S_MAX = 0.8
# A bus that was away is asked again after this, and after twice as long each time, up to the second number.
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.5, 5.0
_BAD, _UNAUTHENTICATED, _MISSING, _FAILED = 400, 401, 404, 500

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
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S_MAX)) as http:
        bus = _Bus(http, url_of(settings), settings.root_key)
        with contextlib.suppress(BusAway, Unauthenticated):
            await bus.until_ready()
            await bus.sign_off(receivers.cast())


async def _run(settings: Settings) -> None:
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S_MAX)
    async with contextlib.AsyncExitStack() as held:
        http = await held.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        started = [await held.enter_async_context(receiver) for receiver in receivers.cast()]
        bus = _Bus(http, url_of(settings), settings.root_key)
        pause_s = _PAUSE_S_MIN
        while True:
            try:
                await bus.until_ready()
                await bus.sign_up(started)
                pause_s = _PAUSE_S_MIN
                await traffic.publish_forever(bus.publish)
            except (BusAway, Unauthenticated) as error:
                # A bus that forgot us lost its data: we sign up again.
                _log.warning("demo.paused", error=str(error), pause_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(_PAUSE_S_MAX, pause_s * 2)


class _Bus:
    """The bus, as the demo's clients see it."""

    def __init__(self, http: aiohttp.ClientSession, url: str, root_key: str) -> None:
        self._http = http
        self._url = url
        self._root_key = root_key

    async def until_ready(self) -> None:
        while not await is_ready(self._http, self._url):  # noqa: ASYNC110 - another process sets no Event
            await asyncio.sleep(_GLANCE_S)

    async def sign_up(self, started: Sequence[Receiver]) -> None:
        """Make the clients and the subscriptions; the same again changes nothing but the callbacks."""
        for name in (PUBLISHER, *(receiver.name for receiver in started)):
            await self._send("POST", "/api_tokens", self._root_key, {"name": name, "token": self._secret(name)})
        for receiver in started:
            method, path = ("PUT", f"/queues/{receiver.name}") if receiver.pattern else ("POST", "/subscription")
            await self._send(method, path, self._secret(receiver.name), receiver.asked())
        _log.info("demo.subscribed", subscribers=[receiver.name for receiver in started])

    async def sign_off(self, stopped: Sequence[Receiver]) -> None:
        """End what the receivers asked for; what waited for them is deleted with it."""
        for receiver in stopped:
            path = f"/queues/{receiver.name}?discard=1" if receiver.pattern else "/subscriber"
            with contextlib.suppress(NotFound):
                await self._send("DELETE", path, self._secret(receiver.name), None)

    async def publish(self, events: list[dict[str, object]]) -> None:
        await self._send("POST", "/events", self._secret(PUBLISHER), events)

    def _secret(self, name: str) -> str:
        return f"{name}--{hmac.digest(self._root_key.encode(), name.encode(), 'sha256').hex()[:32]}"

    async def _send(self, method: str, path: str, secret: str, body: object) -> None:
        headers = {"Authorization": f"Bearer {secret}"}
        try:
            async with self._http.request(method, self._url + path, json=body, headers=headers) as response:
                if response.status >= _BAD:
                    raise _failure(response.status, f"{path} answered {response.status}: {await response.text()}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise BusAway(f"{path}: {str(error) or type(error).__name__}") from error


def _failure(status: int, text: str) -> BusAway | Refused:
    if status >= _FAILED:
        return BusAway(text)
    if status == _UNAUTHENTICATED:
        return Unauthenticated(text)
    return NotFound(text) if status == _MISSING else Refused(text)
