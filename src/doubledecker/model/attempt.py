"""Delivery attempts as they are listed: which are wanted, and where each stands among all.

Attempts are in the order in which they were written: by entry of the journal, and of entries with one id in several
partitions by partition. That place is an attempt's id too, `<ms>-<number>-<partition>`, in the journal and in the lake.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from doubledecker.errors import BadRequest
from doubledecker.model.position import Position

# Event ids that are listed of one attempt, which may have carried ten thousand.
IDS_MAX = 100
_FORM = re.compile(r"([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,4})")


class AttemptPlace(NamedTuple):
    """Where an attempt stands; the greatest is the newest."""

    ms: int
    seq: int
    partition: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}-{self.partition}"

    @classmethod
    def of(cls, entry: str, partition: int) -> "AttemptPlace":
        """The place of an entry of a partition's journal."""
        found = Position.parse(entry)
        return cls(found.ms, found.seq, partition)

    @classmethod
    def parse(cls, text: str, *, field: str) -> "AttemptPlace":
        """Read a place from a request; raises BadRequest."""
        found = _FORM.fullmatch(text)
        if not found:
            raise BadRequest(f"{field} is {text[:80]!r}; it must be an id as it is listed, like 1794740919538-0-0")
        return cls(*map(int, found.groups()))

    @property
    def entry(self) -> str:
        return f"{self.ms}-{self.seq}"


# What the bus dropped as too much waited for a receiver is listed among attempts, though none was made.
DROPPED = "dropped"
# In a filter, every outcome but `delivered`.
FAILED = "failed"


@dataclass(frozen=True)
class AttemptFilter:
    """Which attempts are wanted: of these receivers (None: of any), with all that is given, before a place.

    For a client, those at a queue only while it had the queue; None is for root, who sees also what others left.
    """

    receivers: frozenset[str] | None = None
    client: str | None = None
    event: str = ""
    outcome: str = ""
    status: int | None = None
    from_ms: int = 0
    to_ms: int | None = None
    before: AttemptPlace | None = None


@dataclass(frozen=True)
class ListedAttempt:
    """One attempt; of the ids that it carried the first, and how many there are. None is what is not known."""

    place: AttemptPlace
    receiver: str
    batch: str
    attempt: int
    outcome: str
    status: int | None
    took_ms: int
    at: int
    events: Sequence[str]
    event_count: int
    bytes: int | None
    detail: str
    retry_ms: int | None
    # When the first of its events was accepted; 0 where that was not looked at.
    accepted_at: int = 0
    # The client that had the queue then; empty for root, and for a subscriber.
    owner: str = ""

    def is_of(self, client: str) -> bool:
        """Whether the receiver was this client's when it was called."""
        return client in (self.receiver, self.owner)
