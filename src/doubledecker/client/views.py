"""What a queue shows of itself: its numbers, its facets, what it holds."""

import msgspec

from doubledecker.client.message import Event


class FacetView(msgspec.Struct, frozen=True):
    """One tenant's line; `share` is its part of what can be served, `oldest` an age in milliseconds, None no bound."""

    tenant: str
    waiting: int
    in_flight: int
    oldest: int
    share: float
    weight: float
    concurrency: int | None
    rate_per_s: float | None
    paused: bool


class QueueView(msgspec.Struct, frozen=True):
    """A queue as it stands; facets, and how its callback fares, are there when one queue was asked for."""

    name: str
    owner: str
    pattern: tuple[str, ...]
    lease_ms: int
    attempts_max: int
    charge: str
    max_length: int
    facet_max_length: int
    overflow: str
    refuse_clients: tuple[str, ...] = ()
    waiting: int = 0
    in_flight: int = 0
    delayed: int = 0
    dead: int = 0
    oldest: int = 0
    counters: dict[str, int] = {}
    facets: tuple[FacetView, ...] = ()
    callback: str = ""
    uuid: str = ""
    health: int | None = None
    failures: int = 0
    refusals: int = 0


class Rule(msgspec.Struct, frozen=True):
    """What holds for one facet; None is no bound."""

    weight: float
    concurrency: int | None
    rate_per_s: float | None
    paused: bool


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that was given up; `died_at` is in milliseconds since 1970."""

    id: str
    tenant: str
    attempts: int
    why: str
    died_at: int
    event: Event


class Waiting(msgspec.Struct, frozen=True):
    """A message that waits, seen without being taken."""

    id: str
    tenant: str
    event: Event
