"""What a request may be at most: bytes, time, depth, number; beyond it a problem that says so, and nothing kept."""

import asyncio
import json
import tracemalloc
from contextlib import AsyncExitStack

import pytest
from structlog.testing import capture_logs

from conftest import Topology
from doubledecker.web.body import BodyMemory
from harness import TestBus, a_bus, an_event
from web.asking import PROBLEM, ask, ask_raw, everything, journal

VERSION = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def test_a_body_declared_too_large_is_413_before_it_is_sent(one: Topology):
    async with a_bus(one, workers=0, body_bytes_max=2000) as bus:
        shop = await bus.token("shop")
        for path in ("/events", "/topics/orders", "/subscription"):
            status, headers, body = await ask_raw(bus, a_head(path, shop, "Content-Length: 2001"))
            assert status == 413
            assert headers["content-type"] == PROBLEM
            assert headers["connection"] == "close"
            assert json.loads(body)["detail"] == "the body is 2001 bytes; at most 2000 are allowed"


async def test_a_body_in_chunks_is_413_as_soon_as_it_is_too_large(one: Topology):
    async with a_bus(one, workers=0, body_bytes_max=2000) as bus:
        head = a_head("/events", await bus.token("shop"), "Transfer-Encoding: chunked")
        status, headers, body = await ask_raw(
            bus, head + b"3e8\r\n" + b"x" * 1000 + b"\r\n3e9\r\n" + b"x" * 1001 + b"\r\n"
        )

        assert status == 413
        assert headers["content-type"] == PROBLEM
        assert json.loads(body)["detail"] == "2001 bytes of the body have come; at most 2000 are allowed"


async def test_a_request_in_chunks_that_is_refused_for_its_head_is_answered_before_its_body_and_let_go(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        nobody = await ask_raw(bus, a_head("/events", "nobody", "Transfer-Encoding: chunked"))
        nowhere = await ask_raw(bus, a_head("/nowhere", shop, "Transfer-Encoding: chunked"))

        assert [(status, headers["connection"]) for status, headers, _ in (nobody, nowhere)] == [
            (401, "close"),
            (404, "close"),
        ]


async def test_a_body_of_just_the_size_allowed_is_taken(one: Topology):
    async with a_bus(one, workers=0, body_bytes_max=2000) as bus:
        shop = await bus.token("shop")
        event = json.dumps(an_event(1)).encode()
        body = event + b" " * (2000 - len(event))
        chunked = b"7d0\r\n" + body + b"\r\n0\r\n\r\n"
        status, _, _ = await ask_raw(
            bus, a_head("/events", shop, "Transfer-Encoding: chunked", "Connection: close") + chunked
        )

        assert (await ask(bus, "POST", "/events", shop, body=body)).status == 202
        assert status == 202


async def test_a_slow_body_is_408(one: Topology):
    async with a_bus(one, workers=0, body_s_max=0.2) as bus:
        head = a_head("/events", await bus.token("shop"), "Content-Length: 100")
        status, headers, body = await ask_raw(bus, head + b'{"topic":')

        assert status == 408
        assert headers["content-type"] == PROBLEM
        assert json.loads(body)["detail"] == "the body did not come within 0.2 s"
        assert await journal(bus) == []


async def test_a_slow_head_is_408(one: Topology):
    async with a_bus(one, workers=0, head_s_max=0.2) as bus:
        status, headers, body = await ask_raw(bus, b"POST /events HTTP/1.1\r\nHost: x\r\n")

        assert status == 408
        assert headers["content-type"] == PROBLEM
        assert "0.2 s are allowed" in json.loads(body)["detail"]


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        (["X-Long: " + "x" * 2000], "at most 1024 are allowed"),
        ([f"X-{n}: y" for n in range(99)], "the request has 101 headers; at most 100 are allowed"),
    ],
    ids=["long", "many"],
)
async def test_a_head_too_large_is_431(one: Topology, headers: list[str], said: str):
    bytes_max = 1024 if "1024" in said else 32_768
    async with a_bus(one, workers=0, head_bytes_max=bytes_max) as bus:
        lines = ["GET /version HTTP/1.1", "Host: x", "Accept: */*", *headers, "", ""]
        status, answered, body = await ask_raw(bus, "\r\n".join(lines).encode())

        assert status == 431
        assert answered["content-type"] == PROBLEM
        assert said in json.loads(body)["detail"]


async def test_what_is_not_http_is_400(one: Topology):
    async with a_bus(one, workers=0) as bus:
        for text in (b"\x16\x03\x01\x02\x00", b"GET /\xff HTTP/1.1\r\n\r\n", b"HELLO\r\n\r\n"):
            status, headers, _ = await ask_raw(bus, text)
            assert status == 400, text
            assert headers["content-type"] == PROBLEM


async def test_more_connections_with_requests_than_allowed_are_503_as_a_problem_and_the_others_go_on(one: Topology):
    async with a_bus(one, workers=0, connections_max=3) as bus:
        shop = await bus.token("shop")
        port = int(bus.url.rpartition(":")[2])
        begun = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, writer in begun:
            writer.write(a_head("/events", shop, "Content-Length: 41", "Expect: 100-continue", "Connection: close"))
            assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
        status, headers, body = await ask_raw(bus, VERSION)

        assert status == 503
        assert headers["content-type"] == PROBLEM
        assert headers["retry-after"] == "1"
        assert json.loads(body)["detail"] == "4 connections are open; at most 3 are served"
        for reader, writer in begun:
            writer.write(b'{"topic":"widgets","type":"made","key":""}'[:41])
            assert b"HTTP/1.1 400" in await reader.read()
            writer.close()


async def test_an_idle_connection_is_closed_for_one_that_has_a_request(one: Topology):
    """Connections that had sent one request kept everybody else out for 75 s."""
    async with a_bus(one, workers=0, connections_max=3) as bus:
        port = int(bus.url.rpartition(":")[2])
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, writer in kept:
            writer.write(VERSION.replace(b"Connection: close\r\n", b""))
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            await reader.readuntil(b"}")
        answers = [(await ask_raw(bus, VERSION))[0] for _ in range(2)]
        async with asyncio.timeout(5):
            longest = await kept[0][0].read()
        kept[2][1].write(VERSION)

        assert answers == [200, 200]
        assert longest == b""
        assert (await kept[2][0].readline()).startswith(b"HTTP/1.1 200")
        for _, writer in kept:
            writer.close()


async def test_a_connection_that_sends_no_request_is_closed_for_one_that_does(one: Topology):
    async with a_bus(one, workers=0, connections_max=3) as bus:
        port = int(bus.url.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]

        assert (await ask_raw(bus, VERSION))[0] == 200
        for _, writer in silent:
            writer.close()


async def test_too_many_events_are_413(one: Topology):
    async with a_bus(one, workers=0, events_per_request_max=3) as bus:
        shop = await bus.token("shop")
        lines = b"\n".join(json.dumps(an_event(n)).encode() for n in range(4))
        many = [
            await ask(bus, "POST", "/events", shop, json=[an_event(n) for n in range(4)]),
            await ask(bus, "POST", "/events", shop, body=lines, headers={"Content-Type": "application/x-ndjson"}),
        ]

        assert [answer.status for answer in many] == [413, 413]
        assert {answer.detail for answer in many} == {"4 events; at most 3 are allowed in one request"}
        assert await journal(bus) == []
        assert len(await bus.publish(shop, [an_event(n) for n in range(3)])) == 3


@pytest.mark.parametrize("path", ["/events", "/topics/widgets"])
async def test_data_too_large_is_413(one: Topology, path: str):
    async with a_bus(one, workers=0, max_event_data_bytes=64) as bus:
        shop = await bus.token("shop")
        answer = await ask(bus, "POST", path, shop, json=an_event_for(path, data="x" * 63))

        assert answer.status == 413
        assert answer.detail == "data is 65 bytes; at most 64 are allowed"
        assert (await ask(bus, "POST", path, shop, json=an_event_for(path, data="x" * 62))).status < 300


@pytest.mark.parametrize("path", ["/events", "/topics/widgets"])
@pytest.mark.parametrize("depth", [65, 10_000])
async def test_data_too_deep_is_400(one: Topology, path: str, depth: int):
    async with a_bus(one, workers=0) as bus:
        data = b"[" * depth + b"]" * depth
        body = json.dumps(an_event_for(path, data="HERE")).encode().replace(b'"HERE"', data)
        answer = await ask(bus, "POST", path, await bus.token("shop"), body=body)

        assert answer.status == 400
        assert "deeper than 64 levels" in answer.detail or "recursion" in answer.detail


@pytest.mark.parametrize("path", ["/events", "/topics/widgets"])
async def test_bytes_that_are_not_utf8_are_400_even_in_data(one: Topology, path: str):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        for text in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80"):
            body = json.dumps(an_event_for(path, data="HERE")).encode()
            answer = await ask(bus, "POST", path, shop, body=body.replace(b"HERE", text))
            assert answer.status == 400
            assert answer.detail == f"the body is not UTF-8: byte {body.index(b'HERE')} is {text[0]:#04x}"


async def test_a_client_that_goes_away_in_the_middle_of_a_body_leaves_nothing(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        before = await everything(bus)
        event = json.dumps(an_event(1)).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", int(bus.url.rpartition(":")[2]))
        writer.write(a_head("/events", shop, f"Content-Length: {len(event) + 1}") + event)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

        assert (await ask(bus, "GET", "/pulse", shop)).status == 204
        assert await everything(bus) == before


BAD_BODIES = [b"", b"{", b"null", b"7", b"[]", b"[[]]", b"{}", b'"x"', b"\xff\xfe", b"\x00", b"[" * 5000, b'{"a":1}']
EVENT = {"type": "noop", "url": "https://shop.example/"}
SUBSCRIPTION = {"topics": ["orders"], "callback": "https://mail.example/"}
# Who, method, path, body, and the status; the client owns `mine` and has a subscriber, `taken` is another's.
REFUSED = [
    *(
        ("client", "POST", path, body, 400)
        for path in ("/events", "/events?all=1", "/topics/fresh")
        for body in BAD_BODIES
    ),
    *(("client", "POST", path, body, 400) for path in ("/subscription", "/subscriber") for body in BAD_BODIES),
    *(("root", "POST", "/api_tokens", body, 400) for body in BAD_BODIES),
    ("client", "POST", "/events?all=2", an_event(1, topic="fresh"), 400),
    ("client", "POST", "/events", an_event(1, topic="taken"), 403),
    ("client", "POST", "/events", [an_event(1, topic="taken"), {"topic": "fresh"}], 403),
    ("client", "POST", "/events?all=1", [an_event(1, topic="fresh"), an_event(1, topic="taken")], 403),
    ("client", "POST", "/events?all=1", [an_event(1, topic="fresh"), {"topic": "mine"}], 400),
    ("client", "POST", "/events?all=1", [an_event(1, topic="mine", id="known"), an_event(1, topic="taken")], 403),
    ("client", "POST", "/events", an_event(1, topic="fresh", data="x" * 200), 413),
    ("client", "POST", "/events", [an_event(n, topic="fresh") for n in range(11)], 413),
    ("client", "POST", "/topics/taken", EVENT, 403),
    ("client", "POST", "/topics/7bad", EVENT, 400),
    ("client", "POST", "/topics/fresh", {**EVENT, "data": "x" * 200}, 413),
    ("client", "POST", "/topics/fresh", {**EVENT, "more": 1}, 400),
    ("client", "DELETE", "/topics/taken", None, 403),
    ("client", "DELETE", "/topics/unknown", None, 404),
    ("root", "DELETE", "/topics/unknown", None, 404),
    ("client", "POST", "/subscription", {**SUBSCRIPTION, "topics": ["mine", "7bad"]}, 400),
    ("client", "POST", "/subscription", {**SUBSCRIPTION, "max": 0}, 400),
    ("client", "DELETE", "/subscriber/topics/unknown", None, 404),
    ("other", "DELETE", "/subscriber", None, 404),
    ("other", "DELETE", "/subscriber/topics/mine", None, 404),
    ("root", "POST", "/events", an_event(1, topic="fresh"), 403),
    ("root", "POST", "/topics/fresh", EVENT, 403),
    ("root", "POST", "/subscription", SUBSCRIPTION, 403),
    ("root", "DELETE", "/subscriber", None, 403),
    ("root", "DELETE", "/subscriber/topics/mine", None, 403),
    ("root", "POST", "/api_tokens", {"name": "Bad"}, 400),
    ("root", "POST", "/api_tokens", {"name": "fine", "token": "Bad"}, 400),
    ("client", "GET", "/api_tokens", None, 403),
    ("client", "POST", "/api_tokens", {"name": "new"}, 403),
    ("client", "DELETE", "/api_tokens/SELF", None, 403),
    ("client", "PUT", "/topics/mine", EVENT, 400),
    ("client", "PUT", "/topics/taken", {"description": "Mine"}, 403),
    ("client", "PUT", "/events", EVENT, 405),
    ("client", "POST", "/nothing", EVENT, 404),
]


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "k"}], ids=["plain", "idempotent"])
async def test_a_refused_request_leaves_redis_byte_for_byte_as_it_was(one: Topology, key: dict[str, str]):
    async with a_bus(one, workers=0, max_event_data_bytes=100, events_per_request_max=10) as bus:
        secrets = await some_state(bus)
        before = await everything(bus)
        for who, method, path, body, status in REFUSED:
            content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
            target = path.replace("SELF", secrets["client"])
            answer = await ask(bus, method, target, secrets[who], body=content, headers=key)
            assert answer.status == status, (who, method, path, body, answer.body)
            after = await everything(bus)
            assert after == before, (who, method, path, body)


async def some_state(bus: TestBus) -> dict[str, str]:
    """Tokens, topics, a subscriber with waiting events, and remembered ids and keys."""
    secrets = {"client": await bus.token("client"), "other": await bus.token("other")}
    await bus.subscribe(secrets["client"], "https://mail.example/", "mine", "taken")
    await bus.publish(secrets["other"], [an_event(1, topic="taken", id="theirs")])
    await bus.publish(secrets["client"], [an_event(1, topic="mine", id="known")])
    kept = {"Idempotency-Key": "before"}
    await ask(bus, "POST", "/events", secrets["client"], json=an_event(2, topic="mine"), headers=kept)
    return {**secrets, "root": bus.settings.root_key}


def a_head(path: str, secret: str, *lines: str) -> bytes:
    fixed = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Authorization: Bearer {secret}"]
    return "\r\n".join([*fixed, *lines, "", ""]).encode()


def an_event_for(path: str, **fields: object) -> dict[str, object]:
    """A good event in the shape that the route takes."""
    event = an_event(1, **fields)
    return event if path == "/events" else {name: value for name, value in event.items() if name != "topic"}


async def test_a_malformed_request_is_a_line_of_our_log(one: Topology, caplog: pytest.LogCaptureFixture):
    """The server that we use wrote one of its own, without time and level."""
    async with a_bus(one, workers=0) as bus:
        with capture_logs() as logs:
            status, _, _ = await ask_raw(bus, b"nonsense\r\n\r\n")

    assert status == 400
    [line] = [each for each in logs if each["event"] == "head.refused"]
    assert (line["log_level"], line["status"], line["client"]) == ("info", 400, "127.0.0.1")
    assert [each.message for each in caplog.records if each.name.startswith("uvicorn")] == []


@pytest.mark.parametrize("left", [0, 3])
async def test_a_client_that_hangs_up_is_no_error(one: Topology, caplog: pytest.LogCaptureFixture, left: int):
    """Whether it goes while its body is awaited, or while it is being answered."""
    async with a_bus(one, workers=0) as bus:
        body = json.dumps([an_event(1)]).encode()
        text = a_head("/events", await bus.token("shop"), f"Content-Length: {len(body)}") + body
        for n in range(50):
            _, writer = await asyncio.open_connection("127.0.0.1", int(bus.url.rpartition(":")[2]))
            writer.write(text[: len(text) - left])
            await asyncio.sleep(n / 10_000)
            # Not in good order: what was sent to it comes back as a reset.
            writer.transport.abort()
        await ask(bus, "GET", "/topics", await bus.token("mail"))

    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == []


async def test_an_array_of_millions_is_413_before_it_is_built(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        body = b"[" + b",".join([b"[]"] * 2_000_000) + b"]"
        tracemalloc.start()
        try:
            answer = await ask(bus, "POST", "/events", shop, body=body)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert answer.status == 413
        assert answer.detail == "more than 10000 events; so many are allowed in one request"
        # The body and a few copies of it, but no two million objects of a hundred bytes.
        assert peak_bytes < 10 * len(body)


async def test_millions_of_empty_lines_are_413(one: Topology):
    async with a_bus(one, workers=0) as bus:
        headers = {"Content-Type": "application/x-ndjson"}
        answer = await ask(bus, "POST", "/events", await bus.token("shop"), body=b"\n" * 2_000_000, headers=headers)

        assert answer.status == 413
        assert answer.detail == "2000001 lines; at most 20000 are allowed in one request"


async def test_events_full_of_commas_are_published_up_to_the_bound(one: Topology):
    async with a_bus(one, workers=0, events_per_request_max=3) as bus:
        shop = await bus.token("shop")
        events = [an_event(n, data=list(range(100))) for n in range(4)]
        taken = await ask(bus, "POST", "/events", shop, json=events[:3])
        refused = await ask(bus, "POST", "/events", shop, json=events)

        assert (taken.status, len(taken.json["ids"])) == (202, 3)
        assert refused.status == 413
        assert len(await journal(bus)) == 3


async def test_only_bodies_of_events_may_be_large(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        body = json.dumps({"topics": ["a"] * 300_000, "callback": "https://mail.example/"}).encode()
        answer = await ask(bus, "POST", "/subscription", shop, body=body)

        assert answer.status == 413
        assert answer.detail == f"the body is {len(body)} bytes; at most 1048576 are allowed"
        large = [an_event(n, data="x" * 50_000) for n in range(30)]
        assert (await ask(bus, "POST", "/events", shop, json=large)).status == 202


@pytest.mark.parametrize("path", ["/events", "/topics/widgets", "/subscription"])
async def test_an_error_does_not_repeat_a_huge_key(one: Topology, path: str):
    async with a_bus(one, workers=0) as bus:
        answer = await ask(bus, "POST", path, await bus.token("shop"), json={"x" * 100_000: 1})

        assert answer.status == 400
        assert "has no field" in answer.detail
        assert len(answer.detail) < 1_000


async def test_bodies_being_received_are_bounded_in_all_and_small_ones_always_served(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    size = 300_000
    room = BodyMemory(1_000_000)
    monkeypatch.setattr("doubledecker.web.server.BodyMemory", lambda _: room)
    async with a_bus(one, workers=0) as bus, AsyncExitStack() as open_:
        clients = [await bus.token(f"client-{n}") for n in range(4)]

        async def begin(secret: str) -> tuple[int, str]:
            """Send a body but for its last byte; the refusal if there is one, and 0 once the app has the body."""
            head = a_head("/events", secret, f"Content-Length: {size}", "Connection: close")
            reader, writer = await asyncio.open_connection("127.0.0.1", int(bus.url.rpartition(":")[2]))
            open_.callback(writer.close)
            before = room.held_bytes
            writer.write(head + b" " * (size - 1))
            answering = asyncio.create_task(reader.readuntil(b"}"))
            open_.callback(answering.cancel)
            async with asyncio.timeout(10):
                while not answering.done() and room.held_bytes < before + size - 1:
                    await asyncio.sleep(0.005)
            if not answering.done():
                return 0, ""
            head, _, body = (await answering).partition(b"\r\n\r\n")
            return int(head.split(b" ")[1]), json.loads(body)["detail"]

        assert (await begin(clients[0]))[0] == 0
        status, detail = await begin(clients[0])
        assert status == 429
        assert "at most 500000 are allowed" in detail
        assert (await begin(clients[1]))[0] == 0
        assert (await begin(clients[2]))[0] == 0
        status, detail = await begin(clients[3])
        assert status == 503
        assert "1000000 bytes are being received" in detail
        assert (await ask(bus, "POST", "/events", clients[0], json=an_event(1))).status == 202

        await open_.aclose()
        async with asyncio.timeout(10):
            while room.held_bytes:
                await asyncio.sleep(0.005)
        large = [an_event(n, topic="others", data="x" * 3000) for n in range(100)]
        assert (await ask(bus, "POST", "/events", clients[3], json=large)).status == 202
        assert room.held_bytes == 0


async def test_a_client_changes_receivers_so_often_a_minute_and_no_one_else_waits(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("doubledecker.web.app.MINUTE_CHANGES_MAX", 6)
    async with a_bus(one, workers=0) as bus:
        client, other = [await bus.token(name) for name in ("client", "other")]
        asked = {"topics": ["widgets"], "callback": "https://mail.example/"}
        queue = {"pattern": ".*", "callback": "https://mail.example/"}
        allowed = [
            await ask(bus, "POST", "/subscription", client, json=asked),
            await ask(bus, "PUT", "/queues/hooks", client, json=queue),
            *[await ask(bus, "POST", f"/subscriber/{word}", client) for word in ("pause", "resume", "enable")],
            await ask(bus, "POST", "/subscriber/rotate-secret", client),
        ]
        before = await everything(bus)
        refused = [
            await ask(bus, "POST", "/subscription", client, json=asked),
            await ask(bus, "PUT", "/queues/more", client, json=queue),
            *[await ask(bus, "POST", f"/queues/hooks/{word}", client) for word in ("pause", "resume", "enable")],
            await ask(bus, "POST", "/queues/hooks/rotate-secret", client),
        ]
        assert await everything(bus) == before
        free = [
            await ask(bus, "POST", "/subscription", other, json=asked),
            *[await ask(bus, "POST", "/queues/hooks/rotate-secret", json={"overlap_s": 0}) for _ in range(7)],
            await ask(bus, "GET", "/subscriptions", client),
            await ask(bus, "DELETE", "/subscriber", client),
        ]

    assert [answer.status for answer in allowed] == [204, 201, 200, 200, 200, 200]
    assert {(answer.status, answer.headers["Retry-After"]) for answer in refused} == {(429, "10")}
    assert "6 changes of subscribers and queues in a minute; try again in 10 s" in refused[0].detail
    assert {answer.status for answer in free} == {200, 204}
