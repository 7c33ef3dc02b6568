"""The load generator: many connections, each with one request under way, over raw sockets in a process of its own.

It is started with a Spec as JSON. After warming up it prints `go`, and at the end a Load as JSON. A paced load does
not wait for answers: it sends `per_s` requests a second, each stamped with its moment, for the receiver to compare.
"""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import uvloop

from bench import events

_PACED_CONNECTIONS = 16  # at 50 a second, one that finds none free has waited for 300 ms


@dataclass(frozen=True)
class Spec:
    """What to send, and for how long: seconds or requests, whichever ends first."""

    port: int
    authorization: str
    kind: str = "topic"
    events_per_request: int = 1
    connections: int = 32
    warm_s: float = 1.0
    measure_s: float = 4.0
    requests_max: int = 10**9
    per_s: float = 0.0


@dataclass(frozen=True)
class Load:
    """What was answered in the measured time, and how fast."""

    requests: int
    failed: int
    seconds: float
    p50_ms: float
    p99_ms: float

    @property
    def per_s(self) -> float:
        return self.requests / self.seconds


class _Connection(asyncio.Protocol):
    """Sends a request, and tells when the whole answer has come; answers have a length or no body."""

    def __init__(self) -> None:
        self._buffer = b""
        self._sent_s = 0.0
        self._is_waiting = False
        self.answered = _ignore
        self.lost = _lost

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._is_waiting:
            self.lost()

    def send(self, request: bytes) -> None:
        self._is_waiting = True
        self._sent_s = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        if not end or len(body) < _length(head):
            return
        self._buffer = b""
        self._is_waiting = False
        self.answered(self, head[9:10] == b"2", time.perf_counter() - self._sent_s)

    def close(self) -> None:
        self._transport.close()


class _Closed:
    """A closed loop: every answer is followed by the next request, until time or requests run out."""

    def __init__(self, spec: Spec, requests: Iterator[bytes]) -> None:
        self._spec = spec
        self._requests = requests
        self._left = spec.requests_max
        self._under_way = 0
        self._end_s = 0.0
        self._done = asyncio.get_running_loop().create_future()
        self.took_s: list[float] = []
        self.failed = 0

    async def run(self, connections: list[_Connection], seconds: float) -> None:
        self._end_s = time.perf_counter() + seconds
        for connection in connections:
            connection.answered = self._answered
            connection.lost = self._lost
            if self._left > 0:
                self._next(connection)
        await self._done

    def _next(self, connection: _Connection) -> None:
        self._left -= 1
        self._under_way += 1
        connection.send(next(self._requests))

    def _answered(self, connection: _Connection, is_good: bool, took_s: float) -> None:
        self._under_way -= 1
        self.took_s.append(took_s)
        self.failed += not is_good
        if self._left > 0 and time.perf_counter() < self._end_s:
            self._next(connection)
        elif self._under_way == 0 and not self._done.done():
            self._done.set_result(None)

    def _lost(self) -> None:
        if not self._done.done():
            self._done.set_exception(ConnectionError("the server closed a connection under load"))


async def run(spec: Spec) -> Load:
    """Warm up, say `go`, and measure."""
    connections = await _connect(spec, _PACED_CONNECTIONS if spec.per_s else spec.connections)
    try:
        return await (_paced(spec, connections) if spec.per_s else _closed(spec, connections))
    finally:
        for connection in connections:
            connection.close()


async def _connect(spec: Spec, count: int) -> list[_Connection]:
    loop = asyncio.get_running_loop()
    pairs = [await loop.create_connection(_Connection, "127.0.0.1", spec.port) for _ in range(count)]
    return [connection for _, connection in pairs]


async def _closed(spec: Spec, connections: list[_Connection]) -> Load:
    ready = events.requests(spec.kind, authorization=spec.authorization, events_per_request=spec.events_per_request)
    requests = itertools.cycle(ready)
    if spec.warm_s:
        await _Closed(spec, requests).run(connections, spec.warm_s)
    print("go", flush=True)
    measured = _Closed(spec, requests)
    started_s = time.perf_counter()
    await measured.run(connections, spec.measure_s)
    return _load(measured.took_s, measured.failed, time.perf_counter() - started_s)


async def _paced(spec: Spec, connections: list[_Connection]) -> Load:
    print("go", flush=True)
    free = asyncio.Queue[_Connection]()
    took: list[float] = []
    failures: list[bool] = []

    def answered(connection: _Connection, is_good: bool, took_s: float) -> None:
        took.append(took_s)
        failures.append(not is_good)
        free.put_nowait(connection)

    for connection in connections:
        connection.answered = answered
        free.put_nowait(connection)
    started_s = time.perf_counter()
    for number in range(round(spec.per_s * spec.measure_s)):
        await asyncio.sleep(started_s + number / spec.per_s - time.perf_counter())
        connection = await free.get()
        body = events.encode(events.posted(number, sent_ns=time.monotonic_ns()))
        connection.send(events.request(f"/topics/{events.TOPIC}", body, authorization=spec.authorization))
    for _ in connections:
        await free.get()
    return _load(took, sum(failures), time.perf_counter() - started_s)


def _load(took_s: list[float], failed: int, seconds: float) -> Load:
    ordered = sorted(took_s)
    return Load(len(ordered), failed, seconds, percentile(ordered, 50) * 1000, percentile(ordered, 99) * 1000)


def percentile(ordered: list[float], percent: float) -> float:
    """The value that `percent` of them do not exceed; the list is sorted and not empty."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _length(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"content-length:")
    return int(rest.partition(b"\r")[0]) if found else 0


def _ignore(connection: _Connection, is_good: bool, took_s: float) -> None:
    """Answers count only while a loop listens."""


def _lost() -> None:
    raise ConnectionError("the server closed a connection that had a request under way")


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(run(Spec(**json.loads(sys.argv[1])))))), flush=True)
