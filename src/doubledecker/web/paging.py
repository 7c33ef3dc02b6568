"""Lists that are ordered by name, with every row encoded once for all who ask.

They are whole, as Routemaster's clients expect, or in pages for those who ask. Answering from such a list takes few
milliseconds with a hundred thousand rows; encoding them for every answer took hundreds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from starlette.datastructures import QueryParams
from starlette.responses import Response

from doubledecker.web import queries


@dataclass(frozen=True)
class EncodedRows:
    """The names of rows, in order, and each row in JSON."""

    names: Sequence[str]
    rows: Sequence[bytes]

    def answer(self, asked: QueryParams) -> Response:
        """All rows, or with `limit` so many of those whose names follow `after`."""
        page = queries.page(self.names, asked)
        return _json(self._whole if page == slice(None) else _joined(self.rows[page]))

    @cached_property
    def _whole(self) -> bytes:
        return _joined(self.rows)


def _joined(rows: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(rows) + b"]"


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
