"""A large request is worked on in pieces, and leaves nothing behind in memory: other clients' requests go on."""

import asyncio
import gc

import msgspec
import pytest

from conftest import Topology
from doubledecker.errors import Refused
from doubledecker.store import queue_contents
from doubledecker.web.publishing import _pieces
from harness import a_bus, an_event
from web.asking import ask


def test_events_are_parsed_in_pieces_bounded_in_number_and_bytes():
    many, large = [b"{}"] * 1_050, [b"x" * 40_000] * 5

    assert [len(piece) for piece in _pieces(many)] == [200] * 5 + [50]
    assert [len(piece) for piece in _pieces(large)] == [2, 2, 1]
    assert [i for piece in _pieces(many) for i in piece] == list(range(1_050))
    assert _pieces([b"{}"]) == [range(1)]


@pytest.mark.parametrize("bad", [{"topic": "widgets"}, an_event(1, type="no good"), an_event(1, data=[[[[]]]])])
async def test_refused_events_are_freed_with_their_request(one: Topology, bad: object):
    """Each kept the whole request alive in a cycle; ten thousand of them held up the event loop for two seconds."""
    async with a_bus(one, workers=0, event_depth_max=2) as bus:
        shop = await bus.token("shop")
        gc.collect()
        # Another test of this process may have left some that are held by name.
        before = _refusals()
        gc.disable()
        try:
            answer = await ask(bus, "POST", "/events", shop, json=[an_event(0), *[bad] * 250, an_event(2)])
            kept = _refusals() - before
        finally:
            gc.enable()

        assert len(answer.json["refused"]) == 250
        assert [refused["index"] for refused in answer.json["refused"]] == list(range(1, 251))
        assert len(answer.json["ids"]) == 2
        assert kept == 0


def _refusals() -> int:
    return sum(isinstance(each, Refused) for each in gc.get_objects())


async def test_a_large_body_is_parsed_as_a_small_one_is(one: Topology):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        events = [an_event(n, data="x" * 300) for n in range(1_000)]
        lines = b"\n".join(map(msgspec.json.encode, events))
        whole = await ask(bus, "POST", "/events", shop, json=events)
        by_line = await ask(bus, "POST", "/events", shop, body=lines, headers={"Content-Type": "application/x-ndjson"})
        broken = await ask(bus, "POST", "/events", shop, body=msgspec.json.encode(events)[:-1])

        assert (len(whole.json["ids"]), len(by_line.json["ids"])) == (1_000, 1_000)
        assert broken.status == 400
        assert (await bus.get("/topics"))[0]["events"] == 2_000


async def test_a_client_has_one_large_read_under_way_however_often_it_asks(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    """A page of messages may be megabytes, on the connection to Redis that everyone's publishes use."""
    at_once, at_once_max, read = 0, 0, queue_contents.read

    async def counted(*args, **kwargs) -> list[tuple[str, bytes]]:
        nonlocal at_once, at_once_max
        at_once += 1
        at_once_max = max(at_once_max, at_once)
        found = await read(*args, **kwargs)
        at_once -= 1
        return found

    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        await ask(bus, "PUT", "/queues/work", shop, json={"pattern": ".*"})
        await bus.publish(shop, [an_event(n) for n in range(10)])
        monkeypatch.setattr(queue_contents, "read", counted)
        paths = ["/queues/work/messages", "/queues/work?facets=10"] * 10
        answers = await asyncio.gather(*(ask(bus, "GET", path, shop) for path in paths))

    assert {answer.status for answer in answers} == {200}
    assert at_once_max == 1
