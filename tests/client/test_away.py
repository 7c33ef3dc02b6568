"""A bus that is not there when a consumer begins: it is waited for, and the log says so; what is no bus is not."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from client.consuming import a_place, is_empty
from conftest import Topology
from doubledecker.client import AsyncBus, BusAway, Message, NotABus, Unauthenticated
from doubledecker.queues import consume
from doubledecker.store.machine import free_port


async def _nothing(_message: Message) -> None:
    """Nothing to do."""


@asynccontextmanager
async def _answering(answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """Something at an address that answers in its own way."""

    async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        await answer(writer)
        writer.close()

    server = await asyncio.start_server(on_connect, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_consumer_says_that_it_waits_and_goes_on_when_the_bus_is_there(
    one: Topology, caplog: pytest.LogCaptureFixture
):
    port = free_port()
    async with a_place("http", one) as place, AsyncBus(f"http://127.0.0.1:{port}", place.http._calls.token) as bus:
        queue = bus.queue("jobs")
        queue.handler()(_nothing)
        await place.publish(1)
        running = asyncio.create_task(queue.run())
        await _until_said(caplog, "bus.away queue=jobs error=no bus answers at")
        await asyncio.sleep(0.5)
        async with _forwarding(port, place.bus.url):
            await place.until(is_empty)
            queue.stop()
            async with asyncio.timeout(10):
                await running

        said = [record.getMessage().split()[0] for record in caplog.records if record.name == "doubledecker.client"]
        assert said == ["bus.away", "bus.back"]


async def test_a_consumer_that_waits_for_its_bus_can_be_stopped(caplog: pytest.LogCaptureFixture):
    async with AsyncBus(f"http://127.0.0.1:{free_port()}", "x") as bus:
        queue = bus.queue("jobs")
        queue.handler()(_nothing)
        running = asyncio.create_task(queue.run())
        await _until_said(caplog, "bus.away")
        queue.stop()
        async with asyncio.timeout(5):
            await running


async def test_what_is_no_bus_is_not_waited_for():
    async def page(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>")

    async def redis(writer: asyncio.StreamWriter) -> None:
        writer.write(b"-ERR unknown command\r\n")

    for answer in (page, redis):
        async with _answering(answer) as url, AsyncBus(url, "x") as bus:
            queue = bus.queue("jobs")
            queue.handler()(_nothing)
            async with asyncio.timeout(5):
                with pytest.raises(NotABus, match="what answers"):
                    await queue.run()
                with pytest.raises(NotABus, match="what answers"):
                    await anext(queue.messages())


async def test_a_token_that_is_not_known_is_not_waited_for(one: Topology):
    async with a_place("http", one) as place, AsyncBus(place.bus.url, "nobody") as bus:
        queue = bus.queue("jobs")
        queue.handler()(_nothing)
        async with asyncio.timeout(5):
            with pytest.raises(Unauthenticated):
                await queue.run()


async def test_next_to_redis_the_log_says_that_it_is_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(consume, "_PATIENCE_S", 1.5)
    port = free_port()
    with pytest.raises(BusAway):
        async with consume.connected(f"redis://:secret@127.0.0.1:{port}/0"):
            pass

    assert [record.getMessage() for record in caplog.records] == [f"bus.away redis=127.0.0.1:{port}"]


async def _until_said(caplog: pytest.LogCaptureFixture, words: str) -> None:
    caplog.set_level(logging.WARNING)
    deadline_s = time.monotonic() + 10
    while not any(record.getMessage().startswith(words) for record in caplog.records):
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)


@asynccontextmanager
async def _forwarding(port: int, url: str) -> AsyncIterator[None]:
    """The bus at another address, from now on."""
    host, at = url.removeprefix("http://").split(":")

    async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(at))
        await asyncio.gather(_pump(reader, back), _pump(there, writer))

    server = await asyncio.start_server(on_connect, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while some := await reader.read(65_536):
        writer.write(some)
    writer.close()
