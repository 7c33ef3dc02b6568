"""The routes of delivery attempts: those of a receiver, or of an event, newest first."""

import re
from dataclasses import replace
from typing import Annotated

from msgspec import Meta
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import BadRequest
from doubledecker.model.attempt import DROPPED, FAILED, IDS_MAX, AttemptFilter, AttemptPlace, ListedAttempt
from doubledecker.model.event import EVENT_ID
from doubledecker.model.outcome import OutcomeKind
from doubledecker.model.schema import Count, Shape, one_of
from doubledecker.model.token import Caller
from doubledecker.web import queries, shapes
from doubledecker.web.attempt_log import AttemptLog
from doubledecker.web.receivers import ReceiverFinder
from doubledecker.web.turns import ClientLocks

OUTCOMES = (*(kind.value for kind in OutcomeKind), DROPPED)
# As model/outcome.py has them.
STATUS = re.compile(r"[1-5][0-9]{2}")
_PARAMETERS = ("before", "limit", "outcome", "status", "from", "to")


class AttemptRow(Shape):
    """One attempt at a receiver."""

    id: Annotated[str, Meta(description="Its place among all; `before` takes it")]
    receiver: Annotated[str, Meta(description="A subscriber's id, or `@` and a queue")]
    batch: str
    attempt: Annotated[Count, Meta(description="Which attempt at this batch it was, from 1; 0 of what was dropped")]
    outcome: Annotated[str, one_of(OUTCOMES)]
    status: Annotated[Count, Meta(description="Of the answer, if there was one")] | None
    took_ms: Count
    at: Annotated[Count, Meta(description="When it began")]
    events: Annotated[list[str], Meta(description=f"The ids of the events, the first {IDS_MAX}")]
    event_count: Count
    bytes: Annotated[Count, Meta(description="Of the body; null for attempts of older versions")] | None
    detail: Annotated[str, Meta(description="What went wrong; empty when it was delivered")]
    retry_ms: Annotated[Count, Meta(description="How long until the next attempt, where that is known")] | None


class AttemptsAnswer(Shape):
    attempts: list[AttemptRow]
    before: Annotated[str, Meta(description="What `before` is for the next page; null when there is none")] | None
    scanned_until: Annotated[Count, Meta(description="Back to when all is listed; null: to the end")] | None
    older: Annotated[str, Meta(description="Why still older ones are not listed; empty when all are")]


class AttemptRoutes:
    """Answers what is asked about attempts; one read a client at a time."""

    def __init__(self, finder: ReceiverFinder, registry: LiveRegistry, kept: AttemptLog, reads: ClientLocks) -> None:
        self._finder = finder
        self._registry = registry
        self._log = kept
        self._reads = reads

    async def list_(self, request: Request, caller: Caller) -> Response:
        """The attempts at this receiver, newest first."""
        chosen = await self._finder.find(request, caller)
        return await self._list(request, caller, frozenset({chosen.pushed.token}))

    async def list_of_event(self, request: Request, caller: Caller) -> Response:
        """The attempts that carried an event: a client's at its own receivers, or all for root."""
        event = request.query_params.get("event")
        if event is None or not EVENT_ID.fullmatch(event):
            raise BadRequest(f"event is {(event or '')[:80]!r}; name the id of an event, like ?event=evt-1")
        receivers = None
        if not caller.is_admin:
            await self._registry.refresh()
            known = self._registry.snapshot
            queues = [each.receiver for each in known.queues.values() if each.owner == caller.id]
            receivers = frozenset({caller.id, *(each.token for each in (*queues, *known.subscriptions_of(caller.id)))})
        return await self._list(request, caller, receivers, event=event)

    async def _list(
        self, request: Request, caller: Caller, receivers: frozenset[str] | None, *, event: str = ""
    ) -> Response:
        query = request.query_params
        wanted = replace(parse(query, receivers, event), client=None if caller.is_admin else caller.id)
        if caller.scopes.limits_events:
            # What was attempted before may be beyond the limits, and an attempt has no topics and tenants.
            known = self._registry.snapshot.tokens.get(caller.id)
            wanted = replace(wanted, from_ms=max(wanted.from_ms, known.limited_at if known else 0))
        most = queries.limit(query.get("limit"))
        async with self._reads.of(caller.share):
            page = await self._log.newest(wanted, limit=most)
        before, scanned_until = (str(page.before), page.before.ms) if page.before else (None, None)
        return shapes.json(AttemptsAnswer([row(each) for each in page.rows], before, scanned_until, page.older))


def row(listed: ListedAttempt) -> AttemptRow:
    """An attempt as it is shown."""
    return AttemptRow(
        id=str(listed.place),
        receiver=listed.receiver,
        batch=listed.batch,
        attempt=listed.attempt,
        outcome=listed.outcome,
        status=listed.status,
        took_ms=listed.took_ms,
        at=listed.at,
        events=list(listed.events[:IDS_MAX]),
        event_count=listed.event_count,
        bytes=listed.bytes,
        detail=listed.detail,
        retry_ms=listed.retry_ms,
    )


def parse(query: QueryParams, receivers: frozenset[str] | None, event: str = "") -> AttemptFilter:
    """What a query asks for; raises BadRequest with what is allowed."""
    queries.check_names(query, (*_PARAMETERS, "event") if event else _PARAMETERS)
    outcome = query.get("outcome", "")
    if outcome and outcome not in (*OUTCOMES, FAILED):
        words = ", ".join(OUTCOMES)
        raise BadRequest(f"outcome is {outcome[:80]!r}; it must be {words}, or {FAILED}: all but the first")
    status = query.get("status")
    if status is not None and not STATUS.fullmatch(status):
        raise BadRequest(f"status is {status[:80]!r}; it must be an HTTP status, like 503")
    before = query.get("before")
    return AttemptFilter(
        receivers=receivers,
        event=event,
        outcome=outcome,
        status=None if status is None else int(status),
        from_ms=queries.at_ms(query.get("from"), name="from") or 0,
        to_ms=queries.at_ms(query.get("to"), name="to"),
        before=None if before is None else AttemptPlace.parse(before, field="before"),
    )
