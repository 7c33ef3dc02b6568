"""Scan ranges: which part of the lake one round of bulk delivery goes through for a subscriber. Pure.

Shards that keep pace stand at the same place and go on together. One that was held up stands further back, and gets a
range of its own, so that neither waits for the other. A range ends where it would hold more rows, or larger files, than
one round should take; the table's log says how many that are, without reading data.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from doubledecker.model import moment
from doubledecker.model.position import Checkpoint, Position, Shard
from doubledecker.pipeline.lake.tables import Part
from doubledecker.store.bulk import Progress

# One round's work in each range: some seconds of posting, and little to read again when it is cut short.
ROWS_MAX = 200_000
BYTES_MAX = 134_217_728
# A receiver that fails is tried with one batch.
PROBE_ROWS_MAX = 1_000
# Shards that were held up and are due again together; the others' turn comes with the next round.
_RANGES_MAX = 4
# More entries than a millisecond can have.
_NUMBER_MAX = 1 << 62


@dataclass(frozen=True)
class Bounds:
    """How much a range may hold."""

    rows_max: int = ROWS_MAX
    bytes_max: int = BYTES_MAX


@dataclass(frozen=True)
class FileSpan:
    """What a file holds: from when to when its rows are, how many, how large."""

    first_ms: int
    last_ms: int
    rows: int
    bytes: int

    @classmethod
    def of(cls, part: Part, *, now_ms: int) -> "FileSpan":
        """A file that does not say is taken to span all times."""
        first_ms = moment.to_ms(part.at_min) if part.at_min else 0
        return cls(first_ms, moment.to_ms(part.at_max) if part.at_max else now_ms, part.rows, part.size)


@dataclass(frozen=True)
class ScanRange:
    """Shards that go on together, from where each stands up to a place; `is_empty` when no file holds a row there."""

    since_ms: int
    until_ms: int
    checkpoints: Mapping[Shard, Checkpoint]
    upto: Mapping[Shard, Position]
    is_empty: bool


def ends(progress: Progress, landed: Mapping[int, Position]) -> dict[int, Position]:
    """How far bulk delivery may go in each partition: what has landed, or where it ends for one that is live again."""
    return {index: min(end, progress.until.get(index, end)) for index, end in landed.items()}


def is_through(progress: Progress) -> bool:
    """Whether nothing is left to do for a subscriber that is live again."""
    return bool(progress.until) and all(
        checkpoint.place >= progress.until[shard.partition] for shard, checkpoint in progress.checkpoints.items()
    )


def due(progress: Progress, upto: Mapping[int, Position], *, now_ms: int) -> dict[Shard, Checkpoint]:
    """The shards that have some way to go, and are not waiting after a failure."""
    return {
        shard: checkpoint
        for shard, checkpoint in progress.checkpoints.items()
        if checkpoint.retry_at <= now_ms and shard.partition in upto and checkpoint.place < upto[shard.partition]
    }


def plan(
    checkpoints: Mapping[Shard, Checkpoint], upto: Mapping[int, Position], files: Sequence[FileSpan], bounds: Bounds
) -> list[ScanRange]:
    """The ranges of one round; of many the one that is furthest along is among them, so that the new is not held up."""
    found = []
    left = sorted(checkpoints.items(), key=lambda each: each[1].place)
    end_ms = max((place.ms for place in upto.values()), default=0) + 1
    while left:
        since_ms = left[0][1].place.ms
        until_ms = _horizon(files, since_ms, end_ms, bounds)
        mine = dict(each for each in left if each[1].place.ms < until_ms)
        left = left[len(mine) :]
        last = Position(until_ms - 1, _NUMBER_MAX)
        goals = {shard: min(last, upto[shard.partition]) for shard in mine}
        is_empty = _share(files, since_ms, until_ms, Bounds(1, 1)) == 0
        found.append(ScanRange(since_ms, until_ms, mine, goals, is_empty))
    return found if len(found) <= _RANGES_MAX else [*found[: _RANGES_MAX - 1], found[-1]]


def _horizon(files: Sequence[FileSpan], since_ms: int, end_ms: int, bounds: Bounds) -> int:
    """The time up to which a range that begins at `since_ms` stays within its bounds; a millisecond at least."""
    low, high = since_ms + 1, max(since_ms + 1, end_ms)
    if _share(files, since_ms, high, bounds) <= 1:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _share(files, since_ms, middle, bounds) <= 1 else (low, middle)
    return low


def _share(files: Sequence[FileSpan], since_ms: int, until_ms: int, bounds: Bounds) -> float:
    """What the files hold between two moments, as a share of the bounds; rows are taken to lie evenly in a file."""
    rows = size = 0.0
    for file in files:
        span_ms = file.last_ms - file.first_ms + 1
        inside_ms = min(until_ms, file.last_ms + 1) - max(since_ms, file.first_ms)
        if inside_ms > 0:
            rows += file.rows * inside_ms / span_ms
            size += file.bytes * inside_ms / span_ms
    return max(rows / bounds.rows_max, size / bounds.bytes_max)


def passing(
    scan: ScanRange, stopped: Collection[Shard], stood: Mapping[Shard, Checkpoint]
) -> dict[Shard, tuple[Checkpoint, Checkpoint]]:
    """The shards of a range that have finished it, each from where it stood to the range's end."""
    return {
        shard: (stood.get(shard, checkpoint), Checkpoint(scan.upto[shard]))
        for shard, checkpoint in scan.checkpoints.items()
        if shard not in stopped
    }
