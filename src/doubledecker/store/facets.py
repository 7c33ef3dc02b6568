"""Facets of queues, in each partition: their rules, and how they and their queue stand."""

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from doubledecker.model.queue import FacetRule, RegisteredQueue
from doubledecker.store import queues, shared_connection
from doubledecker.store.partitions import Partition
from doubledecker.store.queues import RECORD
from doubledecker.store.scripts import Encoded, Packable, load
from doubledecker.store.shared_connection import Reply

# How a facet stands, as it is kept: tag, mean cost, whether its line may have a tail. The line's head follows; see
# lua/queue_lines.lua.
FACET = struct.Struct("<dd?")
_PAGE = 1_000
# The state of a queue: the messages it holds, those in consumers' hands, delayed ones, and counters.
_LOOKED_AT = (("HLEN", "data"), ("ZCARD", "pending"), ("ZCARD", "scheduled"), ("HGETALL", "state"))
# Weight, messages in flight at most, milliseconds between messages, 1 when paused; then messages in flight, next time.
_KeptRule = tuple[float, int, float, int, int, float]
_RULE = load("queue_rule")


@dataclass(frozen=True)
class FacetRecord:
    tenant: str
    waiting: int
    in_flight: int
    oldest_id: str
    rule: FacetRule
    is_served: bool


@dataclass(frozen=True)
class WaitingMessages:
    """How many messages of a tenant wait in a queue, and its weight there."""

    tenant: str
    count: int
    weight: float


@dataclass(frozen=True)
class QueueRecord:
    length: int
    in_flight: int
    delayed: int
    dead: int
    counters: dict[str, int]


async def rule(partition: Partition, queue: RegisteredQueue, tenant: str) -> FacetRule:
    kept = await partition.command("HGET", partition.key(f"queue:rules:{queue.name}"), tenant)
    return _rule(cast("bytes | None", kept))


async def set_rule(partition: Partition, queue: RegisteredQueue, tenant: str, rule: FacetRule) -> None:
    """Change the rule of a facet, from its next message on."""
    every_ms = 1000 / rule.rate_per_s if rule.rate_per_s else 0
    # Whole numbers as such: what is equal to the default must be distinguished from what is not.
    numbers: list[float] = [rule.weight, rule.concurrency, every_ms, int(rule.paused)]
    packed: list[Packable] = [int(number) if number == int(number) else number for number in numbers]
    await queues.run(partition, _RULE, queue, facet=tenant, rule=packed)


async def count_rules(partition: Partition, queue: RegisteredQueue) -> int:
    return cast("int", await partition.command("HLEN", partition.key(f"queue:rules:{queue.name}")))


async def count_tenants(partition: Partition, names: Sequence[str]) -> list[int]:
    """How many tenants each queue knows in a partition, or how many have rules, if these are more."""
    keys = [partition.key(f"queue:{kind}:{name}") for name in names for kind in ("facets", "rules")]
    counts = cast("list[int]", await partition.commands([["HLEN", key] for key in keys]))
    return [max(pair) for pair in zip(counts[0::2], counts[1::2], strict=True)]


async def look(partition: Partition, some: Sequence[RegisteredQueue]) -> list[QueueRecord]:
    """How queues stand, up to a hundred in one round trip."""
    commands: list[list[Encoded]] = []
    for queue in some:
        commands += [[verb, partition.key(f"queue:{kind}:{queue.name}")] for verb, kind in _LOOKED_AT]
        commands.append(["ZCARD", partition.key(f"dead:index:@{queue.name}")])
    replies = await partition.commands(commands)
    size = len(_LOOKED_AT) + 1
    return [_view(*replies[first : first + size]) for first in range(0, len(replies), size)]


def _view(length: Reply, in_flight: Reply, delayed: Reply, state: Reply, dead: Reply) -> QueueRecord:
    kept = shared_connection.fields(state).items()
    counters = {name: int(value) for name, value in kept if name not in {"v", "mean", "acked_at"}}
    return QueueRecord(*cast("tuple[int, int, int, int]", (length, in_flight, delayed, dead)), counters)


async def names(partition: Partition, queue: RegisteredQueue, *, most: int) -> list[str]:
    """Tenants with something waiting or with a rule, at most so many."""
    commands: list[list[Encoded]] = [
        ["ZRANGE", partition.key(f"queue:{name}:{queue.name}"), 0, most - 1] for name in ("ring", "parked", "wake")
    ]
    commands.append(["HKEYS", partition.key(f"queue:rules:{queue.name}")])
    replies = await partition.commands(commands)
    found = dict.fromkeys(name for reply in replies for name in shared_connection.words(reply))
    return list(found)[:most]


async def waiting(partition: Partition, queue: str, *, most: int) -> list[WaitingMessages]:
    """The tenants that could be served now, at most so many, those first that have had the least of their due.

    Those that their own rules hold back (paused, at their cap or rate) are not among them.
    """
    reply = await partition.command("ZRANGE", partition.key(f"queue:ring:{queue}"), 0, most - 1)
    tenants = shared_connection.words(reply)
    if not tenants:
        return []
    kept, rules, *tails = await partition.commands(
        [
            ["HMGET", partition.key(f"queue:facets:{queue}"), *tenants],
            ["HMGET", partition.key(f"queue:rules:{queue}"), *tenants],
            *(["LLEN", partition.key(f"queue:new:{queue}:{name}")] for name in tenants),
        ]
    )
    records, packed = cast("list[bytes | None]", kept), cast("list[bytes | None]", rules)
    return [
        WaitingMessages(tenant, len(head(record)) + cast("int", tail), _rule(rule).weight)
        for tenant, record, rule, tail in zip(tenants, records, packed, tails, strict=True)
    ]


def head(record: bytes | None) -> list[str]:
    """The ids at the head of a facet's line."""
    return record[FACET.size :].decode().split() if record else []


async def facets(partition: Partition, queue: RegisteredQueue, tenants: Sequence[str]) -> list[FacetRecord]:
    if not tenants:
        return []
    kept, rules, served = await partition.commands(
        [
            ["HMGET", partition.key(f"queue:facets:{queue.name}"), *tenants],
            ["HMGET", partition.key(f"queue:rules:{queue.name}"), *tenants],
            ["ZMSCORE", partition.key(f"queue:ring:{queue.name}"), *tenants],
        ]
    )
    tails = await partition.commands([["LLEN", partition.key(f"queue:new:{queue.name}:{name}")] for name in tenants])
    held = await in_flight(partition, queue)
    rows = zip(
        tenants,
        cast("list[bytes | None]", kept),
        cast("list[bytes | None]", rules),
        cast("list[bytes | None]", served),
        cast("list[int]", tails),
        strict=True,
    )
    return [
        FacetRecord(
            tenant,
            waiting=len(head(record)) + tail,
            in_flight=held[tenant],
            oldest_id=head(record)[0] if head(record) else "",
            rule=_rule(rule),
            is_served=tag is not None,
        )
        for tenant, record, rule, tag, tail in rows
    ]


async def in_flight(partition: Partition, queue: RegisteredQueue) -> Counter[str]:
    """How many messages of each tenant are in consumers' hands; only of those with rules is that number kept."""
    ids = cast("list[bytes]", await partition.command("ZRANGE", partition.key(f"queue:pending:{queue.name}"), 0, -1))
    return await owners(partition, queue.name, ids)


async def owners(partition: Partition, name: str, ids: Sequence[bytes]) -> Counter[str]:
    """Whose these messages are that were pulled once, and how many each has."""
    found: Counter[str] = Counter()
    for start in range(0, len(ids), _PAGE):
        records = await partition.command("HMGET", partition.key(f"queue:tried:{name}"), *ids[start : start + _PAGE])
        found.update(record[RECORD.size :].decode() for record in cast("list[bytes | None]", records) if record)
    return found


def _rule(kept: bytes | None) -> FacetRule:
    if kept is None:
        return FacetRule()
    weight, concurrency, every_ms, is_paused, *_ = msgspec.msgpack.decode(kept, type=_KeptRule)
    return FacetRule(weight, concurrency, round(1000 / every_ms, 6) if every_ms else 0.0, bool(is_paused))
