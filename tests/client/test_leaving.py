"""How a consumer's process ends: what it had in hand is given back, and Python has nothing to complain about."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from client.consuming import Place, a_place
from conftest import Topology

PROGRAM = Path(__file__).parent / "leaving_program.py"
COMPLAINTS = ("Unclosed", "never retrieved", "Task was destroyed", "never awaited")


@asynccontextmanager
async def begun(place: Place, how: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The program, once it has a message in hand."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(PROGRAM),
        place.bus.url,
        place.http._calls.token,
        how,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"begun\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


async def _complaints(process: asyncio.subprocess.Process) -> list[str]:
    async with asyncio.timeout(30):
        _, said = await process.communicate()
    return [line for line in said.decode().splitlines() if any(words in line for words in COMPLAINTS)]


@pytest.mark.parametrize("how", ["break", "raise", "interrupt", "raise-plain"])
async def test_a_loop_that_is_left_gives_its_message_back_before_the_bus_is_closed(one: Topology, how: str):
    async with a_place("http", one) as place:
        await place.publish(1)
        async with begun(place, how) as process:
            if how == "interrupt":
                process.send_signal(signal.SIGINT)
            complaints = await _complaints(process)
        view = await place.queue.get()

        assert complaints == []
        assert (view.in_flight, view.delayed + view.waiting, view.counters["nacked"]) == (0, 1, 1)


@pytest.mark.parametrize("after_s", [0.2, 1.5])
@pytest.mark.parametrize("how", ["run", "run-plain"])
async def test_a_second_interrupt_ends_a_runner_at_once(one: Topology, how: str, after_s: float):
    async with a_place("http", one) as place:
        await place.publish(1)
        async with begun(place, how) as process:
            process.send_signal(signal.SIGINT)
            # At first a pull is under way; later the grace is all that is waited for.
            await asyncio.sleep(after_s)
            assert process.returncode is None
            began_s = time.monotonic()
            process.send_signal(signal.SIGINT)
            complaints = await _complaints(process)
            took_s = time.monotonic() - began_s
        view = await place.queue.get()

        assert complaints == []
        assert took_s < 4, "less than settling may take"
        assert (view.in_flight, view.delayed + view.waiting) == (0, 1)
