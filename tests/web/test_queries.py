"""Paths and queries that can be read in two ways: answered as nobody could misunderstand them."""

import asyncio

import pytest

from conftest import Topology
from harness import a_bus
from web.asking import ask


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/queues?limit=1&limit=2", "the query has 'limit' 2 times; give it once"),
        ("/attempts?event=a&%65vent=b", "the query has 'event' 2 times; give it once"),
        ("/events?all=1&all=0", "the query has 'all' 2 times; give it once"),
        ("/queues?limit=%D9%A1", "it must be from 1 to 1000"),
        ("/attempts?event=a&before=%D9%A1-0-0", "it must be an id as it is listed"),
        ("/attempts?event=a&from=%D9%A1%D9%A9%D9%A7%D9%A0-01-01", "write it like 2026-11-15T11:00:00Z"),
    ],
)
async def test_a_query_that_can_be_read_in_two_ways_is_400(one: Topology, path: str, said: str):
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        answer = await ask(bus, "POST" if path.startswith("/events") else "GET", path, shop, body=b"{}")

        assert answer.status == 400
        assert said in answer.detail


async def test_a_slash_in_percent_encoding_does_not_divide_a_path(one: Topology):
    """`a%2Fdead` was taken for the dead letters of queue `a`."""
    async with a_bus(one, workers=0) as bus:
        shop = await bus.token("shop")
        await ask(bus, "PUT", "/queues/a", shop, json={"pattern": ".*"})
        port = int(bus.url.rpartition(":")[2])
        statuses = [await _raw(port, f"/queues/a{slash}dead", shop) for slash in ("/", "%2F", "%2f")]

        assert statuses == [200, 404, 404]


async def _raw(port: int, path: str, secret: str) -> int:
    """The status of a path that no client writes anew."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode())
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ")[1])
