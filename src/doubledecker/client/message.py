"""Messages as a consumer has them in hand, and the events they carry."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from doubledecker.client.errors import BusAway, NotABus, Refused


class Event(msgspec.Struct, frozen=True, gc=False):
    """A published event. `id` is the same in every delivery; `t` is its time in milliseconds since 1970.

    `redriven` is how often it was brought back from the dead letters: then it is out of order. `replay` names the
    replay that sent it again. `cloudevent` has the attributes of one that came as a CloudEvent which are no field here
    (docs/cloudevents.md).
    """

    topic: str
    type: str
    t: int = 0
    id: str = ""
    url: str | None = None
    data: Any = None
    tenant: str = "default"
    key: str = ""
    traceparent: str | None = None
    redriven: int = 0
    replay: str = ""
    cloudevent: dict[str, str | int | bool] | None = None

    @property
    def routing_key(self) -> str:
        """What the patterns of queues are matched against."""
        return f"{self.tenant}:{self.topic}:{self.type}"


class Undecoded(msgspec.Struct, frozen=True):
    """The `data` of an event that cannot be decoded, such as a number out of range: its JSON, and the reason."""

    json: bytes
    why: str


class _Sealed(Event, frozen=True, gc=False):
    """An event whose data is left as JSON."""

    data: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(Event).decode
_decode_sealed = msgspec.json.Decoder(_Sealed).decode


def read_event(text: bytes | msgspec.Raw) -> Event:
    """An event from its JSON. Data that cannot be decoded becomes `Undecoded`, so that it spoils no other event."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _without_data(text, why=str(error))


def _without_data(text: bytes | msgspec.Raw, *, why: str) -> Event:
    try:
        sealed = _decode_sealed(text)
    except msgspec.DecodeError as error:
        raise NotABus(f"what answers is not a bus, or another version of it: {error}") from error
    return Event(**{**msgspec.structs.asdict(sealed), "data": Undecoded(bytes(sealed.data), why)})


class Settler(Protocol):
    """Settles messages for those that hold them."""

    async def settle_ack(self, message: "Message") -> bool: ...

    async def settle_nack(self, message: "Message", *, delay_ms: int, why: str) -> bool: ...

    async def settle_reject(self, message: "Message", *, why: str) -> bool: ...


class Message:
    """One leased message; `attempt` counts its deliveries, this one included."""

    __slots__ = (
        "_settler",
        "arrived_s",
        "attempt",
        "event",
        "id",
        "is_begun",
        "is_settled",
        "lease_until",
        "number",
        "tenant",
    )

    def __init__(self, id_: str, attempt: int, tenant: str, event: Event, lease_until: int) -> None:
        self.id = id_
        self.attempt = attempt
        self.tenant = tenant
        self.event = event
        self.lease_until = lease_until
        self.is_settled = False
        # Whether its handler was called; what never began was not attempted.
        self.is_begun = False
        # Messages of one runner are counted in the order in which they arrive, and begin in that order.
        self.number = 0
        self.arrived_s = 0.0
        self._settler: Settler | None = None

    def __repr__(self) -> str:
        return f"<Message {self.id} attempt {self.attempt}: {self.event.routing_key}>"

    def belong_to(self, settler: Settler) -> None:
        """Say who settles it."""
        self._settler = settler

    async def ack(self) -> bool:
        """Report it done; False when its lease had expired, so it is or will be delivered again."""
        return await self._owner.settle_ack(self)

    async def nack(self, delay_s: float = 0.0, why: str = "given back") -> bool:
        """Return it to the queue, to be delivered again after the delay; False when its lease had expired."""
        return await self._owner.settle_nack(self, delay_ms=round(delay_s * 1000), why=why)

    async def reject(self, why: str = "rejected") -> bool:
        """Make it a dead letter at once; False when its lease had expired."""
        return await self._owner.settle_reject(self, why=why)

    @property
    def _owner(self) -> Settler:
        assert self._settler is not None, "a message comes from a pull"
        return self._settler


class Terms(msgspec.Struct, frozen=True):
    """What a consumer has to know of its queue."""

    lease_ms: int
    attempts_max: int


class Back(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A message to give back; one that was not attempted has its attempt taken off the count."""

    id: str
    attempt: int
    delay_ms: int = 0
    attempted: bool = True


def encodable(why: object) -> str:
    """A reason that can be sent; what is no character, as in the name of a file, becomes a question mark."""
    return str(why).encode(errors="replace").decode()


class Leased(Protocol):
    """A message as the bus hands it out, its event still JSON."""

    @property
    def id(self) -> str: ...

    @property
    def attempt(self) -> int: ...

    @property
    def tenant(self) -> str: ...

    @property
    def event(self) -> bytes | msgspec.Raw: ...

    @property
    def lease_until(self) -> int: ...


class Pulse(msgspec.Struct, frozen=True):
    """How to start the process that extends leases: its command, and its first line of input."""

    command: Sequence[str]
    greeting: dict[str, Any]


class MessageSource(Protocol):
    """Where messages come from and are settled: the bus over HTTP, or Redis for those next to it.

    Whatever cannot be reached raises BusAway; every other failure is for good. Settling returns the ids that were no
    longer the caller's.
    """

    name: str

    async def terms(self) -> Terms: ...

    async def pull(self, *, most: int, wait_ms: int, lease_ms: int | None) -> list[Message]: ...

    def hurry(self) -> None:
        """End the wait of a pull under way, where that is possible without losing what it takes."""

    async def ack(self, messages: Sequence[Message]) -> set[str]: ...

    async def nack(self, backs: Sequence[Back], *, why: str) -> set[str]: ...

    async def reject(self, backs: Sequence[Back], *, why: str) -> set[str]: ...

    async def extend(self, messages: Sequence[Message], *, lease_ms: int | None) -> set[str]: ...

    def pulse(self) -> Pulse: ...


# Reading what a pull brought: a message whose event cannot be decoded costs the consumer that message alone.

_log = logging.getLogger("doubledecker.client")


async def readable(source: MessageSource, take: Callable[[], Awaitable[Sequence[Leased]]]) -> list[Message]:
    """The messages that `take` brings. Those that cannot be decoded are rejected, as they would fail each time.

    It takes again when all were rejected: to a consumer, no message at all means that none is waiting.
    """
    while True:
        messages = [Message(m.id, m.attempt, m.tenant, read_event(m.event), m.lease_until) for m in await take()]
        bad = [message for message in messages if isinstance(message.event.data, Undecoded)]
        if not bad:
            return messages
        are_rejected = await _reject(source, bad)
        if len(bad) < len(messages) or not are_rejected:
            return [message for message in messages if not isinstance(message.event.data, Undecoded)]


async def _reject(source: MessageSource, messages: Sequence[Message]) -> bool:
    """Send each to the dead letters with its reason; returns whether the bus took them.

    Those that it did not take come again when their leases end.
    """
    by_reason: dict[str, list[Back]] = {}
    for message in messages:
        event = message.event
        why = event.data.why
        _log.warning(
            "message.undecodable queue=%s message=%s event=%s error=%s", source.name, message.id, event.id, why
        )
        by_reason.setdefault(f"data cannot be decoded: {why}", []).append(Back(message.id, message.attempt))
    try:
        for why, backs in by_reason.items():
            await source.reject(backs, why=why)
    except (BusAway, Refused) as error:
        _log.warning("settling.refused queue=%s messages=%d error=%s", source.name, len(messages), error)
        return False
    return True
