"""Strands: the shares in which bulk delivery goes through a partition's events, each in order and at its own pace.

An event belongs to the strand of its key; one without a key, to that of its entry in the journal. So events of a key
are in one strand and cannot overtake each other, and what a receiver does not take holds up its own strand alone.
"""

import base64
import hashlib
from dataclasses import dataclass, replace

from doubledecker.model.position import START, Place, parse

# More would make smaller requests when little comes in, fewer would allow fewer calls at a time. It must never change:
# how far each has come is kept by its number.
STRANDS = 16
_UID_BYTES = 15


@dataclass(frozen=True, order=True)
class Strand:
    """One share of one partition's events."""

    partition: int
    number: int

    @property
    def field(self) -> str:
        """Where it is kept in the subscriber's hash."""
        return f"strand:{self.partition}.{self.number}"

    @classmethod
    def parse(cls, field: str) -> "Strand":
        partition, _, number = field.removeprefix("strand:").partition(".")
        return cls(int(partition), int(number))


@dataclass(frozen=True)
class Reach:
    """How far a strand has come; how often what comes next was tried in vain, and when it is tried again."""

    place: Place = START
    attempts: int = 0
    retry_at: int = 0

    @property
    def text(self) -> str:
        """As it is kept."""
        return f"{self.place.text} {self.attempts} {self.retry_at}"

    @classmethod
    def read(cls, text: str) -> "Reach":
        """From what is kept."""
        place, attempts, retry_at = text.split(" ")
        return cls(parse(place, partitions=1)[0], int(attempts), int(retry_at))

    def failed(self, *, retry_at: int) -> "Reach":
        """After an attempt in vain."""
        return replace(self, attempts=self.attempts + 1, retry_at=retry_at)


def strands(partition: int) -> list[Strand]:
    """All strands of a partition."""
    return [Strand(partition, number) for number in range(STRANDS)]


def batch_id(ledger: str, strand: Strand, first: Place) -> str:
    """What a batch of bulk delivery is called: the same each time it is tried, as of a worker's batch."""
    digest = hashlib.blake2b(f"{ledger} {strand.field} {first.text}".encode(), digest_size=_UID_BYTES).digest()
    return base64.urlsafe_b64encode(digest).decode()
