"""What came of one attempt at a receiver."""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """How an attempt ended; the values appear in logs, counters and the journal."""

    DELIVERED = "delivered"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"
    UNREACHABLE = "unreachable"
    BROKEN = "broken"


# Answers that blame what was sent, not who received it.
_CONTENT_STATUSES = frozenset({400, 413, 415, 422})


@dataclass(frozen=True)
class Outcome:
    """An attempt's end: `status` when there was an answer, `retry_after_ms` when it asked for patience."""

    kind: Kind
    took_ms: int
    status: int | None = None
    retry_after_ms: int | None = None
    detail: str = ""

    @property
    def is_delivered(self) -> bool:
        return self.kind is Kind.DELIVERED

    @property
    def is_receiver_well(self) -> bool:
        """It answered, and if it refused, then for what was sent: another batch may fare better at once."""
        return self.is_delivered or self.status in _CONTENT_STATUSES
