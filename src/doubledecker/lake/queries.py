"""What is asked of a table: the conditions that rows must fit, and what the log alone knows of their files."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from doubledecker.model import condition, moment, uid
from doubledecker.model.attempt import FAILED, AttemptFilter, AttemptPlace
from doubledecker.model.audit import AuditFilter
from doubledecker.model.condition import Condition, Junction, Negation, SearchRequest
from doubledecker.model.outcome import OutcomeKind

Row = dict[str, object]
Found = list[Row]

# A UUIDv7 made by the bus holds the time of the web process that accepted the event, and `at` is by the clock of Redis.
# Clocks of hosts are assumed to differ by less than this.
_NEAR = timedelta(hours=1)
# Rows about one event that are shown; a receiver that is down for a week makes a few hundred attempts.
_ROWS_MAX = 1_000


@dataclass(frozen=True)
class Query:
    """Rows of a table that fit a condition, the oldest `limit` of them, or the newest.

    `since`, `until`, `topic` and `id` repeat what narrows down files: the condition has them too. `before` is an
    entry's milliseconds and number, and a partition: of those that were written at once, the first in this order are
    wanted. Of the ids that an attempt carried `ids_max` are shown.
    """

    name: str
    condition: Condition | None
    limit: int
    since: datetime | None = None
    until: datetime | None = None
    topic: str = ""
    id: str = ""
    is_newest_first: bool = False
    before: AttemptPlace | None = None
    ids_max: int = 0

    @property
    def near(self) -> tuple[datetime, datetime] | None:
        """When an event was accepted, about, if its id contains that; None when it does not."""
        made_at = uid.made_at(self.id) if self.name == "events" else None
        if made_at is None:
            return None
        at = moment.from_ms(made_at)
        return at - _NEAR, at + _NEAR


def search(wanted: SearchRequest) -> Query:
    """The events that a search wants."""
    parts: list[Condition] = []
    parts += [condition.compared("at", ">=", wanted.since)] if wanted.since else []
    parts += [condition.compared("at", "<", wanted.until)] if wanted.until else []
    parts += [condition.equal("topic", wanted.topic)] if wanted.topic else []
    parts += [condition.equal("tenant", wanted.tenant)] if wanted.tenant else []
    parts += [wanted.where] if wanted.where else []
    whole = Junction("and", tuple(parts)) if parts else None
    return Query("events", whole, wanted.limit, wanted.since, wanted.until, wanted.topic)


def event(id_: str) -> Query:
    """All rows of one event."""
    return Query("events", condition.equal("id", id_), _ROWS_MAX, id=id_)


def events(ids: Sequence[str], *, since: datetime, until: datetime) -> Query:
    """Events with these ids, accepted about then."""
    named = condition.one_of("id", ids)
    parts = (condition.compared("at", ">=", since), condition.compared("at", "<", until), named)
    return Query("events", Junction("and", parts), _ROWS_MAX, since, until, id=ids[0] if len(ids) == 1 else "")


def newest_attempts(wanted: AttemptFilter, *, limit: int, ids_max: int) -> Query:
    """The newest attempts that are wanted."""
    since, until = _span(wanted.from_ms, wanted.to_ms, wanted.before)
    parts = _during(since, until)
    parts += [condition.one_of("subscriber", sorted(wanted.receivers))] if wanted.receivers is not None else []
    if wanted.client is not None:
        own = (condition.equal("subscriber", wanted.client), condition.equal("owner", wanted.client))
        parts.append(Junction("or", own))
    if wanted.outcome == FAILED:
        parts.append(Negation(condition.equal("outcome", OutcomeKind.DELIVERED.value)))
    elif wanted.outcome:
        parts.append(condition.equal("outcome", wanted.outcome))
    parts += [condition.numbered("status", wanted.status)] if wanted.status is not None else []
    parts += [condition.contains("events", wanted.event)] if wanted.event else []
    whole = Junction("and", tuple(parts)) if parts else None
    return Query(
        "attempts",
        whole,
        limit,
        since,
        until,
        id=wanted.event,
        is_newest_first=True,
        before=wanted.before,
        ids_max=ids_max,
    )


def newest_audit(wanted: AuditFilter, *, limit: int) -> Query:
    """The newest records of the audit trail that are wanted."""
    since, until = _span(wanted.from_ms, wanted.to_ms, wanted.before)
    parts = _during(since, until)
    parts += [condition.equal("client", wanted.own)] if wanted.own is not None else []
    if wanted.actor:
        named = (condition.equal("actor", wanted.actor), condition.equal("actor_name", wanted.actor))
        parts.append(Junction("or", named))
    parts += [condition.equal("action", wanted.action)] if wanted.action else []
    parts += [condition.equal("target", wanted.target)] if wanted.target else []
    whole = Junction("and", tuple(parts)) if parts else None
    return Query("audit", whole, limit, since, until, is_newest_first=True, before=wanted.before)


def _span(from_ms: int, to_ms: int | None, before: AttemptPlace | None) -> tuple[datetime | None, datetime | None]:
    """The times between which rows can have been written that follow a place, newest first."""
    until_ms = min((each for each in (to_ms, before and before.ms + 1) if each), default=None)
    return moment.from_ms(from_ms) if from_ms else None, None if until_ms is None else moment.from_ms(until_ms)


def _during(since: datetime | None, until: datetime | None) -> list[Condition]:
    parts: list[Condition] = []
    parts += [condition.compared("at", ">=", since)] if since else []
    parts += [condition.compared("at", "<", until)] if until else []
    return parts


def attempts(id_: str, *, since: datetime) -> Query:
    """The attempts from `since` on that carried an event."""
    parts = (condition.compared("at", ">=", since), condition.contains("events", id_))
    return Query("attempts", Junction("and", parts), _ROWS_MAX, since=since, id=id_)
