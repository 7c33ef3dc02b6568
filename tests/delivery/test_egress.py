"""Calls through an egress proxy: a real one on loopback, which knows where names lead; nothing is looked up here."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import pytest
from structlog.testing import capture_logs

from doubledecker.delivery.attempt import Dialer, DialLimits
from doubledecker.delivery.formats import FormattedRequest
from doubledecker.model import egress_proxy
from doubledecker.model.dial_guard import REFUSAL, DialGuard
from doubledecker.model.outcome import Outcome, OutcomeKind
from doubledecker.model.subscriber import Subscriber
from receiver import Receiver
from tls import a_certificate


class Proxy:
    """Takes CONNECT and whole URLs, and goes to one port of loopback for whatever it is asked."""

    def __init__(self, port: int, *, answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> None:
        self._to = port
        self._answer = answer
        self.heads: list[bytes] = []
        self._open: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://ann:s%40cret@127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            onward, back = await asyncio.open_connection("127.0.0.1", self._to)
            self._open.append(back)
            if head.startswith(b"CONNECT "):
                writer.write(self._answer)
            else:
                method, url, rest = head.split(b" ", 2)
                back.write(b" ".join([method, b"/" + url.split(b"/", 3)[3], rest]))
            async with asyncio.TaskGroup() as both:
                both.create_task(_pass_on(reader, back))
                both.create_task(_pass_on(onward, writer))
        writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(65_536):
            writer.write(chunk)
        writer.close()


@contextlib.asynccontextmanager
async def a_dialer(proxy: str) -> AsyncIterator[Dialer]:
    dialer = Dialer(DialLimits(1.0, 3.0, guard=DialGuard(), proxy=egress_proxy.parse(proxy)))
    yield dialer
    await dialer.close()


def _port(receiver: Receiver) -> int:
    return int(receiver.url.split(":")[2].split("/")[0])


async def attempt(dialer: Dialer, callback: str) -> Outcome:
    return await dialer.attempt(Subscriber("t", callback, "u"), FormattedRequest(b'[{"id":"1"}]'))


async def test_plain_http_goes_to_the_proxy_as_a_whole_url_with_its_credential():
    async with Receiver() as receiver, Proxy(_port(receiver)) as proxy:
        async with a_dialer(proxy.url) as dialer:
            for _ in range(3):
                assert (await attempt(dialer, "http://hooks.invalid:8080/callback")).is_delivered

        # Over one connection, which is kept.
        [head] = proxy.heads
        lines = head.split(b"\r\n")
        assert lines[0] == b"POST http://hooks.invalid:8080/callback HTTP/1.1"
        assert {b"Host: hooks.invalid:8080", b"Proxy-Authorization: Basic YW5uOnNAY3JldA=="} < set(lines)
        assert receiver.ids == ["1", "1", "1"]


async def test_https_goes_through_a_tunnel_whose_end_shows_a_certificate_for_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    context = await a_certificate(tmp_path, name="hooks.invalid")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    names: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    async with a_tls_receiver(context) as port, Proxy(port) as proxy, a_dialer(proxy.url) as dialer:
        for _ in range(3):
            assert (await attempt(dialer, "https://hooks.invalid/")).is_delivered
        other = await attempt(dialer, "https://other.invalid:8443/")

    assert proxy.heads == [
        b"CONNECT %b HTTP/1.1\r\nHost: %b\r\nProxy-Authorization: Basic YW5uOnNAY3JldA==\r\n\r\n" % (place, place)
        for place in (b"hooks.invalid:443", b"other.invalid:8443")
    ]
    assert names == ["hooks.invalid", "other.invalid"]
    assert (other.kind, "not valid for 'other.invalid'" in other.detail) == (OutcomeKind.UNREACHABLE, True)


async def test_the_proxys_credential_does_not_enter_the_tunnel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    context = await a_certificate(tmp_path, name="hooks.invalid")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    requests: list[bytes] = []
    async with a_tls_receiver(context, requests) as port, Proxy(port) as proxy, a_dialer(proxy.url) as dialer:
        await attempt(dialer, "https://hooks.invalid/in")

    [request] = requests
    assert request.startswith(b"POST /in HTTP/1.1\r\nHost: hooks.invalid\r\n")
    assert b"Proxy" not in request


@pytest.mark.parametrize("place", ["127.0.0.1:9", "169.254.169.254", "[::1]", "10.0.0.1:8080"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_an_address_that_may_not_be_called_does_not_reach_the_proxy(scheme: str, place: str):
    async with Proxy(9) as proxy, a_dialer(proxy.url) as dialer:
        outcome = await attempt(dialer, f"{scheme}://{place}/")

    assert (outcome.kind, outcome.detail) == (OutcomeKind.UNREACHABLE, REFUSAL)
    assert proxy.heads == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "the egress proxy answered 407"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "the egress proxy answered 502"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "the egress proxy gave no HTTP answer"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 10_000, "the egress proxy gave no HTTP answer"),
        (b"HTTP/1.1 200 OK\r\n\r\nand more", "the egress proxy gave no HTTP answer"),
        (b"HTTP/1.1 200 OK\r\n", "no connection through the egress proxy"),
        (b"", "no connection through the egress proxy"),
    ],
)
async def test_a_proxy_that_opens_no_tunnel_leaves_its_receivers_unreachable(answer: bytes, said: str):
    async with Receiver() as receiver, Proxy(_port(receiver), answer=answer) as proxy, a_dialer(proxy.url) as dialer:
        outcome = await attempt(dialer, "https://hooks.invalid/")

    assert (outcome.kind, outcome.detail) == (OutcomeKind.UNREACHABLE, said)


async def test_the_log_alone_has_the_address_of_a_proxy_that_is_not_there():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with a_dialer(f"http://127.0.0.1:{port}") as dialer:
        with capture_logs() as logs:
            outcome = await attempt(dialer, "http://hooks.invalid/")

    assert (outcome.kind, outcome.detail) == (OutcomeKind.UNREACHABLE, "no connection through the egress proxy")
    assert [(line["event"], line["proxy"]) for line in logs] == [("proxy.unreachable", f"127.0.0.1:{port}")]


@pytest.mark.parametrize(
    "given",
    ["proxy.internal:3128", "https://proxy:3128", "http://:s3cret@", "http://u:s3cret@0x7f.1:1", "http://p:1/path"],
)
def test_what_is_no_proxy_is_refused_without_showing_its_password(given: str):
    with pytest.raises(ValueError, match=r".+") as refused:
        egress_proxy.parse(given)

    assert "s3cret" not in str(refused.value)


def test_a_proxy_shows_no_credential_when_it_is_printed():
    assert "YW5u" not in repr(egress_proxy.parse("http://ann:s@proxy.internal:3128"))


@contextlib.asynccontextmanager
async def a_tls_receiver(context: ssl.SSLContext, requests: list[bytes] | None = None) -> AsyncIterator[int]:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await reader.readuntil(b'\r\n\r\n[{"id":"1"}]')
                if requests is not None:
                    requests.append(request)
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]
