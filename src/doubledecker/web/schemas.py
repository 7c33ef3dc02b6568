"""The shapes of the API, as JSON Schema with examples: what the routes read and what they answer.

Patterns and limits come from the model, so they cannot differ from what is checked. Limits that are settings
are named in words, with their defaults.
"""

from collections.abc import Sequence

from doubledecker.assembly.settings import Settings
from doubledecker.model import event, subscriber, token

Schema = dict[str, object]

_DEFAULTS = {name: getattr(Settings(), name) for name in ("max_event_data_bytes", "event_depth_max")}
_DATA = (
    f"Any JSON value, of at most `max_event_data_bytes` ({_DEFAULTS['max_event_data_bytes']} unless set otherwise) and "
    f"`event_depth_max` levels ({_DEFAULTS['event_depth_max']}); passed on as it is. Null is the same as absent. "
    "A number must be in the range of a double, and have at most 1000 characters: send others as strings."
)


def ref(name: str) -> Schema:
    """A pointer to one of the schemas below."""
    return {"$ref": f"#/components/schemas/{name}"}


def record(required: Sequence[str], properties: dict[str, Schema], *, is_open: bool = False, **more: object) -> Schema:
    """An object with these fields, and by default no other."""
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": is_open,
        **more,
    }


def matching(pattern: str, **more: object) -> Schema:
    """A string that fits the whole of a pattern."""
    return {"type": "string", "pattern": f"^{pattern}$", **more}


def whole(least: int, most: int | None = None, **more: object) -> Schema:
    """A whole number."""
    return {"type": "integer", "minimum": least, **({} if most is None else {"maximum": most}), **more}


def or_null(schema: Schema) -> Schema:
    """The same, or null."""
    return {**schema, "type": [schema["type"], "null"]}


TOPIC_NAME = matching(event.TOPIC.pattern)
_NAME = matching(event.NAME.pattern)
NO_STEP: Schema = {"not": {"enum": list(event.STEPS)}}
TENANT = {**_NAME, **NO_STEP}
TENANT_GIVEN: Schema = {**TENANT, "type": ["string", "integer", "null"], "minimum": -(2**63), "maximum": 2**63 - 1}
_TOKEN = matching(token.PATTERN.pattern)
_URL = matching(event.URL.pattern, maxLength=event.URL_LENGTH_MAX, description="https, without query or fragment")
_TIMESTAMP = or_null(whole(0, event.TIMESTAMP_MS_MAX, description="Milliseconds since 1970; null or absent is now"))
_COUNT = whole(0)

TOPIC_EVENT = record(
    ["type", "url"],
    {
        "type": {"type": "string", "enum": sorted(event.ROUTEMASTER_TYPES)},
        "url": _URL,
        "timestamp": _TIMESTAMP,
        "data": {"description": _DATA},
    },
    examples=[
        {"type": "create", "url": "https://shop.example/orders/1", "timestamp": None},
        {"type": "update", "url": "https://shop.example/orders/1", "timestamp": 1700000000000, "data": {"total": 12.5}},
    ],
)

EVENT = record(
    ["topic", "type"],
    {
        "topic": TOPIC_NAME,
        "type": _NAME,
        "url": or_null(_URL),
        "tenant": {
            **TENANT_GIVEN,
            "description": f"Absent: `{event.DEFAULT_TENANT}`; a number is taken as its text",
        },
        "key": or_null({**_NAME, "description": "Events of one key stay in order"}),
        "id": or_null(matching(event.EVENT_ID.pattern, description="Told by publisher and id, a repeat is dropped")),
        "timestamp": _TIMESTAMP,
        "data": {"description": _DATA},
        "traceparent": or_null(matching(event.TRACEPARENT.pattern, description="W3C Trace Context")),
    },
    examples=[
        {"topic": "orders", "type": "paid", "url": "https://shop.example/orders/1"},
        {
            "topic": "orders",
            "type": "order.paid",
            "tenant": "acme",
            "key": "order-1",
            "id": "evt-1",
            "timestamp": None,
            "data": {"total": 12.5},
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        },
    ],
)

EVENTS: Schema = {
    "oneOf": [ref("Event"), {"type": "array", "minItems": 1, "items": {"description": "An Event; see `refused`"}}],
    "examples": [
        {"topic": "orders", "type": "paid", "url": "https://shop.example/orders/1"},
        [{"topic": "orders", "type": "paid"}, {"topic": "orders", "type": "shipped", "key": "order-1"}],
    ],
}

REFUSALS: Schema = {
    "type": "array",
    "description": "The events that were not published, by their place in the request",
    "items": record(["index", "why"], {"index": _COUNT, "why": {"type": "string"}}),
}

PUBLISHED = record(
    ["ids", "refused"],
    {"ids": {"type": "array", "minItems": 1, "items": {"type": "string"}}, "refused": REFUSALS},
    examples=[
        {
            "ids": ["0190a5c8-6f3e-7c1a-9d2b-3f4e5a6b7c8d"],
            "refused": [{"index": 1, "why": "topic 'orders' belongs to another client, 'shop-0a1b2c3d'"}],
        }
    ],
)

SUBSCRIPTION_FIELDS: dict[str, Schema] = {
    "topics": {"type": "array", "maxItems": subscriber.TOPICS_MAX, "items": TOPIC_NAME},
    "callback": {
        "type": "string",
        "pattern": r"^https?://[\x21-\x7e]+$",
        "maxLength": subscriber.CALLBACK_LENGTH_MAX,
        "description": "https, or http where `private_callbacks` is set; no fragment. A user name in it is the uuid",
    },
    "uuid": or_null(matching(subscriber.UUID.pattern, description="The user name that deliveries carry")),
    "timeout": or_null(whole(0, subscriber.TIMEOUT_MS_MAX, description="Milliseconds a batch waits for more")),
    "max": or_null(whole(1, subscriber.EVENTS_MAX, description="Events in a batch")),
    "max_bytes": or_null(whole(1, subscriber.BYTES_MAX, description="Bytes in a batch")),
    "concurrency": or_null(whole(1, subscriber.CONCURRENCY_MAX, description="Deliveries at the same time")),
    "tier": {
        "type": ["string", "null"],
        "enum": [*subscriber.TIERS, None],
        "description": "Who delivers: workers, or the Spark pipeline in bulk",
    },
}

SUBSCRIPTION = record(
    ["topics", "callback"],
    SUBSCRIPTION_FIELDS,
    description="What is absent or null keeps its former value. No topics: the subscriber stays, and gets nothing.",
    examples=[
        {"topics": ["orders", "refunds"], "callback": "https://mail.example/events", "uuid": "s3cret", "timeout": 500},
        {"topics": [], "callback": "https://mail.example/events", "max": 100, "max_bytes": 65536, "concurrency": 2},
        {"topics": ["orders"], "callback": "https://warehouse.example/events", "max": 10000, "tier": "bulk"},
    ],
)

UUID_SET: Schema = {
    "type": "boolean",
    "description": "Whether it is one that others cannot know; false where version 0.1.0 took the public id",
}

SUBSCRIBER = record(
    [
        *("subscriber", "callback", "max_events", "timeout", "topics", "uuid_set", "events"),
        *("max_bytes", "concurrency", "tier", "health", "failures", "refusals", "last_attempted_at"),
    ],
    {
        "subscriber": {"type": "string", "description": "The public id of its token"},
        "callback": {"type": "string"},
        "max_events": whole(1, subscriber.EVENTS_MAX),
        "timeout": whole(0, subscriber.TIMEOUT_MS_MAX),
        "topics": {"type": "array", "items": TOPIC_NAME, "uniqueItems": True},
        "uuid": {"type": "string", "description": "The user name that deliveries carry; shown to its owner alone"},
        "uuid_set": UUID_SET,
        "events": record(
            ["sent", "queued", "oldest"],
            {
                "sent": {**_COUNT, "description": "Events delivered"},
                "queued": {**_COUNT, "description": "Events waiting"},
                "oldest": {**_COUNT, "description": "Age in milliseconds of the oldest waiting batch, 0 for none"},
            },
        ),
        "max_bytes": whole(1, subscriber.BYTES_MAX),
        "concurrency": whole(1, subscriber.CONCURRENCY_MAX),
        "tier": {"type": "string", "enum": list(subscriber.TIERS)},
        "health": whole(0, 100),
        "failures": {**_COUNT, "description": "Different batches that failed in a row; 0 while it is well"},
        "refusals": {**_COUNT, "description": "Different batches that it refused for their content, in a row"},
        "last_attempted_at": or_null(_COUNT),
    },
    examples=[
        {
            "subscriber": "mail-1a2b3c4d",
            "callback": "https://mail.example/events",
            "max_events": 100,
            "timeout": 500,
            "topics": ["orders"],
            "uuid": "s3cret",
            "uuid_set": True,
            "events": {"sent": 12, "queued": 3, "oldest": 240},
            "max_bytes": 1048576,
            "concurrency": 4,
            "tier": "live",
            "health": 100,
            "failures": 0,
            "refusals": 0,
            "last_attempted_at": 1700000000000,
        }
    ],
)

TOPIC = record(
    ["name", "publisher", "publisher_id", "events"],
    {
        "name": TOPIC_NAME,
        "publisher": {**_TOKEN, "description": "The name of its owner's token"},
        "publisher_id": {**_TOKEN, "description": "The id of its owner's token; names need not be unique"},
        "events": _COUNT,
    },
    examples=[{"name": "orders", "publisher": "shop", "publisher_id": "shop-1a2b3c4d", "events": 12}],
)

TOKEN_WANTED = record(
    ["name"],
    {"name": _TOKEN, "token": or_null({**_TOKEN, "description": "The secret, to choose it oneself"})},
    examples=[{"name": "shop"}, {"name": "shop", "token": "shop--5e8b0c"}],
)

TOKEN_MADE = record(
    ["name", "token", "id"],
    {
        "name": _TOKEN,
        "token": {**_TOKEN, "description": "The secret, shown this once"},
        "id": {"type": "string", "description": "What stands for the token wherever it is listed"},
    },
    examples=[{"name": "shop", "token": "shop--2f1c0d9e8b7a6f5e4d3c2b1a09f8e7d6", "id": "shop-1a2b3c4d"}],
)

_FORMER_UNTIL = or_null({**_COUNT, "description": "When the last former secret ends, or ended; null for none"})

TOKEN_LISTED = record(
    ["name", "token", "created_at", "rotated_at", "former_until"],
    {
        "name": _TOKEN,
        "token": {"type": "string", "description": "The public id"},
        "created_at": _COUNT,
        "rotated_at": or_null({**_COUNT, "description": "When its secret was replaced last"}),
        "former_until": _FORMER_UNTIL,
    },
    examples=[
        {
            "name": "shop",
            "token": "shop-1a2b3c4d",
            "created_at": 1700000000000,
            "rotated_at": None,
            "former_until": None,
        }
    ],
)

ROTATION = record(
    [],
    {
        "token": or_null({**_TOKEN, "description": "The new secret, to choose it oneself"}),
        "overlap_s": whole(0, token.OVERLAP_S_MAX, description="How long former secrets work; a day if absent"),
    },
    examples=[{}, {"overlap_s": 3600}, {"token": "shop--9f2d11", "overlap_s": 0}],
)

TOKEN_ROTATED = record(
    ["name", "token", "id", "former_until"],
    {
        "name": _TOKEN,
        "token": {**_TOKEN, "description": "The new secret, shown this once"},
        "id": {"type": "string"},
        "former_until": _FORMER_UNTIL,
    },
    examples=[
        {
            "name": "shop",
            "token": "shop--2f1c0d9e8b7a6f5e4d3c2b1a09f8e7d6",
            "id": "shop-1a2b3c4d",
            "former_until": 1700086400000,
        }
    ],
)

GIFT = record(
    ["to"],
    {"to": {"type": "string", "description": "The token id of the new owner"}},
    examples=[{"to": "shop-1a2b3c4d"}],
)

_MEMORY: Schema = {"type": "string", "pattern": "^(ok|short|full|unknown)", "description": "Whether it is short"}
PROBLEM = record(
    ["type", "title", "status", "detail"],
    {
        "type": {"const": "about:blank"},
        "title": {"type": "string", "minLength": 1},
        "status": whole(400, 599),
        "detail": {"type": "string", "minLength": 1, "description": "What was seen, and what is allowed"},
        "refused": REFUSALS,
        "checks": {"type": "object", "additionalProperties": {"type": "string"}},
        "memory": _MEMORY,
    },
    description="Problem details (RFC 9457)",
    examples=[
        {
            "type": "about:blank",
            "title": "Bad request",
            "status": 400,
            "detail": "the topic is '7 orders'; a name must match [A-Za-z_][A-Za-z0-9_.-]{0,63}",
        }
    ],
)

STATUS = record(["status", "version"], {"status": {"const": "ok"}, "version": {"type": "string"}})
ALIVE = record(["status"], {"status": {"const": "alive"}})
READY = record(
    ["status", "checks", "memory"],
    {
        "status": {"const": "ready"},
        "checks": {"type": "object", "additionalProperties": {"const": "ok"}},
        "memory": _MEMORY,
    },
)
VERSION = record(["name", "version"], {"name": {"const": "doubledecker"}, "version": {"type": "string"}})

ALL: dict[str, Schema] = {
    "TopicEvent": TOPIC_EVENT,
    "Event": EVENT,
    "Events": EVENTS,
    "Published": PUBLISHED,
    "Subscription": SUBSCRIPTION,
    "Subscriber": SUBSCRIBER,
    "Topic": TOPIC,
    "TokenWanted": TOKEN_WANTED,
    "TokenMade": TOKEN_MADE,
    "TokenListed": TOKEN_LISTED,
    "Rotation": ROTATION,
    "TokenRotated": TOKEN_ROTATED,
    "Gift": GIFT,
    "Problem": PROBLEM,
    "Status": STATUS,
    "Alive": ALIVE,
    "Ready": READY,
    "Version": VERSION,
}
