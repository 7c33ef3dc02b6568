"""Dead letters: events that a receiver was given up for, and how they are chosen by what is known of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# What is kept of an answer; longer ones are cut.
ANSWER_BYTES_MAX = 2_048

# By which values letters are indexed.
FIELDS = ("topic", "tenant", "reason", "status")


@dataclass(frozen=True)
class DeadLetter:
    """An event that is not delivered any more, and what its receiver answered last.

    `reason` is one word: `attempts`, `age`, `rejected` and others; `status` is 0 when there was no answer. `event` is
    its JSON as it was delivered. Of queues, `accepted_at` is not known (0), and there is no batch.
    """

    id: str
    topic: str
    tenant: str
    reason: str
    event: bytes
    attempts: int
    status: int = 0
    detail: str = ""
    answer_headers: tuple[str, ...] = ()
    answer: str = ""
    accepted_at: int = 0
    died_at: int = 0
    batch: str = ""


@dataclass(frozen=True)
class LetterFilter:
    """Which letters are meant: those with all these values that died from a time on and before another; else all."""

    topic: str | None = None
    tenant: str | None = None
    reason: str | None = None
    status: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None

    @property
    def values(self) -> dict[str, str]:
        """The fields that are asked for, with the value that each must have."""
        asked = {name: getattr(self, name) for name in FIELDS}
        return {name: str(value) for name, value in asked.items() if value is not None}


@dataclass(frozen=True)
class LetterTotals:
    """How many letters a receiver has, what they take, and how many have each value: the most frequent ones."""

    count: int = 0
    bytes: int = 0
    by: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def text(raw: bytes) -> str:
    """The beginning of an answer as text; what is no UTF-8 is shown by escapes."""
    return raw[:ANSWER_BYTES_MAX].decode(errors="backslashreplace")
