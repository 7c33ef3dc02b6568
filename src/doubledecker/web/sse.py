"""Server-sent events: how events, gaps, ends and heartbeats are written on a stream.

Every frame but the last carries the position after it as its id, so that a browser, and any other client, resumes with
`Last-Event-ID` exactly where it was. A heartbeat carries it too: a listener to a rare pattern moves on with the
journal.
"""

from dataclasses import dataclass
from enum import Enum

import msgspec

from doubledecker.model.position import Place

CONTENT_TYPE = "text/event-stream; charset=utf-8"
# A client that lost its stream waits this long before it connects again.
_RETRY_MS = 1_000


class Why(Enum):
    """Why events are missing: cut from the journal before they were read, or the journal itself began anew."""

    TRIMMED = "trimmed"
    RESET = "reset"


@dataclass(frozen=True)
class Gap:
    """What a listener cannot be told any more, of one partition: the events after one place up to another."""

    partition: int
    after: Place
    to: Place
    why: Why = Why.TRIMMED


class Reason(Enum):
    """Why the bus ends a stream."""

    SLOW = "slow"
    STALLED = "stalled"
    GAP = "gap"
    REVOKED = "revoked"
    STOPPING = "stopping"


_DETAIL = {
    Reason.SLOW: "events came faster than they were read; connect again to go on from the last one",
    Reason.STALLED: "nothing was read for too long",
    Reason.GAP: "what follows the last event is no longer in the journal, and strict=1 was asked for",
    Reason.REVOKED: "the token was revoked",
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
    told = {
        "partition": missing.partition,
        "after": missing.after.text,
        "to": missing.to.text,
        "why": missing.why.value,
    }
    return b"event: gap\nid: %b\ndata: %b\n\n" % (position.encode(), msgspec.json.encode(told))


def dropped(reason: Reason) -> bytes:
    """The last words; without an id, so that the last event's stays."""
    told = {"reason": reason.value, "detail": _DETAIL[reason]}
    return b"event: dropped\ndata: %b\n\n" % msgspec.json.encode(told)
