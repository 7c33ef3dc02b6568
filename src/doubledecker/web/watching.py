"""Those who watch a page: one stream each, of the parts of the page that have changed since they got them.

A stream ends after a minute, and its browser asks for another: so one that is gone, or has signed out, is soon known,
and a process that stops waits for nobody.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from doubledecker.errors import Overloaded, TooManyAtOnce
from doubledecker.web import sse
from doubledecker.web.protocol import ABORT

# Of a process; each costs a page's rendering every other second.
VIEWERS_MAX = 100
CLIENT_VIEWERS_MAX = 20
_STREAM_S = 60.0
_EVERY_S = 2.0
# A page that takes long is rendered again only after ten times as long.
_PAUSES = 10
_STALL_S = 10.0
_RETRY_MS = 500
_HEADERS = {"Content-Type": sse.CONTENT_TYPE, "Cache-Control": "no-store", "X-Accel-Buffering": "no", "Vary": "Accept"}

Blocks = Mapping[str, str]
# The parts of a page as they are now; None when its viewer may no longer see it.
LookAgain = Callable[[], Awaitable[Blocks | None]]


class Viewers:
    """Counts who watches, and has them all leave when the process stops."""

    def __init__(self) -> None:
        self._by_client: Counter[str] = Counter()
        self._leaving = asyncio.Event()

    def check_room(self, client: str) -> None:
        """Raise when there is no room for another viewer."""
        if self._by_client[client] >= CLIENT_VIEWERS_MAX:
            raise TooManyAtOnce(f"this client watches {CLIENT_VIEWERS_MAX} pages at once, and may watch no more")
        if self._by_client.total() >= VIEWERS_MAX:
            raise Overloaded(f"{VIEWERS_MAX} pages are being watched; there is no room for more")

    def stop(self) -> None:
        """End all streams."""
        self._leaving.set()

    async def serve(self, client: str, look_again: LookAgain, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts that change until the viewer leaves, the minute is over, or the process stops."""
        self._by_client[client] += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _RAW_HEADERS})
            async with asyncio.TaskGroup() as tasks:
                ends = [
                    tasks.create_task(_until_gone(receive)),
                    tasks.create_task(self._leaving.wait()),
                    tasks.create_task(_send_all(look_again, scope, send)),
                ]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for task in ends:
                    task.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(_STALL_S):
                    await send({"type": "http.response.body", "body": b""})
        finally:
            self._by_client[client] -= 1


class LiveStream(Response):
    """A stream of a page's parts as an answer, before it is sent."""

    def __init__(self, viewers: Viewers, client: str, look_again: LookAgain) -> None:
        super().__init__(headers=_HEADERS)
        self._viewers = viewers
        self._client = client
        self._look_again = look_again

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._viewers.serve(self._client, self._look_again, scope, receive, send)


async def _send_all(look_again: LookAgain, scope: Scope, send: Send) -> None:
    try:
        async for frame in _frames(look_again):
            async with asyncio.timeout(_STALL_S):
                await send({"type": "http.response.body", "body": frame, "more_body": True})
    except TimeoutError:
        scope["extensions"][ABORT]["call"]()


async def _frames(look_again: LookAgain) -> AsyncIterator[bytes]:
    time = asyncio.get_running_loop().time
    end_s = time() + _STREAM_S
    yield b"retry: %d\n\n" % _RETRY_MS
    sent: Blocks = {}
    while time() < end_s:
        began_s = time()
        blocks = await look_again()
        if blocks is None:
            return
        changed = {name: html for name, html in blocks.items() if sent.get(name) != html}
        if changed:
            yield b"event: blocks\ndata: %b\n\n" % msgspec.json.encode(changed)
        sent = blocks
        await asyncio.sleep(max(_EVERY_S, _PAUSES * (time() - began_s)))


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
