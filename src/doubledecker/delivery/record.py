"""What is kept of deliveries, for batches and queues alike: an entry in the journal, counts, the state of chains."""

from collections import Counter as Sum
from collections.abc import Sequence

import msgspec

from doubledecker.bus.telemetry import counter
from doubledecker.delivery.chains import Chains
from doubledecker.model.outcome import Outcome
from doubledecker.store import chains, journal
from doubledecker.store.partitions import Partition


class _Identified(msgspec.Struct, gc=False):
    """The only part of a stored message that a worker looks at."""

    id: str = ""


_IDENTIFIED = msgspec.json.Decoder(_Identified)


def event_ids(messages: Sequence[bytes]) -> list[str]:
    """The ids of the events in messages."""
    return [_IDENTIFIED.decode(message).id for message in messages]


def entry(
    outcome: Outcome, *, batch: str, subscriber: str, attempt: int, dialled_at: int, events: Sequence[str]
) -> bytes:
    """The attempt as the journal has it."""
    return msgspec.json.encode(
        journal.Attempt(
            batch=batch,
            subscriber=subscriber,
            attempt=attempt,
            outcome=outcome.kind.value,
            took_ms=outcome.took_ms,
            at=dialled_at,
            events=events,
            status=outcome.status,
        )
    )


def counts(outcome: Outcome, *, subscriber: str, events: int) -> dict[str, int]:
    """What one attempt adds to the counters."""
    labels = {"subscriber": subscriber, "outcome": outcome.kind.value}
    return {
        counter("delivery.batches", **labels): 1,
        counter("delivery.events", **labels): events,
        counter("delivery.time", **labels): outcome.took_ms,
    }


class ChainsTold:
    """What a process has told of its chains: how they stand now, and every rejection once."""

    def __init__(self, home: Partition, process: str, receivers: Chains) -> None:
        self._home = home
        self._process = process
        self._receivers = receivers
        self._untold: Sum[str] = Sum()

    async def tell(self) -> None:
        """Say how the chains stand, and count what they rejected; what cannot be said now is said the next time."""
        for (token, stage), by in self._receivers.rejections().items():
            self._untold[counter("delivery.rejected", subscriber=token, stage=stage)] += by
        await chains.tell(self._home, self._process, self._receivers.states(), counts=self._untold)
        self._untold.clear()
