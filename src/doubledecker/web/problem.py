"""Answers that say what went wrong: `application/problem+json` (RFC 9457), one shape for every error."""

from collections.abc import Mapping, Sequence

import msgspec
from starlette.responses import Response

from doubledecker.errors import (
    BusAway,
    DoubledeckerError,
    JournalFull,
    Overloaded,
    QueueFull,
    QuotaExceeded,
    Refused,
    RequestTimedOut,
    TooLarge,
    TooManyAtOnce,
    UnknownMedia,
)

# Long enough for a restart of Redis, short enough that publishers do not pile up events.
_RETRY_AFTER_S = "2"


def response(error: DoubledeckerError, headers: Sequence[tuple[str, str]] = ()) -> Response:
    """The answer to a request that failed; an error without an answer of its own is a bug, and raised again."""
    if isinstance(error, Refused):
        closing = [("Connection", "close")] if isinstance(error, TooLarge | RequestTimedOut) else []
        waiting = [("Retry-After", _RETRY_AFTER_S)] if isinstance(error, QueueFull | TooManyAtOnce) else []
        if isinstance(error, QuotaExceeded) and error.retry_after_s:
            waiting = [("Retry-After", str(error.retry_after_s))]
        taking = [("Accept-Encoding", error.accepted)] if isinstance(error, UnknownMedia) and error.accepted else []
        return plain(error.status, error.title, error.detail, [*headers, *closing, *waiting, *taking])
    if isinstance(error, BusAway | JournalFull | Overloaded):
        detail = error.detail if isinstance(error, BusAway) else str(error)
        return plain(503, "Service unavailable", detail, [*headers, ("Retry-After", _RETRY_AFTER_S)])
    raise error


def plain(
    status: int,
    title: str,
    detail: str,
    headers: Sequence[tuple[str, str]] = (),
    extra: Mapping[str, object] | None = None,
) -> Response:
    """A problem as JSON."""
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **(extra or {})}
    answer = Response(msgspec.json.encode(body), status_code=status, media_type="application/problem+json")
    for name, value in headers:
        answer.headers.append(name, value)
    return answer
