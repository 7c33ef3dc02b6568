"""What a request's head may say: what can be read in two ways is refused, and no trailer becomes a header."""

import gzip
import json

from conftest import Topology
from harness import ROOT_KEY, a_bus, an_event
from web.asking import PROBLEM, ask, ask_raw, journal

CLOSE = "Connection: close"
EVENT = json.dumps(an_event(1)).encode()


def a_request(*lines: str, body: bytes = b"") -> bytes:
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(body: bytes, *trailers: str) -> bytes:
    return b"%x\r\n%s\r\n0\r\n" % (len(body), body) + "".join(f"{each}\r\n" for each in trailers).encode() + b"\r\n"


async def test_an_authorization_that_comes_as_a_trailer_authenticates_no_one(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        head = ("POST /events HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", CLOSE, "Trailer: Authorization")
        status, _, _ = await ask_raw(
            bus, a_request(*head, body=chunked(EVENT, f"Authorization: Bearer {shop}")), within_s=20
        )

        assert status == 401
        assert await journal(bus) == []


async def test_trailers_of_a_good_request_are_ignored(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        known = f"Authorization: Bearer {shop}"
        head = ("POST /events HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", CLOSE, known)
        trailers = ("Content-Type: text/plain", "Idempotency-Key: a b", "Authorization: Bearer nobody")
        status, _, _ = await ask_raw(bus, a_request(*head, body=chunked(EVENT, *trailers)))

        assert status == 202
        assert len(await journal(bus)) == 1


REFUSED = {
    "no host": (a_request("GET /version HTTP/1.1", CLOSE), "no Host header"),
    "two hosts": (a_request("GET /version HTTP/1.1", "Host: x", "Host: x", CLOSE), "2 Host headers"),
    "two hosts in 1.0": (a_request("GET /version HTTP/1.0", "Host: x", "Host: y"), "2 Host headers"),
    "two tokens": (
        a_request("GET /version HTTP/1.1", "Host: x", "Authorization: Bearer a", "Authorization: Bearer b"),
        "2 Authorization headers",
    ),
    "two content types": (
        a_request("GET /version HTTP/1.1", "Host: x", "Content-Type: a/b", "Content-Type: application/json"),
        "2 Content-Type headers",
    ),
    "a host that is none": (a_request("GET /version HTTP/1.1", "Host: x/y", CLOSE), "Host is 'x/y'"),
    "a host with a user": (a_request("GET /version HTTP/1.1", "Host: root@x", CLOSE), "Host is 'root@x'"),
    "no version": (b"GET /version\r\n\r\n", "HTTP/0.9"),
    "version 0.9": (a_request("GET /version HTTP/0.9", "Host: x"), "HTTP/0.9"),
    "version 2.0": (a_request("GET /version HTTP/2.0", "Host: x"), "HTTP/2.0"),
    "version 1.2": (a_request("GET /version HTTP/1.2", "Host: x"), "not a request"),
    "gzip, chunked": (
        a_request("POST /events HTTP/1.1", "Host: x", "Transfer-Encoding: gzip, chunked", body=chunked(b"a")),
        "Transfer-Encoding is 'gzip, chunked'",
    ),
    "chunked twice": (
        a_request("POST / HTTP/1.1", "Host: x", *["Transfer-Encoding: chunked"] * 2, body=chunked(b"a")),
        "Transfer-Encoding",
    ),
    "identity": (a_request("POST /events HTTP/1.1", "Host: x", "Transfer-Encoding: identity", body=b"a"), ""),
    "an obscured chunked": (
        a_request("POST /events HTTP/1.1", "Host: x", "Transfer-Encoding: \x0bchunked", body=chunked(b"a")),
        "",
    ),
    "chunked in 1.0": (
        a_request("POST /events HTTP/1.0", "Host: x", "Transfer-Encoding: chunked", body=chunked(b"a")),
        "in HTTP/1.0",
    ),
    "chunked with a length": (
        a_request("POST /events HTTP/1.1", "Host: x", "Content-Length: 1", "Transfer-Encoding: chunked", body=b"a"),
        "",
    ),
    "a length with chunked": (
        a_request("POST /events HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", "Content-Length: 1", body=b"a"),
        "",
    ),
    "two lengths": (
        a_request("POST /events HTTP/1.1", "Host: x", "Content-Length: 1", "Content-Length: 2", body=b"aa"),
        "",
    ),
    "the same length twice": (
        a_request("POST /events HTTP/1.1", "Host: x", "Content-Length: 1", "Content-Length: 1", body=b"a"),
        "",
    ),
    "two lengths in one": (a_request("POST /events HTTP/1.1", "Host: x", "Content-Length: 1, 1", body=b"a"), ""),
    "a signed length": (a_request("POST /events HTTP/1.1", "Host: x", "Content-Length: +1", body=b"a"), ""),
    "a huge length": (a_request("POST /events HTTP/1.1", "Host: x", "Content-Length: " + "9" * 30, body=b"a"), ""),
    "a chunk size that is none": (
        a_request(
            "PUT /queues/a HTTP/1.1", "Host: x", f"Authorization: Bearer {ROOT_KEY}", "Transfer-Encoding: chunked",
            body=b"0x1\r\na\r\n0\r\n\r\n",
        ),
        "",
    ),
    "a folded header": (b"GET /version HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", ""),
    "a space before the colon": (b"GET /version HTTP/1.1\r\nHost : x\r\n\r\n", ""),
    "bare line feeds": (b"GET /version HTTP/1.1\nHost: x\n\n", ""),
    "a NUL in a header": (b"GET /version HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n", ""),
    "a method that is none": (b"NOPE /version HTTP/1.1\r\nHost: x\r\n\r\n", ""),
    "a tunnel": (b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n", ""),
    "an upgrade with a body": (
        a_request(
            "POST /events HTTP/1.1", "Host: x", "Connection: Upgrade", "Upgrade: h2c", "Content-Length: 41",
            body=b"GET /version HTTP/1.1\r\nHost: smuggled\r\n\r\n",
        ),
        "offers an upgrade",
    ),
}  # fmt: skip


SERVED = {
    "an empty host": a_request("GET /version HTTP/1.1", "Host:", CLOSE),
    "a host with a port": a_request("GET /version HTTP/1.1", "Host: bus.example:17890", CLOSE),
    "an address of version 6": a_request("GET /version HTTP/1.1", "Host: [::1]:17890", CLOSE),
    "1.0 without a host": a_request("GET /version HTTP/1.0"),
    "a whole URL": a_request("GET http://bus.example/version HTTP/1.1", "Host: bus.example", CLOSE),
    "an upgrade without a body": a_request(
        "GET /version HTTP/1.1", "Host: x", "Connection: Upgrade, close", "Upgrade: websocket"
    ),
    "an upgrade, then a request": a_request("GET /version HTTP/1.1", "Host: x", "Connection: Upgrade", "Upgrade: h2c")
    + a_request("GET /version HTTP/1.1", "Host: x", CLOSE),
    "two headers that may be": a_request("GET /version HTTP/1.1", "Host: x", "Accept: a", "Accept: b", CLOSE),
    "chunked in capitals": a_request(
        "GET /version HTTP/1.1", "Host: x", "Transfer-Encoding: Chunked", CLOSE, body=chunked(b"a")
    ),
}


async def test_a_head_that_can_be_read_in_two_ways_is_400(one: Topology):
    async with a_bus(one, workers=0) as bus:
        for name, (text, said) in REFUSED.items():
            status, headers, body = await ask_raw(bus, text)

            assert status == 400, name
            assert headers["content-type"] == PROBLEM, name
            assert headers["connection"] == "close", name
            # A second answer would follow, had the rest been taken for a second request: then this is not JSON.
            assert said in json.loads(body)["detail"], name


async def test_what_is_odd_but_clear_is_served(one: Topology):
    async with a_bus(one, workers=0) as bus:
        for name, text in SERVED.items():
            status, _, body = await ask_raw(bus, text)

            assert (status, b"doubledecker" in body) == (200, True), name
            assert body.count(b"HTTP/1.1 200 OK") == text.count(b"/version") - 1, name


async def test_a_body_in_another_encoding_is_415(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        for path in ("/events", "/topics/widgets", "/subscription"):
            for coding in ("gzip", "gzip, identity", "br"):
                answer = await ask(
                    bus, "POST", path, shop, body=gzip.compress(EVENT), headers={"Content-Encoding": coding}
                )

                assert answer.status == 415, (path, coding)
                assert answer.headers["Accept-Encoding"] == "identity"
                assert coding in answer.detail
        plain = await ask(bus, "POST", "/events", shop, body=EVENT, headers={"Content-Encoding": "Identity"})

        assert plain.status == 202


async def test_an_encoding_is_415_also_where_no_body_is_read(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        for method, path in (("GET", "/topics"), ("GET", "/livez"), ("DELETE", "/subscriber"), ("GET", "/queues")):
            for body in (None, gzip.compress(b"{}")):
                answer = await ask(bus, method, path, shop, body=body, headers={"Content-Encoding": "gzip"})

                assert answer.status == 415, (method, path, body)
        assert (await ask(bus, "GET", "/topics", shop, headers={"Content-Encoding": "identity"})).status == 200
