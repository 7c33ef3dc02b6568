"""Receivers that do everything but what they should, as real servers on loopback; each has its row in operations.md.

A body has 0.2 s here. An attempt that has to be ended by its time has 0.6 s, connecting and TLS 0.3 s each; the others
have ten times as much, and need none of it.
"""

import asyncio
import contextlib
import gzip
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from doubledecker.delivery import http
from doubledecker.delivery.attempt import Dialer, DialLimits
from doubledecker.delivery.formats import FormattedRequest
from doubledecker.model.dial_guard import DialGuard
from doubledecker.model.outcome import Outcome, OutcomeKind
from doubledecker.model.subscriber import Subscriber
from receiver import Receiver
from tls import a_certificate, an_expired_certificate

Speak = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
GUARD = DialGuard(is_private_allowed=True)
HASTY, PATIENT = DialLimits(0.3, 0.6, guard=GUARD), DialLimits(3.0, 6.0, guard=GUARD)
# What an attempt may take that ends by itself, or in its 0.6 s: machines are busy.
TOOK_MS_MAX = 2_900
PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
# A kernel takes some megabytes for a reader that is not there.
WIRE_BYTES_MAX = 32_000_000


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_BODY_S_MAX", 0.2)


def says(answer: bytes, *, then: bytes = b"", is_cut: bool = False) -> Speak:
    """Answer a request, go on with `then` for as long as one reads, and keep the connection unless it is cut."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n[1]")
        writer.write(answer)
        while then:
            assert writer.transport.get_write_buffer_size() < WIRE_BYTES_MAX
            writer.write(then)
            await writer.drain()
            await asyncio.sleep(0)
        await (writer.drain() if is_cut else reader.read())

    return speak


def drips(answer: bytes, drop: bytes) -> Speak:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n[1]")
        writer.write(answer)
        while True:
            await asyncio.sleep(0.02)
            writer.write(drop)
            await writer.drain()

    return speak


def resets(answer: bytes) -> Speak:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n[1]")
        writer.write(answer)
        await writer.drain()
        # Closing then sends RST.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    return speak


async def answers_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    await reader.read()


async def refuses_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n")
    writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


async def is_silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()


BOMB = gzip.compress(b"[" + b"0" * 50_000_000)
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
# What the receiver does, as operations.md has it; how; and how the attempt ends.
OVER_HTTP: dict[str, tuple[Speak, str, int | None]] = {
    "accepts, and is silent": (is_silent, "timed_out", None),
    "is silent within the head of its answer": (says(b"HTTP/1.1 200 OK\r\nContent-"), "timed_out", None),
    "sends the head of its answer drop by drop": (drips(b"HTTP/1.1 200 OK\r\nX: ", b"x"), "timed_out", None),
    "is silent within the body of a 2xx": (says(OK + b"Content-Length: 100\r\n\r\n{"), "delivered", 200),
    "sends the body of a 2xx drop by drop": (drips(CHUNKED, b"1\r\nx\r\n"), "delivered", 200),
    "sends a body without end": (says(OK + b"\r\n", then=b"x" * 65_536), "delivered", 200),
    "sends chunks without end": (says(CHUNKED, then=b"1\r\nx\r\n" * 10_000), "delivered", 200),
    "sends trailers without end": (says(CHUNKED + b"0\r\n", then=b"X: 1\r\n" * 10_000), "delivered", 200),
    "sends a compressed body that unfolds to 50 MB": (
        says(OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB) + BOMB),
        "delivered",
        200,
    ),
    "sends 10 000 headers": (says(OK + b"X-Header: 1\r\n" * 10_000 + b"\r\n"), "broken", None),
    "sends headers without end": (says(OK, then=b"X: 1\r\n" * 1_000), "broken", None),
    "sends `100 Continue` without end": (says(b"", then=b"HTTP/1.1 100 Continue\r\n\r\n" * 100), "broken", None),
    "sends a few interim answers first": (
        says(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 3 + OK + b"Content-Length: 0\r\n\r\n"),
        "delivered",
        200,
    ),
    "resets the connection before its answer": (resets(b""), "broken", None),
    "closes the connection before its answer": (says(b"", is_cut=True), "broken", None),
    "closes the connection within the head of its answer": (says(b"HTTP/1.1 200 OK\r\n", is_cut=True), "broken", None),
    "resets the connection within the body of a 2xx": (resets(OK + b"Content-Length: 9\r\n\r\n1"), "delivered", 200),
    "sends less than its `Content-Length`": (says(OK + b"Content-Length: 9\r\n\r\n1", is_cut=True), "delivered", 200),
    "sends more than its `Content-Length`": (says(OK + b"Content-Length: 1\r\n\r\n12345"), "delivered", 200),
    "sends a `Content-Length` that is no number": (says(OK + b"Content-Length: -1\r\n\r\n"), "broken", None),
    "sends two that differ": (says(OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n12"), "broken", None),
    "answers in HTTP/1.0": (says(b"HTTP/1.0 200 OK\r\n\r\nfine", is_cut=True), "delivered", 200),
    "answers something that is no HTTP": (says(b"SSH-2.0-OpenSSH_9.2\r\n"), "broken", None),
    "answers with a status below 100 or above 599": (
        says(b"HTTP/1.1 999 X\r\nContent-Length: 0\r\n\r\n"),
        "broken",
        None,
    ),
    "switches to another protocol": (
        says(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"),
        "broken",
        None,
    ),
    "answers 2xx before it has read the request": (answers_early, "delivered", 200),
    "answers 413 before it has read the request, and closes": (refuses_early, "refused", 413),
}


@contextlib.asynccontextmanager
async def a_server(speak: Speak, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await speak(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


async def attempt(url: str, limits: DialLimits = PATIENT) -> Outcome:
    dialer = Dialer(limits)
    try:
        async with asyncio.timeout(10):
            return await dialer.attempt(Subscriber("t", url, "u"), FormattedRequest(b"[1]"))
    finally:
        await dialer.close()


def row(does: str) -> tuple[str, str]:
    """How the page says that such an attempt ends, and what the cause may be."""
    found = re.search(rf"^\| {re.escape(does)} \| `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE)
    assert found is not None, f"docs/operations.md has no row {does!r}"
    return found[1], found[2]


def cause(outcome: Outcome) -> str:
    if outcome.is_delivered:
        return "nothing"
    if outcome.acquits_content or outcome.blames_address:
        return "the receiver"
    return "the batch" if outcome.blames_content else "either"


@pytest.mark.parametrize("does", OVER_HTTP)
async def test_whatever_a_receiver_does_ends_in_time_as_the_page_says(does: str):
    speak, kind, status = OVER_HTTP[does]
    async with a_server(speak) as port:
        outcome = await attempt(f"http://127.0.0.1:{port}/", HASTY if kind == "timed_out" else PATIENT)

    assert (outcome.kind.value, outcome.status) == (kind, status)
    assert row(does) == (kind, cause(outcome))
    assert outcome.took_ms < TOOK_MS_MAX


@pytest.mark.parametrize(
    "does",
    [
        "accepts, and is silent within TLS",
        "speaks plain HTTP where TLS is expected",
        "has a certificate that has expired",
        "has a certificate that nobody vouches for",
        "has a certificate for another name",
    ],
)
async def test_one_that_fails_in_tls_was_never_reached(does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    speak: Speak = says(b"HTTP/1.1 204 No Content\r\n\r\n")
    context, said = None, ""
    if "silent" in does:
        speak = is_silent
    elif "plain" in does:
        speak = drips(b"", b"HTTP/1.1 400 Bad Request\r\n\r\n")
    elif "expired" in does:
        context, said = await an_expired_certificate(tmp_path), "certificate has expired"
    elif "nobody" in does:
        context, said = await a_certificate(tmp_path), "self-signed certificate"
    else:
        context, said = await a_certificate(tmp_path, name="other.example"), "Hostname mismatch"
    if context is not None and "nobody" not in does:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    async with a_server(speak, context) as port:
        outcome = await attempt(f"https://localhost:{port}/", HASTY if context is None else PATIENT)

    assert (outcome.kind, said in outcome.detail) == (OutcomeKind.UNREACHABLE, True)
    assert row(does) == ("unreachable", "the receiver")
    assert outcome.took_ms < TOOK_MS_MAX


async def test_one_that_is_not_there_was_never_reached():
    with socket.socket() as free, socket.socket() as full, contextlib.ExitStack() as waiting:
        free.bind(("127.0.0.1", 0))
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            other = waiting.enter_context(socket.socket())
            other.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                other.connect(full.getsockname())
        places = {
            "does not listen": f"127.0.0.1:{free.getsockname()[1]}",
            "does not accept": f"127.0.0.1:{full.getsockname()[1]}",
            "has an address that the [dial guard](security.md#the-dial-guard) refuses": "169.254.169.254",
            "has a callback that an earlier version took": "0x7f.1",
        }
        outcomes = {does: await attempt(f"http://{place}/", HASTY) for does, place in places.items()}

    assert {each.kind for each in outcomes.values()} == {OutcomeKind.UNREACHABLE}
    assert {row(does) for does in outcomes} == {("unreachable", "the receiver")}
    assert max(each.took_ms for each in outcomes.values()) < TOOK_MS_MAX


STATUSES = [*range(200, 209), 226, 299, *range(300, 309), *range(400, 432), 451, 499, *range(500, 512), 599]


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "7"}], ids=["plain", "retry-after"])
async def test_every_status_has_its_verdict_with_a_delay_asked_for_and_without(headers: Mapping[str, str]):
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    dialer = Dialer(PATIENT)
    for status in STATUSES:
        body = b"" if status in {204, 304} else b"Content-Length: 0\r\n"
        async with a_server(says(f"HTTP/1.1 {status} X\r\n{lines}".encode() + body + b"\r\n")) as port:
            outcome = await dialer.attempt(Subscriber("t", f"http://127.0.0.1:{port}/", "u"), FormattedRequest(b"[1]"))
        expected = OutcomeKind.DELIVERED if status < 300 else OutcomeKind.REFUSED
        assert (outcome.kind, outcome.status) == (expected, status)
        assert outcome.patience_ms == (7_000 if headers and status in {429, 503} else None)
    await dialer.close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_a_refusal_and_where_it_leads_is_not_dialled(status: int):
    async with Receiver() as trap:
        location = f"Location: {trap.url}\r\nContent-Length: 0\r\n\r\n".encode()
        async with a_server(says(b"HTTP/1.1 %d Moved\r\n" % status + location)) as port:
            outcome = await attempt(f"http://127.0.0.1:{port}/")

        assert (outcome.kind, outcome.status) == (OutcomeKind.REFUSED, status)
        assert row("redirects") == ("refused", "the receiver")
        assert (trap.attempts, len(trap._runner.server.connections)) == (0, 0)


# A connection whose answer was not read to its end, or that had more than one, would answer for the next request.
WHOLE = {
    "sends a compressed body that unfolds to 50 MB",
    "sends a few interim answers first",
    "answers 2xx before it has read the request",
}


async def test_only_a_connection_with_a_whole_answer_and_no_more_is_kept():
    kept = set()
    for does, (speak, kind, _) in OVER_HTTP.items():
        if kind == "delivered":
            async with a_server(speak) as port:
                dialer = Dialer(PATIENT)
                await dialer.attempt(Subscriber("t", f"http://127.0.0.1:{port}/", "u"), FormattedRequest(b"[1]"))
                kept |= {does for connection in dialer._http._connected if connection.is_usable}
                await dialer.close()

    assert kept == WHOLE


@pytest.mark.parametrize("does", [does for does in OVER_HTTP if "body without end" in does or "s without end" in does])
async def test_what_has_no_end_is_cut_by_its_bytes_too(does: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "_BODY_S_MAX", 60.0)
    speak, kind, status = OVER_HTTP[does]
    async with a_server(speak) as port:
        outcome = await attempt(f"http://127.0.0.1:{port}/")

    assert (outcome.kind.value, outcome.status) == (kind, status)
