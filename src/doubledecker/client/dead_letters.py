"""The dead letters of a receiver over HTTP: found, redriven, purged, at once or at a rate."""

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, TypedDict, Unpack

import msgspec

from doubledecker.client.calls import Calls, given, listed, of_receiver
from doubledecker.client.message import read_event
from doubledecker.client.views import DeadLetter, LetterJobView, LettersMeant


class LetterChoice(TypedDict, total=False):
    """Which letters are meant: those with all these values. Times are of death, ISO 8601; docs/http-api.md has more."""

    topic: str | None
    tenant: str | None
    reason: str | None
    status: int | None
    start: str | None
    end: str | None


class _Letter(msgspec.Struct, gc=False):
    """As the bus writes it; a bus of before has fewer fields."""

    id: str
    tenant: str
    attempts: int
    why: str
    died_at: int
    event: msgspec.Raw
    topic: str = ""
    reason: str = ""
    status: int = 0
    answer_headers: tuple[str, ...] = ()
    answer: str = ""
    accepted_at: int = 0
    batch: str = ""
    redriven: int = 0


class _Letters(msgspec.Struct):
    messages: list[_Letter]
    count: int = 0
    after: str | None = None


class _Settled(msgspec.Struct):
    messages: int
    count: int | None = None
    until: str = ""


class AsyncDeadLetters:
    """The dead letters of one receiver."""

    def __init__(self, calls: Calls, receiver: str | None) -> None:
        self._calls = calls
        self._receiver = receiver

    async def each(
        self, *, page: int = 100, event: str | None = None, **chosen: Unpack[LetterChoice]
    ) -> AsyncGenerator[DeadLetter, None]:
        """The letters that are meant, the oldest first, read a page at a time; any may be redriven meanwhile.

        With an event's id only those of this event; the bus still reads all that are meant.
        """
        after: str | None = None
        while True:
            query = {**_named(chosen), "event": event, "limit": page, "after": after}
            found = await self._calls.ask("GET", of_receiver(self._receiver, "dead", **query), kind=_Letters)
            for letter in found.messages:
                yield _shown(letter)
            after = found.after
            if after is None:
                return

    async def show(self, id: str) -> DeadLetter:  # noqa: A002
        """One letter; raises NotFound."""
        return _shown(await self._calls.ask("GET", of_receiver(self._receiver, "dead", id), kind=_Letter))

    async def count(self, ids: Sequence[str] | None = None, **chosen: Unpack[LetterChoice]) -> int:
        """How many letters are meant: all without a choice, or of those with these ids the ones that are there."""
        return (await self.meant(ids, **chosen)).count

    async def meant(self, ids: Sequence[str] | None = None, **chosen: Unpack[LetterChoice]) -> LettersMeant:
        """The same, and until when they had died: what is redriven or purged with that as `end` is no other."""
        found = await self._settle("redrive", {**_body(ids, chosen), "dry_run": True})
        return LettersMeant(found.messages, found.until)

    async def redrive(self, ids: Sequence[str] | None = None, **chosen: Unpack[LetterChoice]) -> int:
        """Have letters delivered again with new attempts: all, by id, or those that are meant; returns how many."""
        return await self._settle_all("redrive", ids, chosen)

    async def purge(self, ids: Sequence[str] | None = None, **chosen: Unpack[LetterChoice]) -> int:
        """Destroy letters, chosen as in `redrive`; returns how many."""
        return await self._settle_all("purge", ids, chosen)

    async def begin(
        self, action: Literal["redrive", "purge"], *, rate_per_s: float, **chosen: Unpack[LetterChoice]
    ) -> LetterJobView:
        """Have the workers redrive or purge the letters that are meant, so many a second; asked once."""
        body = {**_body(None, chosen), "rate_per_s": rate_per_s}
        at = of_receiver(self._receiver, "dead", action)
        return msgspec.json.decode(await self._calls.once("POST", at, body), type=LetterJobView)

    async def jobs(self) -> list[LetterJobView]:
        """The latest of such jobs, the newest first."""
        return await self._calls.ask("GET", of_receiver(self._receiver, "dead", "jobs"), kind=list[LetterJobView])

    async def job(self, id: str) -> LetterJobView:  # noqa: A002
        """How far a job has come."""
        return await self._calls.ask("GET", of_receiver(self._receiver, "dead", "jobs", id), kind=LetterJobView)

    async def cancel(self, id: str) -> LetterJobView:  # noqa: A002
        """End a job; what it has done stays done."""
        return await self._calls.ask("DELETE", of_receiver(self._receiver, "dead", "jobs", id), kind=LetterJobView)

    async def _settle_all(self, action: str, ids: Sequence[str] | None, chosen: LetterChoice) -> int:
        """As often as it takes: the bus does a piece a request. What dies after the first of them is not meant."""
        body = _body(ids, chosen)
        first = await self._settle(action, body)
        wanted, total, latest = first.count or 0, first.messages, first.messages
        if first.until:
            body["to"] = first.until
        while total < wanted and latest > 0:
            latest = (await self._settle(action, body)).messages
            total += latest
        return total

    async def _settle(self, action: str, body: dict[str, object]) -> _Settled:
        return await self._calls.ask("POST", of_receiver(self._receiver, "dead", action), body, kind=_Settled)


def _named(chosen: LetterChoice) -> dict[str, object]:
    renamed = {"start": "from", "end": "to"}
    return {renamed.get(name, name): value for name, value in chosen.items()}


def _body(ids: Sequence[str] | None, chosen: LetterChoice) -> dict[str, object]:
    return given({"ids": None if ids is None else listed(ids), **_named(chosen)})


def _shown(letter: _Letter) -> DeadLetter:
    return DeadLetter(**{**msgspec.structs.asdict(letter), "event": read_event(letter.event)})
