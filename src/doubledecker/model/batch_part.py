"""What a batch is replaced with after an attempt, instead of being tried again as it is."""

from collections.abc import Sequence

import msgspec

# Letters that one settlement makes: a turn settles up to a hundred, and a script writes all letters of a receiver by
# one command. A larger batch that is given up is split first.
LETTERS_MAX = 25


class Halves(msgspec.Struct, frozen=True, gc=False):
    """Where a batch is cut: before the byte at `offset` of a chunk, 0 for the chunk's start.

    `events` and `bytes` are those of the first half; both halves have had `attempts` of their own.
    """

    chunk: int
    offset: int
    events: int
    bytes: int
    attempts: int = 0


class LanePart(msgspec.Struct, frozen=True, gc=False):
    """The events of a lane that are taken out of a batch, as lines; they are a batch of this name."""

    lane: str
    batch: str
    text: str
    events: int
    bytes: int


class BatchDivision(msgspec.Struct, frozen=True, gc=False):
    """Events of a batch whose lanes are held, and what is left: the chunks that change, by their index."""

    chunks: Sequence[tuple[int, str]]
    events: int
    bytes: int
    lanes: Sequence[LanePart]


class Remainder(msgspec.Struct, frozen=True, gc=False):
    """The events of a batch that its receiver named as failed, as lines."""

    text: str
    events: int
    bytes: int
