"""Lists that are filtered and cut into pages on the server, by the query of their address."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlencode

from doubledecker.dashboard.pages import Visit

T = TypeVar("T")

_ROWS = 50


@dataclass(frozen=True)
class Listing(Generic[T]):
    """One page of rows, and what leads to the others."""

    rows: Sequence[T]
    total: int
    number: int
    query: str

    @property
    def first(self) -> int:
        return (self.number - 1) * _ROWS + 1 if self.total else 0

    @property
    def last(self) -> int:
        return min(self.total, self.number * _ROWS)

    @property
    def before(self) -> str:
        """Where the page before is; empty on the first."""
        return self._link(self.number - 1) if self.number > 1 else ""

    @property
    def after(self) -> str:
        return self._link(self.number + 1) if self.last < self.total else ""

    def _link(self, number: int) -> str:
        return f"?{self.query}{'&' if self.query else ''}page={number}"


def cut(rows: Sequence[T], visit: Visit) -> Listing[T]:
    """The page that was asked for; beyond the last, the last."""
    asked = visit.query.get("page", "1")
    pages = max(1, -(-len(rows) // _ROWS))
    number = min(pages, max(1, int(asked))) if asked.isascii() and asked.isdigit() and len(asked) < _ROWS else 1
    others = {name: value for name, value in visit.query.items() if name != "page" and value}
    return Listing(rows[(number - 1) * _ROWS : number * _ROWS], len(rows), number, urlencode(others))


def is_meant(visit: Visit, *texts: str) -> bool:
    """Whether what the search box holds is in one of these texts."""
    wanted = visit.query.get("q", "").strip().lower()
    return not wanted or any(wanted in text.lower() for text in texts)
