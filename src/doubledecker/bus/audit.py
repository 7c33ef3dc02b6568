"""Recording actions for the audit trail: noted before they change anything, and completed when they are over.

1. The action is noted in Redis. When that fails nothing is changed.
2. It is carried out.
3. The note becomes a record, before the caller gets its answer. When the process dies or Redis is away before that,
   the note stays, and a worker makes it a record that says `unknown`.

What is refused has changed nothing and leaves no record, except 403: who tried what it may not do is of interest, up to
a bound.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from doubledecker import clock, log
from doubledecker.errors import BusAway, Forbidden, Refused
from doubledecker.model import audit as records
from doubledecker.model.audit import AuditRecord
from doubledecker.store import audit
from doubledecker.store.partitions import Partitions

# Denied actions of one client that a process records in a minute; a client that loops has said enough by then.
_DENIED_MAX = 20
_MINUTE_MS = 60_000

_log = log.get("audit")


@dataclass
class Learned:
    """What becomes known of an action while it is carried out."""

    target: str
    count: int | None = None
    detail: str = ""
    fields: tuple[str, ...] = ()
    status: int | None = None
    # False of a dry run.
    is_change: bool = True


class AuditTrail:
    """Records actions."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._denied: dict[str, int] = {}
        self._minute = 0

    @asynccontextmanager
    async def recorded(self, begun: AuditRecord) -> AsyncIterator[Learned]:
        """Record what the block does; it writes down what it learns."""
        learned = Learned(begun.target)
        await audit.begin(self._partitions.home, begun)
        try:
            yield learned
        except Forbidden as error:
            learned.detail = error.detail
            await self._end(begun, learned, "denied", status=error.status)
            raise
        except Refused:
            await self._end(begun, None)
            raise
        except BusAway:
            await self._end(begun, learned, "unknown", status=None)
            raise
        await self._end(begun, learned if learned.is_change else None, "done", status=learned.status)

    async def _end(
        self,
        begun: AuditRecord,
        learned: Learned | None,
        outcome: records.AuditOutcome = "unknown",
        *,
        status: int | None = None,
    ) -> None:
        record = None
        if learned is not None and (outcome != "denied" or self._has_room(begun)):
            record = records.ended(
                begun,
                outcome,
                status=status,
                target=learned.target,
                detail=learned.detail,
                count=learned.count,
                fields=learned.fields,
            )
        try:
            await audit.end(self._partitions.home, begun, record)
        except BusAway as error:
            # The note stays; what was done is done, and the caller is to know.
            _log.warning("audit.unrecorded", action=begun.action, actor=begun.actor, error=str(error))

    def _has_room(self, begun: AuditRecord) -> bool:
        """Count one more that was denied; False when there were too many of this client."""
        minute = clock.now_ms() // _MINUTE_MS
        if minute != self._minute:
            self._minute = minute
            self._denied.clear()
        self._denied[begun.actor] = self._denied.get(begun.actor, 0) + 1
        return self._denied[begun.actor] <= _DENIED_MAX
