"""Commands on a bus whose older version accepted numbers that no reader can hold: they show what is there."""

import asyncio

from cli.commands import run, run_on_a_terminal
from client.consuming import a_place
from conftest import Topology
from doubledecker.client import AsyncBus
from harness import a_bus
from unreadable import FAR, LONG, publish_unchecked


async def test_tail_shows_an_unreadable_number_and_what_follows_it(one: Topology):
    async with a_place("http", one) as place:
        await publish_unchecked(place.bus, "jobs", [b'"first"', FAR, LONG, b'"last"'])
        at = ("--from", "earliest", "--count", "4", "--bus", place.bus.url, "--token", place.publisher)
        seen = await asyncio.to_thread(run_on_a_terminal, "tail", *at)
        piped = await asyncio.to_thread(run, "tail", *at)

        first, far, _long, last = seen.splitlines()
        assert ('"first"' in first, FAR.decode() in far, '"last"' in last) == (True, True, True)
        assert [FAR.decode() in line for line in piped.stdout.splitlines()] == [False, True, False, False]


async def test_queue_commands_show_unreadable_numbers(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("owner")
        own = ("--bus", bus.url, "--token", secret)
        await asyncio.to_thread(run, "queue", "register", "jobs", ".*:jobs:.*", *own)
        await publish_unchecked(bus, "jobs", [FAR, b"1", LONG])
        peeked = await asyncio.to_thread(run, "queue", "peek", "jobs", *own)
        async with AsyncBus(bus.url, secret) as client:
            await client.queue("jobs").pull(3)
        dead = await asyncio.to_thread(run, "queue", "dead", "jobs", *own)

        assert [line.partition('"data":')[2].partition(',"id"')[0].encode() for line in peeked.stdout.splitlines()] == [
            *(FAR, b"1", LONG)
        ]
        assert [line.partition("data cannot be decoded: ")[2][:7] for line in dead.stdout.splitlines()] == [
            *("", "Number ", "Integer")
        ]
