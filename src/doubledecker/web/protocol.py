"""uvicorn's HTTP protocol with bounds on what a connection may send, so that no client holds memory or time.

Four ideas keep it nearly free on the fast path:

1. One request at a time. uvicorn parses every pipelined request of a read at once and queues them without a bound.
   Here the bytes after a complete request stay unparsed, and the connection is not read, until that request is
   answered and the client has taken the answers before it. Bytes are fed to the parser in pieces, cut so that the
   last byte of a request is always the last of a piece: at the declared length of a body, and after each empty line
   elsewhere, since an empty line ends every head and every chunked body. A cut too many does no harm.
2. Waiting. A connection waits for its client when it has just been opened, or when bytes have come and no
   request is being answered. A complete head ends the wait. The clock is read only when a read leaves the
   connection waiting, and one timer a connection looks at it: it fires no later than the wait's end, and sets
   itself again only while there is a wait. A client whose requests come whole never sets it after the first.
3. Framing. All bytes but a body's are framing: request line, headers, chunk sizes, trailers. The parser keeps
   what it has not finished, so a head may have `head_bytes_max`; and a body in chunks may have as much framing more
   than it has bytes.
4. Chunks. A body in chunks of a byte costs hundreds of times as much as a whole one. So connections with such bodies
   stand in line: in each round of the event loop one of them has a bounded piece parsed. The app runs before the first
   piece, and when it answers before the body has come, as to a request without a token, the rest is dropped unparsed.

An idle connection between requests is closed after uvicorn's `timeout_keep_alive`, by a timer of the same kind: uvicorn
sets one for each answer. A slow body is the app's business.
"""

import asyncio
from typing import cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from doubledecker import log
from doubledecker.web import head
from doubledecker.web.addresses import Addresses, IdleConnection, Vacancies
from doubledecker.web.flow import Flow, LingeringTransport
from doubledecker.web.head import HeadRefusal
from doubledecker.web.turns import TurnLine

HEAD_S_MAX = 10.0  # a head is one or two packets; even a lost packet is sent again well within this
HEAD_BYTES_MAX = 32 * 1024  # as nginx has it by default, in four buffers
CONNECTIONS_MAX = 2_000  # each holds some 20 KB
HEADERS_MAX = 100  # as Apache has it by default; our clients send about ten
UNREAD_S_MAX = 60.0  # as nginx has it (send_timeout): a client that takes nothing for so long is not there

# How long a refused client may go on sending before the connection is torn down. Closing at once would reset
# the connection under the client, which then often sees no answer at all.
LINGER_S = 2.0
# The name under which an app finds how to cut its connection.
ABORT = "doubledecker.abort"
# The name under which it finds how to take a body that has come whole.
BODY = "doubledecker.body"
# The name under which it finds how to send an answer that it has whole.
ANSWER = "doubledecker.answer"

_NEWLINE = b"\r\n"
_EMPTY_LINE = b"\r\n\r\n"
# A turn of a body in chunks ends after so many bytes, or chunks and pieces: under a millisecond at the worst.
_TURN_BYTES = 32 * 1024
_TURN_STEPS = 500
# What the parser is fed at once of such a body; some 700 chunks of a byte.
_PIECE_BYTES = 4 * 1024
# Feeding a piece costs as much as framing of so many bytes. Empty lines in a body cut it into many.
_PIECE_FRAMING_BYTES = 16

# A larger body is not copied to make one write of it and its head: of megabytes that takes milliseconds.
_COPIED_BYTES = 64 * 1024

# Anyone may send what is refused, as fast as they can; the log gets so many lines a second.
_LOG_S = 0.1

_log = log.get("web")


def _ignore(*_: object) -> None:
    """What is asked of a connection that is gone."""


_GONE: dict[str, dict[object, object]] = {name: {"call": _ignore} for name in (ABORT, BODY, ANSWER)}


class RefusalLog:
    """Logs refused heads, some of them: each line says how many were refused unlogged since the last."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._unlogged = 0

    def note(self, refusal: HeadRefusal, client: str | None, *, now_s: float) -> None:
        if now_s < self._next_s:
            self._unlogged += 1
            return
        _log.info("head.refused", status=refusal.status, why=refusal.detail, client=client, unlogged=self._unlogged)
        self._next_s, self._unlogged = now_s + _LOG_S, 0


class GuardedProtocol(HttpToolsProtocol):
    """One connection with a bounded request head; see `guarded` to choose the bounds."""

    head_s_max: float = HEAD_S_MAX
    head_bytes_max: int = HEAD_BYTES_MAX
    headers_max: int = HEADERS_MAX
    connections_max: int = CONNECTIONS_MAX
    unread_s_max: float = UNREAD_S_MAX
    addresses: Addresses = Addresses(CONNECTIONS_MAX)
    refusals: RefusalLog = RefusalLog()
    chunk_line: TurnLine = TurnLine()
    vacancies: Vacancies = Vacancies()

    _unparsed: bytes = b""
    _parsed_to: int = 0
    _body_left: int = 0
    _framing_bytes: int = 0
    _is_chunked: bool = False
    _chunk_steps: int = 0
    _keeps_alive: bool = True
    _waiting_since_s: float | None = None
    _timer: asyncio.TimerHandle | None = None
    _idle_since_s: float = 0.0
    _unread_timer: asyncio.TimerHandle | None = None
    _refusal: HeadRefusal | None = None
    _is_over: bool = False
    _is_surplus: bool = False
    _address: str = ""
    _is_crowding: bool = False
    _extensions: dict[str, dict[object, object]]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self.flow = self._flow = Flow(transport)
        # Those who came first are served, however many come after, unless they ask for nothing.
        self._is_surplus = len(self.connections) > self.connections_max
        self._address = self.addresses.enter(self.client[0] if self.client else "")
        self._is_crowding = self.addresses.open(self._address) > self.addresses.most
        # The first is for an answer without end: closing waits for the client to read what is under way, and it may
        # never do so.
        self._extensions = {
            ABORT: {"call": transport.abort},
            BODY: {"call": self._take_body},
            ANSWER: {"call": self._send_whole},
        }
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        if self._address:
            self.addresses.leave(self._address)
            self._address = ""
        self._disarm()
        self._unset_keepalive_if_required()
        self._stop_unread_timer()
        # A request may still be under way; bound methods would keep this connection in a cycle.
        self._extensions.update(_GONE)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        self._unparsed = self._unparsed[self._parsed_to :] + data if self._unparsed else data
        self._parsed_to = 0
        self._parse()

    def on_headers_complete(self) -> None:
        self._framing_bytes = 0
        self._waiting_since_s = None
        fields = dict(self.headers)
        self._refusal = self._refuse_head(fields)
        if self._refusal is not None:
            # The parser stops at an error, and `_feed` then answers with the refusal.
            raise httptools.HttpParserError(self._refusal.detail)
        self._body_left = head.body_bytes(fields)
        super().on_headers_complete()
        self.scope["extensions"] = self._extensions
        # The parser reports trailers as headers. They go to a list that nobody reads: a trailer authenticates no one.
        self.headers = []
        if b"transfer-encoding" in fields:
            self._begin_chunks()

    def on_body(self, body: bytes) -> None:
        if self._is_chunked:
            self._chunk_steps += 1
            # Counted as framing with the piece that it came in, and it makes room for as much.
            self._framing_bytes -= 2 * len(body)
        super().on_body(body)

    def shutdown(self) -> None:
        """As uvicorn has it, also where the answer's connection is not decided yet."""
        self._keeps_alive = False
        super().shutdown()

    def on_response_complete(self) -> None:
        """As uvicorn has it, but for the timer, and for requests that it would have queued."""
        self.server_state.total_requests += 1
        self._framing_bytes = 0
        if self._is_over or self.transport.is_closing():
            return
        self.flow.resume_reading()
        self._idle_since_s = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._arm_idle(self.timeout_keep_alive)
        if self._unparsed:
            self._parse()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it has been idle for its time; else look again when it may have been."""
        is_idle = self._waiting_since_s is None and not _is_answering(self.cycle)
        left_s = self._idle_since_s + self.timeout_keep_alive - self.loop.time()
        if is_idle and left_s <= 0:
            super().timeout_keep_alive_handler()
        else:
            self._arm_idle(left_s if left_s > 0 else self.timeout_keep_alive)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(self.unread_s_max, self._cut_unread)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread_timer()
        self._parse_on()

    def _take_body(self) -> bytes | None:
        """The whole body as `receive` would give it, but at once; None when that has to wait, or to answer first."""
        cycle = self.cycle
        if cycle.more_body or cycle.disconnected or cycle.waiting_for_100_continue:
            return None
        self.flow.resume_reading()
        cycle.message_event.clear()
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def _send_whole(self, status: int, headers: head.Headers, body: bytes) -> None:
        """Send an answer, but to HEAD, in one write if it is not large; uvicorn writes the head and the body apart."""
        cycle = self.cycle
        if cycle.disconnected:
            return
        closing = [] if cycle.keep_alive else [(b"connection", b"close")]
        lines = [b"%b: %b\r\n" % field for field in (*self.server_state.default_headers, *headers, *closing)]
        cycle.response_started = cycle.response_complete = True
        started = b"".join([STATUS_LINE[status], *lines, _NEWLINE])
        if len(body) > _COPIED_BYTES:
            self.transport.write(started)
            self.transport.write(body)
        else:
            self.transport.write(started + body)
        cycle.message_event.set()
        if closing:
            cycle.transport.close()
        cycle.on_response()

    def _refuse_head(self, fields: dict[bytes, bytes]) -> HeadRefusal | None:
        if len(self.headers) > self.headers_max:
            return head.too_many(len(self.headers), headers_max=self.headers_max)
        if self._is_surplus and not self._has_room():
            return head.too_busy(len(self.connections), connections_max=self.connections_max)
        if self._is_crowding:
            return head.too_many_of_address(self.addresses.open(self._address), most=self.addresses.most)
        parser = self.parser
        return head.refuse(self.headers, fields, parser.get_http_version(), is_upgrade=parser.should_upgrade())

    def _has_room(self) -> bool:
        """Whether this connection, which has a request, can be served; others that have none make room for it."""
        most = self.connections_max
        if len(self.connections) > most:
            others = (each for each in self.connections if isinstance(each, GuardedProtocol) and each is not self)
            idle = (each.as_idle for each in others if not _is_answering(each.cycle))
            self.vacancies.make(idle, beyond=len(self.connections) - most, most=most, now_s=self.loop.time())
        self._is_surplus = len(self.connections) > most
        return not self._is_surplus

    @property
    def as_idle(self) -> IdleConnection:
        """It, as one that may be closed."""
        since_s = self._idle_since_s if self._waiting_since_s is None else self._waiting_since_s
        return IdleConnection(self.client[0] if self.client else "", since_s, self._leave)

    def _leave(self) -> None:
        self._end()
        # Its loop learns of the loss only a moment later; it must not count until then.
        self.connections.discard(self)
        self.transport.close()

    def _parse(self) -> None:
        """Feed the parser what has come, until a whole request is being answered, or a body in chunks begins."""
        while self._parsed_to < len(self._unparsed):
            if self.flow.write_paused or _is_whole(self.cycle):
                self._flow.hold()
                return
            if self._is_chunked:
                self._flow.hold()
                self.chunk_line.join(self._parse_chunks, self.loop)
                return
            start = self._parsed_to
            self._parsed_to = end = self._piece_end(start)
            if end == start:
                seen = self._framing_bytes + len(self._unparsed) - start
                self._refuse(head.too_long(seen, head_bytes_max=self.head_bytes_max))
                return
            self._feed(self._unparsed[start:end])
        self._unparsed, self._parsed_to = b"", 0
        self._flow.release()
        if not _is_answering(self.cycle):
            self._wait()

    def _parse_chunks(self) -> None:
        """Take a turn: feed the parser some of a body in chunks, then stand in line again for the rest."""
        turn_end = min(self._parsed_to + _TURN_BYTES, len(self._unparsed))
        self._chunk_steps = 0
        while self._is_chunked and self._parsed_to < turn_end and self._chunk_steps < _TURN_STEPS:
            self._feed_chunks()
        self._parse_on()

    def _feed_chunks(self) -> None:
        start = self._parsed_to
        self._parsed_to = end = min(_framing_end(self._unparsed, start), start + _PIECE_BYTES)
        self._framing_bytes += end - start + _PIECE_FRAMING_BYTES
        self._chunk_steps += 1
        self._feed(self._unparsed[start:end])
        if not self._is_over and not self.cycle.more_body:
            self._end_chunks()
        elif self._framing_bytes > self.head_bytes_max:
            self._refuse(head.too_finely_cut(head_bytes_max=self.head_bytes_max))

    def _begin_chunks(self) -> None:
        self._is_chunked = True
        self._keeps_alive = self.cycle.keep_alive
        # An answer that comes before the body's end is the connection's last.
        self.cycle.keep_alive = False
        self.cycle.transport = LingeringTransport(self.transport, self._linger)

    def _end_chunks(self) -> None:
        self._is_chunked = False
        self.cycle.transport = self.transport
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._keeps_alive

    def _parse_on(self) -> None:
        if self._unparsed:
            self._parse()

    def _piece_end(self, start: int) -> int:
        """Where to cut, so that no request ends inside the piece; at `start` itself when the framing is too long."""
        if self._body_left:
            end = min(start + self._body_left, len(self._unparsed))
            self._body_left -= end - start
            return end
        room = self.head_bytes_max - self._framing_bytes
        end = min(_framing_end(self._unparsed, start), start + room)
        self._framing_bytes += end - start
        return end

    def _feed(self, piece: bytes) -> None:
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            return  # an upgrade is an offer, and none is taken here: the request is answered as it is
        except httptools.HttpParserError as error:
            self._refuse(self._refusal or head.malformed(str(error.__context__ or error)))

    def _wait(self) -> None:
        if self._waiting_since_s is None and not self._is_over:
            self._waiting_since_s = self.loop.time()
            if self._timer is None:
                self._arm(self.head_s_max)

    def _arm(self, delay_s: float) -> None:
        self._timer = self.loop.call_later(delay_s, self._look_at_clock)

    def _arm_idle(self, delay_s: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(delay_s, self.timeout_keep_alive_handler)

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
            self._refuse(head.too_slow(self._framing_bytes, head_s_max=self.head_s_max))
        else:
            # The client has not begun a request. A browser's spare connection would take a 408 for the answer
            # to the request it is about to send.
            self._end()
            self.transport.close()

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _cut_unread(self) -> None:
        self._unread_timer = None
        _log.info("answer.unread", waited_s=self.unread_s_max, client=self.client and self.client[0])
        self._end()
        self.transport.abort()

    def _end(self) -> None:
        self._is_over = True
        self._unparsed, self._parsed_to = b"", 0
        if self._is_chunked:
            self._end_chunks()

    def _refuse(self, refusal: HeadRefusal) -> None:
        self._end()
        self.refusals.note(refusal, self.client and self.client[0], now_s=self.loop.time())
        cycle = self.cycle
        if not _is_answering(cycle):
            self._answer(refusal)
        elif cycle.response_started:
            self.transport.abort()
        else:
            cycle.disconnected = True
            cycle.message_event.set()
            self._answer(refusal)

    def _answer(self, refusal: HeadRefusal) -> None:
        self.transport.write(refusal.render(self.server_state.default_headers))
        self._linger()

    def _linger(self) -> None:
        """Close the connection once the client has had time to take its answer; what still comes is dropped."""
        self._end()
        self._disarm()
        self._flow.release()
        self._flow.resume_reading()
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
    unread_s_max: float = UNREAD_S_MAX,
    addresses: Addresses | None = None,
) -> type[HttpToolsProtocol]:
    """The protocol class with these bounds, for uvicorn's `http` setting."""
    bounds = {
        "head_s_max": head_s_max,
        "head_bytes_max": head_bytes_max,
        "headers_max": headers_max,
        "connections_max": connections_max,
        "unread_s_max": unread_s_max,
        "addresses": addresses or Addresses(connections_max),
        "refusals": RefusalLog(),
        "chunk_line": TurnLine(),
        "vacancies": Vacancies(),
    }
    return cast("type[HttpToolsProtocol]", type("GuardedProtocol", (GuardedProtocol,), bounds))


def _framing_end(received: bytes, start: int) -> int:
    """Just after the next empty line, or the end of what was received."""
    # The first bytes may end an empty line that began with the last bytes of the piece before.
    mark = b"\n" if received[start] in _NEWLINE else _EMPTY_LINE
    found = received.find(mark, start)
    return len(received) if found < 0 else found + len(mark)


# uvicorn types `cycle` and `scope` as always there, yet both are None until the first request.


def _is_answering(cycle: RequestResponseCycle | None) -> bool:
    return cycle is not None and not cycle.response_complete


def _is_whole(cycle: RequestResponseCycle | None) -> bool:
    """Whether a request has come to its end and is being answered."""
    return cycle is not None and not cycle.response_complete and not cycle.more_body


def _is_head_open(scope: object | None, cycle: RequestResponseCycle | None) -> bool:
    # A request has its scope from the first byte, and its cycle from the end of the head.
    return scope is not None and (cycle is None or cycle.scope is not scope)
