"""The id of a journal's entry: milliseconds by the server's clock, and a number within the millisecond."""

import re
from typing import NamedTuple

from doubledecker.errors import BadRequest

_FORM = re.compile(r"(\d{1,20})(?:-(\d{1,20}))?")
_SEQ_MAX = 2**64 - 1


class EntryId(NamedTuple):
    """An id that can be compared; as text it is what Redis writes."""

    ms: int
    seq: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> "EntryId":
        """From `<ms>-<number>`, or `<ms>` for the first of a millisecond."""
        found = _FORM.fullmatch(text)
        if not found:
            raise BadRequest(f"the entry id is {text[:80]!r}; it must be like 1794740919538-0")
        return cls(int(found[1]), int(found[2] or 0))

    @property
    def before(self) -> "EntryId":
        """The id just before this one, so that "after it" means "from this one on"."""
        if self.seq:
            return EntryId(self.ms, self.seq - 1)
        return EntryId(self.ms - 1, _SEQ_MAX) if self.ms else EntryId(0, 0)

    @property
    def next(self) -> "EntryId":
        """The id just after this one, so that "from it on" means "after this one"."""
        return EntryId(self.ms, self.seq + 1) if self.seq < _SEQ_MAX else EntryId(self.ms + 1, 0)


FIRST = EntryId(0, 0)
