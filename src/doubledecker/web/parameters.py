"""What several routes have in common: parameters, replies, and the actions that they need."""

import re
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from doubledecker.model.event import Tenant, TopicName
from doubledecker.model.queue import QueueName
from doubledecker.model.schema import matching
from doubledecker.model.scopes import ADMIN, CONSUME, MANAGE, PUBLISH, REPLAY
from doubledecker.web.publishing import KEY
from doubledecker.web.queries import LIST_MAX
from doubledecker.web.route_table import Parameter, Reply, json

# Actions of which a route needs one; reading needs no more than `read-only`, and who has `admin` may do all.
PUBLISHING, CONSUMING, REPLAYING, MANAGING, ADMINS = (PUBLISH,), (CONSUME,), (REPLAY,), (MANAGE,), (ADMIN,)
Rows = Annotated[str, matching(re.compile("[0-9]{1,4}"))]
HundredRows = Annotated[Rows, Meta(extra_json_schema={"default": "100"})]
TOPIC = Parameter("path", "name", "The topic", TopicName, "orders")
QUEUE = Parameter("path", "name", "The queue", QueueName, "jobs")
OF_TENANT = Parameter("query", "tenant", "Of this tenant alone", Tenant)
LIMIT = Parameter("query", "limit", f"Rows, at most {LIST_MAX}", HundredRows)
_REPEATABLE = "Makes the request repeatable for 24 h: same key and body, same answer, published once"
IDEMPOTENCY_KEY = Parameter("header", "Idempotency-Key", _REPEATABLE, Annotated[str, matching(KEY)], "order-1-paid")
DONE = {204: Reply()}


def ok(type_: object, description: str = "") -> Mapping[int, Reply]:
    """A 200 with JSON of a type."""
    return {200: Reply(json(type_), description)}
