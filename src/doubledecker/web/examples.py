"""Examples of bodies and answers, by their names in the OpenAPI document; the server takes each of those of bodies."""

_AT_MS = 1_700_000_000_000
_URL = "https://shop.example/orders/1"
_TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_CALLBACK = "https://mail.example/events"
_FILTER = {"type": ["paid"], "data": {"total": [{"numeric": [">=", 100]}]}}

EXAMPLES: dict[str, list[object]] = {
    "TopicEvent": [
        {"type": "create", "url": _URL, "timestamp": None},
        {"type": "update", "url": _URL, "timestamp": _AT_MS, "data": {"total": 12.5}},
    ],
    "Event": [
        {"topic": "orders", "type": "paid", "url": _URL},
        {
            "topic": "orders",
            "type": "order.paid",
            "tenant": "acme",
            "key": "order-1",
            "id": "evt-1",
            "timestamp": None,
            "data": {"total": 12.5},
            "traceparent": _TRACEPARENT,
        },
    ],
    "Events": [
        {"topic": "orders", "type": "paid", "url": _URL},
        [{"topic": "orders", "type": "paid"}, {"topic": "orders", "type": "shipped", "key": "order-1"}],
    ],
    "CloudEvent": [
        {"specversion": "1.0", "id": "evt-1", "source": "/shop", "type": "com.example.paid", "topic": "orders"},
        {
            "specversion": "1.0",
            "id": "evt-2",
            "source": "https://shop.example",
            "type": "com.example.order.paid",
            "topic": "orders",
            "tenant": "acme",
            "partitionkey": "order-1",
            "time": "2026-11-15T11:00:00.123Z",
            "subject": "orders/1",
            "datacontenttype": "application/json",
            "data": {"total": 12.5},
        },
    ],
    "CloudEvents": [
        [
            {"specversion": "1.0", "id": "evt-3", "source": "/shop", "type": "paid", "topic": "orders"},
            {"specversion": "1.0", "id": "evt-4", "source": "/shop", "type": "shipped", "topic": "orders"},
        ]
    ],
    "Published": [
        {
            "ids": ["0190a5c8-6f3e-7c1a-9d2b-3f4e5a6b7c8d"],
            "refused": [{"index": 1, "why": "topic 'orders' belongs to another client, 'shop-0a1b2c3d'"}],
        }
    ],
    "Subscription": [
        {"topics": ["orders", "refunds"], "callback": _CALLBACK, "uuid": "s3cret", "timeout": 500},
        {"topics": [], "callback": _CALLBACK, "max": 100, "max_bytes": 65536, "concurrency": 2},
        {
            "topics": ["orders"],
            "callback": "https://warehouse.example/events",
            "ordered": False,
            "tier": "bulk",
            "filter": None,
        },
        {"topics": ["orders"], "callback": _CALLBACK, "retry": {"attempts_max": 10, "age_max_s": 86400}},
        {"topics": ["orders"], "callback": _CALLBACK, "retry": [1000, 60000, 3600000], "rate_per_s": 20},
        {"topics": ["orders"], "callback": _CALLBACK, "backlog_max_bytes": 104857600},
        {"topics": ["orders"], "callback": _CALLBACK, "headers": {"X-Key": "s3cret"}},
        {"topics": ["orders"], "callback": _CALLBACK, "tier": "live", "ordered": True},
        {"topics": ["orders"], "callback": _CALLBACK, "filter": _FILTER},
        {"topics": ["orders"], "callback": _CALLBACK, "format": "cloudevents-batch"},
    ],
    "PortalWanted": [{"tenant": "acme"}, {"tenant": "acme", "expires_in_s": 900, "topics": ["orders"]}],
    "SubscriptionWanted": [
        {"topics": ["orders"], "callback": _CALLBACK, "filter": _FILTER, "headers": {"X-Key": "s3cret"}},
        {"topics": [], "callback": _CALLBACK, "ordered": True, "on_dead": "block"},
    ],
    "SubscriptionChange": [{"topics": ["orders", "refunds"], "filter": None}, {"callback": _CALLBACK}, {"max": None}],
    "Subscriber": [
        {
            "subscriber": "mail-1a2b3c4d",
            "name": "default",
            "client": "mail-1a2b3c4d",
            "callback": _CALLBACK,
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
            "last_attempted_at": _AT_MS,
            "paused": False,
            "disabled": None,
            "retry": None,
            "dead": 0,
            "rate_per_s": 0,
            "format": "routemaster",
            "backlog_max_bytes": 104857600,
            "dropped": {
                "events": 340,
                "batches": 12,
                "bytes": 98304,
                "from": "2026-11-15T11:00:00.000Z",
                "to": "2026-11-15T11:20:00.000Z",
            },
            "headers": {"X-Key": "s3cret"},
            "secret_set": True,
            "secret_rotated_at": _AT_MS,
            "ordered": True,
            "on_dead": "continue",
            "filter": _FILTER,
            "held_key_count": 1,
            "held_keys": ["default/order-17"],
        }
    ],
    "ReceiverState": [
        {"receiver": "mail-1a2b3c4d", "paused": True, "disabled": None},
        {"receiver": "@jobs", "paused": False, "disabled": {"since": _AT_MS, "why": "410 Gone"}},
    ],
    "SecretRotation": [{}, {"overlap_s": 3600}],
    "SecretRotated": [
        {
            "receiver": "mail-1a2b3c4d",
            "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=",
            "rotated_at": _AT_MS,
            "former_until": _AT_MS + 86_400_000,
        }
    ],
    "Trial": [
        {
            "receiver": "mail-1a2b3c4d",
            "event": "0190a5c8-6f3e-7c1a-9d2b-3f4e5a6b7c8d",
            "signed": True,
            "outcome": "refused",
            "status": 401,
            "took_ms": 12,
            "detail": "Unauthorized",
            "retry_after_ms": None,
            "headers": ["Content-Type: text/plain"],
            "answer": "no such signature",
        }
    ],
    "Audit": [
        {
            "records": [
                {
                    "id": "1763200000123-0-0",
                    "at": _AT_MS,
                    "actor": "mail-1a2b3c4d",
                    "actor_name": "mail",
                    "action": "dead_letters.purged",
                    "target": "@jobs",
                    "outcome": "done",
                    "status": 200,
                    "count": 12,
                    "fields": ["tenant"],
                    "detail": "",
                    "address": "203.0.113.9",
                    "proxy": "",
                    "request_id": "",
                    "traceparent": "",
                }
            ],
            "before": None,
            "older": "",
        }
    ],
    "Attempts": [
        {
            "attempts": [
                {
                    "id": "1763200000123-0-0",
                    "receiver": "mail-1a2b3c4d",
                    "batch": "mX2kcBzQeRf8TQm1o9Ja",
                    "attempt": 1,
                    "outcome": "refused",
                    "status": 503,
                    "took_ms": 12,
                    "at": _AT_MS,
                    "events": ["evt-1"],
                    "event_count": 1,
                    "bytes": 96,
                    "detail": "Service Unavailable",
                    "retry_ms": 842,
                }
            ],
            "before": None,
            "scanned_until": None,
            "older": "",
        }
    ],
    "Resend": [{"event": "0190a5c8-6f3e-7c1a-9d2b-3f4e5a6b7c8d"}, {"attempt": "1763200000123-0-0"}],
    "Resent": [
        {"receiver": "mail-1a2b3c4d", "events": ["0190a5c8-6f3e-7c1a-9d2b-3f4e5a6b7c8d"], "missing": [], "refused": []},
        {"receiver": "@jobs", "events": ["evt-1"], "missing": ["evt-2"], "refused": ["evt-3"]},
    ],
    "DeadLetter": [
        {
            "id": "0-mX2kcBzQeRf8TQm1o9Ja",
            "topic": "orders",
            "tenant": "acme",
            "attempts": 8,
            "reason": "attempts",
            "status": 422,
            "why": "Unprocessable Entity",
            "answer_headers": ["Content-Type: text/plain"],
            "answer": "no such customer",
            "accepted_at": _AT_MS - 14_400_000,
            "died_at": _AT_MS,
            "batch": "mX2kcBzQeRf8TQm1o9Jb.01",
            "redriven": 0,
            "event": {"topic": "orders", "type": "paid", "t": _AT_MS - 14_400_000, "id": "evt-1", "tenant": "acme"},
        }
    ],
    "LetterJob": [
        {
            "id": "mX2kcBzQeRf8TQm1o9Ja",
            "receiver": "mail-1a2b3c4d",
            "action": "redrive",
            "state": "running",
            "count": 1200,
            "done": 350,
            "rate_per_s": 50.0,
            "asked_at": _AT_MS,
            "ended_at": None,
        }
    ],
    "Topic": [
        {
            "name": "orders",
            "publisher": "shop",
            "publisher_id": "shop-0a1b2c3d",
            "events": 340,
            "description": "Orders of the shop and of the tills",
            "publishers": ["till-1a2b3c4d"],
        }
    ],
    "TokenWanted": [
        {"name": "shop"},
        {"name": "shop", "token": "shop--5e8b0c"},
        {
            "name": "acme",
            "description": "Acme's own receivers",
            "expires_in_s": 86_400,
            "scopes": {"actions": ["subscribe", "manage"], "tenants": ["acme"]},
        },
    ],
    "TokenChange": [
        {"description": "The shop's checkout"},
        {"scopes": {"actions": ["publish"], "topics": ["orders", "mail.*"]}},
        {"expires_at": 0, "scopes": None},
    ],
    "TokenMade": [{"name": "shop", "token": "shop--2f1c0d9e8b7a6f5e4d3c2b1a09f8e7d6", "id": "shop-1a2b3c4d"}],
    "TokenListed": [
        {
            "name": "shop",
            "token": "shop-1a2b3c4d",
            "created_at": _AT_MS,
            "rotated_at": None,
            "former_until": None,
            "description": "The shop's checkout",
            "expires_at": 0,
            "scopes": {"actions": ["publish", "stream"], "topics": ["orders", "mail.*"], "tenants": None},
            "last_used_at": _AT_MS,
        }
    ],
    "Rotation": [{}, {"overlap_s": 3600}, {"token": "shop--9f2d11", "overlap_s": 0}],
    "TokenRotated": [
        {
            "name": "shop",
            "token": "shop--2f1c0d9e8b7a6f5e4d3c2b1a09f8e7d6",
            "id": "shop-1a2b3c4d",
            "former_until": _AT_MS + 86_400_000,
        }
    ],
    "TopicWanted": [{"publishers": ["shop-1a2b3c4d"], "description": "Orders of the shop and of the tills"}],
    "Gift": [{"to": "shop-1a2b3c4d"}],
    "Problem": [
        {
            "type": "about:blank",
            "title": "Bad request",
            "status": 400,
            "detail": "the topic is '7 orders'; a name must match [A-Za-z_][A-Za-z0-9_.-]{0,63}",
        }
    ],
    "FilterTest": [
        {"filter": _FILTER},
        {"filter": _FILTER, "events": [{"topic": "orders", "type": "paid", "data": {"total": 120}}]},
        {"filter": {"type": ["paid"]}, "limit": 100},
    ],
    "FilterTested": [
        {
            "events": [
                {
                    "id": "evt-1",
                    "topic": "orders",
                    "type": "paid",
                    "tenant": "default",
                    "fits": False,
                    "why": 'data.total is 12.5, wanted is [{"numeric":[">=",100]}]',
                }
            ],
            "fitting": 0,
            "steps": 2,
        }
    ],
    "QueueWanted": [
        {"pattern": ".*:orders:.*"},
        {"pattern": ".*:orders:.*", "filter": {"key": [{"prefix": "customer-"}], "$or": [{"tenant": ["acme"]}]}},
        {"pattern": ["acme:.*:.*", ".*:mails:sent"], "lease_ms": 60_000, "attempts_max": 5, "charge": "count"},
    ],
    "RuleWanted": [{"weight": 2}, {"concurrency": 10, "rate_per_s": None}, {"paused": True}],
    "Pull": [{}, {"max": 100, "wait_ms": 50}],
    "Held": [{"messages": [{"id": "0-1", "attempt": 1}]}],
    "Purge": [{"dry_run": True}, {"tenant": "acme"}],
    "Chosen": [{"dry_run": True}, {"tenant": "acme", "status": 500}, {"ids": ["0-1"]}, {"rate_per_s": 50}],
    "ReplayWanted": [
        {"from": "2024-01-01T00:00:00Z", "topic": "orders", "to_topic": "orders_again", "rate": 100},
        {"tenant": "acme", "to_topic": "orders_again", "dry_run": True},
    ],
    "ErasureWanted": [{"tenant": "acme", "dry_run": True}, {"key": "customer-7", "topic": "orders"}],
}
