"""Whatever bytes are sent to whichever route: the answer is never a server error, and always a proper problem."""

import json
import random
import re
from collections.abc import Iterator

import pytest

from conftest import Topology
from doubledecker.assembly.settings import Settings
from harness import ROOT_KEY, TestBus, a_bus, an_event
from web.asking import an_app, ask, ask_raw

HUGE = 10**30
NAMED = {"id": "m", "attempt": 1, "delay_ms": 0}
SETTLED = {"messages": [NAMED], "delay_ms": 0, "lease_ms": 5_000, "why": "x", "reject": False}
CHOSEN = {"tenant": "t", "ids": ["m"], "dry_run": True}
# A good body for each route that takes one. A route that is not here is sent an empty object, and all that is broken.
BODIES: dict[tuple[str, str], dict[str, object]] = {
    ("POST", "/events"): an_event(1, tenant="t", key="k", id="i", timestamp=1, data={"a": ["b"]}, traceparent="x"),
    ("POST", "/topics/{name}"): {"type": "update", "url": "https://x.example/", "timestamp": 1, "data": {"a": "b"}},
    ("POST", "/subscription"): {"topics": ["a"], "callback": "https://x.example/", "uuid": "u", "timeout": 1, "max": 1},
    ("POST", "/subscriber"): {"topics": ["a"], "callback": "https://x.example/", "max_bytes": 1, "concurrency": 1},
    ("POST", "/api_tokens"): {"name": "n", "token": "t"},
    ("POST", "/api_tokens/{name}/rotate"): {"token": "t", "overlap_s": 1},
    ("POST", "/topics/{name}/give"): {"to": "x"},
    ("PUT", "/queues/{name}"): {"pattern": [".*"], "lease_ms": 5_000, "attempts_max": 3, "max_length": 9, "owner": "x"},
    ("POST", "/queues/{name}/pull"): {"max": 1, "wait_ms": 0, "lease_ms": 5_000},
    ("POST", "/queues/{name}/ack"): SETTLED,
    ("POST", "/queues/{name}/nack"): SETTLED,
    ("POST", "/queues/{name}/extend"): SETTLED,
    ("PATCH", "/queues/{name}/facets/{tenant}"): {"weight": 1.5, "concurrency": 1, "rate_per_s": 1.5},
    ("POST", "/queues/{name}/purge"): {"tenant": "t", "dry_run": True},
    ("POST", "/queues/{name}/dead/redrive"): CHOSEN,
    ("POST", "/queues/{name}/dead/purge"): CHOSEN,
    ("POST", "/replays"): {"to_queue": "q", "from": "2026-01-01", "topic": "a", "where": "true", "rate": 1},
    ("POST", "/erasures"): {"tenant": "t", "dry_run": True},
}
OPERATIONS = [(method, path) for path, row in an_app(Settings()).table.routes.items() for method in row]
NAMES = {"name": "q", "tenant": "t", "id": "i", "subscriber": "s"}
ODD_PARTS = ("%00", "%ff", "%c3%28", "%2e%2e", "%0d%0a", "%e2%82%ac", "a" * 9_000, "%F0%9F%98%80", "'", "*", "%25")
ODD_QUERIES = (
    "limit=99999999999999999999",
    "limit=%c2%b2",
    "limit=%ff",
    "tenant=%00",
    "tenant=%ff",
    "facets=-1",
    "discard=%ff",
    "all=%00",
    "pattern=%ff&from=%00",
    "from=99999999999999999999-99999999999999999999",
    "from=%d9%a1-0",
    "&&=&%=;" + "a=b&" * 5_000,
)


def replaced(value: object, new: object) -> Iterator[object]:
    """The same value, each time with another of its parts replaced."""
    yield new
    if isinstance(value, dict):
        for key, part in value.items():
            for other in replaced(part, new):
                yield value | {key: other}
    elif isinstance(value, list):
        for i, part in enumerate(value):
            for other in replaced(part, new):
                yield [*value[:i], other, *value[i + 1 :]]


def broken(good: object) -> Iterator[bytes]:
    """The body with a byte or a part of it exchanged for what is no text, no number, too large or too deep."""
    marks = {"bytes": b'"\xff\xfe"', "surrogate": b'"\\ud800"', "deep": b"[" * 5_000 + b"]" * 5_000}
    marks |= {"huge": b"%d" % HUGE, "negative": b"-%d" % HUGE, "float": b"1e400", "zero": b"-0", "nul": b'"\\u0000"'}
    marks |= {"long": b'"' + b"a" * 20_000 + b'"', "word": b"NaN", "line": b'"\n"'}
    for mark, text in marks.items():
        for other in replaced(good, mark):
            yield json.dumps(other).encode().replace(json.dumps(mark).encode(), text)
    encoded = json.dumps(good).encode()
    chance = random.Random(1)
    for _ in range(20):
        at = chance.randrange(len(encoded) + 1)
        yield encoded[:at] + chance.randbytes(2) + encoded[at + chance.randrange(3) :]
    yield from (b"", b"\xff", b"\xef\xbb\xbf{}", encoded + b"\xff", encoded.decode().encode("utf-16"), b"[" * 100_000)
    yield from (b'{"\xff":1}', b'{"a":' * 100_000, b'{"topic":"a","topic":"b"}', b"null", b"7", b'"\xc3\x28"', b"\0")


def filled(route: str, part: str | None = None) -> str:
    """The route's path with names, or with this in place of each."""
    return re.sub(r"\{(\w+)\}", lambda name: part or NAMES[name[1]], route)


async def a_client_with_a_queue(bus: TestBus) -> str:
    client = await bus.token("client")
    await ask(bus, "PUT", "/queues/q", client, json={"pattern": ".*:never:.*"})
    return client


@pytest.mark.slow
@pytest.mark.parametrize("who", ["client", "root"])
async def test_no_bytes_whatever_are_answered_with_a_server_error(one: Topology, who: str):
    failed: list[tuple[str, str, int, bytes]] = []
    async with a_bus(one, workers=0) as bus:
        client = await a_client_with_a_queue(bus)
        for method, route in OPERATIONS:
            if method == "GET":
                continue
            for body in broken(BODIES.get((method, route), {})):
                answer = await ask(bus, method, filled(route), client if who == "client" else ROOT_KEY, body=body)
                if answer.status >= 500:
                    failed.append((method, route, answer.status, body[:120]))
            if method in {"PUT", "DELETE"}:
                await ask(bus, "PUT", "/queues/q", client, json={"pattern": ".*:never:.*"})

    assert failed == []


async def test_no_path_and_no_query_are_answered_with_a_server_error(one: Topology):
    async with a_bus(one, workers=0) as bus:
        client = await a_client_with_a_queue(bus)
        for method, route in OPERATIONS:
            if route in {"/readyz", "/stream", "/pulse/scaling"}:
                continue  # not ready without a worker; without an end; late
            targets = [f"{filled(route)}?{query}" for query in ODD_QUERIES]
            targets += [filled(route, part) for part in ODD_PARTS if "{" in route]
            for target in targets:
                lines = (f"{method} {target} HTTP/1.1", "Host: x", f"Authorization: Bearer {client}")
                request = "\r\n".join([*lines, "Connection: close", "Content-Length: 2", "", "{}"]).encode()
                status, _, body = await ask_raw(bus, request, within_s=20)

                assert status < 500, (method, target[:200], body)


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "PATCH", "PROPFIND", "HEAD", "QUERY", "M-SEARCH", "PURGE"])
async def test_a_method_that_a_route_does_not_have_is_405(one: Topology, method: str):
    async with a_bus(one, workers=0) as bus:
        request = f"{method} /api_tokens/x/rotate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ROOT_KEY}\r\n"
        status, headers, _ = await ask_raw(bus, request.encode() + b"Connection: close\r\n\r\n")

        assert (status, headers["allow"]) == (405, "POST")
