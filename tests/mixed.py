"""A journal of entries of every kind: plain and compressed, short and long, of one publisher and of several."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from msgspec import Raw, json

from doubledecker.model.event import AcceptedEvent, encode
from doubledecker.model.routing import Route
from doubledecker.store import events
from doubledecker.store.events import Accepted, PublishLimits, RoutedEvent
from doubledecker.store.partitions import Partition

# From this size on, lines of one publisher are compressed; written here once more, so that a test has it in sight.
COMPRESSED_BYTES_MIN = 2_048


@dataclass(frozen=True)
class Written:
    """An event that the journal has."""

    publisher: str
    message: bytes

    @property
    def event(self) -> AcceptedEvent:
        return json.decode(self.message, type=AcceptedEvent)


async def write(partition: Partition, *, first: int = 1) -> list[Written]:
    """Entries of every kind through the publish script; returns the events in the order of the journal.

    They are numbered from the first on, fewer than a thousand of them.
    """
    chance, numbers = random.Random(1), count(first)
    found: list[Written] = []
    for texts in _calls(chance):
        call = [
            Written(publisher, _message(partition.index, next(numbers), text))
            for publisher, own in texts.items()
            for text in own
        ]
        await _publish(partition, call)
        found += call
    return found + await _write_with_repeats(partition, numbers)


def _calls(chance: random.Random) -> list[Mapping[str, Sequence[str]]]:
    """Of each publish call the texts by publisher."""
    many = [chance.choice(("red", "green", "blue")) for _ in range(100)]
    around = [COMPRESSED_BYTES_MIN - len(_message(0, 1, "")) + more for more in (-1, 0, 1)]
    # What can hardly be compressed, what can be as hardly anything, and letters of more than one byte.
    hard, soft, far = chance.randbytes(100_000).hex(), "x" * 300_000, "\u00e4\u20ac\U0001f68c" * 500
    return [
        {"ann": ["short"]},
        *({"ann": [chance.randbytes(size).hex()[:size]]} for size in around),
        {"ann": many},
        {"ann": [hard]},
        {"ann": [hard[:50_000]]},
        {"bob": [soft]},
        {"bob": [far, far]},
        {"ann": ["short"], "bob": many, "cat": [hard], "dan": ["short"]},
        {"ann": many, "bob": many, "cat": many[:3]},
        {"dan": ["short"]},
    ]


async def _write_with_repeats(partition: Partition, numbers: "count[int]") -> list[Written]:
    """A call of which a part is left out: the rest is long enough to be compressed, and never is."""
    call = [Written("ann", _message(partition.index, next(numbers), "again")) for _ in range(20)]
    await _publish(partition, [call[0], *call], [call[0].event.id] * 2 + [""] * 19)
    return call


async def _publish(partition: Partition, call: Sequence[Written], given: Sequence[str] = ()) -> None:
    ids = given or [""] * len(call)
    offers = [
        RoutedEvent(Route(each.event.kind), each.message, each.publisher, id_)
        for each, id_ in zip(call, ids, strict=True)
    ]
    reply = await events.publish(partition, offers, version=10**9, limits=PublishLimits())
    assert reply.outcome is Accepted.OK


def _message(partition: int, number: int, text: str) -> bytes:
    """An event whose id says where it stands, and whose length follows from that of its text alone."""
    data, id_ = Raw(json.encode({"text": text})), f"{partition}-{number:05}"
    return encode(AcceptedEvent("mixed", "run", t=100_000 + number, data=data, id=id_, tenant=f"t{partition}"))
