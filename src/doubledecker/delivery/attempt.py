"""One attempt at a receiver: post a batch, and say how it went. It never raises for what a receiver does.

How long it may take is its caller's business (delivery/chains.py). An answer counts by its status; of its body no more
is read than keeps the connection usable, and for no longer than a moment, so that a receiver that drips or floods holds
nobody. A 2xx in JSON is kept: the receiver of a queue may fail single events with it.
"""

import asyncio
import base64
import email.utils
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage

from doubledecker import __version__, clock
from doubledecker.model.outcome import Kind, Outcome
from doubledecker.model.subscriber import Subscriber

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


@dataclass(frozen=True)
class DialLimits:
    """How long connecting may take, and whether certificates are verified."""

    connect_s: float
    ssl_verify: bool = True


class Dialer:
    """Posts batches over kept-alive connections; close it when done."""

    def __init__(self, limits: DialLimits) -> None:
        self._connect_s = limits.connect_s
        self._session = aiohttp.ClientSession(
            # The number of calls is bounded per subscriber, in Redis; a second bound here would only hide it.
            connector=_Connector(limit=0, ssl=limits.ssl_verify, ttl_dns_cache=30),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            # Not compressed: what is answered is short, and a small body that unfolds into a large one is a trap.
            headers={"User-Agent": f"doubledecker/{__version__}", "Accept-Encoding": "identity"},
        )

    async def attempt(
        self, subscriber: Subscriber, messages: Sequence[bytes], headers: Mapping[str, str] = _PLAIN
    ) -> Outcome:
        """Post messages to a subscriber, as Routemaster's clients expect them; `headers` go along."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        ended = await self._post(subscriber, b"[" + b",".join(messages) + b"]", headers)
        return replace(ended, took_ms=round((loop.time() - started) * 1000))

    async def close(self) -> None:
        await self._session.close()

    async def _post(self, subscriber: Subscriber, body: bytes, headers: Mapping[str, str]) -> Outcome:
        try:
            async with self._session.post(
                subscriber.callback,
                data=body,
                headers={**headers, "Authorization": _basic(subscriber.uuid), "Content-Type": "application/json"},
                allow_redirects=False,
            ) as response:
                kind = Kind.DELIVERED if response.status in _OK else Kind.REFUSED
                retry_after_ms = _retry_after(response.headers.get("Retry-After"))
                answer = await _drain(response)
                return Outcome(kind, 0, response.status, retry_after_ms, response.reason or "", answer)
        except TimeoutError:
            return Outcome(Kind.TIMED_OUT, 0, detail=f"no connection within {self._connect_s} s")
        except aiohttp.ClientConnectorError as error:
            return Outcome(Kind.UNREACHABLE, 0, detail=str(error.os_error))
        except (aiohttp.ClientError, ssl.SSLError, OSError, ValueError) as error:
            return Outcome(Kind.BROKEN, 0, detail=f"{type(error).__name__}: {error}")


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


async def _drain(response: aiohttp.ClientResponse) -> bytes:
    """Read a short answer to its end, so that its connection serves again; cut off any other. Returns a 2xx in JSON."""
    is_json = response.content_type == "application/json" or response.content_type.endswith("+json")
    is_kept = response.status in _OK and is_json
    left = ANSWER_BYTES_MAX if is_kept else _BODY_BYTES_MAX
    kept = []
    try:
        async with asyncio.timeout(_BODY_S_MAX):
            while left > 0 and (chunk := await response.content.read(left)):
                left -= len(chunk)
                kept.append(chunk)
    except (TimeoutError, aiohttp.ClientError, ValueError):
        left = 0
    if left <= 0:
        response.close()
    return b"".join(kept) if is_kept and left > 0 else b""


def _basic(uuid: str) -> str:
    return "Basic " + base64.b64encode(f"{uuid}:x".encode()).decode()


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
