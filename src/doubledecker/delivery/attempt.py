"""One attempt at a receiver: post a batch, and return how it went. It never raises for what a receiver does.

What this machine lacks to make a connection is no receiver's fault, and raises OutOfDescriptors.

An attempt goes through a chain of stages, which bounds how long it takes: `Deadline | Timeout`. Whether a receiver may
be called at all is decided in Redis, for all processes (lua/receiver_ring.lua). An answer counts by its status; of its
body no more is read than keeps the connection usable, and for no longer than a moment, so that a receiver that drips or
floods holds nobody. A 2xx in JSON is kept: the receiver of a queue may fail single events with it.
"""

import asyncio
import base64
import email.utils
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage

from doubledecker import __version__, clock
from doubledecker.errors import OutOfDescriptors
from doubledecker.model.outcome import Kind, Outcome, is_own_failure
from doubledecker.model.subscriber import Subscriber
from doubledecker.stages import Deadline, Timeout
from doubledecker.stages.errors import TimedOut

_BODY_BYTES_MAX = 65_536
# More than the ids of ten thousand events, the largest batch, at 128 characters each.
ANSWER_BYTES_MAX = 2_097_152
_BODY_S_MAX = 1.0
_OK = range(200, 300)
# Answers before the answer, such as 100 Continue and 103 Early Hints. We ask for none, and a few are harmless.
_INTERIM = range(100, 200)
_INTERIM_MAX = 8
# Of a number in a header; Python refuses to read thousands.
_DIGITS_MAX = 20
_PLAIN: Mapping[str, str] = {}


# Reading a long answer may add to the attempt; the whole of it is cut here.
_DEADLINE_MARGIN_S = 5.0


@dataclass(frozen=True)
class DialLimits:
    """How long connecting and a whole attempt may take, and whether certificates are verified."""

    connect_s: float = 2.0
    attempt_s: float = 20.0
    ssl_verify: bool = True


class Dialer:
    """Posts batches over kept-alive connections; close it when done."""

    def __init__(self, limits: DialLimits) -> None:
        self._connect_s = limits.connect_s
        self._chain = (Deadline(limits.attempt_s + _DEADLINE_MARGIN_S) | Timeout(limits.attempt_s)).bind()
        self._session = aiohttp.ClientSession(
            # Calls are bounded for each receiver, in Redis; a second bound here would only hide it.
            connector=_Connector(limit=0, ssl=limits.ssl_verify, ttl_dns_cache=30),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            # Not compressed: what is answered is short, and a small body that unfolds into a large one is a trap.
            headers={"User-Agent": f"doubledecker/{__version__}", "Accept-Encoding": "identity"},
        )

    async def attempt(self, receiver: Subscriber, body: bytes, headers: Mapping[str, str] = _PLAIN) -> Outcome:
        """Post a body to a receiver; `headers` go along."""
        try:
            return await self._chain.call(self._post, receiver, body, headers)
        except TimedOut as late:
            return Outcome(Kind.TIMED_OUT, round(late.after_s * 1000), detail=f"no answer within {late.after_s:g} s")

    async def close(self) -> None:
        await self._chain.close()
        await self._session.close()

    async def _post(self, receiver: Subscriber, body: bytes, headers: Mapping[str, str]) -> Outcome:
        started_s = time.monotonic()

        def took_ms() -> int:
            return round((time.monotonic() - started_s) * 1000)

        whole = _headers(receiver.uuid)
        try:
            async with self._session.post(
                receiver.callback, data=body, headers={**headers, **whole} if headers else whole, allow_redirects=False
            ) as response:
                answer = await _drain(response, sent_bytes=len(body))
                if response.status in _OK:
                    return Outcome(Kind.DELIVERED, took_ms(), response.status, answer=answer)
                retry_after_ms = _retry_after(response.headers.get("Retry-After"))
                return Outcome(Kind.REFUSED, took_ms(), response.status, retry_after_ms, _text(response.reason or ""))
        except TimeoutError:
            return Outcome(Kind.UNREACHABLE, took_ms(), detail=f"no connection within {self._connect_s} s")
        except aiohttp.ClientConnectorError as error:
            if is_own_failure(error):
                raise OutOfDescriptors(str(error)) from error
            return Outcome(Kind.UNREACHABLE, took_ms(), detail=_text(str(error.os_error)))
        except (aiohttp.ClientError, ssl.SSLError, OSError, ValueError) as error:
            return Outcome(Kind.BROKEN, took_ms(), detail=_text(f"{type(error).__name__}: {error}"))


class _Connector(aiohttp.TCPConnector):
    """Opens connections that are cut when a receiver sends interim answers without end."""

    def __init__(self, *, limit: int, ssl: bool, ttl_dns_cache: int) -> None:
        super().__init__(limit=limit, ssl=ssl, ttl_dns_cache=ttl_dns_cache)
        self._factory = cast("partial[ResponseHandler]", partial(_Protocol, loop=self._loop))


class _Protocol(ResponseHandler):
    """One connection to a receiver.

    aiohttp skips interim answers as fast as they come. A receiver that sends nothing else would keep the process busy,
    and every other receiver waiting, until the attempt times out; so it is cut off where the answers arrive.
    """

    _interim = 0

    def feed_data(self, data: tuple[RawResponseMessage, aiohttp.StreamReader], size: int = 0) -> None:
        if data[0].code not in _INTERIM:
            self._interim = 0
        elif self._interim < _INTERIM_MAX:
            self._interim += 1
        else:
            self.set_exception(aiohttp.ClientConnectionError(f"more than {_INTERIM_MAX} interim answers"))
            if self.transport is not None:
                self.transport.abort()
            return
        super().feed_data(data, size)


def _is_json(response: aiohttp.ClientResponse) -> bool:
    # Without the header aiohttp takes it for something else; most answers have none, nor a body.
    has_type = "Content-Type" in response.headers
    return has_type and (response.content_type == "application/json" or response.content_type.endswith("+json"))


async def _drain(response: aiohttp.ClientResponse, *, sent_bytes: int) -> bytes:
    """Read a short answer to its end, so that its connection serves again; cut off any other. Returns a 2xx in JSON.

    Such a 2xx names events that were sent, and is not longer than they were: reading it costs no more than making them.
    """
    is_kept = response.status in _OK and _is_json(response)
    left = max(_BODY_BYTES_MAX, min(ANSWER_BYTES_MAX, sent_bytes)) if is_kept else _BODY_BYTES_MAX
    kept = []
    try:
        # Most answers have come whole with their head: a timer would cost more than reading them.
        if response.content.is_eof() and response.content.total_bytes < left:
            kept.append(await response.content.read())
            return kept[0] if is_kept else b""
        async with asyncio.timeout(_BODY_S_MAX):
            while left > 0 and (chunk := await response.content.read(left)):
                left -= len(chunk)
                kept.append(chunk)
    except (TimeoutError, aiohttp.ClientError, ValueError):
        left = 0
    if left <= 0:
        response.close()
    return b"".join(kept) if is_kept and left > 0 else b""


def _text(said: str) -> str:
    """What a receiver said, as text that can be written: aiohttp keeps bytes that are none."""
    return said.encode(errors="surrogateescape").decode(errors="replace")


# As many as a busy process has receivers: they are made of text, and the same for every batch.
@lru_cache(maxsize=10_000)
def _headers(uuid: str) -> Mapping[str, str]:
    credential = base64.b64encode(f"{uuid}:x".encode()).decode()
    return {"Authorization": f"Basic {credential}", "Content-Type": "application/json"}


def _retry_after(value: str | None) -> int | None:
    """Milliseconds, from a number of seconds or a date; None for what is neither."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return min(int(value.strip()[:_DIGITS_MAX]), 10**9) * 1000
    try:
        at = email.utils.parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0, round(at.timestamp() * 1000) - clock.now_ms())
