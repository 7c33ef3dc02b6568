"""What is kept of an attempt: an entry in the journal, counts, and a line in the log."""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from doubledecker.bus import telemetry
from doubledecker.bus.telemetry import counter
from doubledecker.model.outcome import Outcome
from doubledecker.store import journal


class _Identified(msgspec.Struct, gc=False):
    """The only part of a stored event that a delivery looks at."""

    id: str = ""


_IDENTIFIED = msgspec.json.Decoder(list[_Identified])
_ENCODER = msgspec.json.Encoder()


def event_ids(body: bytes) -> list[str]:
    """The ids of the events in a body."""
    return [each.id for each in _IDENTIFIED.decode(body)]


def entry(
    outcome: Outcome,
    *,
    batch: str,
    subscriber: str,
    attempt: int,
    accepted_at: int,
    dialled_at: int,
    events: Sequence[str],
) -> str:
    """The attempt as the journal has it."""
    kept = journal.Attempt(
        batch=batch,
        subscriber=subscriber,
        attempt=attempt,
        outcome=outcome.kind.value,
        took_ms=outcome.took_ms,
        at=dialled_at,
        events=events,
        status=outcome.status,
        accepted_at=accepted_at,
    )
    return _ENCODER.encode(kept).decode()


def counts(
    outcome: Outcome, *, subscriber: str, events: int, attempt: int, accepted_at: int, dialled_at: int
) -> dict[str, int]:
    """What one attempt adds to the counters; without `accepted_at` it counts for no latency."""
    batches, in_all, time = _names(subscriber, outcome.kind.value)
    found = {batches: 1, in_all: events, time: outcome.took_ms}
    if accepted_at and attempt == 1:
        found |= telemetry.latency("latency.batches.first_attempt", dialled_at - accepted_at)
    if accepted_at and outcome.is_delivered:
        found |= telemetry.latency("latency.batches.last_attempt", dialled_at + outcome.took_ms - accepted_at)
    return found


# As many as a busy process has receivers; names are made of text, and an attempt needs three.
@lru_cache(maxsize=10_000)
def _names(subscriber: str, outcome: str) -> tuple[str, str, str]:
    names = ("delivery.batches", "delivery.events", "delivery.time")
    batches, events, time = (counter(name, subscriber=subscriber, outcome=outcome) for name in names)
    return batches, events, time
