"""Subscribers as kept in the home partition: what they asked for, and how they fare over all partitions."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from doubledecker.model import own_headers, retry, signing
from doubledecker.model.subscriber import ROUTEMASTER, Subscriber
from doubledecker.model.uid import uid
from doubledecker.store import receivers, shared_connection
from doubledecker.store.bulk import NOWHERE, Beginning
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.store.receivers import ReceiverRecord
from doubledecker.store.scripts import Packable, load

_SAVE, _DELETE, _LEAVE_TOPIC = load("subscriber_save"), load("subscriber_delete"), load("subscriber_leave_topic")
_GIVE = load("subscriber_give")
_RETIRE, _HEALTH, _MARK = load("subscriber_retire"), load("subscriber_health"), load("subscriber_mark")


@dataclass(frozen=True)
class Condition:
    """How a subscriber fares, over all partitions: by the one where it stands worst."""

    health: int = 100
    last_attempted_at: int | None = None
    failures: int = 0
    refusals: int = 0
    retry_at: int = 0
    calls: int = 0
    # Since the first of the failures in a row; None while it is not failing.
    failing_since: int | None = None
    is_probed: bool = False
    # Of an ordered one: how many keys have an event that is put aside, so that later ones wait, and some of them.
    held_key_count: int = 0
    held_keys: tuple[str, ...] = ()

    @property
    def circuit(self) -> str:
        """Whether it may be called: `closed`, `open` while it fails, `half-open` while a probe finds out."""
        if self.failures == 0:
            return "closed"
        return "half-open" if self.is_probed else "open"


@dataclass(frozen=True)
class Attempts:
    """What attempts do to a subscriber's health, and when the last one began.

    Each adds points, and health stays from 0 to 100 in between, so their order matters. Yet whatever it was before, any
    number of them adds `by` and then keeps it from `least` to `most`.
    """

    by: int
    last_at: int
    least: int = 0
    most: int = 100

    def then(self, later: "Attempts") -> "Attempts":
        """These, and others after them."""
        least, most = (max(later.least, min(later.most, bound + later.by)) for bound in (self.least, self.most))
        return Attempts(self.by + later.by, max(self.last_at, later.last_at), least, most)


async def save(home: Partition, subscriber: Subscriber, beginning: Beginning = NOWHERE, *, seen: int) -> int:
    """Create or replace, as decided by the registry at version `seen`. One of the bulk tier says where it begins.

    Returns the registry's new version, or 0 when its client is gone or others have changed it since.
    """
    fields: list[str | int] = ["callback", subscriber.callback, "uuid", subscriber.uuid]
    fields += ["timeout", subscriber.timeout_ms, "max_events", subscriber.max_events]
    fields += ["max_bytes", subscriber.max_bytes, "concurrency", subscriber.concurrency]
    fields += ["retry", msgspec.json.encode(subscriber.retry).decode() if subscriber.retry else ""]
    fields += ["rate_per_s", f"{subscriber.rate_per_s:g}", "ordered", int(subscriber.ordered)]
    fields += ["on_dead", subscriber.on_dead]
    fields += ["backlog_max_bytes", subscriber.backlog_max_bytes]
    fields += ["filter", subscriber.filter]
    fields += ["headers", own_headers.encode(subscriber.headers), "format", subscriber.format]
    # Only `mark` writes whether it is paused.
    fields += ["tier", subscriber.tier]
    fields += ["disabled_at", subscriber.disabled_at, "disabled_why", subscriber.disabled_why]
    if subscriber.owner is not None:
        fields += ["owner", subscriber.owner]
    if subscriber.signing is not None:
        fields += ["signing", signing.encode(subscriber.signing)]
    reply = await home.run(
        _SAVE,
        token=subscriber.token,
        owner=subscriber.client,
        name=subscriber.name,
        fields=fields,
        wanted=list(subscriber.topics),
        shards=beginning.shards,
        starts=beginning.starts,
        seen=seen,
    )
    return cast("int", reply)


async def mark(
    home: Partition, token: str, fields: Mapping[str, int | str], *, seen: Mapping[str, str] | None = None
) -> int:
    """Change some fields of a subscriber; returns the registry's new version.

    0 when there is no such subscriber, when it has them already, or when others of its fields are not as `seen`.
    """
    flat, held = ([word for pair in each.items() for word in pair] for each in (fields, seen or {}))
    return cast("int", await home.run(_MARK, token=token, fields=flat, seen=held))


async def give(home: Partition, subscriber: Subscriber, *, to: str, seen: int) -> int:
    """Make another client the owner, as decided by the registry at version `seen`; what waits stays.

    Returns the registry's new version, 0 when others have changed it since, -1 when there is no such client, -2 when
    that client has one of this name.
    """
    name = subscriber.name
    return cast("int", await home.run(_GIVE, token=subscriber.token, of=subscriber.client, name=name, to=to, seen=seen))


async def delete(home: Partition, subscriber: Subscriber) -> int:
    """Forget a subscriber; returns the registry's new version, or 0 when this client has none of this id."""
    of = subscriber.client
    return cast("int", await home.run(_DELETE, token=subscriber.token, of=of, name=subscriber.name))


async def retire(partition: Partition, token: str, *, version: int) -> bool | None:
    """Set aside what waits in a partition for a subscriber that the registry of this version has not.

    Returns whether a purge was needed; None when the registry has changed since, and the subscriber may be back.
    """
    reply = await partition.run(_RETIRE, of_token=token, rid=uid(), version=version)
    return None if reply == -1 else reply == 1


async def note_attempts(home: Partition, attempts: Mapping[str, Attempts]) -> None:
    """Keep the health of subscribers and when they were last called, of those that still exist."""
    notes: list[Packable] = [[token, each.by, each.least, each.most, each.last_at] for token, each in attempts.items()]
    await home.run(_HEALTH, notes=notes)


async def leave_topic(home: Partition, token: str, name: str) -> int:
    """End one subscription; returns the registry's new version, or 0 when there was none."""
    return cast("int", await home.run(_LEAVE_TOPIC, token=token, name=name))


async def load_many(home: Partition, tokens: Sequence[str]) -> dict[str, Subscriber]:
    found = {}
    for start in range(0, len(tokens), _PAGE):
        page = tokens[start : start + _PAGE]
        records = [["HGETALL", home.key(f"subscriber:{token}")] for token in page]
        replies = await home.commands([*records, *(["SMEMBERS", home.key(f"topics:{token}")] for token in page)])
        for token, record, topics in zip(page, replies[: len(page)], replies[len(page) :], strict=True):
            if record:
                found[token] = _subscriber(token, shared_connection.texts(record), shared_connection.words(topics))
    return found


async def all_tokens(home: Partition) -> list[str]:
    return sorted(shared_connection.words(await home.command("SMEMBERS", home.key("subscribers"))))


async def conditions(partitions: Partitions, tokens: Sequence[str]) -> dict[str, Condition]:
    """How subscribers fare, in two round trips, or three while ordered ones hold keys."""
    home = partitions.home
    health = await home.commands([["HMGET", home.key(f"subscriber:{token}"), *_HEALTH_FIELDS] for token in tokens])
    states = await asyncio.gather(*(receivers.states(partition, tokens) for partition in partitions.all))
    held = await asyncio.gather(*(_held(*each) for each in zip(partitions.all, states, strict=True)))
    return {
        token: _condition(
            cast("list[bytes | None]", fields),
            [each[token] for each in states],
            [lane for each in held for lane in each.get(token, ())],
        )
        for token, fields in zip(tokens, health, strict=True)
    }


async def _held(partition: Partition, states: Mapping[str, ReceiverRecord]) -> dict[str, list[str]]:
    """Some of the keys that ordered subscribers hold in a partition."""
    tokens = [token for token, state in states.items() if state.lanes > 0]
    asked: list[list[str | int]] = [
        ["HRANDFIELD", partition.key(f"order:held:{token}"), _HELD_SHOWN_MAX] for token in tokens
    ]
    found = await partition.commands(asked) if asked else []
    return {token: sorted(shared_connection.words(lanes)) for token, lanes in zip(tokens, found, strict=True)}


_HEALTH_FIELDS = ("health_points", "last_attempted_at")
_HELD_SHOWN_MAX = 20
_PAGE = 500  # subscribers read in one round trip


def _subscriber(token: str, fields: dict[str, str], topics: list[str]) -> Subscriber:
    return Subscriber(
        token=token,
        callback=fields["callback"],
        uuid=fields["uuid"],
        topics=tuple(sorted(topics)),
        timeout_ms=int(fields["timeout"]),
        max_events=int(fields["max_events"]),
        max_bytes=int(fields["max_bytes"]),
        concurrency=int(fields["concurrency"]),
        tier=fields.get("tier", "live"),
        since=int(fields.get("since", 0)),
        anew_since=int(fields.get("anew_since", 0)),
        retry=retry.stored(fields.get("retry", "")),
        rate_per_s=float(fields.get("rate_per_s", 0)),
        backlog_max_bytes=int(fields.get("backlog_max_bytes", 0)),
        filter=fields.get("filter", ""),
        ordered=fields.get("ordered") == "1",
        on_dead=fields.get("on_dead", "continue"),
        paused=fields.get("paused") == "1",
        disabled_at=int(fields.get("disabled_at", 0)),
        disabled_why=fields.get("disabled_why", ""),
        headers=own_headers.stored(fields.get("headers", "")),
        signing=signing.stored(fields.get("signing", "")),
        owner=fields.get("owner"),
        format=fields.get("format", ROUTEMASTER),
    )


def _condition(fields: list[bytes | None], states: Sequence[ReceiverRecord], held: Sequence[str]) -> Condition:
    health, last = fields
    failing = [state for state in states if state.failures > 0]
    return Condition(
        health=100 if health is None else int(health),
        last_attempted_at=None if last is None else int(last),
        failures=max((state.failures for state in states), default=0),
        refusals=max((state.refusals for state in states), default=0),
        retry_at=int(max((state.retry_at for state in failing), default=0)),
        calls=sum(state.calls for state in states),
        failing_since=int(min(state.failing_since for state in failing)) if failing else None,
        is_probed=any(state.prober for state in failing),
        held_key_count=sum(state.lanes for state in states),
        held_keys=tuple(held),
    )
