"""A road to Redis that loses replies: what was asked is done, and the connection ends before the answer comes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from doubledecker.store import scripts

_CHUNK_BYTES = 65_536


@dataclass
class Road:
    """Passes everything on, but cuts a connection at each `every`-th call of these scripts, before its answer."""

    server_url: str
    every: int
    shas: tuple[bytes, ...]
    url: str = ""
    calls: int = 0
    cut: int = 0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await self._dial()
        lost = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._there(reader, to_writer, lost))
                ways.create_task(self._back(to_reader, writer, lost))
        except* (ConnectionError, EOFError):
            pass
        finally:
            for each in (writer, to_writer):
                each.transport.abort()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.server_url)
        if parts.scheme == "unix":
            return await asyncio.open_unix_connection(parts.path)
        return await asyncio.open_connection(parts.hostname, parts.port)

    async def _there(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            if any(sha in chunk for sha in self.shas):
                self.calls += 1
                if self.calls % self.every == 0:
                    self.cut += 1
                    lost.set()
            writer.write(chunk)
            await writer.drain()
        raise EOFError

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            if lost.is_set():
                break
            writer.write(chunk)
            await writer.drain()
        raise EOFError


@contextlib.asynccontextmanager
async def a_road(server_url: str, *names: str, every: int) -> AsyncIterator[Road]:
    """A road to a server that loses the replies of scripts with these names now and then."""
    road = Road(server_url, every, tuple(scripts.load(name).sha.encode() for name in names))
    server = await asyncio.start_server(road.carry, "127.0.0.1", 0)
    road.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    try:
        yield road
    finally:
        server.close()
