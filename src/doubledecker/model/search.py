"""What to search for among the events that passed over the bus."""

from dataclasses import dataclass
from datetime import datetime

from doubledecker.errors import BadRequest
from doubledecker.model import event, moment
from doubledecker.model import where as conditions
from doubledecker.model.condition import Condition


@dataclass(frozen=True)
class SearchRequest:
    """Events accepted from `since` until before `until` that fit; None and empty mean any. The oldest `limit`."""

    since: datetime | None = None
    until: datetime | None = None
    topic: str = ""
    tenant: str = ""
    where: Condition | None = None
    limit: int = 100


def parse(
    *, start: str = "", end: str = "", topic: str = "", tenant: str = "", where: str = "", limit: int
) -> SearchRequest:
    """A checked search, from words as people write them; raises BadRequest with what is allowed."""
    since = moment.parse(start, field="from") if start else None
    until = moment.parse(end, field="to") if end else None
    if since is not None and until is not None and since >= until:
        raise BadRequest(f"from is {start!r} and not before to, {end!r}")
    if topic:
        event.check_topic(topic)
    if tenant:
        event.check_tenant(tenant)
    return SearchRequest(since, until, topic, tenant, conditions.parse(where) if where else None, limit)
