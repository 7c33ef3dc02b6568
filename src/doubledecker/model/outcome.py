"""The outcome of one attempt at a receiver."""

import errno
from dataclasses import dataclass
from enum import Enum

import msgspec

_GONE, _TOO_MANY, _UNAVAILABLE = 410, 429, 503


# Of answers; one with another status is broken.
STATUSES = range(100, 600)


class OutcomeKind(Enum):
    """How an attempt ended; the values appear in logs, counters and the journal."""

    DELIVERED = "delivered"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"
    UNREACHABLE = "unreachable"
    BROKEN = "broken"


# Answers that blame what was sent: malformed, in conflict, too large, of a wrong type, not to be processed.
_CONTENT_STATUSES = frozenset({400, 409, 413, 415, 422})
# Answers about address and credentials: most likely any other batch would have got the same.
_ADDRESS_STATUSES = frozenset({401, 403, 404, 405, 407, *range(300, 400)})
_PATIENCE_STATUSES = frozenset({_TOO_MANY, _UNAVAILABLE})


@dataclass(frozen=True)
class Outcome:
    """An attempt's end: `status` when there was an answer, `retry_after_ms` when it asked for patience.

    `answer` is the body of a 2xx that was JSON and not too long, for those who may fail single events with it; of
    another answer, its beginning, and `answer_headers` are some of its headers.
    """

    kind: OutcomeKind
    took_ms: int
    status: int | None = None
    retry_after_ms: int | None = None
    detail: str = ""
    answer: bytes = b""
    answer_headers: tuple[str, ...] = ()

    @property
    def is_delivered(self) -> bool:
        return self.kind is OutcomeKind.DELIVERED

    @property
    def blames_content(self) -> bool:
        """Whether it was refused for what was sent: another batch may fare better at once."""
        return self.status in _CONTENT_STATUSES

    @property
    def blames_address(self) -> bool:
        """Whether it was refused for where it was sent, or by whom."""
        return self.status in _ADDRESS_STATUSES

    @property
    def is_gone(self) -> bool:
        """Whether the receiver asks not to be called again."""
        return self.status == _GONE

    @property
    def acquits_content(self) -> bool:
        """Whether any other batch would have met the same end: nobody is there, or the receiver asks for patience."""
        is_unavailable = self.status == _UNAVAILABLE and self.patience_ms is not None
        return self.kind is OutcomeKind.UNREACHABLE or self.status in {_GONE, _TOO_MANY} or is_unavailable

    @property
    def patience_ms(self) -> int | None:
        """How long the receiver asks to be left alone, if it does."""
        return self.retry_after_ms if self.status in _PATIENCE_STATUSES else None


# Too many open files, in this process or on its machine; and no memory there for a socket.
_OWN_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def is_own_failure(error: OSError) -> bool:
    """Whether this machine could not even try to connect, which says nothing of the receiver."""
    return error.errno in _OWN_ERRNOS


# Why an event became a dead letter whose receiver answered with a 2xx.
NAMED = "named in `failed`"


class _Answer(msgspec.Struct, gc=False):
    """What a receiver may answer of single events in a 2xx."""

    failed: list[str] = []


_ANSWER = msgspec.json.Decoder(_Answer)


def failed_ids(answer: bytes) -> frozenset[str]:
    """The ids of events that a receiver took but could not use; an answer that says anything else fails none."""
    try:
        return frozenset(_ANSWER.decode(answer).failed) if answer else frozenset()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return frozenset()
