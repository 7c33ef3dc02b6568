"""Subscribers as kept in the home partition: what they asked for, how they fare, who calls them now."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import cast

from doubledecker.model.strand import BULK_SLOT
from doubledecker.model.subscriber import Subscriber
from doubledecker.model.uid import uid
from doubledecker.store.bulk import NOWHERE, Beginning
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import load

_ENTER, _LEAVE, _RETIRE = load("subscriber_enter"), load("subscriber_leave"), load("subscriber_retire")
_WAIT, _RESUME = load("subscriber_wait"), load("subscriber_resume")
_SAVE, _DELETE, _LEAVE_TOPIC = (
    load("subscriber_save"),
    load("subscriber_delete"),
    load("subscriber_leave_topic"),
)


# From being put back to asking for the place: a few round trips, unless a worker dies in between.
INVITE_MS = 2_000


class Entry(Enum):
    """The answer to a wish to call a subscriber."""

    GO = "go"
    FULL = "full"
    FAILING = "failing"
    GONE = "gone"


@dataclass(frozen=True)
class Waiting:
    """A partition with parked jobs of a subscriber, and a mark that changes whenever some are parked there."""

    partition: int
    mark: str


@dataclass(frozen=True)
class Invited:
    """How many parked jobs were invited to free places just now, and how many invitations there are in all."""

    count: int
    total: int


@dataclass(frozen=True)
class Left:
    """How a subscriber stands after a call to it ended; parked jobs are invited to its free places."""

    failures_before: int
    failures: int
    has_place: bool
    invited: Invited
    waiting: tuple[Waiting, ...]


@dataclass(frozen=True)
class Condition:
    """How a subscriber fares."""

    health: int = 100
    last_attempted_at: int | None = None
    failures: int = 0
    retry_at: int = 0
    calls: int = 0
    # Since the first of the failures in a row; None while the last attempt was a success.
    failing_since: int | None = None


async def save(home: Partition, subscriber: Subscriber, beginning: Beginning = NOWHERE) -> int:
    """Create or replace; returns the registry's new version. One of the bulk tier says where it begins."""
    fields: list[str | int] = ["callback", subscriber.callback, "uuid", subscriber.uuid]
    fields += ["timeout", subscriber.timeout_ms, "max_events", subscriber.max_events]
    fields += ["max_bytes", subscriber.max_bytes, "concurrency", subscriber.concurrency]
    fields += ["tier", subscriber.tier]
    reply = await home.run(
        _SAVE,
        token=subscriber.token,
        fields=fields,
        wanted=list(subscriber.topics),
        strands=beginning.strands,
        starts=beginning.starts,
    )
    return cast("int", reply)


async def delete(home: Partition, token: str) -> int:
    """Forget a subscriber; returns the registry's new version, or 0 when there was none."""
    return cast("int", await home.run(_DELETE, token=token))


async def retire(partition: Partition, token: str) -> bool:
    """Set aside what waits in a partition for a subscriber that is gone; says whether a purge was needed."""
    return await partition.run(_RETIRE, token=token, rid=uid()) == 1


async def leave_topic(home: Partition, token: str, name: str) -> int:
    """End one subscription; returns the registry's new version, or 0 when there was none."""
    return cast("int", await home.run(_LEAVE_TOPIC, token=token, name=name))


async def enter(
    home: Partition,
    subscriber: Subscriber,
    *,
    slot: str,
    lease_ms: int,
    partition: int,
    is_retry: bool,
    is_called: bool = False,
) -> Entry:
    """Ask for a place among the calls to a subscriber; while others are parked, only those called get one."""
    reply = await home.run(
        _ENTER,
        token=subscriber.token,
        slot=slot,
        concurrency=subscriber.concurrency,
        lease_ms=lease_ms,
        partition=partition,
        is_retry=int(is_retry),
        is_called=int(is_called),
    )
    return Entry(cast("bytes", reply).decode())


async def wait(home: Partition, subscriber: Subscriber, *, partition: int) -> Invited:
    """Note that jobs are parked in a partition; returns how many are invited back, as places became free meanwhile."""
    reply = await home.run(
        _WAIT,
        token=subscriber.token,
        concurrency=subscriber.concurrency,
        partition=partition,
        invite_ms=INVITE_MS,
        uid=uid(),
    )
    return Invited(*cast("tuple[int, int]", reply))


async def uninvite(home: Partition, token: str, count: int) -> None:
    """Give up places that were kept for parked jobs which turned out not to be there."""
    if count > 0:
        await home.command("ZPOPMAX", home.key(f"invitations:{token}"), count)


async def leave(
    home: Partition,
    subscriber: Subscriber,
    *,
    slot: str,
    points: int,
    delay_ms: int = 0,
    took_ms: int = 0,
    lease_ms: int = 0,
) -> Left:
    """Free the place, or keep it for a lease if that may be; `points` are health won or lost, 0 without an attempt."""
    reply = await home.run(
        _LEAVE,
        token=subscriber.token,
        slot=slot,
        concurrency=subscriber.concurrency,
        points=points,
        delay_ms=delay_ms,
        took_ms=took_ms,
        invite_ms=INVITE_MS,
        uid=uid(),
        lease_ms=lease_ms,
    )
    before, failures, is_kept, invited, total, flat = cast("tuple[int, int, int, int, int, list[bytes]]", reply)
    pairs = zip(flat[0::2], flat[1::2], strict=True)
    waiting = tuple(Waiting(int(partition), mark.decode()) for partition, mark in pairs)
    return Left(before, failures, is_kept == 1, Invited(invited, total), waiting)


async def end_holds(home: Partition, token: str, *, alive: Container[str]) -> int:
    """Free the places of slots that died while they held one; says how many."""
    key = home.key(f"holds:{token}")
    holders = [slot.decode() for slot in cast("list[bytes]", await home.command("ZRANGE", key, 0, -1))]
    # Spark tasks have no heartbeat; theirs end by themselves, within a short lease.
    dead = [slot for slot in holders if slot not in alive and not slot.startswith(BULK_SLOT)]
    return cast("int", await home.command("ZREM", key, *dead)) if dead else 0


async def resume(home: Partition, token: str, waiting: Waiting) -> bool:
    """Note that a partition has no more parked jobs of a subscriber; False when some were parked since one looked."""
    return await home.run(_RESUME, token=token, partition=waiting.partition, mark=waiting.mark) == 1


async def load_many(home: Partition, tokens: Sequence[str]) -> dict[str, Subscriber]:
    """Those of the subscribers that exist."""
    found = {}
    for start in range(0, len(tokens), _PAGE):
        page = tokens[start : start + _PAGE]
        commands = [
            command
            for token in page
            for command in (
                ["HGETALL", home.key(f"subscriber:{token}")],
                ["SMEMBERS", home.key(f"topics:{token}")],
            )
        ]
        replies = cast("list[list[bytes]]", await home.commands(commands))
        for token, flat, topics in zip(page, replies[0::2], replies[1::2], strict=True):
            if flat:
                found[token] = _subscriber(token, _fields(flat), topics)
    return found


async def all_tokens(home: Partition) -> list[str]:
    """The ids of all subscribers."""
    return sorted(
        token.decode() for token in cast("list[bytes]", await home.command("SMEMBERS", home.key("subscribers")))
    )


async def conditions(home: Partition, tokens: Sequence[str], *, now_ms: int) -> dict[str, Condition]:
    """How subscribers fare, in one round trip."""
    commands: list[list[str | int]] = []
    for token in tokens:
        commands.append(["HGETALL", home.key(f"subscriber:{token}")])
        commands.append(["ZCOUNT", home.key(f"holds:{token}"), f"({now_ms}", "+inf"])
    replies = await home.commands(commands)
    return {
        token: _condition(_fields(cast("list[bytes]", flat)), cast("int", calls))
        for token, flat, calls in zip(tokens, replies[0::2], replies[1::2], strict=True)
    }


_PAGE = 500  # subscribers read in one round trip


def _fields(flat: list[bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in zip(flat[0::2], flat[1::2], strict=True)}


def _subscriber(token: str, fields: dict[str, str], topics: list[bytes]) -> Subscriber:
    return Subscriber(
        token=token,
        callback=fields["callback"],
        uuid=fields["uuid"],
        topics=tuple(sorted(topic.decode() for topic in topics)),
        timeout_ms=int(fields["timeout"]),
        max_events=int(fields["max_events"]),
        max_bytes=int(fields["max_bytes"]),
        concurrency=int(fields["concurrency"]),
        tier=fields.get("tier", "live"),
    )


def _condition(fields: dict[str, str], calls: int) -> Condition:
    return Condition(
        health=int(fields.get("health_points", 100)),
        last_attempted_at=int(fields["last_attempted_at"]) if "last_attempted_at" in fields else None,
        failures=int(fields.get("failures", 0)),
        retry_at=int(fields.get("retry_at", 0)),
        calls=calls,
        failing_since=int(fields["failing_since"]) if "failing_since" in fields else None,
    )
