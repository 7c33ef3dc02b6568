"""Moments: points in time as people write them."""

from datetime import UTC, datetime

from doubledecker.errors import BadRequest


def parse(text: str) -> datetime:
    """A time with or without its zone, UTC when it has none; raises BadRequest with how to write it."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadRequest(f"the time is {text[:80]!r}; write it like 2026-11-15T11:00:00Z") from error
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    try:
        return aware.astimezone(UTC)
    except OverflowError as error:
        raise BadRequest(f"the time is {text[:80]!r}; it lies outside of the years 1 to 9999 in UTC") from error
