"""What is asked of a table: the conditions that rows must fit, and what the log alone can tell of their files."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from doubledecker.model import condition, moment, uid
from doubledecker.model.condition import Condition, Junction
from doubledecker.model.search import SearchRequest

Row = dict[str, object]
Found = list[Row]

# A UUIDv7 made by the bus holds the time of the web process that accepted the event, and `at` is by the clock of Redis.
# Clocks of hosts are assumed to differ by less than this.
_NEAR = timedelta(hours=1)
# Rows about one event that are shown; a receiver that is down for a week makes a few hundred attempts.
_ROWS_MAX = 1_000


@dataclass(frozen=True)
class Query:
    """Rows of a table that fit a condition, the oldest `limit` of them.

    `since`, `until`, `topic` and `id` say once more what narrows down files: the condition has them too.
    """

    name: str
    condition: Condition | None
    limit: int
    since: datetime | None = None
    until: datetime | None = None
    topic: str = ""
    id: str = ""

    @property
    def near(self) -> tuple[datetime, datetime] | None:
        """When an event whose id tells its time was accepted, about; None when the id does not tell."""
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


def attempts(id_: str, *, since: datetime) -> Query:
    """The attempts from `since` on that carried an event."""
    parts = (condition.compared("at", ">=", since), condition.contains("events", id_))
    return Query("attempts", Junction("and", parts), _ROWS_MAX, since=since, id=id_)
