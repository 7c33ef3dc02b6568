"""One attempt at a receiver, whatever that receiver does."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from descriptors import no_descriptors
from doubledecker.delivery.attempt import Dialer, DialLimits, _retry_after
from doubledecker.delivery.formats import FormattedRequest
from doubledecker.errors import OutOfDescriptors
from doubledecker.model.dial_guard import DialGuard
from doubledecker.model.outcome import Outcome, OutcomeKind, is_own_failure
from doubledecker.model.subscriber import Subscriber
from receiver import Receiver
from tls import a_certificate

BODY = b'[{"id":"1"},{"id":"2"}]'


@contextlib.asynccontextmanager
async def a_dialer(*, attempt_s: float = 20.0, ssl_verify: bool = True) -> AsyncIterator[Dialer]:
    dialer = Dialer(DialLimits(0.5, attempt_s, ssl_verify, DialGuard(is_private_allowed=True)))
    yield dialer
    await dialer.close()


async def attempt(callback: str, **limits: float) -> Outcome:
    async with a_dialer(**limits) as dialer:
        return await dialer.attempt(Subscriber("t", callback, "u"), FormattedRequest(BODY))


async def test_any_2xx_is_a_delivery():
    for status in (200, 201, 204, 299):
        async with Receiver(plan=lambda _, status=status: status) as receiver:
            outcome = await attempt(receiver.url)

            assert (outcome.kind, outcome.status) == (OutcomeKind.DELIVERED, status)
            assert receiver.ids == ["1", "2"]


@pytest.mark.parametrize("status", [301, 302, 307, 400, 401, 404, 410, 500, 503])
async def test_any_other_answer_is_a_refusal(status: int):
    async with Receiver(plan=lambda _: status, headers={"Location": "http://127.0.0.1:9/"}) as receiver:
        outcome = await attempt(receiver.url)

        assert (outcome.kind, outcome.status) == (OutcomeKind.REFUSED, status)


async def test_a_receiver_that_hangs_is_given_up_at_the_timeout():
    async with Receiver(plan=lambda _: "hang") as receiver:
        outcome = await attempt(receiver.url, attempt_s=0.3)

    assert (outcome.kind, outcome.status) == (OutcomeKind.TIMED_OUT, None)
    assert outcome.took_ms == pytest.approx(300, abs=150)
    assert outcome.detail == "no answer within 0.3 s"


async def test_that_this_process_can_open_nothing_is_no_failure_of_a_receiver():
    async with Receiver() as receiver, a_dialer() as dialer:
        with no_descriptors(), pytest.raises(OutOfDescriptors, match="Too many open files"):
            await dialer.attempt(Subscriber("t", receiver.url, "u"), FormattedRequest(BODY))
        outcome = await dialer.attempt(Subscriber("t", receiver.url, "u"), FormattedRequest(BODY))

    assert outcome.is_delivered


@pytest.mark.parametrize(
    ("number", "is_own"),
    [
        (errno.EMFILE, True),
        (errno.ENFILE, True),
        (errno.ENOBUFS, True),
        (errno.ECONNREFUSED, False),
        (errno.EHOSTUNREACH, False),
        (errno.ECONNRESET, False),
        (None, False),
    ],
)
def test_an_error_tells_whose_failure_it_is(number: int | None, is_own: bool):
    assert is_own_failure(OSError(number, "said")) == is_own


async def test_headers_go_along_with_what_every_call_has():
    async with Receiver() as receiver, a_dialer() as dialer:
        await dialer.attempt(Subscriber("t", receiver.url, "u"), FormattedRequest(BODY), {"X-Of-A-Step": "1"})

    [batch] = receiver.batches
    assert (batch.body, batch.uuid, batch.content_type) == (BODY, "u", "application/json")
    assert batch.headers["X-Of-A-Step"] == "1"


async def test_an_endless_body_does_not_hold_the_attempt():
    async with Receiver(plan=lambda _: "endless") as receiver:
        outcome = await attempt(receiver.url)

        assert (outcome.kind, outcome.status) == (OutcomeKind.REFUSED, 500)
        assert outcome.took_ms < 5_000


@contextlib.asynccontextmanager
async def a_speaker(first: bytes, again: bytes) -> AsyncIterator[str]:
    """A receiver that says something when it is called, and goes on saying something else for as long as one reads."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(first)
        with contextlib.suppress(ConnectionError):
            while again:
                writer.write(again)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def test_a_receiver_that_never_comes_to_its_answer_is_cut_off():
    """100 Continue without end kept the process from serving all other receivers until the attempt timed out."""
    async with a_speaker(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000) as url, asyncio.timeout(10):
        outcome = await attempt(url)

    assert outcome.kind is OutcomeKind.BROKEN
    assert "more than 8 interim answers" in outcome.detail


async def test_a_few_interim_answers_are_skipped():
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 8
    async with a_speaker(hints + b"HTTP/1.1 204 No Content\r\n\r\n", b"") as url:
        assert (await attempt(url)).kind is OutcomeKind.DELIVERED


async def test_what_a_receiver_says_is_text_whatever_its_bytes():
    """It was logged as it came, which ended the worker."""
    async with a_speaker(b"HTTP/1.1 500 \xff \xc3\xa9\r\nContent-Length: 0\r\n\r\n", b"") as url:
        outcome = await attempt(url)

    assert outcome.detail == "\ufffd \u00e9"


async def test_a_cut_connection_is_broken():
    async with Receiver(plan=lambda _: "cut") as receiver:
        assert (await attempt(receiver.url)).kind is OutcomeKind.BROKEN


async def test_nobody_listening_is_unreachable():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    assert (await attempt(f"http://127.0.0.1:{port}/")).kind is OutcomeKind.UNREACHABLE


async def test_connections_are_kept_alive():
    async with Receiver() as receiver, a_dialer() as dialer:
        for _ in range(5):
            await dialer.attempt(Subscriber("t", receiver.url, "u"), FormattedRequest(BODY))

        assert receiver._runner is not None
        assert len(receiver._runner.server.connections) == 1


async def test_a_certificate_that_nobody_vouches_for_is_refused_unless_told_otherwise(tmp_path: Path):
    server, port = await _tls_server(tmp_path)
    async with server:
        url = f"https://127.0.0.1:{port}/"

        assert (await attempt(url)).kind is OutcomeKind.UNREACHABLE
        assert (await attempt(url, ssl_verify=False)).kind is OutcomeKind.DELIVERED


def test_retry_after_is_seconds_or_a_date_and_nonsense_is_ignored():
    assert _retry_after("7") == 7_000
    assert _retry_after("Fri, 31 Dec 1999 23:59:59 GMT") == 0
    assert _retry_after("soon") is None
    assert _retry_after("Mon, 99999999999999 Nov 2026 00:00:00 GMT") is None
    assert _retry_after("9" * 5000) == 10**12
    assert _retry_after(None) is None


async def _tls_server(directory: Path) -> tuple[asyncio.Server, int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=await a_certificate(directory))
    return server, int(server.sockets[0].getsockname()[1])


async def test_the_json_of_a_2xx_is_kept_and_nothing_else():
    async with Receiver(answer=lambda events: {"failed": [event["id"] for event in events]}) as receiver:
        kept = await attempt(receiver.url)
    async with Receiver() as receiver:
        plain = await attempt(receiver.url)
    async with Receiver(plan=lambda _: 500, answer=lambda _: {"failed": ["1"]}) as receiver:
        refused = await attempt(receiver.url)
    async with Receiver(answer=lambda _: {"failed": ["x" * 128] * 1_000}) as receiver:
        too_long = await attempt(receiver.url)

    assert kept.answer == b'{"failed": ["1", "2"]}'
    assert (plain.answer, refused.answer, too_long.answer) == (b"", b"", b"")
    assert too_long.is_delivered
