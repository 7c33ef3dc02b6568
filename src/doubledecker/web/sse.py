"""Server-sent events: how events, gaps, ends and heartbeats are written on a stream.

Every frame but the last carries the position after it as its id, so that a browser, and any other client, resumes with
`Last-Event-ID` exactly where it was. A heartbeat carries it too: a listener to a rare pattern moves on with the
journal.
"""

import asyncio
from dataclasses import dataclass
from enum import Enum

import msgspec

from doubledecker.model.glob import Glob
from doubledecker.model.position import Position
from doubledecker.model.reserved import is_within
from doubledecker.model.scopes import UNLIMITED, Scopes
from doubledecker.model.token import ROOT_NAME

CONTENT_TYPE = "text/event-stream; charset=utf-8"
# A client that lost its stream waits this long before it connects again.
_RETRY_MS = 1_000


class Why(Enum):
    """Why events are missing: cut from the journal before they were read, or the journal itself began anew."""

    TRIMMED = "trimmed"
    RESET = "reset"


@dataclass(frozen=True)
class Gap:
    """What a listener cannot get any more, of one partition: the events after one place up to another."""

    partition: int
    after: Position
    to: Position
    why: Why = Why.TRIMMED


class Reason(Enum):
    """Why the bus ends a stream."""

    SLOW = "slow"
    STALLED = "stalled"
    GAP = "gap"
    REVOKED = "revoked"
    CHANGED = "changed"
    STOPPING = "stopping"


_DETAIL = {
    Reason.SLOW: "events came faster than they were read; connect again to go on from the last one",
    Reason.STALLED: "nothing was read for too long",
    Reason.GAP: "what follows the last event is no longer in the journal, and strict=1 was asked for",
    Reason.REVOKED: "the token was revoked, or has expired",
    Reason.CHANGED: "what the token may do was changed; connect again to go on from the last event",
    Reason.STOPPING: "this server stops; connect again to go on from the last event",
}


def event(position: str, line: bytes) -> bytes:
    return b"id: %b\ndata: %b\n\n" % (position.encode(), line)


def opening(position: str) -> bytes:
    """The first words: where the stream starts, for a client that is cut off before its first event."""
    return b"retry: %d\nid: %b\n\n" % (_RETRY_MS, position.encode())


def heartbeat(position: str) -> bytes:
    return b": heartbeat\nid: %b\n\n" % position.encode()


def gap(position: str, missing: Gap) -> bytes:
    data = {
        "partition": missing.partition,
        "after": str(missing.after),
        "to": str(missing.to),
        "why": missing.why.value,
    }
    return b"event: gap\nid: %b\ndata: %b\n\n" % (position.encode(), msgspec.json.encode(data))


def dropped(reason: Reason) -> bytes:
    """The last words; without an id, so that the last event's stays."""
    data = {"reason": reason.value, "detail": _DETAIL[reason]}
    return b"event: dropped\ndata: %b\n\n" % msgspec.json.encode(data)


# One who listens to a stream, as the feed sees it.


class Listener:
    """One who listens: a pattern, and a bounded buffer of frames on their way."""

    def __init__(
        self,
        pattern: Glob,
        *,
        buffer_bytes: int,
        is_strict: bool = False,
        client: str = "",
        scopes: Scopes = UNLIMITED,
    ) -> None:
        self.pattern = pattern
        self._scopes = scopes
        self.client = client
        self.is_strict = is_strict
        self.end: Reason | None = None
        self._buffer_bytes = buffer_bytes
        self._frames: list[bytes] = []
        self._bytes = 0
        self._has_news = asyncio.Event()
        self._must_go = asyncio.Event()

    def wants(self, routing_key: str) -> bool:
        """Whether events with this routing key fit its pattern, and are within what its token is limited to."""
        tenant, topic, _ = routing_key.split(":")
        return self.pattern.matches(routing_key) and is_within(self._scopes, topic, tenant)

    def may_see(self, owner: str) -> bool:
        """Whether it is this client's, or root's, as an event on a reserved topic demands."""
        return self.client in {owner, ROOT_NAME}

    def push(self, frame: bytes) -> None:
        """Put a frame into the buffer; when that is full, the listener is dropped instead."""
        if self.end is not None:
            return
        if self._frames and self._bytes + len(frame) > self._buffer_bytes:
            self.drop(Reason.SLOW)
            return
        self._frames.append(frame)
        self._bytes += len(frame)
        self._has_news.set()

    def drop(self, reason: Reason) -> None:
        """End it: what is in its buffer is let go, since it can be read again from the journal."""
        self.end = self.end or reason
        self._frames, self._bytes = [], 0
        self._has_news.set()

    def stop(self) -> None:
        """End it because the process ends; also one that was dropped already, and does not know it yet."""
        self.drop(Reason.STOPPING)
        self._must_go.set()

    async def until_stopped(self) -> None:
        await self._must_go.wait()

    async def take(self, *, wait_s: float) -> bytes:
        """All that is in the buffer; waits for something, and after a while returns nothing."""
        if not self._frames and self.end is None:
            try:
                async with asyncio.timeout(wait_s):
                    await self._has_news.wait()
            except TimeoutError:
                return b""
        frames, self._frames, self._bytes = self._frames, [], 0
        self._has_news.clear()
        return b"".join(frames)
