"""HTTP/1.1 to receivers: POSTs over kept-alive connections, with every phase of an answer bounded.

A general HTTP client costs twice as much a request, and trusts whom it calls. Here a receiver is a stranger:

1. `post` takes an idle connection to the same origin, or opens one within the time for connecting. Either leads to an
   address that the dial guard allows, as the host's addresses are looked up and vetted twice a minute (hosts.py).
2. The request goes out in one write, and llhttp (in httptools) parses what comes back.
3. An answer counts by its head, whose size is bounded. Of the body no more is read than keeps the connection usable,
   and for no longer than a moment, so that a receiver that drips or floods holds nobody. A short 2xx in JSON is kept.
4. A connection serves again only if request and answer went through whole and nothing came after them.

The time of a whole exchange is the caller's to bound; when the caller gives up, the connection is cut.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import httptools

from doubledecker import __version__
from doubledecker.delivery.egress import Egress
from doubledecker.delivery.hosts import Hosts, VettedHost
from doubledecker.errors import AnswerBroken, OutOfDescriptors, ReceiverUnreachable
from doubledecker.model import callback as callbacks
from doubledecker.model.callback import CallbackUrl
from doubledecker.model.outcome import STATUSES, is_own_failure

# Of a body that is not kept: more than any error page that servers send by themselves.
_BODY_BYTES_MAX = 65_536
# A body in chunks of a byte each takes six times as many on the wire; beyond this it is trailers, or worse.
_FRAMING_MAX = 8
# More than the ids of ten thousand events, the largest batch, at 128 characters each.
ANSWER_BYTES_MAX = 2_097_152
_BODY_S_MAX = 1.0
# Servers allow 8 to 16 KiB of headers in a request, and send less in an answer.
_HEAD_BYTES_MAX = 65_536
_OK = range(200, 300)
# Of an answer that is no 2xx: it is kept with the dead letters, and shows why.
ANSWER_BYTES_KEPT = 2_048
# Of its status line: a reason is a few words, and is logged, journaled and listed.
_REASON_BYTES_MAX = 200
_HEADERS_KEPT_MAX = 20
_HEADER_CHARS_MAX = 256
# Answers before the answer, such as 100 Continue and 103 Early Hints. We ask for none, and a few are harmless.
_INTERIM = range(100, 200)
_INTERIM_MAX = 8
# Most servers keep an idle connection for longer than this, so that they seldom close one that is about to be used.
_IDLE_S_MAX = 15.0
# One that was idle for so long may have been closed just when it was used: then a new one is tried.
_IDLE_DOUBT_S = 1.0

_Origin = tuple[str, int, bool]


@dataclass(frozen=True)
class Endpoint:
    """Where a callback leads: whom to connect to, and the head of each request, up to what the call adds."""

    url: CallbackUrl
    origin: _Origin
    head: bytes


# As many as a busy process has receivers.
@lru_cache(maxsize=10_000)
def endpoint(callback: str) -> Endpoint:
    """Raises BadRequest for a callback that an earlier version took, and that would be refused today."""
    url = callbacks.parse(callback)
    # Not compressed: what is answered is short, and a small body that unfolds into a large one is a trap.
    head = (
        f"POST {url.target} HTTP/1.1\r\nHost: {url.host_and_port}\r\n"
        f"User-Agent: doubledecker/{__version__}\r\nAccept: */*\r\nAccept-Encoding: identity\r\n"
    )
    return Endpoint(url, (url.host, url.port, url.is_tls), head.encode("ascii"))


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came back; `body` is that of a 2xx in JSON that was not too long, and otherwise empty.

    Of an answer that is no 2xx, or that was to be kept, it is the beginning, and `headers` are some of its headers, a
    line each.
    """

    status: int
    reason: str
    retry_after: str | None
    body: bytes
    headers: tuple[str, ...] = ()


class HttpClient:
    """Posts to any number of receivers; close it when done. It does not bound calls: the caller has a permit."""

    def __init__(self, way: Hosts | Egress, *, connect_s: float, ssl_verify: bool) -> None:
        self._egress = way if isinstance(way, Egress) else None
        self._hosts = way.hosts if isinstance(way, Egress) else way
        self._connect_s = connect_s
        self._ssl_verify = ssl_verify
        self._tls: ssl.SSLContext | None = None
        self._idle: dict[_Origin, list[_Connection]] = defaultdict(list)
        self._connected: set[_Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    async def post(self, to: Endpoint, headers: bytes, body: bytes, kept_bytes: int = 0, *, client: str) -> HttpAnswer:
        """Send a body for a client; `headers` are whole lines. Of a 2xx so many bytes are kept, where that is not 0.

        Raises ReceiverUnreachable; AnswerBroken when no answer came; OutOfDescriptors when nobody could be called.
        """
        head, name = to.head, to.url.host
        if self._egress is not None:
            head, name, client = self._egress.head(to.url, to.head), self._egress.host, ""
        request = b"%b%bContent-Length: %d\r\n\r\n" % (head, headers, len(body))
        host = self._hosts.known(name, client=client)
        if host is None or not host.addresses:
            host = await self._vetted(name, client)
        connection = self._take_idle(to.origin, host)
        if connection is not None:
            try:
                return await self._exchange(to.origin, connection, request, body, kept_bytes)
            except _ClosedWhileIdle:
                host = await self._vetted(name, client)
        return await self._exchange(to.origin, await self._connect(to, host), request, body, kept_bytes)

    async def close(self) -> None:
        """Cut all connections, and wait until they are gone."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        connected = list(self._connected)
        for connection in connected:
            connection.cut()
        await asyncio.gather(*[connection.lost for connection in connected])

    async def _exchange(
        self, origin: _Origin, connection: "_Connection", request: bytes, body: bytes, kept_bytes: int
    ) -> HttpAnswer:
        answer = await connection.exchange(request, body, kept_bytes)
        if connection.is_usable:
            self._keep(origin, connection)
        else:
            connection.cut()
        return answer

    async def _vetted(self, host: str, client: str) -> VettedHost:
        try:
            async with asyncio.timeout(self._connect_s):
                return await self._hosts.vetted(host, client=client)
        except TimeoutError:
            raise ReceiverUnreachable(f"no address of the host within {self._connect_s:g} s") from None

    def _take_idle(self, origin: _Origin, host: VettedHost) -> "_Connection | None":
        """One that leads to where the host is now."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.is_open and connection.address in host.addresses:
                return connection
            connection.cut()
        return None

    def _keep(self, origin: _Origin, connection: "_Connection") -> None:
        self._idle[origin].append(connection)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(_IDLE_S_MAX, self._sweep)

    def _sweep(self) -> None:
        """Close what has been idle for too long."""
        loop = asyncio.get_running_loop()
        until = loop.time() - _IDLE_S_MAX
        for origin, idle in list(self._idle.items()):
            kept = [each for each in idle if each.is_usable and each.idle_since > until]
            for connection in set(idle).difference(kept):
                connection.cut()
            if kept:
                self._idle[origin] = kept
            else:
                del self._idle[origin]
        self._sweeper = loop.call_later(_IDLE_S_MAX / 3, self._sweep) if self._idle else None

    async def _connect(self, to: Endpoint, host: VettedHost) -> "_Connection":
        try:
            address, dialled = await self._reach(to.url, host)
            connection = _Connection(self._connected, address)
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                sock=dialled,
                ssl=self._tls_context() if to.url.is_tls else None,
                server_hostname=to.url.host if to.url.is_tls else None,
                # One that accepts and is silent may not take the time of an answer.
                ssl_handshake_timeout=self._connect_s if to.url.is_tls else None,
            )
        except TimeoutError:
            raise ReceiverUnreachable(f"no connection within {self._connect_s:g} s") from None
        except OSError as error:
            if is_own_failure(error):
                raise OutOfDescriptors(str(error)) from error
            raise ReceiverUnreachable(str(error)) from error
        return connection

    async def _reach(self, url: CallbackUrl, host: VettedHost) -> tuple[str, socket.socket]:
        """A socket on which the receiver is spoken to, and the address that it is connected to."""
        if self._egress is None:
            return await self._dial(host, url.port)
        with contextlib.ExitStack() as held, self._egress.blamed():
            address, dialled = await self._dial(host, self._egress.port)
            held.callback(dialled.close)
            if url.is_tls:
                await self._egress.open_tunnel(dialled, url, within_s=self._connect_s)
            held.pop_all()
            return address, dialled

    async def _dial(self, host: VettedHost, port: int) -> tuple[str, socket.socket]:
        """A connected socket to the first address that takes one; each that is left has an equal part of the time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._connect_s
        failure: OSError = TimeoutError()
        for i, address in enumerate(host.addresses):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            dialling = socket.socket(family, socket.SOCK_STREAM)
            try:
                dialling.setblocking(False)  # noqa: FBT003 - the only way that it can be called
                dialling.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                async with asyncio.timeout((until - loop.time()) / (len(host.addresses) - i)):
                    # The very address that was vetted: nothing is looked up again.
                    await loop.sock_connect(dialling, (address, port))
            except OSError as error:
                failure = error
                dialling.close()
            except asyncio.CancelledError:
                dialling.close()
                raise
            else:
                return address, dialling
        raise failure

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
            if not self._ssl_verify:
                self._tls.check_hostname = False
                self._tls.verify_mode = ssl.CERT_NONE
        return self._tls


class _ClosedWhileIdle(Exception):
    """The receiver closed an idle connection just before it was used: nothing of an answer came."""


class _StopParsing(Exception):
    """What comes from here on is not looked at."""


class _Connection(asyncio.Protocol):
    """One connection to a receiver, with one exchange at a time."""

    def __init__(self, connected: "set[_Connection]", address: str) -> None:
        self.is_usable = True
        self.address = address
        self.idle_since = 0.0
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connected = connected
        self._parser = httptools.HttpResponseParser(self)
        self._answered: asyncio.Future[HttpAnswer] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._retry_after: bytes | None = None

    @property
    def is_open(self) -> bool:
        return self.is_usable and not self._transport.is_closing()

    async def exchange(self, request: bytes, body: bytes, kept_bytes: int) -> HttpAnswer:
        loop = asyncio.get_running_loop()
        self._is_doubtful = self.idle_since > 0 and loop.time() - self.idle_since > _IDLE_DOUBT_S
        self._sent_bytes = len(body)
        self._kept_bytes = kept_bytes
        self._head_bytes = self._interims = 0
        self._has_head = self._is_whole = False
        self._timer = None
        self._begin_head()
        answered: asyncio.Future[HttpAnswer] = loop.create_future()
        self._answered = answered
        # One that waits for the end of its body is not usable, also when the caller gave up meanwhile.
        self.is_usable = False
        self._transport.writelines((request, body))
        try:
            return await answered
        except asyncio.CancelledError:
            self.cut()
            raise
        finally:
            self._answered = None
            self.idle_since = loop.time()

    def cut(self) -> None:
        self.is_usable = False
        self._transport.abort()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is one too, and does not say so.
        self._transport = cast("asyncio.WriteTransport", transport)
        self._connected.add(self)

    def data_received(self, data: bytes) -> None:
        if self._answered is None:
            # Nothing was asked.
            self.cut()
            return
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("it switched to another protocol")
        except httptools.HttpParserError as error:
            # It may also be that we stopped, and already know the outcome.
            if self._is_whole:
                self.is_usable = False
            else:
                self._fail(f"no HTTP answer: {error}")
        if not self._has_head and self._head_bytes > _HEAD_BYTES_MAX:
            self._fail(f"more than {_HEAD_BYTES_MAX} bytes of headers")
        elif self._has_head and not self._is_whole:
            self._wire_bytes_left -= len(data)
            if self._wire_bytes_left < 0:
                self._give_up_body()
            elif self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_BODY_S_MAX, self._give_up_body)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_usable = False
        self._connected.discard(self)
        if not self.lost.done():
            self.lost.set_result(None)
        if self._answered is None or self._answered.done():
            return
        if self._has_head:
            self._end(self._body if self._is_begun or not self._is_framed else [])
        elif self._is_doubtful and self._head_bytes == 0:
            self._answered.set_exception(_ClosedWhileIdle())
        else:
            self._fail("the connection was closed before an answer" if exc is None else str(exc))

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._is_whole:
            raise _StopParsing

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        if self._has_head:
            # A trailer.
            return
        if len(self._headers) < _HEADERS_KEPT_MAX:
            self._headers.append((name, value))
        if lowered == b"content-type":
            self._media = value.partition(b";")[0].strip().lower()
        elif lowered == b"retry-after":
            self._retry_after = value
        elif lowered in (b"content-length", b"transfer-encoding"):
            self._is_framed = True

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._status in _INTERIM:
            self._interims += 1
            if self._interims > _INTERIM_MAX:
                self._fail(f"more than {_INTERIM_MAX} interim answers")
                raise _StopParsing
            return
        if self._status not in STATUSES:
            self._fail(f"the status is {self._status:03}")
            raise _StopParsing
        self._has_head = True
        is_json = self._media == b"application/json" or self._media.endswith(b"+json")
        self._is_begun = self._kept_bytes > 0 or self._status not in _OK
        self._is_kept = is_json and not self._is_begun
        self._bytes_left = _BODY_BYTES_MAX
        if self._is_kept:
            # It names events that were sent, and is no longer than they were: reading it costs less than making them.
            self._bytes_left = max(_BODY_BYTES_MAX, min(ANSWER_BYTES_MAX, self._sent_bytes))
        self._wire_bytes_left = _FRAMING_MAX * self._bytes_left

    def on_body(self, chunk: bytes) -> None:
        if self._is_begun and self._begun_bytes_left > 0:
            self._body.append(chunk[: self._begun_bytes_left])
            self._begun_bytes_left -= len(chunk)
        self._bytes_left -= len(chunk)
        if self._bytes_left <= 0:
            self._give_up_body()
            raise _StopParsing
        if self._is_kept:
            self._body.append(chunk)

    def on_message_complete(self) -> None:
        if self._status in _INTERIM:
            self._begin_head()
            return
        # Without an end of its own the body goes on until the connection is closed.
        self.is_usable = self._parser.should_keep_alive() and self._transport.get_write_buffer_size() == 0
        self._end(self._body)

    def _begin_head(self) -> None:
        self._status = 0
        self._reason = self._media = b""
        self._retry_after = None
        # Of a body that is kept, all of it; of one that is begun, the beginning.
        self._is_framed = self._is_kept = self._is_begun = False
        self._begun_bytes_left = self._kept_bytes or ANSWER_BYTES_KEPT
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []

    def _give_up_body(self) -> None:
        """The status is known, which is what counts."""
        self._end(self._body if self._is_begun else [])

    def _end(self, body: list[bytes]) -> None:
        self._is_whole = True
        if self._timer is not None:
            self._timer.cancel()
        if self._answered is not None and not self._answered.done():
            later = self._retry_after.decode("latin-1") if self._retry_after is not None else None
            reason = _printable(self._reason[:_REASON_BYTES_MAX].decode(errors="replace"))
            headers = self._lines() if self._is_begun else ()
            self._answered.set_result(HttpAnswer(self._status, reason, later, b"".join(body), headers))

    def _lines(self) -> tuple[str, ...]:
        """The first headers, which may show why this was refused."""
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self._headers]
        return tuple(_printable(f"{name}: {value}"[:_HEADER_CHARS_MAX]) for name, value in pairs)

    def _fail(self, why: str) -> None:
        self._is_whole = True
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(AnswerBroken(why))
        self.cut()


def _printable(text: str) -> str:
    """Without control characters: it is shown to people, some of them at a terminal."""
    return (
        text
        if text.isprintable()
        else "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    )
