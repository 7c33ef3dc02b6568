"""Receivers of queues with a callback, in the home partition: who calls them now, and what came of it.

How they fare is kept as for a subscriber (store/subscribers.py), under the queue's name with an `@` before it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import cast

from doubledecker.model.subscriber import Subscriber
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import load
from doubledecker.store.subscribers import Entry

_ENTER, _RENEW, _NOTE = load("receiver_enter"), load("receiver_renew"), load("attempt_note")


@dataclass(frozen=True)
class Place:
    """The answer to a wish to call: with GO how often it failed in a row, else how long the answer will hold."""

    entry: Entry
    failures: int = 0
    wait_ms: int = 0


async def enter(home: Partition, receiver: Subscriber, *, slot: str, lease_ms: int) -> Place:
    """Ask for a place among the calls to a receiver; give it up with `subscribers.leave`."""
    reply = await home.run(
        _ENTER,
        token=receiver.token,
        slot=slot,
        callback=receiver.callback,
        concurrency=receiver.concurrency,
        lease_ms=lease_ms,
    )
    word, number = cast("tuple[bytes, int]", reply)
    entry = Entry(word.decode())
    return Place(entry, failures=number) if entry is Entry.GO else Place(entry, wait_ms=number)


async def renew(home: Partition, receiver: Subscriber, slots: Collection[str], *, lease_ms: int) -> int:
    """Keep places for longer; returns how many were there to keep."""
    if not slots:
        return 0
    return cast("int", await home.run(_RENEW, token=receiver.token, slots=list(slots), lease_ms=lease_ms))


async def note(home: Partition, *, attempt: bytes, counts: Mapping[str, int]) -> None:
    """Journal and count an attempt."""
    await home.run(_NOTE, attempt=attempt, counts=list(counts.items()))
