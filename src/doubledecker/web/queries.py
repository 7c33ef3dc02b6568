"""What the queries of several lists have in common: parameters by name, times, and pages."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence

from starlette.datastructures import QueryParams

from doubledecker.errors import BadRequest
from doubledecker.model import moment

LIST_MAX = 1_000


def check_names(names: Iterable[str], allowed: Collection[str]) -> None:
    """Raise BadRequest for the first parameter that the list does not have."""
    for name in names:
        if name not in allowed:
            raise BadRequest(f"the query has {name[:80]!r}; its parameters are {', '.join(allowed)}")


def at_ms(text: str | None, *, name: str) -> int | None:
    """A time in ISO 8601, at the earliest 1970; None when it is absent."""
    return None if text is None else max(0, moment.to_ms(moment.parse(text, field=name)))


def limit(value: str | None, *, name: str = "limit", default: int = 100) -> int:
    """How many rows a list has at most."""
    if value is None:
        return default
    # Python refuses to read thousands of digits.
    if (
        not (value.isascii() and value.isdecimal())
        or len(value) > len(str(LIST_MAX))
        or not 1 <= int(value) <= LIST_MAX
    ):
        raise BadRequest(f"{name} is {value[:80]!r}; it must be from 1 to {LIST_MAX}")
    return int(value)


def page(names: Sequence[str], query: QueryParams) -> slice:
    """Which of the rows with these names, in order, are asked for: all, or with `limit` so many that follow `after`."""
    most, after = query.get("limit"), query.get("after", "")
    if most is not None:
        first = bisect_right(names, after)
        return slice(first, first + limit(most))
    if after:
        raise BadRequest("after is given without limit; give both for a page, or neither for all")
    return slice(None)
