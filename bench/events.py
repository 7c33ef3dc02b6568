"""The events that every measurement publishes: about 230 bytes once accepted, and the requests that carry them."""

import json

TOPIC = "orders"
VARIANTS = 500  # enough that no cache sees the same bytes again at once, few enough to be made in a moment
_DATA = {"customer": 48213, "currency": "EUR", "total": "129.90", "lines": 3, "channel": "web-shop"}


def event(number: int, **more: object) -> dict[str, object]:
    """One item of `POST /events`."""
    return {"topic": TOPIC, **posted(number, **more)}


def posted(number: int, **more: object) -> dict[str, object]:
    """The body of `POST /topics/:name`."""
    return {"type": "update", "url": f"https://example.org/orders/{number:08}", "data": {**_DATA, **more}}


def delivered(number: int) -> bytes:
    """An event as a receiver gets it, for floors and peers that know no bus."""
    return encode({**event(number), "t": 1_700_000_000_000 + number, "id": f"018c0000-0000-7000-8000-{number:012}"})


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def requests(kind: str, *, authorization: str, events_per_request: int) -> list[bytes]:
    """Ready HTTP requests: `topic` has one event each, `events` an array."""
    return [
        request(_path(kind), _body(kind, number, events_per_request), authorization=authorization)
        for number in range(max(1, VARIANTS // events_per_request))
    ]


def request(path: str, body: bytes, *, authorization: str) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {authorization}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _path(kind: str) -> str:
    return f"/topics/{TOPIC}" if kind == "topic" else "/events"


def _body(kind: str, number: int, count: int) -> bytes:
    if kind == "topic":
        return encode(posted(number))
    return encode([event(number * count + i) for i in range(count)])
