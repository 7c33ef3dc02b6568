"""Records of the audit trail that have landed, newest first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from doubledecker.lake import newest as newest_rows
from doubledecker.lake import queries
from doubledecker.lake.queries import Row
from doubledecker.lake.reads import ReadContext
from doubledecker.model import moment
from doubledecker.model.attempt import AttemptPlace
from doubledecker.model.audit import AuditFilter, AuditOutcome, AuditRecord, ListedRecord


@dataclass(frozen=True)
class LandedRecords:
    """Records, newest first; before `reached` none were looked at, None when the lake has no more."""

    records: Sequence[ListedRecord]
    reached: AttemptPlace | None = None


async def newest(ground: ReadContext, wanted: AuditFilter, *, limit: int) -> LandedRecords:
    """The newest that are wanted; none where there is no lake. Raises LakeUnfit when it cannot be read."""
    found = await newest_rows.read(ground, queries.newest_audit(wanted, limit=limit))
    return LandedRecords([ListedRecord(newest_rows.place(row), _record(row)) for row in found.rows], found.reached)


def _record(row: Row) -> AuditRecord:
    def text(name: str) -> str:
        return str(row[name] or "")

    def number(name: str) -> int | None:
        return None if row[name] is None else int(str(row[name]))

    return AuditRecord(
        request=text("request"),
        at=moment.to_ms(moment.parse(text("asked_at"))),
        actor=text("actor"),
        actor_name=text("actor_name"),
        action=text("action"),
        client=text("client"),
        target=text("target"),
        outcome=cast("AuditOutcome", text("outcome")),
        status=number("status"),
        count=number("count"),
        fields=tuple(map(str, cast("list[str]", row["fields"] or []))),
        detail=text("detail"),
        address=text("address"),
        proxy=text("proxy"),
        request_id=text("request_id"),
        traceparent=text("traceparent"),
    )
