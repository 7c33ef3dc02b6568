"""The routes of queues in the OpenAPI document."""

from doubledecker.web import queue_bodies, queue_schemas
from doubledecker.web.operations import body_of, json_of, list_of, ok, operation
from doubledecker.web.schemas import TENANT, Schema, matching, ref


def _in_path(name: str, description: str, schema: Schema, example: str) -> Schema:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": schema,
        "example": example,
    }


def _in_query(name: str, description: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_QUEUE = _in_path("name", "The queue", queue_schemas.NAME, "jobs")
_TENANT_PART = _in_path("tenant", "The tenant", TENANT, "acme")
_LETTER = _in_path("id", "The dead letter's id", {"type": "string"}, "0-1")
_TENANT = _in_query("tenant", "Of this tenant alone", TENANT)
_LIMIT = _in_query("limit", f"Rows, at most {queue_bodies.LIST_MAX}", matching("[0-9]{1,4}", default="100"))
_FACETS = _in_query("facets", f"Facets shown, at most {queue_bodies.LIST_MAX}", matching("[0-9]{1,4}", default="100"))
_DISCARD = _in_query("discard", "1 destroys what the queue holds", {"type": "string", "enum": ["0", "1"]})
_MINE = (403, 404)
PAGE = [
    _in_query("limit", f"Rows of a page, at most {queue_bodies.LIST_MAX}; all without it", matching("[0-9]{1,4}")),
    _in_query("after", "With limit: the name that the page follows", {"type": "string"}),
]


def _post(summary: str, takes: str, answers: str) -> Schema:
    return operation(
        summary,
        {200: ok(summary, json_of(ref(answers)))},
        *_MINE,
        parameters=[_QUEUE],
        body=body_of(json_of(ref(takes))),
    )


def _get(summary: str, answers: str, *parameters: Schema) -> Schema:
    return operation(summary, {200: ok(summary, json_of(ref(answers)))}, *_MINE, parameters=[_QUEUE, *parameters])


_NEW = "The queue is new"
_KNOWN = "The queue was replaced, or is as it was"

PATHS: dict[str, dict[str, Schema]] = {
    "/queues": {
        "get": operation(
            "A client's own queues, or all of them for root; whole, or a page when `limit` is given",
            {200: ok("The queues", list_of("QueueListed"))},
            parameters=PAGE,
        )
    },
    "/queues/{name}": {
        "put": operation(
            "Register a queue: from the answer on, every matching event is put on it",
            {201: ok(_NEW, json_of(ref("QueueDefined"))), 200: ok(_KNOWN, json_of(ref("QueueDefined")))},
            *(403, 429),
            parameters=[_QUEUE],
            body=body_of(json_of(ref("QueueWanted"))),
        ),
        "get": _get("A queue, with those of its facets that have the most waiting", "Queue", _FACETS),
        "delete": operation(
            "Forget a queue; one that holds messages only with `discard`",
            {204: ok("Done")},
            *(403, 404, 409),
            parameters=[_QUEUE, _DISCARD],
        ),
    },
    "/queues/{name}/pull": {"post": _post("Take messages under a lease, fairly over tenants", "Pull", "Pulled")},
    "/queues/{name}/ack": {"post": _post("End messages for good", "Held", "Settled")},
    "/queues/{name}/nack": {"post": _post("Give messages back, now or after a delay", "Held", "Settled")},
    "/queues/{name}/extend": {"post": _post("Hold messages longer", "Held", "Settled")},
    "/queues/{name}/facets/{tenant}": {
        "get": _get("One tenant's line", "Facet", _TENANT_PART),
        "patch": operation(
            "Change a tenant's weight, bounds or pause, from its next message on",
            {200: ok("What holds now", json_of(ref("Rule")))},
            *_MINE,
            parameters=[_QUEUE, _TENANT_PART],
            body=body_of(json_of(ref("RuleWanted"))),
        ),
    },
    "/queues/{name}/messages": {
        "get": _get("Look at a tenant's next messages without taking them", "Peeked", _TENANT, _LIMIT)
    },
    "/queues/{name}/purge": {"post": _post("Destroy waiting messages, or count them", "Purge", "Counted")},
    "/queues/{name}/dead": {"get": _get("Dead letters, oldest first", "DeadLetters", _TENANT, _LIMIT)},
    "/queues/{name}/dead/{id}": {"get": _get("One dead letter", "DeadLetter", _LETTER)},
    "/queues/{name}/dead/redrive": {"post": _post("Bring dead letters back, or count them", "Chosen", "Counted")},
    "/queues/{name}/dead/purge": {"post": _post("Destroy dead letters, or count them", "Chosen", "Counted")},
}
