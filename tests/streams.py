"""A listener for tests: reads server-sent events as a browser does, id by id."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from harness import basic, within

# What a client waits for at most, in these tests; a heartbeat comes more often.
READ_S = 20.0


@dataclass(frozen=True)
class Frame:
    """One server-sent event."""

    name: str
    id: str
    data: Any


@dataclass
class Stream:
    """An open stream; `last_id` is what a browser would send to come back."""

    response: aiohttp.ClientResponse
    last_id: str = ""
    comments: list[str] = field(default_factory=list)

    async def frame(self) -> Frame | None:
        """The next event; None when the stream has ended."""
        name, data = "message", ""
        while True:
            line = (await within(self.response.content.readline(), READ_S)).decode()
            if not line:
                return None
            word, _, value = line.rstrip("\n").partition(":")
            if line == "\n":
                if data:
                    return Frame(name, self.last_id, json.loads(data))
                name = "message"
            elif word == "":
                self.comments.append(value.strip())
            elif word == "id":
                self.last_id = value.strip()
            elif word == "event":
                name = value.strip()
            elif word == "data":
                data += value.strip()

    async def events(self, count: int) -> list[dict[str, Any]]:
        """The next so many events; anything else in between is an error."""
        found = []
        while len(found) < count:
            frame = await self.frame()
            assert frame is not None, f"the stream ended after {len(found)} of {count} events"
            assert frame.name == "message", frame
            found.append(frame.data)
        return found

    async def until_ended(self) -> list[Frame]:
        """All that still comes."""
        found = []
        while (frame := await self.frame()) is not None:
            found.append(frame)
        return found


@asynccontextmanager
async def a_stream(url: str, secret: str, *, last_id: str = "", **query: str) -> AsyncIterator[Stream]:
    """An open stream, at its opening: whatever is published from now on is on it."""
    headers = basic(secret) | ({"Last-Event-ID": last_id} if last_id else {})
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
    async with (
        aiohttp.ClientSession(timeout=timeout, read_bufsize=1 << 20) as http,
        http.get(f"{url}/stream", params=query, headers=headers) as response,
    ):
        assert response.status == 200, await response.text()
        stream = Stream(response)
        assert (await within(response.content.readline(), READ_S)).startswith(b"retry:")
        id_ = await within(response.content.readline(), READ_S)
        assert await response.content.readline() == b"\n"
        stream.last_id = id_.decode().partition(":")[2].strip()
        yield stream
