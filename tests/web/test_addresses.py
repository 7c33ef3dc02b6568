"""Connections are bounded by address, but not those of a proxy, which has many clients."""

import asyncio
import ipaddress
import json

import pytest

from conftest import Topology
from doubledecker.web import addresses
from doubledecker.web.addresses import Addresses
from harness import a_bus
from web.asking import PROBLEM, ask, ask_raw


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.9", ""),
        ("::1", ""),
        ("10.1.2.3", ""),
        ("", ""),
    ],
)
def test_an_address_counts_by_itself_or_by_its_network_unless_it_is_a_proxy(host: str, counted: str):
    assert Addresses(1, [ipaddress.ip_network("10.0.0.0/8")]).enter(host) == counted


def test_a_connection_that_ended_is_not_counted():
    seen = Addresses(1)
    counted = [seen.enter("192.0.2.1") for _ in range(3)]
    for each in counted[:2]:
        seen.leave(each)

    assert seen.open("192.0.2.1") == 1


async def test_one_connection_more_of_an_address_is_429_and_the_others_go_on(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    # Tests come from loopback, which would not be counted.
    monkeypatch.setattr(addresses, "LOOPBACK", ())
    async with a_bus(one, workers=0, address_connections_max=3) as bus:
        port = int(bus.url.rpartition(":")[2])
        assert (await ask(bus, "GET", "/version")).status == 200  # the session's own connection stays open
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        status, headers, body = await ask_raw(bus, b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")

        assert status == 429
        assert headers["content-type"] == PROBLEM
        assert "4 connections are open from this address; at most 3 are served" in json.loads(body)["detail"]
        assert (await ask(bus, "GET", "/version")).status == 200
        for _, writer in idle:
            writer.close()
