"""A client that pipelines: one request is parsed at a time, and none while the client does not take its answers."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import pytest
import uvicorn

from conftest import Topology
from doubledecker.web import listening
from doubledecker.web.protocol import GuardedProtocol
from harness import a_bus, an_event
from web.asking import ask

GET = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"
LAST = b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
ANSWER = b"x" * 1_000
BUFFER_BYTES = 16_384  # of the kernel, on either side: small, so that a client that does not read soon blocks
WAIT_S_MAX = 20


@dataclass
class Seen:
    """What the server has parsed and answered."""

    parsed: int = 0
    answered: int = 0
    ahead_max: int = 0
    connections: list[GuardedProtocol] = field(default_factory=list)


@asynccontextmanager
async def a_counting_server(**bounds: float) -> AsyncIterator[tuple[int, Seen]]:
    """A server of short answers that counts."""
    seen = Seen()

    class Counting(GuardedProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            seen.connections.append(self)

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            seen.parsed += 1
            seen.ahead_max = max(seen.ahead_max, seen.parsed - seen.answered)

        def on_response_complete(self) -> None:
            seen.answered += 1
            super().on_response_complete()

    for name, value in bounds.items():
        setattr(Counting, name, value)
    async with a_server(say, Counting, buffer_bytes=BUFFER_BYTES) as port:
        yield port, seen


@asynccontextmanager
async def a_server(app, protocol: type[GuardedProtocol], *, buffer_bytes: int = 1 << 20) -> AsyncIterator[int]:
    config = uvicorn.Config(app, http=protocol, lifespan="off", log_config=None, ws="none")
    serving = _Server(config)
    with listening.bind("127.0.0.1", 0) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        task = asyncio.create_task(serving.serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            serving.should_exit = True
            await task


class _Server(uvicorn.Server):
    """The test owns the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def say(scope, receive, send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(ANSWER))]})
    await send({"type": "http.response.body", "body": ANSWER})


@asynccontextmanager
async def a_client(port: int, *, buffer_bytes: int = BUFFER_BYTES) -> AsyncIterator[socket.socket]:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    client.setblocking(False)
    with client:
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
        yield client


async def read_all(client: socket.socket) -> bytes:
    loop, pieces = asyncio.get_running_loop(), []
    while piece := await loop.sock_recv(client, 65536):
        pieces.append(piece)
    return b"".join(pieces)


async def until(is_so) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_a_pipelined_request_is_not_parsed_before_the_one_before_it_is_answered():
    count = 20_000
    async with a_counting_server() as (port, seen), a_client(port) as client:
        sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(client, GET * (count - 1) + LAST))
        text = await read_all(client)
        await sending

        assert text.count(ANSWER) == count
        assert seen.ahead_max == 1


async def test_a_client_that_does_not_read_is_not_read_from_and_loses_nothing_when_it_does():
    count = 20_000
    async with a_counting_server() as (port, seen), a_client(port) as client:
        sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(client, GET * (count - 1) + LAST))
        await until(lambda: any(each.flow.write_paused and each.flow.read_paused for each in seen.connections))
        parsed = seen.parsed

        # The transport's buffer (64 KiB), the kernel's two, and one answer that waits.
        assert parsed * len(ANSWER) < 65_536 + 8 * BUFFER_BYTES
        assert not sending.done()

        text = await read_all(client)
        await sending

        assert text.count(ANSWER) == count


async def test_a_client_that_takes_none_of_its_answers_is_cut_off():
    async with a_counting_server(unread_s_max=0.3) as (port, seen), a_client(port) as client:
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            await asyncio.get_running_loop().sock_sendall(client, GET * 100_000)

        await until(lambda: all(each._is_over for each in seen.connections))


async def test_a_body_in_small_chunks_is_parsed_in_many_turns():
    seen: list[int] = []

    class Counting(GuardedProtocol):
        def _parse_chunks(self) -> None:
            seen.append(0)
            super()._parse_chunks()

        def on_body(self, body: bytes) -> None:
            seen[-1] += 1
            super().on_body(body)

    async def count(scope, receive, send) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message["body"]), message["more_body"]
        body = b"%d" % size
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    chunks = 100_000
    head = b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    body = b"8\r\nabcdefgh\r\n" * chunks
    async with a_server(count, Counting) as port, a_client(port, buffer_bytes=1 << 20) as client:
        sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(client, head + body + b"0\r\n\r\n"))
        text = await read_all(client)
        await sending

    assert text.endswith(b"%d" % (8 * chunks))
    assert sum(seen) >= chunks  # some are cut by the end of a piece
    assert max(seen) < 1_500


async def test_publishers_are_served_while_others_pipeline_without_reading(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        port = int(bus.url.rpartition(":")[2])
        loop = asyncio.get_running_loop()
        async with a_client(port) as first, a_client(port) as second:
            floods = [
                asyncio.create_task(loop.sock_sendall(client, b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 250_000))
                for client in (first, second)
            ]
            answers = [await ask(bus, "POST", "/events", shop, json=an_event(n)) for n in range(50)]

            assert [answer.status for answer in answers] == [202] * 50
            assert not any(flood.done() for flood in floods)
            for flood in floods:
                flood.cancel()
