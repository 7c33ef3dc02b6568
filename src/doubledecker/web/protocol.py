"""uvicorn's HTTP protocol with bounds on the request head, so that no client holds a connection or memory.

Two ideas keep it nearly free on the fast path:

1. Waiting. A connection waits for its client when it has just been opened, or when bytes have come and no
   request is being answered. A complete head ends the wait. The clock is read only when a read leaves the
   connection waiting, and one timer a connection looks at it: it fires no later than the wait's end, and sets
   itself again only while there is a wait. A client whose requests come whole never sets it after the first.
2. Framing. All bytes but a body's are framing: request line, headers, chunk sizes, trailers. The parser keeps
   what it has not finished, so framing may run to `head_bytes_max` before a head is complete or body comes.
   Longer reads are fed in pieces of what is left. A head that starts in the middle of a piece is counted from
   the next piece on: it may reach twice the bound, but the end of a body never counts against it.

An idle connection between requests stays uvicorn's business (`timeout_keep_alive`), a slow body the app's.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from doubledecker import log

HEAD_S_MAX = 10.0  # a head is one or two packets; even a lost packet is sent again well within this
HEAD_BYTES_MAX = 32 * 1024  # as nginx has it by default, in four buffers
CONNECTIONS_MAX = 2_000  # each holds some 20 KB
HEADERS_MAX = 100  # as Apache has it by default; our clients send about ten

# How long a refused client may go on sending before the connection is torn down. Closing at once would reset
# the connection under the client, which then often sees no answer at all.
LINGER_S = 2.0
# The name under which an app finds how to cut its connection.
ABORT = "doubledecker.abort"

_log = log.get("web")


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer given before there is a request to hand to the app, as problem details (RFC 9457)."""

    title: str
    status: int
    detail: str
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def render(self, default_headers: list[tuple[bytes, bytes]]) -> bytes:
        problem = {"type": "about:blank", "title": self.title, "status": self.status, "detail": self.detail}
        body = json.dumps(problem).encode()
        headers = [
            *default_headers,
            (b"content-type", b"application/problem+json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *self.headers,
        ]
        lines = [b"%s: %s\r\n" % header for header in headers]
        return b"".join([STATUS_LINE[self.status], *lines, b"\r\n", body])


class GuardedProtocol(HttpToolsProtocol):
    """One connection with a bounded request head; see `guarded` to choose the bounds."""

    head_s_max: float = HEAD_S_MAX
    head_bytes_max: int = HEAD_BYTES_MAX
    headers_max: int = HEADERS_MAX
    connections_max: int = CONNECTIONS_MAX

    _framing_bytes: int = 0
    _waiting_since_s: float | None = None
    _timer: asyncio.TimerHandle | None = None
    _refusal: Refusal | None = None
    _is_over: bool = False
    _is_surplus: bool = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        # Decided once, so that those who came first are served, however many come after.
        self._is_surplus = len(self.connections) > self.connections_max
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if len(data) > self.head_bytes_max - self._framing_bytes:
            self._receive_in_pieces(data)
            return
        self._framing_bytes += len(data)
        super().data_received(data)
        if not _is_answering(self.cycle):
            self._wait()

    def on_headers_complete(self) -> None:
        self._framing_bytes = 0
        self._waiting_since_s = None
        if len(self.headers) > self.headers_max:
            self._refusal = _too_many(len(self.headers), headers_max=self.headers_max)
            # The parser stops at an error and uvicorn then calls send_400_response.
            raise httptools.HttpParserError(self._refusal.detail)
        if self._is_surplus:
            self._refusal = _too_busy(len(self.connections), connections_max=self.connections_max)
            raise httptools.HttpParserError(self._refusal.detail)
        super().on_headers_complete()
        # For an answer without end: closing waits for the client to read what is under way, and it may never do so.
        self.scope["extensions"] = {ABORT: {"call": self.transport.abort}}

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or Refusal("Bad request", 400, msg))

    def _receive_in_pieces(self, data: bytes) -> None:
        start = 0
        while start < len(data) and not self._is_over:
            room = self.head_bytes_max - self._framing_bytes
            if room == 0:
                seen = self._framing_bytes + len(data) - start
                self._refuse(_too_long(seen, head_bytes_max=self.head_bytes_max))
                return
            self.data_received(data[start : start + room])
            start += room

    def _wait(self) -> None:
        if self._waiting_since_s is None and not self._is_over:
            self._waiting_since_s = self.loop.time()
            if self._timer is None:
                self._arm(self.head_s_max)

    def _arm(self, delay_s: float) -> None:
        self._timer = self.loop.call_later(delay_s, self._look_at_clock)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at_clock(self) -> None:
        self._timer = None
        if self._waiting_since_s is None or self.transport.is_closing():
            return
        left_s = self._waiting_since_s + self.head_s_max - self.loop.time()
        if left_s > 0:
            self._arm(left_s)
        elif _is_head_open(self.scope, self.cycle):
            self._refuse(_too_slow(self._framing_bytes, head_s_max=self.head_s_max))
        else:
            # The client has not begun a request. A browser's spare connection would take a 408 for the answer
            # to the request it is about to send.
            self._is_over = True
            self.transport.close()

    def _refuse(self, refusal: Refusal) -> None:
        self._is_over = True
        _log.info("head.refused", status=refusal.status, why=refusal.detail, client=self.client and self.client[0])
        cycle = self.cycle
        if not _is_answering(cycle):
            self._answer(refusal)
        elif not cycle.more_body:
            # The fault is in what follows a good request: that one still gets its answer, and then the end.
            cycle.keep_alive = False
        elif cycle.response_started or self.pipeline:
            self.transport.abort()
        else:
            cycle.disconnected = True
            cycle.message_event.set()
            self._answer(refusal)

    def _answer(self, refusal: Refusal) -> None:
        self._disarm()
        self.transport.write(refusal.render(self.server_state.default_headers))
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._timer = self.loop.call_later(LINGER_S, self.transport.abort)
        else:
            self.transport.close()


def guarded(
    *,
    head_s_max: float = HEAD_S_MAX,
    head_bytes_max: int = HEAD_BYTES_MAX,
    headers_max: int = HEADERS_MAX,
    connections_max: int = CONNECTIONS_MAX,
) -> type[HttpToolsProtocol]:
    """The protocol class with these bounds, for uvicorn's `http` setting."""
    bounds = {
        "head_s_max": head_s_max,
        "head_bytes_max": head_bytes_max,
        "headers_max": headers_max,
        "connections_max": connections_max,
    }
    return cast("type[HttpToolsProtocol]", type("GuardedProtocol", (GuardedProtocol,), bounds))


# uvicorn types `cycle` and `scope` as always there, yet both are None until the first request.


def _is_answering(cycle: RequestResponseCycle | None) -> bool:
    return cycle is not None and not cycle.response_complete


def _is_head_open(scope: object | None, cycle: RequestResponseCycle | None) -> bool:
    # A request has its scope from the first byte, and its cycle from the end of the head.
    return scope is not None and (cycle is None or cycle.scope is not scope)


def _too_slow(seen_bytes: int, *, head_s_max: float) -> Refusal:
    detail = f"{seen_bytes} bytes of a request head came, and no end of it; {head_s_max:g} s are allowed"
    return Refusal("Request timeout", 408, detail)


def _too_long(seen_bytes: int, *, head_bytes_max: int) -> Refusal:
    detail = f"{seen_bytes} bytes came without the end of the headers; at most {head_bytes_max} are allowed"
    return Refusal("Request header fields too large", 431, detail)


def _too_many(seen: int, *, headers_max: int) -> Refusal:
    detail = f"the request has {seen} headers; at most {headers_max} are allowed"
    return Refusal("Request header fields too large", 431, detail)


def _too_busy(seen: int, *, connections_max: int) -> Refusal:
    # uvicorn's own limit would answer as plain text, and counts the connection that asks against itself.
    detail = f"{seen} connections are open; at most {connections_max} are served"
    return Refusal("Service unavailable", 503, detail, ((b"retry-after", b"1"),))
