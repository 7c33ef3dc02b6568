"""The history of the bus: samples of its main numbers in three rings at home, each a string of bounded length.

A sample has a fixed size and its place in a ring is its time, so writing one overwrites the one that is a whole ring
older. A place that was not written for so long still has that older sample, which shows by its time.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import Encoded, load

# How many bounds the histogram of latencies has, and a bucket for what is beyond them.
BUCKETS = 16
# Time, how many tenths of a second it is of; published, due and delivered a second; waiting, age of the oldest, dead
# letters, lag of the pipeline; batches delivered, and of these the share in each bucket of latency.
_SAMPLE = struct.Struct(f"<IHfffIIIII{BUCKETS}H")
_UNKNOWN = 2**32 - 1
_SHARE = 65_535
_TENTHS_MAX = 65_535

_WRITE = load("history_write")


@dataclass(frozen=True)
class Ring:
    """How far apart its samples are, and how many it has."""

    name: str
    step_s: int
    samples: int

    @property
    def span_s(self) -> int:
        return self.step_s * self.samples


RINGS = (Ring("seconds", 1, 900), Ring("tens", 10, 2_160), Ring("minutes", 60, 10_080))


@dataclass(frozen=True)
class Sample:
    """The bus over a stretch of time that ends in the step `at_s`: counts of a second, and gauges at their worst."""

    at_s: int
    span_s: float
    published: float
    due: float
    delivered: float
    waiting: int
    oldest_ms: int
    dead: int
    lag_ms: int | None
    batches: int
    # Of the batches delivered, the share in each bucket of latency.
    shares: tuple[float, ...]


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """What a ring's newest sample is made of: when it began, the counters then, and the highest gauges since."""

    at_s: int
    began_ms: int
    totals: tuple[int, ...]
    gauges: tuple[int, ...]


class Head(msgspec.Struct, frozen=True, array_like=True):
    """When somebody looked last, how long that took, what the counters were, and the newest stretch of each ring."""

    at_ms: int
    took_ms: int
    totals: tuple[int, ...]
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True)
class KeptHead:
    """The head as it is kept, and as a value; None when there is none, or it is of another shape."""

    packed: bytes
    head: Head | None


_decode_head = msgspec.msgpack.Decoder(Head).decode


async def head(home: Partition) -> KeptHead:
    packed = cast("bytes | None", await home.command("GET", home.key("history"))) or b""
    try:
        return KeptHead(packed, _decode_head(packed) if packed else None)
    except msgspec.MsgspecError:
        return KeptHead(packed, None)


async def write(home: Partition, before: bytes, after: Head, samples: Sequence[tuple[Ring, Sample]]) -> bool:
    """Write samples and the head; False when another process has written since it was read."""
    places: list[Encoded] = []
    for ring, sample in samples:
        places += [ring.name, _place(ring, sample.at_s) * _SAMPLE.size, _pack(sample)]
    return await home.run(_WRITE, *places, before=before, after=msgspec.msgpack.encode(after)) == 1


async def read(home: Partition, ring: Ring, *, from_s: int, to_s: int) -> list[Sample]:
    """The samples of this time, in order; a moment without any is left out."""
    first, last = (at_s // ring.step_s * ring.step_s for at_s in (max(from_s, to_s - ring.span_s + 1), to_s))
    start, end = _place(ring, first), _place(ring, last)
    parts = [(start, end)] if start <= end else [(start, ring.samples - 1), (0, end)]
    key, size = home.key(f"history:{ring.name}"), _SAMPLE.size
    texts = await home.commands([["GETRANGE", key, begin * size, (upto + 1) * size - 1] for begin, upto in parts])
    whole = b"".join(text[: len(text) // size * size] for text in cast("list[bytes]", texts))
    samples = map(_unpack, _SAMPLE.iter_unpack(whole))
    return sorted((each for each in samples if first <= each.at_s <= last), key=lambda each: each.at_s)


def _place(ring: Ring, at_s: int) -> int:
    return at_s // ring.step_s % ring.samples


def _pack(sample: Sample) -> bytes:
    return _SAMPLE.pack(
        sample.at_s,
        min(_TENTHS_MAX, round(sample.span_s * 10)),
        sample.published,
        sample.due,
        sample.delivered,
        *(min(_UNKNOWN - 1, count) for count in (sample.waiting, sample.oldest_ms, sample.dead)),
        _UNKNOWN if sample.lag_ms is None else min(_UNKNOWN - 1, sample.lag_ms),
        min(_UNKNOWN, sample.batches),
        *(round(share * _SHARE) for share in sample.shares),
    )


def _unpack(fields: tuple[float, ...]) -> Sample:
    at_s, tenths, published, due, delivered, waiting, oldest_ms, dead, lag_ms, batches, *shares = fields
    return Sample(
        int(at_s),
        tenths / 10,
        published,
        due,
        delivered,
        int(waiting),
        int(oldest_ms),
        int(dead),
        None if lag_ms == _UNKNOWN else int(lag_ms),
        int(batches),
        tuple(share / _SHARE for share in shares),
    )
