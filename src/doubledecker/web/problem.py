"""Answers that report what went wrong: `application/problem+json` (RFC 9457), one shape for every error."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
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
    TooOften,
    UnknownMedia,
)
from doubledecker.model.schema import Shape, one_of
from doubledecker.web.shapes import Memory, RefusedEvent

# Long enough for a restart of Redis, short enough that publishers do not pile up events.
_RETRY_AFTER_S = "2"


class Problem(Shape):
    """Problem details (RFC 9457)."""

    type: Annotated[str, one_of(["about:blank"])]
    title: Annotated[str, Meta(min_length=1)]
    status: Annotated[int, Meta(ge=400, le=599)]
    detail: Annotated[str, Meta(min_length=1, description="What was seen, and what is allowed")]
    refused: list[RefusedEvent] | UnsetType = UNSET
    checks: dict[str, str] | UnsetType = UNSET
    memory: Memory | UnsetType = UNSET


def response(error: DoubledeckerError, headers: Sequence[tuple[str, str]] = ()) -> Response:
    """The answer to a request that failed; an error without an answer of its own is a bug, and raised again."""
    if isinstance(error, Refused):
        closing = [("Connection", "close")] if isinstance(error, TooLarge | RequestTimedOut) else []
        waiting = [("Retry-After", _RETRY_AFTER_S)] if isinstance(error, QueueFull | TooManyAtOnce) else []
        if isinstance(error, QuotaExceeded | TooOften) and error.retry_after_s:
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
    *,
    refused: list[RefusedEvent] | UnsetType = UNSET,
    checks: dict[str, str] | UnsetType = UNSET,
    memory: str | UnsetType = UNSET,
) -> Response:
    """A problem as JSON."""
    body = Problem("about:blank", title, status, detail, refused, checks, memory)
    answer = Response(msgspec.json.encode(body), status_code=status, media_type="application/problem+json")
    for name, value in headers:
        answer.headers.append(name, value)
    return answer
