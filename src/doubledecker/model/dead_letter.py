"""Dead letters: events that a receiver was given up for, and how they are chosen by what is known of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from doubledecker.errors import BadRequest
from doubledecker.model.event import check_tenant, check_topic
from doubledecker.model.outcome import STATUSES

# What is kept of an answer; longer ones are cut.
ANSWER_BYTES_MAX = 2_048

# By which values letters are indexed.
FIELDS = ("topic", "tenant", "reason", "status")
REASONS = ("attempts", "age", "rejected", "lease")


# A page ends where a letter stands: its stamp and its partition.
_PLACE = re.compile(r"([0-9]{1,16})-([0-9]{1,4})")


class _Origin(msgspec.Struct, gc=False):
    """What a letter's event says of itself."""

    id: str = ""
    redriven: int = 0


_decode = msgspec.json.Decoder(_Origin).decode


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

    @property
    def event_id(self) -> str:
        """Its event's id."""
        return _decode(self.event).id

    @property
    def redriven(self) -> int:
        """How often it had been redriven when it died."""
        return _decode(self.event).redriven


@dataclass(frozen=True)
class LetterFilter:
    """Which letters are meant: those with all these values that died from a time on and before another; else all."""

    topic: str | None = None
    tenant: str | None = None
    reason: str | None = None
    status: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None

    def check(self) -> None:
        """Raise BadRequest for a value that no letter can have.

        Values are ends of keys: one with a colon could name a key of another receiver, whose id has colons.
        """
        if self.topic is not None:
            check_topic(self.topic)
        if self.tenant is not None:
            check_tenant(self.tenant)
        if self.reason is not None and self.reason not in REASONS:
            raise BadRequest(f"reason is {self.reason[:80]!r}; it must be {' or '.join(REASONS)}")
        if self.status and self.status not in STATUSES:
            raise no_status(str(self.status))

    def means(self, letter: DeadLetter) -> bool:
        """Whether a letter is one of those."""
        if any(str(getattr(letter, name)) != value for name, value in self.values.items()):
            return False
        return (self.from_ms or 0) <= letter.died_at and (self.to_ms is None or letter.died_at < self.to_ms)

    @property
    def values(self) -> dict[str, str]:
        """The fields that are asked for, with the value that each must have."""
        asked = {name: getattr(self, name) for name in FIELDS}
        return {name: str(value) for name, value in asked.items() if value is not None}


@dataclass(frozen=True, order=True)
class LetterPlace:
    """Where a letter stands among all of its receiver: by its stamp, and of the same stamp by its partition."""

    stamp: int
    partition: int

    @classmethod
    def parse(cls, text: str) -> "LetterPlace":
        """Read the cursor of a page; raises BadRequest."""
        found = _PLACE.fullmatch(text)
        if found is None:
            raise BadRequest(f"after is {text[:80]!r}; it must be the `after` of the page before")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.stamp}-{self.partition}"

    def before(self, partition: int) -> int:
        """Beyond which stamp the letters of a partition follow this one."""
        return self.stamp if partition <= self.partition else self.stamp - 1


@dataclass(frozen=True)
class LetterTotals:
    """How many letters a receiver has, what they take, and how many have each value: the most frequent ones."""

    count: int = 0
    bytes: int = 0
    by: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def no_status(seen: str) -> BadRequest:
    """The error for a status that no letter can have."""
    return BadRequest(f"status is {seen[:80]!r}; it must be an HTTP status, like 503, or 0 for no answer")


def text(raw: bytes) -> str:
    """The beginning of an answer as text; what is no UTF-8 is shown by escapes."""
    return raw[:ANSWER_BYTES_MAX].decode(errors="backslashreplace")
