"""HTTP/1.1 to receivers that do anything: both event loops that the product runs on, real sockets."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Self

import pytest
import uvloop

from doubledecker.delivery import http
from doubledecker.delivery.hosts import Hosts, LookUp, look_up
from doubledecker.delivery.http import HttpAnswer, HttpClient
from doubledecker.errors import AnswerBroken, BadRequest, ReceiverUnreachable
from doubledecker.model.dial_guard import DialGuard
from tls import a_certificate

Speak = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Walk = Callable[[], Coroutine[object, object, None]]
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Walk], None]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(walk: Walk) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(walk(), 20))  # noqa: TID251 - nothing is cancelled here

    return run


@contextlib.asynccontextmanager
async def a_client(
    connect_s: float = 1.0, *, ssl_verify: bool = True, looked_up: LookUp = look_up
) -> AsyncIterator[HttpClient]:
    hosts = Hosts(DialGuard(is_private_allowed=True), looked_up=looked_up)
    client = HttpClient(hosts, connect_s=connect_s, ssl_verify=ssl_verify)
    try:
        yield client
    finally:
        await client.close()


class Server:
    """Answers each request as told, on as many connections as come, and keeps what it read."""

    def __init__(self, *answers: bytes, then: str = "keep", host: str = "127.0.0.1") -> None:
        self.answers = list(answers)
        self.then = then
        self.host = host
        self.requests: list[bytes] = []
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._speak, self.host, 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{port}/in?x=1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self.writers:
            writer.close()

    async def _speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                writer.write(self.answers.pop(0))
                if self.then == "close":
                    break
                await writer.drain()
            else:
                await reader.read()
        writer.close()


async def post(client: HttpClient, server: Server, body: bytes = b"[1]") -> HttpAnswer:
    return await client.post(http.endpoint(server.url), b"X-Own: 1\r\n", body, client="c")


def test_a_request_has_its_target_its_host_and_the_headers_of_the_call(run):
    async def walk() -> None:
        async with Server(NO_CONTENT) as server, a_client() as client:
            answer = await post(client, server)

        head, _, body = server.requests[0].partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        assert (answer.status, answer.reason, answer.body) == (204, "No Content", b"")
        assert lines[0] == b"POST /in?x=1 HTTP/1.1"
        assert f"Host: {server.url.split('/')[2]}".encode() in lines
        assert {b"X-Own: 1", b"Content-Length: 3", b"Accept-Encoding: identity"} <= set(lines)
        assert body == b"[1]"

    run(walk)


@pytest.mark.parametrize(
    ("answer", "is_kept"),
    [
        (NO_CONTENT, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", True),
        (b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nTrailer: 1\r\n\r\n", True),
        (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + NO_CONTENT, True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok", False),
        # What nobody asked for may not be taken for the answer to the next request.
        (NO_CONTENT + NO_CONTENT, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok, and more", False),
    ],
)
def test_a_connection_serves_again_after_a_whole_answer_and_no_more(run, answer: bytes, is_kept: bool):
    async def walk() -> None:
        async with Server(answer, NO_CONTENT) as server, a_client() as client:
            await post(client, server)
            again = await post(client, server)

            assert again.status == 204
            assert server.connections == (1 if is_kept else 2)

    run(walk)


def test_a_body_without_a_length_ends_with_its_connection(run):
    async def walk() -> None:
        said = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{"failed":[]}'
        async with Server(said, then="close") as server, a_client() as client:
            assert (await post(client, server)).body == b'{"failed":[]}'

    run(walk)


@pytest.mark.parametrize(
    "head", [b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\nff\r\n{"], ids=["length", "chunked"]
)
def test_a_status_counts_though_its_body_is_cut_short(run, head: bytes):
    async def walk() -> None:
        said = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + head
        async with Server(said, then="close") as server, a_client() as client:
            answer = await post(client, server)

            assert (answer.status, answer.body) == (200, b"")

    run(walk)


def test_a_reason_and_headers_are_kept_without_control_characters(run):
    async def walk() -> None:
        said = b"HTTP/1.1 500 \x1b[31mred\x07\r\nX-Odd: \xc2\x9b1m\r\nContent-Length: 0\r\n\r\n"
        async with Server(said) as server, a_client() as client:
            answer = await post(client, server)

            assert answer.reason.isprintable()
            assert "red" in answer.reason
            assert all(line.isprintable() for line in answer.headers)

    run(walk)


def test_of_a_failure_the_beginning_is_kept_however_long_it_is(run):
    async def walk() -> None:
        said = b"HTTP/1.1 500 " + b"Z" * 60_000 + b"\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000
        async with Server(said) as server, a_client() as client:
            answer = await post(client, server)

            assert answer.body == b"x" * http.ANSWER_BYTES_KEPT
            assert answer.reason == "Z" * 200

    run(walk)


def test_a_status_counts_though_its_body_does_not_end_in_time(run):
    async def walk() -> None:
        async with Server(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1", NO_CONTENT) as server, a_client() as client:
            started_s = asyncio.get_running_loop().time()
            answer = await post(client, server)

            assert answer.status == 200
            assert 0.9 < asyncio.get_running_loop().time() - started_s < 5
            assert (await post(client, server)).status == 204
            assert server.connections == 2

    run(walk)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no HTTP answer"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "no HTTP answer"),
        (b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n", "the status is 999"),
        (b"HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n", "the status is 099"),
        (b"HTTP/1.1 000 Odd\r\nContent-Length: 0\r\n\r\n", "the status is 000"),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", "another protocol"),
        (b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"x" * 100_000, "65536 bytes of headers"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 20_000, "65536 bytes of headers"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "no HTTP answer"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 9, "more than 8 interim answers"),
    ],
)
def test_what_is_no_answer_is_said(run, said: bytes, why: str):
    async def walk() -> None:
        async with Server(said) as server, a_client() as client:
            with pytest.raises(AnswerBroken, match=why):
                await post(client, server)

    run(walk)


def test_a_connection_that_ends_before_an_answer_is_broken(run):
    async def walk() -> None:
        async with Server(b"HTTP/1.1 200", then="close") as server, a_client() as client:
            with pytest.raises(AnswerBroken, match="closed before an answer"):
                await post(client, server)

    run(walk)


def test_an_answer_before_the_request_is_whole_costs_the_connection(run):
    """Else the rest of the body would be sent where the next request is expected."""

    async def walk() -> None:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(writer)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")

        connections: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(speak, "127.0.0.1", 0, limit=1024)
        async with server, a_client() as client:
            to = http.endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
            for _ in range(2):
                assert (await client.post(to, b"", b"x" * 16_000_000, client="c")).status == 413
            assert len(connections) == 2
            for writer in connections:
                writer.close()

    run(walk)


def test_one_that_was_closed_while_it_was_idle_is_replaced(run, monkeypatch: pytest.MonkeyPatch):
    async def walk() -> None:
        async with Server(NO_CONTENT, NO_CONTENT) as server, a_client() as client:
            await post(client, server)
            server.writers[0].transport.abort()
            # Not even the loop has heard of it yet.
            assert (await post(client, server)).status == 204
            assert server.connections == 2

    monkeypatch.setattr(http, "_IDLE_DOUBT_S", -1.0)
    run(walk)


def test_idle_connections_are_closed_after_a_while(run, monkeypatch: pytest.MonkeyPatch):
    async def walk() -> None:
        async with Server(NO_CONTENT, NO_CONTENT) as server, a_client() as client:
            await post(client, server)
            async with asyncio.timeout(5):
                while client._connected:
                    await asyncio.sleep(0.01)
            assert client._idle == {}
            assert (await post(client, server)).status == 204

    monkeypatch.setattr(http, "_IDLE_S_MAX", 0.05)
    run(walk)


def test_who_gives_up_leaves_no_connection_behind(run):
    async def walk() -> None:
        async with Server(b"", NO_CONTENT) as server, a_client() as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await post(client, server)
            assert (await post(client, server)).status == 204
            assert server.connections == 2
            assert len(client._connected) == 1

    run(walk)


def test_nobody_who_accepts_is_given_up_in_time(run):
    async def walk() -> None:
        with socket.socket() as full, contextlib.ExitStack() as waiting:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            # Beyond these the kernel answers nobody.
            for _ in range(4):
                other = waiting.enter_context(socket.socket())
                other.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    other.connect(full.getsockname())
            async with a_client(connect_s=0.3) as client:
                to = http.endpoint(f"http://127.0.0.1:{full.getsockname()[1]}/")
                with pytest.raises(ReceiverUnreachable, match=r"no connection within 0\.3 s"):
                    await client.post(to, b"", b"", client="c")

    run(walk)


def test_a_name_without_an_address_and_a_port_without_a_server_are_unreachable(run):
    async def walk() -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        async with a_client() as client:
            for url in (f"http://127.0.0.1:{port}/", f"http://localhost:{port}/", f"http://[::1]:{port}/"):
                with pytest.raises(ReceiverUnreachable):
                    await client.post(http.endpoint(url), b"", b"", client="c")

    run(walk)


def test_an_address_of_version_6_and_a_name_are_dialled(run):
    async def walk() -> None:
        async with a_client() as client:
            async with Server(NO_CONTENT, host="::1") as six:
                assert (await post(client, six)).status == 204
                assert f"Host: {six.url.split('/')[2]}".encode() in six.requests[0]
            # It may resolve to ::1 first, where nobody listens.
            async with Server(NO_CONTENT) as four:
                four.url = four.url.replace("127.0.0.1", "localhost")
                assert (await post(client, four)).status == 204

    run(walk)


def test_connections_over_tls_are_kept_and_certificates_checked(run, tmp_path: Path):
    async def walk() -> None:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(writer)
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await reader.readuntil(b"\r\n\r\n[1]")
                    writer.write(NO_CONTENT)
            writer.close()

        connections: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(speak, "127.0.0.1", 0, ssl=await a_certificate(tmp_path))
        async with server:
            to = http.endpoint(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
            async with a_client(ssl_verify=False) as client:
                for _ in range(3):
                    assert (await client.post(to, b"", b"[1]", client="c")).status == 204
                assert len(connections) == 1
            async with a_client() as client:
                with pytest.raises(ReceiverUnreachable, match="certificate verify failed"):
                    await client.post(to, b"", b"[1]", client="c")

    run(walk)


def test_a_certificate_is_for_the_name_of_the_callback(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Written with a dot at its end or without."""

    async def walk() -> None:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await reader.readuntil(b"\r\n\r\n[1]")
                writer.write(NO_CONTENT)
            writer.close()

        server = await asyncio.start_server(speak, "127.0.0.1", 0, ssl=await a_certificate(tmp_path))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        async with server, a_client(looked_up=lambda _: ["127.0.0.1"]) as client:
            port = server.sockets[0].getsockname()[1]
            for name in ("localhost", "localhost."):
                to = http.endpoint(f"https://{name}:{port}/")
                assert (await client.post(to, b"", b"[1]", client="c")).status == 204
            with pytest.raises(ReceiverUnreachable, match="not valid for"):
                await client.post(http.endpoint(f"https://127.0.0.1:{port}/"), b"", b"[1]", client="c")

    run(walk)


def test_a_callback_without_a_host_is_refused():
    for callback in ("http:///x", "nothing", "http://h:99999/"):
        with pytest.raises(BadRequest):
            http.endpoint(callback)
