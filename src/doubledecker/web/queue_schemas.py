"""The shapes of queues in the API, as JSON Schema with examples; see schemas.py."""

from doubledecker.model import queue
from doubledecker.store.queues import PULL_MAX, SETTLE_MAX
from doubledecker.web import queue_bodies, schemas
from doubledecker.web.schemas import NO_STEP, TENANT, Schema, matching, or_null, record, whole

NAME = matching(queue.NAME.pattern, **NO_STEP)
_TEXT: Schema = {"type": "string"}
_COUNT = whole(0)
_WHOSE: Schema = {"type": ["string", "integer", "null"]}
_IDS: Schema = {"type": "array", "items": _TEXT}
_PATTERN: Schema = {"type": "string", "minLength": 1, "description": "RE2, on the whole of `tenant:topic:type`"}
_EVENT: Schema = {"type": "object", "description": "The event, as it is delivered"}
_DRY_RUN: Schema = {"type": "boolean", "default": False, "description": "Only count"}

_SETTINGS: dict[str, Schema] = {
    "lease_ms": whole(queue.LEASE_MS_MIN, queue.LEASE_MS_MAX, description="How long a message is a consumer's"),
    "attempts_max": whole(1, queue.ATTEMPTS_MAX, description="After these a message is a dead letter"),
    "charge": {"enum": list(queue.CHARGES), "description": "What tenants share evenly: time spent, or messages"},
    "max_length": whole(1, queue.LENGTH_MAX, description="Messages in the queue"),
    "facet_max_length": whole(0, queue.LENGTH_MAX, description="Waiting messages of one tenant; 0 is no bound"),
    "overflow": {"enum": list(queue.OVERFLOWS), "description": "What becomes of an event that finds it full"},
}
_RECEIVER = {
    name: schemas.SUBSCRIPTION_FIELDS[name]
    for name in ("callback", "uuid", "timeout", "max", "max_bytes", "concurrency")
}

WANTED = record(
    ["pattern"],
    {
        "pattern": {"oneOf": [_PATTERN, {"type": "array", "items": _PATTERN, "minItems": 1}]},
        **_SETTINGS,
        "owner": or_null({**_TEXT, "description": "A token's id; for root alone"}),
        "refuse_clients": or_null(
            {
                "type": "array",
                "items": _TEXT,
                "maxItems": queue.REFUSE_CLIENTS_MAX,
                "description": "Ids of further clients whose events it may refuse when full; for root alone",
            }
        ),
        **_RECEIVER,
    },
    description="What is absent has its default. With a callback, workers push what the queue holds.",
    examples=[
        {"pattern": ".*:orders:.*"},
        {"pattern": ["acme:.*:.*", ".*:mails:sent"], "lease_ms": 60_000, "attempts_max": 5, "charge": "count"},
    ],
)

_DEFINED: dict[str, Schema] = {
    "name": NAME,
    "owner": {**_TEXT, "description": "A token's id, or root"},
    "pattern": {"type": "array", "items": _TEXT},
    **_SETTINGS,
    "refuse_clients": _IDS,
    "callback": _TEXT,
    "uuid": {**_TEXT, "description": "The user name that deliveries carry; shown to the owner alone"},
    "uuid_set": schemas.UUID_SET,
    **dict.fromkeys(("timeout", "max", "max_bytes", "concurrency"), _COUNT),
}
_ALWAYS = ["name", "owner", "pattern", *_SETTINGS, "refuse_clients"]
DEFINED = record(_ALWAYS, _DEFINED)

RULE = record(
    ["weight", "concurrency", "rate_per_s", "paused"],
    {
        "weight": {"type": "number"},
        "concurrency": or_null(_COUNT),
        "rate_per_s": or_null({"type": "number"}),
        "paused": {"type": "boolean"},
    },
)
RULE_WANTED = record(
    [],
    {
        "weight": {"type": "number", "minimum": queue.WEIGHT_MIN, "maximum": queue.WEIGHT_MAX},
        "concurrency": or_null(whole(1, queue.HELD_MAX, description="Messages in consumers' hands at once")),
        "rate_per_s": or_null({"type": "number", "minimum": queue.RATE_MIN, "maximum": queue.RATE_MAX}),
        "paused": {"type": "boolean"},
    },
    description="What is absent stays as it was; null ends a bound.",
    examples=[{"weight": 2}, {"concurrency": 10, "rate_per_s": None}, {"paused": True}],
)
_FACET: dict[str, Schema] = {
    "tenant": TENANT,
    **dict.fromkeys(("waiting", "in_flight", "oldest"), _COUNT),
    "share": {"type": "number", "description": "The part of the service that it is due among those that wait"},
    **RULE["properties"],  # type: ignore[dict-item]
}
FACET = record(list(_FACET), _FACET)

_NUMBERS: dict[str, Schema] = {
    **dict.fromkeys(("waiting", "in_flight", "delayed", "dead"), _COUNT),
    "counters": {"type": "object", "additionalProperties": _COUNT},
}
LISTED = record([*_ALWAYS, *_NUMBERS], {**_DEFINED, **_NUMBERS})
SHOWN = record(
    [*_ALWAYS, *_NUMBERS, "oldest", "facets"],
    {
        **_DEFINED,
        **_NUMBERS,
        "oldest": {**_COUNT, "description": "Age in milliseconds of the oldest waiting event, by its own time"},
        "facets": {"type": "array", "items": FACET},
        "health": whole(0, 100),
        "failures": _COUNT,
        "refusals": _COUNT,
        "last_attempted_at": or_null(_COUNT),
    },
)

PULL = record(
    [],
    {
        "max": whole(1, PULL_MAX, default=1),
        "wait_ms": whole(0, queue_bodies.WAIT_MS_MAX, default=0, description="How long to wait for the first"),
        "lease_ms": or_null(whole(queue.LEASE_MS_MIN, queue.LEASE_MS_MAX, description="Instead of the queue's own")),
    },
    examples=[{}, {"max": 100, "wait_ms": 50}],
)
MESSAGE = record(
    ["id", "attempt", "tenant", "event", "lease_until"],
    {"id": _TEXT, "attempt": whole(1), "tenant": TENANT, "event": _EVENT, "lease_until": _COUNT},
)
PULLED = record(
    ["messages", "wait_ms"],
    {
        "messages": {"type": "array", "items": MESSAGE},
        "wait_ms": or_null({**_COUNT, "description": "When more may be due; null when only a new event can tell"}),
    },
)
_HELD = record(
    ["id", "attempt"],
    {
        "id": _TEXT,
        "attempt": {"type": "integer"},
        "delay_ms": or_null(whole(0, queue_bodies.DELAY_MS_MAX)),
        "attempted": {
            "type": "boolean",
            "default": True,
            "description": "For nack: false when its work never began; then the attempt does not count",
        },
    },
)
HELD = record(
    ["messages"],
    {
        "messages": {"type": "array", "maxItems": SETTLE_MAX, "items": _HELD},
        "delay_ms": whole(0, queue_bodies.DELAY_MS_MAX, description="For nack: how long until the next attempt"),
        "lease_ms": or_null(whole(queue.LEASE_MS_MIN, queue.LEASE_MS_MAX, description="For extend: from now")),
        "why": {"type": "string", "maxLength": queue_bodies.WHY_LENGTH_MAX, "description": "For nack"},
        "reject": {
            "type": "boolean",
            "description": "For nack: to the dead letters at once, whatever attempts are left",
        },
    },
    examples=[{"messages": [{"id": "0-1", "attempt": 1}]}],
)
SETTLED = record(
    ["ids", "lost"],
    {"ids": {**_IDS, "description": "Were still the caller's"}, "lost": _IDS, "lease_until": _COUNT},
)
PURGE = record(
    [],
    {"tenant": _WHOSE, "dry_run": _DRY_RUN},
    description="Everything, or one tenant's.",
    examples=[{"dry_run": True}, {"tenant": "acme"}],
)
CHOSEN = record(
    [],
    {"tenant": _WHOSE, "ids": {"type": ["array", "null"], "items": _TEXT}, "dry_run": _DRY_RUN},
    description="All dead letters, or one tenant's, or some by id.",
    examples=[{"dry_run": True}, {"tenant": "acme"}, {"ids": ["0-1"]}],
)
COUNTED = record(["messages", "dry_run"], {"messages": _COUNT, "dry_run": {"type": "boolean"}})
PEEKED = record(
    ["messages"],
    {
        "messages": {
            "type": "array",
            "items": record(["id", "tenant", "event"], {"id": _TEXT, "tenant": TENANT, "event": _EVENT}),
        }
    },
)
_LETTER_FIELDS: dict[str, Schema] = {
    "id": _TEXT,
    "tenant": TENANT,
    "attempts": whole(0),
    "why": _TEXT,
    "died_at": _COUNT,
    "event": _EVENT,
}
LETTER = record(list(_LETTER_FIELDS), _LETTER_FIELDS)
LETTERS = record(["count", "messages"], {"count": _COUNT, "messages": {"type": "array", "items": LETTER}})

ALL: dict[str, Schema] = {
    "QueueWanted": WANTED,
    "QueueDefined": DEFINED,
    "QueueListed": LISTED,
    "Queue": SHOWN,
    "Facet": FACET,
    "Rule": RULE,
    "RuleWanted": RULE_WANTED,
    "Pull": PULL,
    "Pulled": PULLED,
    "Held": HELD,
    "Settled": SETTLED,
    "Chosen": CHOSEN,
    "Purge": PURGE,
    "Counted": COUNTED,
    "Peeked": PEEKED,
    "DeadLetter": LETTER,
    "DeadLetters": LETTERS,
}
