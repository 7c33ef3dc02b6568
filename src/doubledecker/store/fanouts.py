"""Fan-outs: copies of accepted events that are made later, by an aux job, a slice at a time.

A publish call that leaves copies for later (store/deferred_copies.py) puts one parcel into a line of its publisher: the
events once, and feeds, which name who gets which of them. The script that writes a slice moves the parcel's cursor too,
and writes nothing if that is not where the slice begins: a copy is made once, however often a slice is repeated.

The cursor counts copies: feed by feed, in a feed name by name, and of a name event by event.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

import msgspec

from doubledecker.store.partitions import Partition

# A slice takes the server a millisecond at most, so that others' calls come in between. In microseconds, as measured:
# what a queue takes with its first event, what each further one takes, and what a batch takes.
SLICE_US = 500
_QUEUE_US, _EVENT_US, _BATCH_US = 20, 5, 3
# Parcels of a line whose sizes are looked at; the rest is taken to be like these.
_SAMPLES = 20


class Copies(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Receivers by name, queues as `@name`, and the events that each of them gets: tenants, and numbers of theirs."""

    names: Sequence[str]
    tenants: Sequence[str]
    numbers: Sequence[Sequence[int]]

    @property
    def events(self) -> list[tuple[str, int]]:
        """The tenant and number of each event, in order for each tenant."""
        return [(tenant, i) for tenant, at in zip(self.tenants, self.numbers, strict=True) for i in at]


_FEEDS = msgspec.json.Decoder(list[Copies])
_NUMBERS = msgspec.msgpack.Decoder(list[int])


def encode(feeds: Sequence[Copies]) -> str:
    """Feeds as a parcel keeps them: JSON, which a script passes on unread."""
    return msgspec.json.encode(feeds).decode()


@dataclass(frozen=True)
class Parcel:
    """Events by their number, who gets which of them, and how many copies were made."""

    line: str
    fid: str
    feeds: Sequence[Copies]
    messages: Mapping[int, bytes]
    at: int = 0
    # The registry's version when it was left: who has come since, even back, gets none of it.
    version: int = sys.maxsize

    @property
    def publisher(self) -> str:
        """Whose events these are."""
        return self.line.partition(":")[2]


@dataclass(frozen=True)
class CopySlice:
    """The next copies: of these events, for each of these names; and where the next slice begins, if there is one."""

    names: Sequence[str]
    events: Sequence[tuple[str, int]]
    at: int | None


async def first(partition: Partition, line: str) -> Parcel | None:
    """The parcel of a line whose turn it is."""
    key = partition.key(f"fanout:line:{line}")
    while fid := cast("bytes | None", await partition.command("LINDEX", key, 0)):
        parcel = partition.key(f"fanout:parcel:{fid.decode()}")
        reply = await partition.command("HMGET", parcel, "lines", "numbers", "feeds", "at", "version")
        lines, numbers, feeds, at, version = cast("list[bytes | None]", reply)
        if at is None:
            # Another worker has just made its last copies; or it was lost, and nothing behind it may wait for it.
            await partition.write("LREM", key, 1, fid)
        else:
            messages = (lines or b"").split(b"\n")
            given = _NUMBERS.decode(numbers) if numbers else range(1, len(messages) + 1)
            by_number = dict(zip(given, messages, strict=True))
            known = int(version or sys.maxsize)
            return Parcel(line, fid.decode(), _FEEDS.decode(feeds or b""), by_number, int(at), known)
    return None


def cut(parcel: Parcel, *, bytes_max: int) -> CopySlice:
    """The next slice of a parcel, which has copies left."""
    sizes = [len(feed.names) * len(feed.events) for feed in parcel.feeds]
    ends = list(accumulate(sizes))
    number = next(i for i, end in enumerate(ends) if parcel.at < end)
    feed, events = parcel.feeds[number], parcel.feeds[number].events
    name_at, event_at = divmod(parcel.at - (ends[number] - sizes[number]), len(events))
    taken = _affordable(parcel, events[event_at:], bytes_max)
    is_all = len(taken) == len(events)
    count = _names_affordable(parcel, feed.names[name_at:], taken, bytes_max) if is_all else 1
    at = parcel.at + count * len(taken)
    return CopySlice(feed.names[name_at : name_at + count], taken, at if at < ends[-1] else None)


def _affordable(parcel: Parcel, events: Sequence[tuple[str, int]], bytes_max: int) -> Sequence[tuple[str, int]]:
    """As many of the events as one slice may write to one queue."""
    size = 0
    for count, (_, i) in enumerate(events[: SLICE_US // _EVENT_US]):
        size += len(parcel.messages.get(i, b""))
        if count and size > bytes_max:
            return events[:count]
    return events[: SLICE_US // _EVENT_US]


def _names_affordable(parcel: Parcel, names: Sequence[str], events: Sequence[tuple[str, int]], bytes_max: int) -> int:
    """To how many of the names, in order, one slice may write the events."""
    size = sum(len(parcel.messages.get(i, b"")) for _, i in events)
    count, cost_us = 0, 0
    for name in names[: max(1, bytes_max // max(1, size))]:
        cost_us += _QUEUE_US + _EVENT_US * (len(events) - 1) if name.startswith("@") else _BATCH_US + len(events)
        if count and cost_us > SLICE_US:
            break
        count += 1
    return count


async def waiting(partition: Partition) -> dict[str, dict[str, int]]:
    """By line, about how many bytes each receiver has yet to get from it."""
    reply = await partition.command("SMEMBERS", partition.key("fanout:lines"))
    return {line.decode(): await _waiting_in(partition, line.decode()) for line in cast("list[bytes]", reply)}


async def _waiting_in(partition: Partition, line: str) -> dict[str, int]:
    key = partition.key(f"fanout:line:{line}")
    length, fids = await partition.commands([["LLEN", key], ["LRANGE", key, 0, _SAMPLES - 1]])
    parcels = [partition.key(f"fanout:parcel:{fid.decode()}") for fid in cast("list[bytes]", fids)]
    replies = await partition.commands(
        [command for parcel in parcels for command in (["HSTRLEN", parcel, "lines"], ["HGET", parcel, "feeds"])]
    )
    found: Counter[str] = Counter()
    for size, feeds in zip(replies[0::2], replies[1::2], strict=True):
        for feed in _FEEDS.decode(cast("bytes", feeds)) if feeds else ():
            found.update(dict.fromkeys(feed.names, cast("int", size)))
    return {name: size * cast("int", length) // len(parcels) for name, size in found.items()}
