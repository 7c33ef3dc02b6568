"""Pages of a list that is ordered by name: only for those who ask, as Routemaster's clients expect whole arrays."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from starlette.datastructures import QueryParams

from doubledecker.errors import BadRequest
from doubledecker.web import queue_bodies

T = TypeVar("T")


def page(rows: Sequence[T], asked: QueryParams, *, name: Callable[[T], str]) -> Sequence[T]:
    """All rows, or with `limit` so many of those whose names follow `after`."""
    limit, after = asked.get("limit"), asked.get("after", "")
    if limit is None:
        if after:
            raise BadRequest("after is given without limit; give both for a page, or neither for all")
        return rows
    most = queue_bodies.limit(limit)
    return [row for row in rows if name(row) > after][:most]
