"""The delay that a dependency asks for: `Retry-After`, wherever its exception or its response carries it.

- `retry_after_s` or `retry_after`: seconds, or a timedelta;
- a header `Retry-After` in its `headers`, or in those of its `response` (as the exceptions of aiohttp, httpx, requests
  and urllib have them): seconds, or a date, which is compared with the header `Date` and else with our own clock.
"""

import math
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from email.utils import parsedate_to_datetime


def delay_s(outcome: object) -> float | None:
    """Seconds to wait, or None when nothing is asked for, or nothing that can be read."""
    for name in ("retry_after_s", "retry_after"):
        found = _seconds(getattr(outcome, name, None))
        if found is not None:
            return found
    for owner in (outcome, getattr(outcome, "response", None)):
        found = _from_headers(getattr(owner, "headers", None))
        if found is not None:
            return found
    return None


def _seconds(asked: object) -> float | None:
    if isinstance(asked, timedelta):
        asked = asked.total_seconds()
    if isinstance(asked, bool) or not isinstance(asked, int | float) or not math.isfinite(asked):
        return None
    return max(0.0, float(asked))


def _from_headers(headers: object) -> float | None:
    asked = _header(headers, "retry-after")
    if asked is None:
        return None
    try:
        return _seconds(float(asked))
    except ValueError:
        pass
    until = _moment(asked)
    return None if until is None else max(0.0, until - (_moment(_header(headers, "date")) or time.time()))


def _header(headers: object, name: str) -> str | None:
    """A header by its name in small letters, whatever kind of mapping or list of pairs they are."""
    pairs = headers.items() if isinstance(headers, Mapping) or hasattr(headers, "items") else headers
    if not isinstance(pairs, Iterable):
        return None
    for pair in pairs:
        if isinstance(pair, tuple) and len(pair) == 2 and _text(pair[0]).lower() == name:  # noqa: PLR2004 - a pair
            return _text(pair[1]).strip()
    return None


def _text(word: object) -> str:
    return word.decode("latin-1") if isinstance(word, bytes) else str(word)


def _moment(date: str | None) -> float | None:
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
