"""One attempt at a receiver: post a batch, and say how it went. It never raises for what a receiver does.

How long it may take is its caller's business (delivery/chains.py). An answer counts by its status alone; of its body no
more is read than keeps the connection usable, and for no longer than a moment, so that a receiver that drips or floods
holds nobody.
"""

import asyncio
import base64
import email.utils
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from doubledecker import __version__, clock
from doubledecker.model.outcome import Kind, Outcome
from doubledecker.model.subscriber import Subscriber

_BODY_BYTES_MAX = 65_536
_BODY_S_MAX = 1.0
_OK = range(200, 300)


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
            connector=aiohttp.TCPConnector(limit=0, ssl=limits.ssl_verify, ttl_dns_cache=30),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"User-Agent": f"doubledecker/{__version__}"},
        )

    async def attempt(self, subscriber: Subscriber, messages: Sequence[bytes]) -> Outcome:
        """Post messages to a subscriber, as Routemaster's clients expect them."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        kind, status, retry_after_ms, detail = await self._post(subscriber, b"[" + b",".join(messages) + b"]")
        took_ms = round((loop.time() - started) * 1000)
        return Outcome(kind, took_ms, status=status, retry_after_ms=retry_after_ms, detail=detail)

    async def close(self) -> None:
        await self._session.close()

    async def _post(self, subscriber: Subscriber, body: bytes) -> tuple[Kind, int | None, int | None, str]:
        try:
            async with self._session.post(
                subscriber.callback,
                data=body,
                headers={"Authorization": _basic(subscriber.uuid), "Content-Type": "application/json"},
                allow_redirects=False,
            ) as response:
                kind = Kind.DELIVERED if response.status in _OK else Kind.REFUSED
                retry_after_ms = _retry_after(response.headers.get("Retry-After"))
                await _drain(response)
                return kind, response.status, retry_after_ms, response.reason or ""
        except TimeoutError:
            return Kind.TIMED_OUT, None, None, f"no connection within {self._connect_s} s"
        except aiohttp.ClientConnectorError as error:
            return Kind.UNREACHABLE, None, None, str(error.os_error)
        except (aiohttp.ClientError, ssl.SSLError, OSError, ValueError) as error:
            return Kind.BROKEN, None, None, f"{type(error).__name__}: {error}"


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read a short answer to its end, so that its connection serves again; cut off any other."""
    left = _BODY_BYTES_MAX
    try:
        async with asyncio.timeout(_BODY_S_MAX):
            while left > 0 and (chunk := await response.content.read(left)):
                left -= len(chunk)
    except (TimeoutError, aiohttp.ClientError, ValueError):
        left = 0
    if left <= 0:
        response.close()


def _basic(uuid: str) -> str:
    return "Basic " + base64.b64encode(f"{uuid}:x".encode()).decode()


def _retry_after(value: str | None) -> int | None:
    """Milliseconds, from a number of seconds or a date; None for what is neither."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return min(int(value), 10**9) * 1000
    try:
        at = email.utils.parsedate_to_datetime(value)
    except (ValueError, TypeError):
        return None
    return max(0, round(at.timestamp() * 1000) - clock.now_ms())
