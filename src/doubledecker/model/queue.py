"""Queues: what consumers pull from, what is put on them, and within which limits."""

import re
from collections.abc import Mapping

import msgspec

from doubledecker.errors import BadRequest
from doubledecker.model import json_body
from doubledecker.model import subscriber as subscribing
from doubledecker.model.event import STEPS
from doubledecker.model.matching import check_pattern
from doubledecker.model.subscriber import Subscriber
from doubledecker.model.token import ROOT_NAME

NAME = re.compile(r"[a-z0-9_.-]{1,64}")
PATTERNS_MAX = 20
LEASE_MS_MIN, LEASE_MS_MAX = 100, 12 * 3_600_000
ATTEMPTS_MAX = 1_000
LENGTH_MAX = 100_000_000
WEIGHT_MIN, WEIGHT_MAX = 0.01, 1_000.0
RATE_MIN, RATE_MAX = 0.001, 1_000_000.0
HELD_MAX = 100_000
REFUSE_CLIENTS_MAX = 100
CHARGES = ("time", "count")
OVERFLOWS = ("drop_oldest", "refuse")


class Queue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A registered queue; `owner` is the public id of a token, or empty for root."""

    name: str
    owner: str
    patterns: tuple[str, ...]
    lease_ms: int = 30_000
    attempts_max: int = 10
    charge: str = "time"
    max_length: int = 1_000_000
    facet_max_length: int = 0
    overflow: str = "drop_oldest"
    # Where messages are pushed, when there is a callback; the fields mean what they mean for a subscriber.
    callback: str = ""
    uuid: str = ""
    timeout_ms: int = 500
    max_events: int = 100
    max_bytes: int = 1_048_576
    concurrency: int = 4
    # Further clients whose events the queue may refuse; None in a record of version 0.1.0, which had no such list.
    refuse_clients: tuple[str, ...] | None = None
    # The registry's version that it came with, as the store sets it, at the end of the record (lua/queue_save.lua).
    since: int = 0

    @property
    def refuses(self) -> bool:
        """Whether a full queue turns new events away; otherwise the oldest of the same facet goes."""
        return self.overflow == "refuse"

    @property
    def is_roots(self) -> bool:
        """Whether root owns it."""
        return self.owner in {"", ROOT_NAME}

    def may_refuse(self, publisher: str) -> bool:
        """Whether this client's publish may be refused because the queue is full.

        Only the owner's own, those of clients that root has named, and for root's queues everybody's: otherwise one
        client could stop another from publishing. Other events do not enter a full queue that refuses.
        """
        return self.refuses and (self.is_roots or publisher == self.owner or publisher in (self.refuse_clients or ()))

    @property
    def receiver(self) -> Subscriber:
        """Who gets what is pushed from it; the name cannot be a token's."""
        return Subscriber(
            token=f"@{self.name}",
            callback=self.callback,
            # Version 0.1.0 kept none when none was given, and showed the name; receivers know it by that.
            uuid=self.uuid or self.name,
            timeout_ms=self.timeout_ms,
            max_events=self.max_events,
            max_bytes=self.max_bytes,
            concurrency=self.concurrency,
        )


class Rule(msgspec.Struct, frozen=True):
    """What holds for one facet; zero means no bound."""

    weight: float = 1.0
    concurrency: int = 0
    rate_per_s: float = 0.0
    paused: bool = False


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `PUT /queues/:name`."""

    pattern: str | list[str]
    lease_ms: int = 30_000
    attempts_max: int = 10
    charge: str = "time"
    max_length: int = 1_000_000
    facet_max_length: int = 0
    overflow: str = "drop_oldest"
    owner: str | None = None
    refuse_clients: list[str] | None = None
    callback: str | None = None
    uuid: str | None = None
    timeout: int = 500
    max: int = 100
    max_bytes: int = 1_048_576
    concurrency: int = 4


class _RuleAsked(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `PATCH /queues/:name/facets/:tenant`; null ends a bound."""

    weight: float | msgspec.UnsetType = msgspec.UNSET
    concurrency: int | msgspec.UnsetType | None = msgspec.UNSET
    rate_per_s: float | msgspec.UnsetType | None = msgspec.UNSET
    paused: bool | msgspec.UnsetType = msgspec.UNSET


_ASKED = msgspec.json.Decoder(_Asked)
_RULE_ASKED = msgspec.json.Decoder(_RuleAsked)


def check_name(name: str) -> None:
    """Raise BadRequest unless it can be a queue's name."""
    if not NAME.fullmatch(name) or name in STEPS:
        raise BadRequest(f"the queue is {name[:80]!r}; a name must match {NAME.pattern}, and be neither . nor ..")


def parse(body: bytes, *, name: str, owner: str, is_root: bool, is_private_allowed: bool) -> Queue:
    """A checked queue; raises BadRequest with what was seen and what is allowed."""
    check_name(name)
    asked = json_body.decode(_ASKED, body, what="a queue")
    if asked.owner is not None and not is_root:
        raise BadRequest("owner can be set by root alone; without it the queue is yours")
    if asked.refuse_clients is not None and not is_root:
        raise BadRequest("refuse_clients can be set by root alone; without it the queue may refuse your own events")
    _check_ranges(asked)
    if asked.callback is not None:
        asked.callback, asked.uuid = subscribing.without_user(asked.callback, asked.uuid)
    subscribing.check_receiver(asked, is_private_allowed=is_private_allowed)
    return Queue(
        name=name,
        owner=owner if asked.owner is None else asked.owner,
        patterns=_patterns(asked.pattern),
        lease_ms=asked.lease_ms,
        attempts_max=asked.attempts_max,
        charge=asked.charge,
        max_length=asked.max_length,
        facet_max_length=asked.facet_max_length,
        overflow=asked.overflow,
        callback=asked.callback or "",
        uuid=asked.uuid or "",
        timeout_ms=asked.timeout,
        max_events=asked.max,
        max_bytes=asked.max_bytes,
        concurrency=asked.concurrency,
        refuse_clients=None if asked.refuse_clients is None else _refuse_clients(asked.refuse_clients),
    )


def with_uuid(queue: Queue, former: Queue | None) -> Queue:
    """The queue with the uuid it was given, or else the former one, or else, if it has a callback, a random one."""
    if queue.uuid:
        return queue
    if former is not None and (former.uuid or former.callback):
        return msgspec.structs.replace(queue, uuid=former.uuid)
    return msgspec.structs.replace(queue, uuid=subscribing.make_uuid()) if queue.callback else queue


def parse_rule(body: bytes, former: Rule) -> Rule:
    """The rule that results from what is asked and what was there before."""
    asked = json_body.decode(_RULE_ASKED, body, what="a facet's rule")
    given = {field: getattr(asked, field) for field in asked.__struct_fields__}
    changes = {field: value for field, value in given.items() if value is not msgspec.UNSET}
    _check("weight", changes, WEIGHT_MIN, WEIGHT_MAX)
    _check("concurrency", changes, 1, HELD_MAX)
    _check("rate_per_s", changes, RATE_MIN, RATE_MAX)
    plain = Rule()
    return msgspec.structs.replace(
        former, **{field: getattr(plain, field) if value is None else value for field, value in changes.items()}
    )


def _patterns(asked: str | list[str]) -> tuple[str, ...]:
    patterns = [asked] if isinstance(asked, str) else list(dict.fromkeys(asked))
    if not 1 <= len(patterns) <= PATTERNS_MAX:
        raise BadRequest(f"{len(patterns)} patterns; a queue has from 1 to {PATTERNS_MAX}")
    for pattern in patterns:
        check_pattern(pattern)
    return tuple(patterns)


def _refuse_clients(asked: list[str]) -> tuple[str, ...]:
    if len(asked) > REFUSE_CLIENTS_MAX:
        raise BadRequest(f"refuse_clients names {len(asked)} clients; at most {REFUSE_CLIENTS_MAX} are allowed")
    return tuple(sorted(set(asked)))


def _check_ranges(asked: _Asked) -> None:
    given = {field: getattr(asked, field) for field in asked.__struct_fields__}
    _check("lease_ms", given, LEASE_MS_MIN, LEASE_MS_MAX)
    _check("attempts_max", given, 1, ATTEMPTS_MAX)
    _check("max_length", given, 1, LENGTH_MAX)
    _check("facet_max_length", given, 0, LENGTH_MAX)
    for field, allowed in (("charge", CHARGES), ("overflow", OVERFLOWS)):
        if given[field] not in allowed:
            raise BadRequest(f"{field} is {given[field][:80]!r}; it must be {' or '.join(allowed)}")


def _check(field: str, given: Mapping[str, object], least: float, most: float) -> None:
    value = given.get(field)
    # Written so that NaN fails too.
    if isinstance(value, int | float) and not isinstance(value, bool) and not least <= value <= most:
        raise BadRequest(f"{field} is {value}; it must be from {least} to {most}")
