"""Everything that a user of the client can meet, as a tree; apart from the bus's own, which stay in the bus.

ClientError
├── BusAway              no answer, or one that says "not now": what was asked may or may not have happened
│   └── NotABus          something else answers at that address, or another version of the bus
├── Refused              the bus answered with a 4xx, and nothing has changed; carries its status
│   ├── Unauthenticated  401  the bus does not know this token
│   ├── Forbidden        403  it knows the token, but this is not its business
│   ├── NotFound         404
│   ├── Conflict         409
│   └── EventsRefused    none of several events was published; carries why, for each
├── StreamDropped        the bus ended a stream; carries why
├── AddressInvalid       what a bus was to be at is no URL; a ValueError too
└── HeartbeatFailed      the process that extends leases does not start
Verdict                  raised by a handler to decide how its message is settled
├── RetryLater           not now: again after a delay of the handler's choice
└── Reject               never: straight to the dead letters
"""

from dataclasses import dataclass

from doubledecker.pickling import Portable

# As long as the bus keeps a message for later.
DELAY_S_MAX = 30 * 86_400


class ClientError(Portable):
    """The root of the client's errors."""


class BusAway(ClientError):
    """The bus did not answer, or answered 5xx; the call may have taken effect.

    `status` is that of the answer, None when there was none.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class NotABus(BusAway):
    """Something other than a bus, or another version of it, answers at this address."""


class StreamDropped(ClientError):
    """The bus ended a stream; `reason` is one of those in docs/http-api.md, such as `slow` or `revoked`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"the bus ended the stream: {detail}")
        self.reason = reason
        self.detail = detail


class AddressInvalid(ClientError, ValueError):
    """The address of the bus is no URL."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class HeartbeatFailed(ClientError):
    """The lease keeper did not start; without it, messages of long work would be delivered again."""


class Refused(ClientError):
    """The bus answered with a 4xx; nothing has changed."""

    def __init__(self, detail: str, *, status: int) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status


class Unauthenticated(Refused):
    """The token is missing or unknown to the bus."""


class Forbidden(Refused):
    """The client may not do what it asked for."""


class NotFound(Refused):
    """What the call names does not exist."""


class Conflict(Refused):
    """The call conflicts with the state of the bus, for instance with messages that a queue still holds."""


@dataclass(frozen=True)
class Refusal:
    """Why the bus refused one event of several; `index` is its position among those given."""

    index: int
    why: str


class EventsRefused(Refused):
    """The bus refused all events."""

    def __init__(self, detail: str, *, status: int, refused: tuple[Refusal, ...]) -> None:
        reasons = "; ".join(f"event {each.index}: {each.why}" for each in refused[:3])
        super().__init__(f"{detail} ({reasons})" if reasons else detail, status=status)
        self.refused = refused


class Verdict(Portable):
    """A handler's decision about its message."""


class RetryLater(Verdict):
    """Not now: deliver the message again after `delay_s`."""

    def __init__(self, delay_s: float, why: str = "asked to be retried") -> None:
        # Written so that NaN fails too. Raised in a handler, it is a failure like others.
        if not 0 <= delay_s <= DELAY_S_MAX:
            raise ValueError(f"delay_s is {delay_s}; it must be from 0 to {DELAY_S_MAX}")
        super().__init__(why)
        self.delay_s = delay_s
        self.why = why


class Reject(Verdict):
    """Never: the message goes straight to the dead letters, with this reason."""

    def __init__(self, why: str = "rejected") -> None:
        super().__init__(why)
        self.why = why
