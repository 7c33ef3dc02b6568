"""A queue over HTTP: register and consume it, set rules of its tenants, manage its dead letters."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from doubledecker.client import lease_keeper_process
from doubledecker.client.calls import Calls, decode, given, listed, path
from doubledecker.client.consumer import Consumer
from doubledecker.client.dead_letters import AsyncDeadLetters
from doubledecker.client.message import Back, Message, Pulse, Terms, read_event, readable
from doubledecker.client.views import DeadLetter, FacetView, QueueView, Rule, Waiting

_MS = 1000


# How events are posted; docs/cloudevents.md has what each is. Binary needs a `max` of 1.
ReceiverFormat = Literal["routemaster", "json", "cloudevents-batch", "cloudevents-binary"]


class QueueOptions(TypedDict, total=False):
    """Options of a queue besides its pattern; docs/queues.md describes them."""

    lease_ms: int
    attempts_max: int
    charge: str
    max_length: int
    facet_max_length: int
    overflow: str
    ordered: bool
    owner: str
    refuse_clients: list[str]
    callback: str
    uuid: str
    timeout: int
    max: int
    max_bytes: int
    concurrency: int
    retry: Mapping[str, int] | Sequence[int]
    rate_per_s: float
    headers: Mapping[str, str]
    filter: Mapping[str, Any] | None
    format: ReceiverFormat


class _Wire(msgspec.Struct, gc=False):
    id: str
    attempt: int
    tenant: str
    event: msgspec.Raw
    lease_until: int


class _Pulled(msgspec.Struct):
    messages: list[_Wire]


class _Settled(msgspec.Struct):
    lost: set[str]


class _Seen(msgspec.Struct, gc=False):
    id: str
    tenant: str
    event: msgspec.Raw


class _Peeked(msgspec.Struct):
    messages: list[_Seen]


class _Count(msgspec.Struct):
    messages: int


class Facet:
    """One tenant's messages in a queue."""

    def __init__(self, calls: Calls, queue: str, tenant: str) -> None:
        self._calls = calls
        self._path = path("queues", queue, "facets", tenant)

    async def set(
        self,
        *,
        weight: float | None = None,
        concurrency: int | msgspec.UnsetType | None = msgspec.UNSET,
        rate_per_s: float | msgspec.UnsetType | None = msgspec.UNSET,
        paused: bool | None = None,
    ) -> Rule:
        """Change the rules that are given, from the tenant's next message on; None removes a concurrency or a rate."""
        bounds = {"concurrency": concurrency, "rate_per_s": rate_per_s}
        changes = given({"weight": weight, "paused": paused})
        changes |= {name: bound for name, bound in bounds.items() if bound is not msgspec.UNSET}
        return await self._calls.ask("PATCH", self._path, changes, kind=Rule)

    async def get(self) -> FacetView:
        """Its counts and rules."""
        return await self._calls.ask("GET", self._path, kind=FacetView)


class AsyncQueue(Consumer):
    """One queue, by name; it need not be registered yet."""

    def __init__(self, calls: Calls, name: str) -> None:
        super().__init__(HttpSource(calls, name))
        self._calls = calls
        self._letters = AsyncDeadLetters(calls, f"@{name}")

    async def register(self, pattern: str | Sequence[str], **options: Unpack[QueueOptions]) -> QueueView:
        """Create or replace it: it gets every event whose `tenant:topic:type` matches a pattern in full."""
        body = {"pattern": listed(pattern), **options}
        return await self._calls.ask("PUT", path("queues", self.name), body, kind=QueueView)

    async def get(self) -> QueueView:
        """Its counts and its facets, those with the most waiting messages first."""
        return await self._calls.ask("GET", path("queues", self.name), kind=QueueView)

    def facet(self, tenant: str) -> Facet:
        """One tenant's messages in it."""
        return Facet(self._calls, self.name, tenant)

    async def peek(self, tenant: str = "default", *, limit: int = 100) -> list[Waiting]:
        """The next waiting messages of a tenant, without pulling them."""
        at = path("queues", self.name, "messages", tenant=tenant, limit=limit)
        peeked = await self._calls.ask("GET", at, kind=_Peeked)
        return [Waiting(each.id, each.tenant, read_event(each.event)) for each in peeked.messages]

    async def dead(self, *, tenant: str | None = None, limit: int = 100) -> list[DeadLetter]:
        """Dead letters, oldest first."""
        found: list[DeadLetter] = []
        async with contextlib.aclosing(self._letters.each(page=limit, tenant=tenant)) as letters:
            async for letter in letters:
                found.append(letter)
                if len(found) == limit:
                    break
        return found

    async def redrive(
        self, ids: Sequence[str] | None = None, *, tenant: str | None = None, dry_run: bool = False
    ) -> int:
        """Return dead letters to the queue with new attempts: all, by id, or a tenant's; returns how many.

        With `dry_run` they are only counted.
        """
        letters = self._letters
        return await (letters.count if dry_run else letters.redrive)(ids, tenant=tenant)

    async def purge_dead(
        self, ids: Sequence[str] | None = None, *, tenant: str | None = None, dry_run: bool = False
    ) -> int:
        """Delete dead letters, or only count them; returns how many."""
        letters = self._letters
        return await (letters.count if dry_run else letters.purge)(ids, tenant=tenant)

    async def purge(self, *, tenant: str | None = None, dry_run: bool = False) -> int:
        """Delete waiting messages, of all tenants or of one, but not leased ones; returns how many, or only counts."""
        body = given({"tenant": tenant, "dry_run": dry_run or None})
        return (await self._calls.ask("POST", path("queues", self.name, "purge"), body, kind=_Count)).messages

    async def delete(self, *, discard: bool = False) -> None:
        """Delete the queue; raises Conflict while it holds messages, unless `discard` is set."""
        await self._calls.ask("DELETE", path("queues", self.name, discard=1 if discard else None), kind=type(None))


class HttpSource:
    """A queue over HTTP, for the consumer."""

    def __init__(self, calls: Calls, name: str) -> None:
        self.name = name
        self._calls = calls
        self._path = path("queues", name)

    async def terms(self) -> Terms:
        return decode(await self._calls.once("GET", f"{self._path}?facets=1"), Terms)

    async def pull(self, *, most: int, wait_ms: int, lease_ms: int | None) -> list[Message]:
        body = given({"max": most, "wait_ms": wait_ms, "lease_ms": lease_ms})

        async def take() -> list[_Wire]:
            answer = await self._calls.once("POST", f"{self._path}/pull", body, wait_s=wait_ms / _MS)
            return decode(answer, _Pulled).messages

        return await readable(self, take)

    def hurry(self) -> None:
        """Nothing: the bus may have taken messages already, and only its answer brings them."""

    async def ack(self, messages: Sequence[Message]) -> set[str]:
        return await self._settle("ack", {"messages": _named(messages)})

    async def nack(self, backs: Sequence[Back], *, why: str) -> set[str]:
        return await self._settle("nack", {"messages": backs, "why": why})

    async def reject(self, backs: Sequence[Back], *, why: str) -> set[str]:
        return await self._settle("nack", {"messages": backs, "why": why, "reject": True})

    async def extend(self, messages: Sequence[Message], *, lease_ms: int | None) -> set[str]:
        return await self._settle("extend", given({"messages": _named(messages), "lease_ms": lease_ms}))

    def pulse(self) -> Pulse:
        # By its path, and without site packages: it is up in a moment, whatever is installed.
        script = str(Path(lease_keeper_process.__file__))
        greeting = {"url": self._calls.url, "token": self._calls.token, "queue": self.name}
        return Pulse([sys.executable, "-I", "-S", script], greeting)

    async def _settle(self, verb: str, body: dict[str, Any]) -> set[str]:
        return decode(await self._calls.once("POST", f"{self._path}/{verb}", body), _Settled).lost


def _named(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [{"id": message.id, "attempt": message.attempt} for message in messages]
