"""A drain: whom it believes, what its handlers get, and what is sent again."""

import asyncio
import base64
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.util import setup_testing_defaults

import pytest
import uvicorn

from conftest import Topology
from doubledecker.client import AsyncBus, ClientError, Drain, DrainTester, Event
from doubledecker.client.drain import DrainAnswer, RecentMemory, signed
from doubledecker.store import machine
from harness import a_bus

SECRET, OTHER = ("whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
ORDER = {"topic": "orders", "type": "create", "url": "https://shop.example/1"}


@pytest.fixture
def drain() -> Drain:
    return Drain(secret=SECRET)


@pytest.fixture
def taken(drain: Drain) -> list[Event]:
    found: list[Event] = []
    drain.on("orders")(found.append)
    return found


@pytest.fixture
def tester(drain: Drain) -> DrainTester:
    return DrainTester(drain, secret=SECRET)


def test_handlers_get_the_events_of_their_topics(drain: Drain, tester: DrainTester, taken: list[Event]):
    everything: list[str] = []
    drain.on()(lambda event: everything.append(event.topic))

    answer = tester.post(ORDER | {"data": {"n": 1}}, {"topic": "users"})

    assert (answer.status, answer.failed) == (204, [])
    assert [(event.type, event.data) for event in taken] == [("create", {"n": 1})]
    assert everything == ["orders", "users"]


def test_only_what_a_handler_did_not_take_is_sent_again(drain: Drain, tester: DrainTester):
    tried: list[str] = []

    @drain.on("orders")
    async def note(event: Event) -> None:
        tried.append(event.id)
        if event.id == "2" and tried.count("2") == 1:
            raise ValueError("not yet")

    events = [ORDER | {"id": str(n)} for n in range(4)]
    first, second = tester.post(*events), tester.post(events[2])

    assert (first.status, first.failed) == (200, ["2"])
    assert (second.status, tried) == (204, ["0", "1", "2", "3", "2"])


def test_what_fails_without_an_id_is_refused_as_a_whole(drain: Drain, tester: DrainTester):
    drain.on("orders")(lambda event: 1 // len(event.id))

    assert tester.post(ORDER | {"id": ""}).status == 500


def test_an_event_that_comes_again_is_skipped_unless_it_is_replayed(tester: DrainTester, taken: list[Event]):
    event = ORDER | {"id": "1"}

    for each in (event, event, event | {"topic": "users"}, event | {"replay": "r"}):
        assert tester.post(each).status == 204

    assert [each.replay for each in taken] == ["", "r"]


def test_of_a_url_only_the_latest_is_taken_where_that_is_wanted():
    drain = Drain(uuid="u", latest_only=True)
    taken: list[int] = []
    drain.on("orders")(lambda event: taken.append(event.t))
    tester = DrainTester(drain, uuid="u")

    tester.post(*(ORDER | {"t": t} for t in (3, 5, 4)))
    tester.post(ORDER | {"t": 5}, ORDER | {"t": 1, "url": "https://shop.example/2"})
    tester.post(ORDER | {"t": 6}, {"topic": "orders", "t": 2}, {"topic": "orders", "t": 1})

    assert taken == [5, 1, 6, 2, 1]


def test_a_memory_keeps_the_newest():
    memory = RecentMemory(2)
    for key in ("a", "b", "a", "c"):
        memory.put(key, 1)

    assert [memory.get(key) for key in ("a", "b", "c")] == [1, None, 1]


def _stale(headers: dict[str, str]) -> dict[str, str]:
    return headers | {"webhook-timestamp": str(int(time.time()) - 301)}


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda headers: headers, 204),
        (lambda headers: headers | {"webhook-signature": "v1,AAAA " + headers["webhook-signature"]}, 204),
        (lambda _: {}, 401),
        (lambda headers: headers | {"webhook-id": "other"}, 401),
        (lambda headers: headers | {"webhook-timestamp": "²"}, 401),
        (_stale, 401),
        (lambda headers: headers | {"webhook-signature": "v1,é"}, 401),
    ],
)
async def test_a_request_is_the_bus_s_or_refused(
    drain: Drain, taken: list[Event], change: Callable[[dict[str, str]], dict[str, str]], status: int
):
    body = b'[{"topic":"orders","type":"create","id":"1"}]'
    headers = change({"webhook-id": "", **signed(SECRET, body)})

    answer = await _post(drain, headers, body)

    assert answer.status == status
    assert len(taken) == (status == 204)


def test_several_secrets_are_good_during_a_rotation(drain: Drain):
    both = Drain(secret=[OTHER, SECRET])

    assert DrainTester(both, secret=SECRET).post(ORDER).status == 204
    assert DrainTester(drain, secret=OTHER).post(ORDER).status == 401


def test_a_uuid_is_the_user_of_basic():
    drain = Drain(uuid="u")

    assert DrainTester(drain, uuid="u").post(ORDER).status == 204
    assert DrainTester(drain, uuid="v").post(ORDER).status == 401
    assert DrainTester(drain).post(ORDER).status == 401


@pytest.mark.parametrize(
    ("arguments", "says"), [({}, "trusts_anyone=True"), ({"secret": "no secret"}, "is not one that the bus gives")]
)
def test_a_drain_that_would_believe_anyone_has_to_say_so(arguments: dict[str, Any], says: str):
    with pytest.raises(ClientError, match=says):
        Drain(**arguments)


@pytest.mark.parametrize(
    ("method", "kind", "body", "status"),
    [
        ("GET", "", b"", 405),
        ("POST", "application/json", b"{}", 400),
        ("POST", "application/json", b'[{"topic":1}]', 400),
        ("POST", "application/cloudevents-batch+json", b"[]", 501),
        ("POST", "application/json", b" " * 33_554_433, 413),
    ],
)
async def test_anything_but_events_is_answered_for_what_it_is(method: str, kind: str, body: bytes, status: int):
    drain = Drain(trusts_anyone=True)

    answer = await _post(drain, {"content-type": kind}, body, method=method)
    assert answer.status == status
    assert _wsgi(drain, {"CONTENT_TYPE": kind, "REQUEST_METHOD": method}, body) == status


def test_async_handlers_need_asgi(drain: Drain):
    @drain.on()
    async def note(event: Event) -> None: ...

    with pytest.raises(ClientError, match="as an ASGI app"):
        _wsgi(drain, {}, b"[]")


async def _post(drain: Drain, headers: dict[str, str], body: bytes, *, method: str = "POST") -> DrainAnswer:
    given = {"content-type": "application/json", **headers}
    scope = {"type": "http", "method": method}
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    names = [(name.encode(), value.encode("utf-8")) for name, value in given.items()]
    await drain({**scope, "headers": names}, receive, send)
    return DrainAnswer(sent[0]["status"], sent[1]["body"])


def _wsgi(drain: Drain, environ: dict[str, Any], body: bytes) -> int:
    class Input:
        def read(self, length: int) -> bytes:
            return body[:length]

    found: list[str] = []
    given: dict[str, Any] = {
        "REQUEST_METHOD": "POST",
        "wsgi.input": Input(),
        "CONTENT_LENGTH": str(len(body)),
        **environ,
    }
    setup_testing_defaults(given)
    drain.wsgi(given, lambda status, _: found.append(status))
    return int(found[0].split()[0])


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None: ...


@contextlib.asynccontextmanager
async def served_by_asgi(drain: Drain, port: int) -> AsyncIterator[None]:
    server = uvicorn.Server(uvicorn.Config(drain, host="127.0.0.1", port=port, log_level="error"))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]  # they are the test's
    task = asyncio.create_task(server.serve())
    yield
    server.should_exit = True
    await task


@contextlib.asynccontextmanager
async def served_by_wsgi(drain: Drain, port: int) -> AsyncIterator[None]:
    with make_server("127.0.0.1", port, drain.wsgi, handler_class=_Quiet) as server:
        serving = asyncio.create_task(asyncio.to_thread(server.serve_forever, 0.05))
        yield
        await asyncio.to_thread(server.shutdown)
        await serving


@pytest.mark.parametrize("served", [served_by_asgi, served_by_wsgi])
async def test_what_is_published_reaches_the_handlers_though_one_fails_at_first(
    one: Topology, served: Callable[[Drain, int], contextlib.AbstractAsyncContextManager[None]]
):
    port, taken, tries = machine.free_port(), [], Counter[str]()
    async with a_bus(one, backoff_base_ms=1) as place, AsyncBus(place.url, await place.token("shop")) as bus:
        await bus.subscribe(["orders"], f"http://127.0.0.1:{port}/", timeout=0, format="json")
        drain = Drain(secret=(await bus.rotate_secret()).secret)

        @drain.on("orders")
        def note(event: Event) -> None:
            tries[event.id] += 1
            if event.type == "poison" and tries[event.id] == 1:
                raise ValueError("not yet")
            taken.append(event.id)

        async with served(drain, port):
            kinds = ["create", "poison", "create"]
            published = await bus.publish_many([{"topic": "orders", "type": kind} for kind in kinds])
            async with asyncio.timeout(20):
                while len(taken) < len(kinds):
                    await asyncio.sleep(0.01)

    assert sorted(taken) == sorted(published.ids)
    assert sorted(tries.values()) == [1, 1, 2]
