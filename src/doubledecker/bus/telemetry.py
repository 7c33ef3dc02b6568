"""Telemetry: how counters are named, and the latency buckets.

A counter is a field of the hash `counters`, named `name` or `name:label=value,label=value`. A histogram is a counter
for each bucket (`le` in milliseconds, cumulative as in Prometheus), plus `.sum` and `.count`.
"""

from dataclasses import dataclass

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
    bucket = next((le for le in LATENCY_MS if took_ms <= le), None)
    le = "+Inf" if bucket is None else str(bucket)
    return {counter(name, le=le): 1, f"{name}.sum": max(0, took_ms)}
