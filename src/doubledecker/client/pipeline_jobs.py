"""Replays and erasures over HTTP: asked for, looked at, cancelled. The bus's pipeline carries them out."""

import builtins
from typing import TypedDict, Unpack

from doubledecker.client.calls import Calls, decode, given, path
from doubledecker.client.views import ErasureView, ReplayView


class ReplayOptions(TypedDict, total=False):
    """Which past events are sent again, and to which target; docs/http-api.md describes them. Times are ISO 8601."""

    start: str | None
    end: str | None
    topic: str | None
    tenant: str | None
    where: str | None
    to_subscriber: str | None
    to_queue: str | None
    to_topic: str | None
    rate: int | None
    direct: bool
    dry_run: bool


class ErasureOptions(TypedDict, total=False):
    """Whose past events are erased: a tenant's, or those of a key, on one topic or on all."""

    tenant: str | None
    key: str | None
    topic: str | None
    dry_run: bool


class AsyncReplays:
    """The replays of this client; for root, all of them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def begin(self, **options: Unpack[ReplayOptions]) -> ReplayView:
        """Have past events sent again; asked once. With `dry_run` they are only counted."""
        body = given({{"start": "from", "end": "to"}.get(name, name): value for name, value in options.items()})
        return decode(await self._calls.once("POST", path("replays"), body), ReplayView)

    async def list(self) -> builtins.list[ReplayView]:
        """The latest ones, the newest first."""
        return await self._calls.ask("GET", path("replays"), kind=builtins.list[ReplayView])

    async def show(self, id: str) -> ReplayView:  # noqa: A002
        """How far a replay has come; raises NotFound."""
        return await self._calls.ask("GET", path("replays", id), kind=ReplayView)

    async def cancel(self, id: str) -> ReplayView:  # noqa: A002
        """End a replay; what is sent stays sent. Raises Conflict when it is over."""
        return await self._calls.ask("DELETE", path("replays", id), kind=ReplayView)


class AsyncErasures:
    """Erasures of past events from the lake, which root and admins ask for."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def begin(self, **options: Unpack[ErasureOptions]) -> ErasureView:
        """Have a tenant's or a key's events erased for good; asked once. With `dry_run` they are only counted."""
        return decode(await self._calls.once("POST", path("erasures"), given({**options})), ErasureView)

    async def list(self) -> builtins.list[ErasureView]:
        """The latest ones, the newest first."""
        return await self._calls.ask("GET", path("erasures"), kind=builtins.list[ErasureView])

    async def show(self, id: str) -> ErasureView:  # noqa: A002
        """How far an erasure has come; raises NotFound."""
        return await self._calls.ask("GET", path("erasures", id), kind=ErasureView)
