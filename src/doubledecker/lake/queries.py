"""What is asked of a table: the conditions that rows must fit, and what the log alone can tell of their files."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from doubledecker.model import condition, moment
from doubledecker.model.condition import Condition, Junction
from doubledecker.model.search import Wanted

Row = dict[str, object]
Found = list[Row]

# A UUIDv7 made by the bus holds the time of the web process that accepted the event, and `at` is by the clock of Redis.
# Clocks of hosts are assumed to differ by less than this.
_NEAR = timedelta(hours=1)
_UUID7 = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
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
        found = _UUID7.fullmatch(self.id.lower()) if self.name == "events" else None
        if found is None:
            return None
        at = moment.from_ms(int(found[1] + found[2], 16))
        return at - _NEAR, at + _NEAR


def search(wanted: Wanted) -> Query:
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
