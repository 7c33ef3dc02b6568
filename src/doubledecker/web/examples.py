"""Examples of bodies and answers, by their names in the OpenAPI document; the server takes each of those of bodies."""

_AT_MS = 1_700_000_000_000
_URL = "https://shop.example/orders/1"
_TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_CALLBACK = "https://mail.example/events"

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
    "Published": [
        {
            "ids": ["0190a5c8-6f3e-7c1a-9d2b-3f4e5a6b7c8d"],
            "refused": [{"index": 1, "why": "topic 'orders' belongs to another client, 'shop-0a1b2c3d'"}],
        }
    ],
    "Subscription": [
        {"topics": ["orders", "refunds"], "callback": _CALLBACK, "uuid": "s3cret", "timeout": 500},
        {"topics": [], "callback": _CALLBACK, "max": 100, "max_bytes": 65536, "concurrency": 2},
        {"topics": ["orders"], "callback": "https://warehouse.example/events", "max": 10000, "tier": "bulk"},
    ],
    "Subscriber": [
        {
            "subscriber": "mail-1a2b3c4d",
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
        }
    ],
    "ReceiverState": [
        {"receiver": "mail-1a2b3c4d", "paused": True, "disabled": None},
        {"receiver": "@jobs", "paused": False, "disabled": {"since": _AT_MS, "why": "410 Gone"}},
    ],
    "Topic": [{"name": "orders", "publisher": "shop", "publisher_id": "shop-1a2b3c4d", "events": 12}],
    "TokenWanted": [{"name": "shop"}, {"name": "shop", "token": "shop--5e8b0c"}],
    "TokenMade": [{"name": "shop", "token": "shop--2f1c0d9e8b7a6f5e4d3c2b1a09f8e7d6", "id": "shop-1a2b3c4d"}],
    "TokenListed": [
        {"name": "shop", "token": "shop-1a2b3c4d", "created_at": _AT_MS, "rotated_at": None, "former_until": None}
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
    "Gift": [{"to": "shop-1a2b3c4d"}],
    "Problem": [
        {
            "type": "about:blank",
            "title": "Bad request",
            "status": 400,
            "detail": "the topic is '7 orders'; a name must match [A-Za-z_][A-Za-z0-9_.-]{0,63}",
        }
    ],
    "QueueWanted": [
        {"pattern": ".*:orders:.*"},
        {"pattern": ["acme:.*:.*", ".*:mails:sent"], "lease_ms": 60_000, "attempts_max": 5, "charge": "count"},
    ],
    "RuleWanted": [{"weight": 2}, {"concurrency": 10, "rate_per_s": None}, {"paused": True}],
    "Pull": [{}, {"max": 100, "wait_ms": 50}],
    "Held": [{"messages": [{"id": "0-1", "attempt": 1}]}],
    "Purge": [{"dry_run": True}, {"tenant": "acme"}],
    "Chosen": [{"dry_run": True}, {"tenant": "acme"}, {"ids": ["0-1"]}],
    "ReplayWanted": [
        {"from": "2024-01-01T00:00:00Z", "topic": "orders", "to_topic": "orders_again", "rate": 100},
        {"tenant": "acme", "to_topic": "orders_again", "dry_run": True},
    ],
    "ErasureWanted": [{"tenant": "acme", "dry_run": True}, {"key": "customer-7", "topic": "orders"}],
}
