"""The lease keeper: a process beside a consumer that extends the leases of the messages that the consumer holds.

It is a process of its own because a handler may hold the interpreter's lock for as long as it likes: no thread and no
task of the consumer could then say that the work goes on. It reads on its standard input, one line each,

    {…}                      first, once: where the bus is, how long leases are, where the mark is
    +[["id", attempt, n] …]  these came in hand, numbered in the order in which they will begin
    -[["id", attempt] …]     these are settled

and when that ends, the consumer has: what it still had in hand is given back at once, rather than when the leases end.
The mark is a number in memory that both share: the last message whose handler was called. What comes after it was not
attempted, and is given back uncounted: a message that kills its consumers spends no attempts of those behind it.

The file is run as a script with `-I -S`, so it imports only the standard library; the consumer next to Redis
uses it too (queues/lease_keeper_process.py).
"""

import contextlib
import http.client
import json
import mmap
import os
import signal
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit

READY = b"ready\n"
# The mark: the number of the last message that began.
MARK = struct.Struct("<Q")
# Twice in a third of the lease: what came in hand just after a look is seen by the next one, before that third is over.
_LOOKS_PER_LEASE = 6
# What is extended or given back by one call.
_CALL_MAX = 1_000
_PAUSE_S_MAX = 1.0
# After a crash the next consumer waits this long, so that a message that kills consumers does not do so in a row.
CRASH_DELAY_MS = 1_000
WHY_CRASHED = "the consumer died"
WHY_UNBEGUN = "not started"

Pair = tuple[str, int]


class LeaseExtender(Protocol):
    """How leases are extended; OSError means that the bus is away."""

    def extend(self, held: list[Pair]) -> None: ...

    def give_back(self, held: list[Pair], *, attempted: bool) -> None: ...

    def close(self) -> None: ...


class KeptLease:
    """What the consumer has in hand: since when, when it was last extended, and what of it has begun."""

    def __init__(self, *, lease_s: float, work_s_max: float, mark: Callable[[], int]) -> None:
        self._look_s = lease_s / _LOOKS_PER_LEASE
        self._work_s_max = work_s_max
        self._mark = mark
        self._lock = threading.Lock()
        self._numbers: dict[Pair, int] = {}
        self._since: dict[Pair, float] = {}
        self._extended: dict[Pair, float] = {}

    def take_in(self, line: bytes, now_s: float) -> None:
        """Take in what the consumer writes."""
        words = json.loads(line[1:])
        with self._lock:
            if line[:1] == b"+":
                for id_, attempt, number in words:
                    self._numbers[id_, attempt] = number
                    self._since[id_, attempt] = now_s
            else:
                self._forget((id_, attempt) for id_, attempt in words)

    def due(self, now_s: float) -> list[Pair]:
        """What has to be extended now; work that takes longer than it may is left to its lease."""
        before_s, began_s = now_s - self._look_s, now_s - self._work_s_max
        with self._lock:
            return [
                pair
                for pair, since_s in self._since.items()
                if self._extended.get(pair, since_s) <= before_s and since_s > began_s
            ]

    def stuck(self, now_s: float) -> list[Pair]:
        """What has waited for its handler longer than a handler may take, and is in hand no longer."""
        began_s = now_s - self._work_s_max
        with self._lock:
            mark = self._mark()
            stuck = [pair for pair, since_s in self._since.items() if since_s <= began_s and self._numbers[pair] > mark]
            self._forget(stuck)
        return stuck

    def extended(self, held: Iterable[Pair], now_s: float) -> None:
        """Note that these have a new lease since then."""
        with self._lock:
            self._extended.update({pair: now_s for pair in held if pair in self._since})

    def all(self) -> list[Pair]:
        with self._lock:
            return list(self._numbers)

    def begun(self) -> set[Pair]:
        """Those whose handlers were called."""
        with self._lock:
            mark = self._mark()
            return {pair for pair, number in self._numbers.items() if number <= mark}

    def _forget(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            self._numbers.pop(pair, None)
            self._since.pop(pair, None)
            self._extended.pop(pair, None)


def beat(words: BinaryIO, say: BinaryIO, open_lease: Callable[[dict[str, Any]], LeaseExtender]) -> None:
    """Extend what the consumer holds until it is gone; then give back what it held."""
    # A service manager may signal all processes of a service; this one ends when the consumer has, not before.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    greeting = json.loads(words.readline() or b"{}")
    if not greeting:
        return
    lease_s = greeting["lease_ms"] / 1000
    held = KeptLease(lease_s=lease_s, work_s_max=greeting["work_s_max"], mark=_mark_in(greeting["mark"]))
    ended = threading.Event()
    threading.Thread(target=_listen, args=(words, held, ended), daemon=True).start()
    lease = open_lease(greeting)
    say.write(READY)
    say.flush()
    parent = os.getppid()
    look_s = lease_s / _LOOKS_PER_LEASE
    # A process that replaces a heartbeat that died gets old work at once.
    wait_s = look_s if _extend(held.all(), held, lease) else 0.0
    # A child that the consumer forked may keep our input open after its death; our parent's id shows it.
    while not ended.wait(wait_s) and os.getppid() == parent:
        is_done = _extend(held.due(time.monotonic()), held, lease)
        _give_back(held.stuck(time.monotonic()), lease, attempted=False)
        wait_s = look_s if is_done else min(look_s / 2, _PAUSE_S_MAX)
    begun = held.begun()
    _give_back([pair for pair in held.all() if pair not in begun], lease, attempted=False)
    _give_back(list(begun), lease, attempted=True)
    lease.close()


def _mark_in(file: int) -> Callable[[], int]:
    """How to read the mark in a file of the consumer's."""
    memory = mmap.mmap(file, MARK.size, access=mmap.ACCESS_READ)
    return lambda: int(MARK.unpack_from(memory)[0])


def _listen(words: BinaryIO, held: KeptLease, ended: threading.Event) -> None:
    for line in words:
        # Half a line is what a consumer was saying when it was killed.
        if line.endswith(b"\n"):
            held.take_in(line, time.monotonic())
    ended.set()


def _give_back(held: list[Pair], lease: LeaseExtender, *, attempted: bool) -> None:
    for start in range(0, len(held), _CALL_MAX):
        with contextlib.suppress(OSError):  # then their leases end by themselves
            lease.give_back(held[start : start + _CALL_MAX], attempted=attempted)


def _extend(due: list[Pair], held: KeptLease, lease: LeaseExtender) -> bool:
    """Extend what is due; returns whether the bus answered."""
    for start in range(0, len(due), _CALL_MAX):
        part = due[start : start + _CALL_MAX]
        asked_s = time.monotonic()
        try:
            lease.extend(part)
        except OSError:
            return False
        held.extended(part, asked_s)
    return True


class HttpLease:
    """Extends over HTTP, on a connection that is kept."""

    def __init__(self, greeting: dict[str, Any]) -> None:
        parts = urlsplit(greeting["url"])
        self._path = f"{parts.path.rstrip('/')}/queues/{greeting['queue']}"
        self._lease_ms = greeting["lease_ms"]
        self._headers = {"Authorization": f"Bearer {greeting['token']}", "Content-Type": "application/json"}
        # An answer that comes later than a third of the lease would be of no use.
        timeout_s = max(1.0, self._lease_ms / 3000)
        host, port = parts.hostname or "", parts.port
        self._connection = (
            http.client.HTTPSConnection(host, port, timeout=timeout_s, context=ssl.create_default_context())
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=timeout_s)
        )

    def extend(self, held: list[Pair]) -> None:
        self._post("extend", {"messages": _named(held), "lease_ms": self._lease_ms})

    def give_back(self, held: list[Pair], *, attempted: bool) -> None:
        if attempted:
            self._post("nack", {"messages": _named(held), "delay_ms": CRASH_DELAY_MS, "why": WHY_CRASHED})
        else:
            messages = [{**each, "attempted": False} for each in _named(held)]
            self._post("nack", {"messages": messages, "why": WHY_UNBEGUN})

    def close(self) -> None:
        self._connection.close()

    def _post(self, verb: str, body: dict[str, Any]) -> None:
        text = json.dumps(body)
        # The server may have closed a connection that was idle; the second try is on a new one.
        for is_last in (False, True):
            try:
                self._connection.request("POST", f"{self._path}/{verb}", text, self._headers)
                answer = self._connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if is_last:
                    raise OSError(str(error)) from error
            else:
                break
        if answer.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
            raise OSError(answer.status, answer.reason)


def _named(held: list[Pair]) -> list[dict[str, Any]]:
    return [{"id": id_, "attempt": attempt} for id_, attempt in held]


if __name__ == "__main__":
    beat(sys.stdin.buffer, sys.stdout.buffer, HttpLease)
