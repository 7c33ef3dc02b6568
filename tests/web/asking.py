"""Asking the HTTP API in tests: one call an answer, every error checked for its shape, and the store in full."""

import asyncio
import json as codec
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import redis.asyncio as redis
from multidict import CIMultiDictProxy

from doubledecker.assembly.settings import Settings
from doubledecker.bus.headroom import Headroom
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.store.journal import inflate
from doubledecker.web import listening, server
from harness import ROOT_KEY, TestBus, until_ready

PROBLEM = "application/problem+json"


@dataclass(frozen=True)
class Answer:
    """A whole response."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def json(self):
        return codec.loads(self.body)

    @property
    def detail(self) -> str:
        """What a problem says, once it is seen to be a proper one."""
        assert self.headers["Content-Type"] == PROBLEM, (self.status, self.body)
        problem = self.json
        assert problem["type"] == "about:blank"
        assert problem["status"] == self.status
        assert problem["title"]
        assert problem["detail"]
        return problem["detail"]


class NoBus:
    """Stands for the bus where only the routes are looked at."""

    partitions = registry = publisher = rings = None
    headroom = Headroom(None, MemoryRules())  # type: ignore[arg-type]


def an_app(settings: Settings) -> server.App:
    """An app to look at its routes, with nothing behind them."""
    return server.make_app(settings, server.WebBounds(), NoBus(), NoBus(), NoBus(), NoBus(), NoBus())  # type: ignore[arg-type]


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def ask(
    bus: TestBus,
    method: str,
    path: str,
    secret: str | None = ROOT_KEY,
    *,
    json: object = None,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    url: str | None = None,
) -> Answer:
    """One request, as root unless told otherwise; an error that is not a proper problem fails the test."""
    content = codec.dumps(json).encode() if json is not None else body
    said = {"Content-Type": "application/json", **(bearer(secret) if secret else {}), **(headers or {})}
    async with bus.http.request(method, (url or bus.url) + path, data=content, headers=said) as response:
        answer = Answer(response.status, response.headers, await response.read())
    if answer.status >= 400:
        assert answer.detail
    return answer


async def ask_raw(bus: TestBus, text: bytes, *, within_s: float = 5.0) -> tuple[int, dict[str, str], bytes]:
    """Send bytes as they are; returns status, headers and body of what comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(bus.url.rpartition(":")[2]))
    try:
        writer.write(text)
        async with asyncio.timeout(within_s):
            received = await reader.read()
    finally:
        writer.close()
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split(" ")[1]), {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}, body


@asynccontextmanager
async def another_web(bus: TestBus) -> AsyncIterator[str]:
    """A second web server on the same store; yields its address."""
    stop = asyncio.Event()
    with listening.bind("127.0.0.1", 0) as listener:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.run(bus.settings, listener, stop))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            await until_ready(bus.http, url, path="/version")
            try:
                yield url
            finally:
                stop.set()


async def everything(bus: TestBus) -> dict[bytes, tuple[bytes, bool]]:
    """Each key of the store, its value by DUMP and whether it expires; without what changes by itself."""
    # Digest's nonces, clients' pace, what processes report, history, and who was denied what.
    changing = (b"api_tokens:used", b"nonce:", b"pace:", b"minute:", b":processes", b":history", b":audit")
    async with redis.from_url(bus.settings.redis_url) as client:
        keys = sorted(key for key in await client.keys("*") if not any(part in key for part in changing))
        pipe = client.pipeline(transaction=False)
        for key in keys:
            pipe.dump(key)
            pipe.pttl(key)
        replies = await pipe.execute()
        found = {key: (dump, ttl >= 0) for key, dump, ttl in zip(keys, replies[::2], replies[1::2], strict=True)}
        for key in found:
            if key.endswith(b":journal"):
                state = await client.hgetall(key)
                found[key] = (repr({name: state[name] for name in state if name != b"audit_bytes"}).encode(), False)
    return found


async def journal(bus: TestBus) -> list[dict[str, object]]:
    """Every event in the journals, in order."""
    found = []
    for partition in bus.partitions.all:
        for _, fields in await partition.command("XRANGE", partition.key("journal:events"), "-", "+"):
            found += [codec.loads(line) for lines in fields[1::2] for line in inflate(lines).split(b"\n")]
    return found


async def waiting(bus: TestBus) -> list[dict[str, object]]:
    """Every event in the subscribers' batches."""
    found = []
    for partition in bus.partitions.all:
        for key in await partition.command("KEYS", partition.key("batch:*")):
            chunks = await partition.command("LRANGE", key, 4, -1)
            found += [codec.loads(line) for chunk in chunks for line in chunk.split(b"\n")]
    return found
