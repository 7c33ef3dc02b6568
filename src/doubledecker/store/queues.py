"""Messages of queues, in each partition: pulled under a lease, then acked, given back, or held longer.

A message's id is `<partition>-<number>`: unique in its queue, and it says where the message is. Every call here is
about one partition; queues/ring.py makes one queue of them.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from doubledecker.model.queue import RegisteredQueue
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import Encoded, Packable, Script, Value, load
from doubledecker.store.shared_connection import Reply, words

# Measured: a pull of 100 holds the server for about a millisecond.
PULL_MAX = 200
# Messages settled by one call; more take several calls.
SETTLE_MAX = 1_000
BELL_S = 5.0
# Calls of a pull from an ordered queue: what comes to its turn first may all have to wait for others of its key.
_PULLS_MAX = 5
# Leases, delays and rates that end in one call.
_DUE_MAX = 50

# How the record of a message that was pulled begins, before its facet's name: attempt, messages pulled together,
# attempts that do not count, time of the pull, cost charged, the facet's tag then.
RECORD = struct.Struct("<IIIddd")
# Ids, attempts, tenants, events and tries, a column each; then wait, end of leases, least tag, mean cost, facets.
_PullReply = tuple[list[bytes], list[int], list[bytes], list[bytes], list[int], int, int, bytes, bytes, int]

# Facets of each place that one dropping call looks at.
_FACETS_MAX = 1_000

_PULL, _ACK, _NACK, _EXTEND = load("queue_pull"), load("queue_ack"), load("queue_nack"), load("queue_extend")
_DROP, _SPARE, _SKIP = load("queue_drop"), load("queue_spare"), load("queue_skip")
_HAND = load("queue_hand")


@dataclass(frozen=True)
class QueueMessage:
    """One message in a consumer's hands; `event` is its JSON, and `attempt` proves whose it is.

    `tries` are the attempts that count, this one included: some ended by no fault of the message's own.
    """

    id: str
    attempt: int
    tenant: str
    event: bytes
    lease_until: int
    tries: int = 1


@dataclass(frozen=True)
class Pulled:
    """What a pull found in one partition, and how its ring stands: least tag (None: empty), mean cost, facets."""

    messages: tuple[QueueMessage, ...]
    wait_ms: int | None
    head: float | None
    cost: float
    facets: int


class Named(Protocol):
    """A message that a consumer names, with the attempt it believes to hold."""

    @property
    def id(self) -> str: ...

    @property
    def attempt(self) -> int: ...


class Returned(Named, Protocol):
    """A message that a consumer gives back for later."""

    @property
    def delay_ms(self) -> int: ...


@dataclass(frozen=True)
class LeasedMessage:
    """A message that a consumer names, as values; the attempt of one that is spared does not count."""

    id: str
    attempt: int
    delay_ms: int = 0
    is_spared: bool = False


@dataclass(frozen=True)
class LastAnswer:
    """What a queue's receiver answered last, as a dead letter keeps it; the status is 0 when there was none."""

    status: int
    headers: Sequence[str]
    text: str


async def pull(
    partition: Partition,
    queue: RegisteredQueue,
    *,
    most: int,
    lease_ms: int,
    portions: Sequence[int] = (),
    floor: float = 0.0,
    is_alone: bool = True,
) -> Pulled:
    """Take up to `most` messages under a lease; with 0 only what is due comes back.

    `portions` are what each of several consumers asked for, in the order in which they are served: time is charged to
    each by itself. `floor` is how far the queue is over all partitions, `is_alone` whether no other has anything to
    serve.
    """
    for _ in range(_PULLS_MAX if queue.ordered else 1):
        reply = await run(
            partition,
            _PULL,
            queue,
            most=most,
            lease_ms=lease_ms,
            attempts_max=queue.attempts_max,
            floor=repr(floor),
            is_alone=int(is_alone),
            due_max=_DUE_MAX,
            ordered=int(queue.ordered),
            portions=portions,
        )
        *columns, wait_ms, until, head, cost, facets = cast("_PullReply", reply)
        if most == 0 or columns[0] or wait_ms != 0:
            break
    messages = tuple(
        [
            QueueMessage(id_.decode(), attempt, tenant.decode(), event, until, tries)
            for id_, attempt, tenant, event, tries in zip(*columns, strict=True)
        ]
    )
    return Pulled(messages, None if wait_ms < 0 else wait_ms, float(head) if head else None, float(cost), facets)


async def overdue(partition: Partition, names: Sequence[str], *, by_ms: int) -> list[str]:
    """The queues that hold something due for so long; a pull would have returned it to its line."""
    places = [partition.key(f"queue:{place}:{name}") for name in names for place in ("pending", "scheduled")]
    firsts = await partition.commands([["ZRANGE", place, 0, 0, "WITHSCORES"] for place in places])
    until = await partition.time_ms() - by_ms
    due = [bool(first) and float(first[1]) <= until for first in cast("list[list[bytes]]", firsts)]
    return [name for name, *both in zip(names, due[0::2], due[1::2], strict=True) if any(both)]


async def ack(partition: Partition, queue: RegisteredQueue, held: Sequence[Named]) -> list[str]:
    """End messages; returns the ids that were still the caller's."""
    return words(await run(partition, _ACK, queue, **_named(held)))


async def nack(
    partition: Partition,
    queue: RegisteredQueue,
    held: Sequence[Returned],
    *,
    why: str,
    is_rejected: bool = False,
    answer: LastAnswer | None = None,
) -> list[str]:
    """Give messages back, each after its delay, or to the dead letters; returns those that were still the caller's.

    Of a spared one whose lease had ended before, the attempt that this cost is taken back.
    """
    reply = await run(
        partition,
        _NACK,
        queue,
        **_named(held),
        delays=[each.delay_ms for each in held],
        spared=[int(isinstance(each, LeasedMessage) and each.is_spared) for each in held],
        # With none left every attempt was the last.
        attempts_max=0 if is_rejected else queue.attempts_max,
        why=why,
        reason="rejected" if is_rejected else "attempts",
        answer=[answer.status, "\n".join(answer.headers), answer.text] if answer else [],
    )
    kept = words(reply)
    if len(kept) < len(held) and not is_rejected:
        lost = [each for each in held if isinstance(each, LeasedMessage) and each.is_spared and each.id not in kept]
        if lost:
            await run(partition, _SPARE, queue, **_named(lost), attempts_max=queue.attempts_max)
    return kept


async def extend(
    partition: Partition, queue: RegisteredQueue, held: Sequence[Named], *, lease_ms: int
) -> tuple[int, list[str]]:
    """Hold messages longer; returns until when, and the ids that were still the caller's."""
    reply = await run(partition, _EXTEND, queue, **_named(held), lease_ms=lease_ms)
    until, ids = cast("tuple[int, list[bytes]]", reply)
    return until, words(ids)


async def drop_oldest(
    partition: Partition, queue: RegisteredQueue, *, messages_max: int, bytes_enough: int
) -> tuple[int, int]:
    """Drop the oldest waiting messages, until one of the bounds is met; returns how many, and their bytes."""
    bounds = {"facets_max": _FACETS_MAX, "messages_max": messages_max, "bytes_enough": bytes_enough}
    dropped, size = cast("tuple[int, int]", await run(partition, _DROP, queue, **bounds))
    return dropped, size


async def note_skipped(partition: Partition, counts: Mapping[str, int]) -> None:
    """Count events that did not enter queues; a few hundred queues at most, as it is one call."""
    flat: list[Packable] = [word for pair in counts.items() for word in pair]
    await partition.run(_SKIP, counts=flat)


async def hand(partition: Partition, queue: RegisteredQueue, *, version: int) -> None:
    """Have a partition know whose a queue is since this version: who had it before gets and settles nothing more."""
    owner = "" if queue.is_roots else queue.owner
    await partition.run(_HAND, queue=queue.name, owner=owner, version=version)


async def lengths(partition: Partition, tokens: Sequence[str]) -> dict[str, int]:
    """How many messages queues hold, by the names of their receivers."""
    commands: list[list[Encoded]] = [
        ["HLEN", partition.key(f"queue:data:{token.removeprefix('@')}")] for token in tokens
    ]
    return dict(zip(tokens, cast("list[int]", await partition.commands(commands)), strict=True))


async def bell(partition: Partition, last: str) -> tuple[str, list[str]]:
    """Wait until some queue has something to serve; returns where to listen from next, and which. Never cancel it."""
    reply = await partition.block(
        "XREAD", "BLOCK", int(BELL_S * 1000), "STREAMS", partition.key("queues:bell"), last, block_s=BELL_S
    )
    if reply is None:
        return last, []
    [[_, entries]] = cast("list[tuple[bytes, list[tuple[bytes, list[bytes]]]]]", reply)
    return entries[-1][0].decode(), [fields[1].decode() for _, fields in entries]


async def run(partition: Partition, script: Script, queue: RegisteredQueue, **values: Value) -> Reply:
    """Run a script that stands on lua/queue_facets.lua."""
    owner = "" if queue.is_roots else queue.owner
    return await partition.run(script, queue=queue.name, owner=owner, charge=queue.charge, **values)


def _named(held: Sequence[Named]) -> dict[str, Value]:
    return {"ids": [each.id for each in held], "attempts": [each.attempt for each in held]}
