"""The Python client of the bus, over HTTP: `AsyncBus` for async programs, `Bus` for plain ones. See docs/client.md."""

from doubledecker.client.bus import AsyncBus, Published
from doubledecker.client.errors import (
    BusAway,
    ClientError,
    Conflict,
    EventsRefused,
    Forbidden,
    HeartbeatFailed,
    NotFound,
    Refusal,
    Refused,
    Reject,
    RetryLater,
    Unauthenticated,
)
from doubledecker.client.message import Event, Message
from doubledecker.client.pausing import Backoff
from doubledecker.client.queue import AsyncQueue, DeadLetter, Facet, FacetView, QueueView, Rule
from doubledecker.client.sync import Bus

__all__ = [
    "AsyncBus",
    "AsyncQueue",
    "Backoff",
    "Bus",
    "BusAway",
    "ClientError",
    "Conflict",
    "DeadLetter",
    "Event",
    "EventsRefused",
    "Facet",
    "FacetView",
    "Forbidden",
    "HeartbeatFailed",
    "Message",
    "NotFound",
    "Published",
    "QueueView",
    "Refusal",
    "Refused",
    "Reject",
    "RetryLater",
    "Rule",
    "Unauthenticated",
]
