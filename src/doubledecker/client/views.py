"""What the bus returns about queues: counts, facets, messages."""

import msgspec

from doubledecker.client.message import Event


class FacetView(msgspec.Struct, frozen=True):
    """A facet: `share` is its part of the service, `oldest` its oldest message's age in ms, None no bound."""

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
    """A queue; only `get` of one queue returns its facets and the health of its callback."""

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
    """The rules of one tenant; None is no bound."""

    weight: float
    concurrency: int | None
    rate_per_s: float | None
    paused: bool


class DeadLetter(msgspec.Struct, frozen=True):
    """A dead letter with its reason; `died_at` is in milliseconds since 1970."""

    id: str
    tenant: str
    attempts: int
    why: str
    died_at: int
    event: Event


class Waiting(msgspec.Struct, frozen=True):
    """A waiting message that was not pulled."""

    id: str
    tenant: str
    event: Event
