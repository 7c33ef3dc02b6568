"""`doubledecker dashboard` prints a link that signs in."""

import asyncio

from cli.commands import run
from conftest import Topology
from harness import a_bus
from signing_in import HTML


async def test_a_link_signs_in_once(one: Topology):
    async with a_bus(one, workers=0) as bus:
        answer = await asyncio.to_thread(run, "dashboard", "--url", one.url, BUS_URL="http://bus.example")
        path = answer.stdout.strip().removeprefix("http://bus.example")
        statuses = []
        for _ in range(2):
            async with bus.http.get(bus.url + path, headers=HTML) as response:
                statuses.append(response.status)

    assert path.startswith("/login?code=")
    assert statuses == [200, 401]
