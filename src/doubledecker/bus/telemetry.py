"""Telemetry: how counters are named, and the latency buckets.

A counter is a field of the hash `counters`, named `name` or `name:label=value,label=value`. A histogram is a counter
for each bucket (`le` in milliseconds, cumulative as in Prometheus), plus `.sum` and `.count`.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

LATENCY_MS = (2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000)


@dataclass(frozen=True)
class Counter:
    """A counter's name taken apart."""

    name: str
    labels: tuple[tuple[str, str], ...]


def counter(name: str, **labels: str) -> str:
    """The field that a counter is kept in."""
    return f"{name}:{','.join(f'{label}={value}' for label, value in labels.items())}" if labels else name


def parse(field: str) -> Counter:
    """The reverse of `counter`; values hold neither commas nor equals signs."""
    name, _, rest = field.partition(":")
    pairs = [part.partition("=") for part in rest.split(",")] if rest else []
    return Counter(name, tuple((label, value) for label, _, value in pairs))


def latency(name: str, took_ms: int) -> dict[str, int]:
    """What one observation adds to a histogram; the buckets are made cumulative when read."""
    bucket, total = _latency_names(name, bisect_left(LATENCY_MS, took_ms))
    return {bucket: 1, total: max(0, took_ms)}


@cache
def _latency_names(name: str, bucket: int) -> tuple[str, str]:
    le = str(LATENCY_MS[bucket]) if bucket < len(LATENCY_MS) else "+Inf"
    return counter(name, le=le), f"{name}.sum"


def quantile(counts: Mapping[str, float], share: float) -> float | None:
    """A quantile of a histogram, taking each bucket as evenly filled; infinite when it lies beyond the last bucket."""
    total = sum(counts.values())
    if total <= 0:
        return None
    wanted = total * share
    below, floor = 0.0, 0
    for le in LATENCY_MS:
        inside = counts.get(str(le), 0)
        if inside and below + inside >= wanted:
            return floor + (le - floor) * (wanted - below) / inside
        below, floor = below + inside, le
    return float("inf")
