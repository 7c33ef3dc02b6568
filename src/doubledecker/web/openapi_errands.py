"""The routes of replays and erasures in the OpenAPI document, and their shapes."""

from doubledecker.model import event, replay
from doubledecker.web.operations import body_of, json_of, list_of, ok, operation
from doubledecker.web.schemas import TENANT_GIVEN, TOPIC_NAME, Schema, matching, or_null, record, ref, whole

_TEXT: Schema = {"type": "string"}
_NAME = matching(event.NAME.pattern)
_COUNT = whole(0)
_MOMENT: Schema = {"type": "string", "description": "ISO 8601, like 2026-11-15T11:00:00Z; UTC unless it says otherwise"}
_DRY_RUN: Schema = {"type": "boolean", "default": False, "description": "Only count"}
_WHERE: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": replay.WHERE_LENGTH_MAX,
    "description": "SQL on the columns of the lake's events; for root alone",
}
_ID: Schema = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "Its id",
    "schema": _TEXT,
    "example": "mX2kcBzQeRf8TQm1o9Ja",
}

_TARGETS: dict[str, Schema] = {
    "to_subscriber": {**_TEXT, "description": "A subscriber's id, or its client's name"},
    "to_queue": {**_TEXT, "description": "A queue"},
    "to_topic": {**TOPIC_NAME, "description": "A topic, on which they are published as new events by its owner"},
}
_REPLAY_WANTED = record(
    [],
    {
        "from": or_null({**_MOMENT, "description": "Accepted from then on; absent: from the first on"}),
        "to": or_null({**_MOMENT, "description": "Accepted before then, which is past; absent: now"}),
        "topic": or_null(TOPIC_NAME),
        "tenant": TENANT_GIVEN,
        "where": or_null(_WHERE),
        **{name: or_null(schema) for name, schema in _TARGETS.items()},
        "rate": or_null(whole(1, replay.RATE_MAX, description="Events a second, at most")),
        "direct": {
            "type": "boolean",
            "default": False,
            "description": "Post to a subscriber from Spark's tasks, without passing through Redis",
        },
        "dry_run": _DRY_RUN,
    },
    description="Which past events are sent again, and to which one of the three targets.",
    examples=[
        {"from": "2024-01-01T00:00:00Z", "topic": "orders", "to_topic": "orders_again", "rate": 100},
        {"tenant": "acme", "to_topic": "orders_again", "dry_run": True},
    ],
)
_ERASURE_WANTED = record(
    [],
    {"tenant": TENANT_GIVEN, "key": or_null(_NAME), "topic": or_null(TOPIC_NAME), "dry_run": _DRY_RUN},
    description="All events of a tenant, or of a key (on one topic or on any), that are accepted until now.",
    examples=[{"tenant": "acme", "dry_run": True}, {"key": "customer-7", "topic": "orders"}],
)
_COUNTS: Schema = {
    "type": "array",
    "description": "What it is about, once counted",
    "items": record(["topic", "day", "events"], {"topic": _TEXT, "day": _TEXT, "events": _COUNT}),
}
_ERRAND: dict[str, Schema] = {
    "id": _TEXT,
    "owner": {**_TEXT, "description": "A token's id, or root"},
    "state": {"enum": ["waiting", "running", "done", "failed", "cancelled"]},
    "created_at": _COUNT,
    "changed_at": _COUNT,
    "total": {**_COUNT, "description": "How many events it is about, once counted"},
    "counts": _COUNTS,
    "note": {**_TEXT, "description": "What it waits for, such as a pipeline when none runs"},
    "error": {**_TEXT, "description": "What went wrong last"},
    "dry_run": {"type": "boolean"},
    "topic": or_null(_TEXT),
    "tenant": or_null(_TEXT),
}
_REPLAY_FIELDS: dict[str, Schema] = {
    "sent": _COUNT,
    "refused": {**_COUNT, "description": "Not published, because a queue that refuses was full; of a topic alone"},
    "from": _MOMENT,
    "to": _MOMENT,
    "where": or_null(_TEXT),
    "rate": _COUNT,
    "direct": {"type": "boolean"},
}
_ERASURE_FIELDS: dict[str, Schema] = {"erased": _COUNT, "before": _MOMENT, "key": or_null(_TEXT)}

SCHEMAS: dict[str, Schema] = {
    "ReplayWanted": _REPLAY_WANTED,
    "Replay": record([*_ERRAND, *_REPLAY_FIELDS], {**_ERRAND, **_REPLAY_FIELDS, **_TARGETS}),
    "ErasureWanted": _ERASURE_WANTED,
    "Erasure": record([*_ERRAND, *_ERASURE_FIELDS], {**_ERRAND, **_ERASURE_FIELDS}),
}


def _one(summary: str, answers: str, *problems: int) -> Schema:
    return operation(summary, {200: ok(summary, json_of(ref(answers)))}, *problems, parameters=[_ID])


def _asked(summary: str, takes: str, answers: str, *problems: int) -> Schema:
    good = {202: ok("The pipeline will carry it out", json_of(ref(answers)))}
    return operation(summary, good, *problems, body=body_of(json_of(ref(takes))))


PATHS: dict[str, dict[str, Schema]] = {
    "/replays": {
        "post": _asked("Send past events again, to one target alone", "ReplayWanted", "Replay", 403, 404, 429),
        "get": operation(
            "A client's own replays, or all of them for root; the newest first", {200: ok("Replays", list_of("Replay"))}
        ),
    },
    "/replays/{id}": {
        "get": _one("How a replay fares", "Replay", 403, 404),
        "delete": _one("Cancel a replay; what is sent stays sent", "Replay", 403, 404, 409),
    },
    "/erasures": {
        "post": _asked("Remove events from the lake for good, as root", "ErasureWanted", "Erasure", 403, 429),
        "get": operation("All erasures, for root; the newest first", {200: ok("Erasures", list_of("Erasure"))}, 403),
    },
    "/erasures/{id}": {"get": _one("How an erasure fares, for root", "Erasure", 403, 404)},
}
