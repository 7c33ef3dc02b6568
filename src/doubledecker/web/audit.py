"""The route of the audit trail: recent records from Redis, older ones from the lake, newest first."""

import re
from dataclasses import replace
from typing import Annotated

from msgspec import Meta
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from doubledecker import log
from doubledecker.errors import BadRequest, LakeUnfit, ReadTooLarge
from doubledecker.model.attempt import AttemptPlace
from doubledecker.model.audit import OUTCOMES, AuditFilter, ListedRecord
from doubledecker.model.schema import Count, Shape, one_of
from doubledecker.model.token import Caller
from doubledecker.store import audit, journal
from doubledecker.store.audit import RecordsFound
from doubledecker.store.partitions import Partitions
from doubledecker.web import newest_page, queries, shapes
from doubledecker.web.attempt_log import AttemptLog
from doubledecker.web.newest_page import NewestPage
from doubledecker.web.turns import ClientLocks

ACTION = re.compile(r"[a-z_]{1,40}\.[a-z_]{1,40}")
_NAME_MAX = 200
_PARAMETERS = ("actor", "action", "target", "from", "to", "before", "limit")
_WHY = newest_page.why_not_listed("records")

_log = log.get("web")


class AuditRow(Shape):
    """One action of the audit trail."""

    id: Annotated[str, Meta(description="Its place among all; `before` takes it")]
    at: Annotated[Count, Meta(description="When it was asked for")]
    actor: Annotated[str, Meta(description="Who asked: a client's id, or `root`")]
    actor_name: str
    action: Annotated[str, Meta(description="Like `queue.deleted`")]
    target: Annotated[str, Meta(description="What it was done to")]
    outcome: Annotated[str, one_of(OUTCOMES)]
    status: Annotated[Count, Meta(description="Of the answer, if it is known")] | None
    count: Annotated[Count, Meta(description="How many were redriven, purged, …; null where nothing is counted")] | None
    fields: Annotated[list[str], Meta(description="The names of the fields that the request gave")]
    detail: str
    address: Annotated[str, Meta(description="Where it came from")]
    proxy: Annotated[str, Meta(description="The trusted proxy that named the address; empty for none")]
    request_id: Annotated[str, Meta(description="The request's `X-Request-Id`; empty for none")]
    traceparent: Annotated[str, Meta(description="The request's `traceparent`; empty for none")]


class AuditAnswer(Shape):
    records: list[AuditRow]
    before: Annotated[str, Meta(description="What `before` is for the next page; null when there is none")] | None
    older: Annotated[str, Meta(description="Why still older ones are not listed; empty when all are")]


class AuditRoutes:
    """Answers what is asked about the audit trail; one read a client at a time."""

    def __init__(self, partitions: Partitions, attempts: AttemptLog, reads: ClientLocks) -> None:
        self._partitions = partitions
        self._attempts = attempts
        self._reads = reads

    async def list_(self, request: Request, caller: Caller) -> Response:
        """Who did what, newest first: all of it for root and admins, what it did itself for a client."""
        wanted = replace(parse(request.query_params), own=None if caller.is_admin else caller.id)
        most = queries.limit(request.query_params.get("limit"))
        async with self._reads.of(caller.id):
            page = await self._newest(wanted, limit=most)
        before = None if page.before is None else str(page.before)
        return shapes.json(AuditAnswer([_row(each) for each in page.rows], before, page.older))

    async def _newest(self, wanted: AuditFilter, *, limit: int) -> NewestPage[ListedRecord]:
        recent = await audit.newest(self._partitions.home, wanted, limit=limit)
        if recent.whole_from is None or (recent.reached is not None and recent.reached >= recent.whole_from):
            return NewestPage(recent.records, recent.reached)
        try:
            ground = await self._attempts.ground()
            if ground is None:
                return NewestPage(recent.records, recent.reached, await self._why_not(recent))
            from doubledecker.lake import audit as landed  # noqa: PLC0415 - not there without the extra

            # Down to where Redis was read: those before have their turn with the next page.
            since_ms = max(wanted.from_ms, recent.reached.ms if recent.reached else 0)
            older = await landed.newest(ground, replace(wanted, from_ms=since_ms), limit=limit)
        except (LakeUnfit, ReadTooLarge) as error:
            _log.warning("lake.unreadable", error=str(error))
            return NewestPage(recent.records, recent.reached, _WHY.unreadable)
        return newest_page.join(
            NewestPage(recent.records, recent.reached), NewestPage(older.records, older.reached), limit=limit
        )

    async def _why_not(self, recent: RecordsFound) -> str:
        if recent.reached is not None:
            return ""
        return _WHY.elsewhere if "archive" in await journal.state(self._partitions.home) else _WHY.not_kept


def parse(query: QueryParams) -> AuditFilter:
    """What a query asks for; raises BadRequest with what is allowed."""
    queries.check_names(query, _PARAMETERS)
    action = query.get("action", "")
    if action and not ACTION.fullmatch(action):
        raise BadRequest(f"action is {action[:80]!r}; it must be like queue.deleted; docs/http-api.md lists them")
    before = query.get("before")
    return AuditFilter(
        actor=query.get("actor", "")[:_NAME_MAX],
        action=action,
        target=query.get("target", "")[:_NAME_MAX],
        from_ms=queries.at_ms(query.get("from"), name="from") or 0,
        to_ms=queries.at_ms(query.get("to"), name="to"),
        before=None if before is None else AttemptPlace.parse(before, field="before"),
    )


def _row(listed: ListedRecord) -> AuditRow:
    record = listed.record
    return AuditRow(
        id=str(listed.place),
        at=record.at,
        actor=record.actor,
        actor_name=record.actor_name,
        action=record.action,
        target=record.target,
        outcome=record.outcome,
        status=record.status,
        count=record.count,
        fields=list(record.fields),
        detail=record.detail,
        address=record.address,
        proxy=record.proxy,
        request_id=record.request_id,
        traceparent=record.traceparent,
    )
