"""What to do after an attempt: pure, so that every case is a line in a test.

A failed batch is tried again after a random part of a span that doubles with each attempt (full jitter), so that a
receiver that comes back is not met by everyone at once. A receiver that names its own delay gets at least that.
"""

from dataclasses import dataclass

from doubledecker.model.outcome import Outcome

# An answer may ask for more patience than our own cap, but not for ever.
RETRY_AFTER_MS_MAX = 3_600_000

_PATIENCE_STATUSES = frozenset({429, 503})


@dataclass(frozen=True)
class Backoff:
    """The span of the first delay, and the longest."""

    base_ms: int = 1_000
    cap_ms: int = 300_000


@dataclass(frozen=True)
class Delivered:
    """Done: delete the batch."""


@dataclass(frozen=True)
class Retry:
    """Not yet: try again after the delay."""

    delay_ms: int


Verdict = Delivered | Retry


def decide(outcome: Outcome, *, attempts: int, backoff: Backoff, chance: float) -> Verdict:
    """`attempts` counts this one; `chance` is a random number from 0 to 1."""
    if outcome.is_delivered:
        return Delivered()
    delay_ms = delay_after(attempts, backoff=backoff, chance=chance)
    if outcome.status in _PATIENCE_STATUSES and outcome.retry_after_ms is not None:
        delay_ms = max(delay_ms, min(outcome.retry_after_ms, RETRY_AFTER_MS_MAX))
    return Retry(delay_ms)


def delay_after(attempts: int, *, backoff: Backoff, chance: float) -> int:
    """Milliseconds until the next try, when nobody named a delay."""
    # Doubling beyond 2^30 would only overflow what the cap cuts off anyway.
    span_ms = min(backoff.cap_ms, backoff.base_ms * 2 ** min(attempts - 1, 30))
    return 1 + int(chance * span_ms)
