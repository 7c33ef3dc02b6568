"""A summary: the measures of a stretch of time, as the report and the dashboard show it.

It is bounded: a moment for each minute or hour, and of topics, tenants, subscribers and queues only the largest.
"""

import msgspec


class Spread(msgspec.Struct, frozen=True, array_like=True):
    """How long something took, in milliseconds: of so many, half took at most `p50`."""

    count: int
    p50: float
    p95: float
    p99: float


class Moment(msgspec.Struct, frozen=True, omit_defaults=True):
    """One minute or hour, from `at` on; `took` is of attempts, `age` of events from accepted to delivered."""

    at: int
    events: int = 0
    bytes: int = 0
    tenants: int = 0
    keys: int = 0
    attempts: int = 0
    delivered: int = 0
    retries: int = 0
    took: Spread | None = None
    age: Spread | None = None


class FlowSummary(msgspec.Struct, frozen=True):
    """What was published on a topic, or by a tenant."""

    name: str
    events: int
    bytes: int
    keys: int


class Receiving(msgspec.Struct, frozen=True):
    """How attempts at a subscriber ended, by outcome."""

    name: str
    attempts: int
    outcomes: dict[str, int]
    retries: int
    events: int
    took: Spread | None
    age: Spread | None


class Serving(msgspec.Struct, frozen=True):
    """What a queue handed out: to whom by share, how fairly as a whole and by moment, and what became of it.

    Fairness is against demand, in what the queue charges by (`charge`: time or count); it is None where demand was not
    observed. `waits` is how long messages of a tenant waited
    on average, in milliseconds: None for one that waited and was not served.
    """

    name: str
    settled: dict[str, int]
    tenants: int
    shares: dict[str, float]
    jain: float | None
    jains: list[float | None]
    waits: dict[str, float | None] = {}
    charge: str = "count"


class Summary(msgspec.Struct, frozen=True):
    """A stretch of time in moments of one span; what lies before `complete_until` is whole (0: it is not known)."""

    span: str
    since: int
    until: int
    complete_until: int
    total: Moment
    moments: list[Moment]
    topics: list[FlowSummary]
    tenants: list[FlowSummary]
    subscribers: list[Receiving]
    queues: list[Serving]
