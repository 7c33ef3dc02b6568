"""The receiver: the least an HTTP server can do with a batch, in a process of its own, so that it is never the limit.

`POST /` counts the events and answers 200. `POST /timed` also compares the moments in the events with its own clock,
which processes of one machine share. `POST /hang` is never answered, `POST /fail` with 500, `POST /refuse` with 400,
`POST /flood` with 500 and more of a body than anyone reads.
While the gate is shut, answers wait; `POST /open` sends them and starts the
count anew. `GET /tally` says what came since. It expects clients that do not pipeline.
"""

import asyncio
import json
import re
import time

import uvloop

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_ANSWERS = {
    b"POST /hang": b"",
    b"POST /fail": b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
    b"POST /flood": b"HTTP/1.1 500 Internal Server Error\r\n\r\n" + b"x" * 4_000_000,
    b"POST /refuse": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
}
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_SENT = re.compile(rb'"sent_ns":(\d+)')


class Tally:
    """What has come since the gate was opened."""

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self.held: list[asyncio.Transport] = []
        self.begin()

    def begin(self) -> None:
        self.started_s = self.last_s = time.monotonic()
        self.requests = 0
        self.events = 0
        self.lags_ms: list[float] = []

    def add(self, body: bytes) -> None:
        self.requests += 1
        self.events += body.count(b'"id":"')
        self.last_s = time.monotonic()

    def time(self, body: bytes) -> None:
        now_ns = time.monotonic_ns()
        self.lags_ms += [(now_ns - int(sent)) / 1e6 for sent in _SENT.findall(body)]

    def open(self) -> None:
        self.is_open = True
        self.begin()
        for transport in self.held:
            transport.write(_OK)
        self.held.clear()

    def encode(self) -> bytes:
        shown = {
            "requests": self.requests,
            "events": self.events,
            "timed": len(self.lags_ms),
            "held": len(self.held),
            "seconds": self.last_s - self.started_s,
            "lags_ms": self.lags_ms,
        }
        return json.dumps(shown).encode()


class _Connection(asyncio.Protocol):
    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._chunks: list[bytes] = []
        self._missing = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._missing > 0:
            self._chunks.append(data)
            self._missing -= len(data)
        else:
            data = b"".join([*self._chunks, data])
            self._chunks = [data]
            end = data.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(data, 0, end)
            self._missing = end + 4 + (int(length[1]) if length else 0) - len(data)
        if self._missing <= 0:
            request = b"".join(self._chunks)
            self._chunks = []
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        target = request[: request.index(b" HTTP")]
        if target == b"GET /tally":
            body = self._tally.encode()
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return
        if target == b"POST /open":
            self._tally.open()
            self._transport.write(_OK)
            return
        self._tally.add(request)
        if target == b"POST /timed":
            self._tally.time(request)
        if self._tally.is_open:
            self._transport.write(_ANSWERS.get(target, _OK))
        else:
            self._tally.held.append(self._transport)


async def _serve() -> None:
    tally = Tally(is_open=False)
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(tally), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve())
