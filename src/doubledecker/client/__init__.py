"""The Python client of the bus, over HTTP: `AsyncBus` for async programs, `Bus` for plain ones. See docs/client.md.

What is named here is imported when it is first used: a heartbeat or a command needs a part of it, not an HTTP client.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from doubledecker.client.backoff import Backoff
    from doubledecker.client.blocking import BlockingMessage
    from doubledecker.client.bus import AsyncBus, Published, Streamed
    from doubledecker.client.drain import Drain, DrainAnswer, DrainTester
    from doubledecker.client.errors import (
        AddressInvalid,
        BusAway,
        ClientError,
        Conflict,
        EventsRefused,
        Forbidden,
        HeartbeatFailed,
        NotABus,
        NotFound,
        Refusal,
        Refused,
        Reject,
        RetryLater,
        StreamDropped,
        Unauthenticated,
    )
    from doubledecker.client.message import Event, Message, Undecoded
    from doubledecker.client.queue import AsyncQueue, Facet
    from doubledecker.client.sync import Bus
    from doubledecker.client.views import (
        AttemptsPage,
        AttemptView,
        AuditPage,
        AuditRecordView,
        DeadLetter,
        ErasureView,
        FacetView,
        FilteredEvent,
        FilterView,
        IssuedSecret,
        IssuedToken,
        PortalToken,
        QueueView,
        ReceiverView,
        ReplayView,
        ResentEvents,
        Rule,
        SubscriptionView,
        TokenScopes,
        TokenView,
        Topic,
        TrialView,
    )

__all__ = [
    "AddressInvalid",
    "AsyncBus",
    "AsyncQueue",
    "AttemptView",
    "AttemptsPage",
    "AuditPage",
    "AuditRecordView",
    "Backoff",
    "BlockingMessage",
    "Bus",
    "BusAway",
    "ClientError",
    "Conflict",
    "DeadLetter",
    "Drain",
    "DrainAnswer",
    "DrainTester",
    "ErasureView",
    "Event",
    "EventsRefused",
    "Facet",
    "FacetView",
    "FilterView",
    "FilteredEvent",
    "Forbidden",
    "HeartbeatFailed",
    "IssuedSecret",
    "IssuedToken",
    "Message",
    "NotABus",
    "NotFound",
    "PortalToken",
    "Published",
    "QueueView",
    "ReceiverView",
    "Refusal",
    "Refused",
    "Reject",
    "ReplayView",
    "ResentEvents",
    "RetryLater",
    "Rule",
    "StreamDropped",
    "Streamed",
    "SubscriptionView",
    "TokenScopes",
    "TokenView",
    "Topic",
    "TrialView",
    "Unauthenticated",
    "Undecoded",
]

_HOMES = {
    "backoff": ("Backoff",),
    "blocking": ("BlockingMessage",),
    "bus": (
        "AsyncBus",
        "Published",
        "Streamed",
    ),
    "drain": (
        "Drain",
        "DrainAnswer",
        "DrainTester",
    ),
    "errors": (
        "AddressInvalid",
        "BusAway",
        "ClientError",
        "Conflict",
        "EventsRefused",
        "Forbidden",
        "HeartbeatFailed",
        "NotABus",
        "NotFound",
        "Refusal",
        "Refused",
        "Reject",
        "RetryLater",
        "StreamDropped",
        "Unauthenticated",
    ),
    "message": (
        "Event",
        "Message",
        "Undecoded",
    ),
    "queue": (
        "AsyncQueue",
        "Facet",
    ),
    "sync": ("Bus",),
    "views": (
        "AttemptsPage",
        "AttemptView",
        "AuditPage",
        "AuditRecordView",
        "DeadLetter",
        "ErasureView",
        "FacetView",
        "FilterView",
        "FilteredEvent",
        "IssuedSecret",
        "IssuedToken",
        "PortalToken",
        "QueueView",
        "ReceiverView",
        "ReplayView",
        "ResentEvents",
        "Rule",
        "SubscriptionView",
        "TokenScopes",
        "TokenView",
        "Topic",
        "TrialView",
    ),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
