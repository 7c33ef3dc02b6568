"""Moments as people write them: ISO 8601, in UTC unless they name an offset."""

from datetime import UTC, datetime, timedelta

from doubledecker.errors import BadRequest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def parse(text: str, *, field: str = "the time") -> datetime:
    """A moment with a zone; raises BadRequest with how to write it."""
    try:
        found = datetime.fromisoformat(text.encode("ascii").decode())
        aware = found if found.tzinfo else found.replace(tzinfo=UTC)
        return aware.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise BadRequest(f"{field} is {text[:80]!r}; write it like 2026-11-15T11:00:00Z") from error


def to_ms(moment: datetime) -> int:
    """Milliseconds since 1970, the fraction cut off."""
    return (moment - _EPOCH) // _MS


def to_us(moment: datetime) -> int:
    """Microseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_ms(at_ms: int) -> datetime:
    return _EPOCH + at_ms * _MS


def to_text(moment: datetime) -> str:
    """A time as text: in UTC, to the millisecond, the rest cut off."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"
