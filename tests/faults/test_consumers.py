"""Consumers that hold the interpreter's lock, are killed, stopped, or lose their bus: nothing lost, nothing stuck."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from conftest import Topology
from doubledecker.client import AsyncBus, AsyncQueue, QueueView
from harness import ROOT_KEY, until_ready, within
from processes import Fleet

PROGRAM = Path(__file__).parent / "consuming_program.py"

pytestmark = pytest.mark.slow


class Program:
    """A consumer process and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def hear(self, word: str, *, count: int = 1, within_s: float = 40.0) -> None:
        """Read until it has said so many lines with this first word."""
        assert self.process.stdout is not None
        async with asyncio.timeout(within_s):
            while sum(line.startswith(word) for line in self.lines) < count:
                line = await self.process.stdout.readline()
                assert line, f"it ended after {self.lines}"
                self.lines.append(line.decode().strip())

    def said(self, word: str) -> list[tuple[int, int]]:
        """Number and attempt of the messages that it said this of."""
        found = [line.split() for line in self.lines if line.startswith(word)]
        return [(int(number), int(attempt)) for _, number, attempt in found]

    async def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        out, _ = await within(self.process.communicate(), 30)
        self.lines += out.decode().splitlines()
        assert self.process.returncode is not None
        return self.process.returncode


class World:
    """A bus in processes of its own, its queue `jobs`, and consumers beside it."""

    def __init__(self, fleet: Fleet, topology: Topology, bus: AsyncBus, secret: str) -> None:
        self.fleet = fleet
        self._topology = topology
        self._bus = bus
        self._secret = secret
        self._programs: list[Program] = []

    @property
    def queue(self) -> AsyncQueue:
        return self._bus.queue("jobs")

    async def publish(self, count: int, hold_s: float, *, first: int = 0) -> None:
        events = [
            {"topic": "jobs", "type": "run", "data": {"n": n, "hold_s": hold_s}} for n in range(first, first + count)
        ]
        await self._bus.publish_many(events)

    async def consumer(self, source: str, how: str, *, concurrency: int = 4) -> Program:
        address = self.fleet.url if source == "http" else self._topology.url
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(PROGRAM),
            source,
            address,
            self._secret,
            how,
            stdout=asyncio.subprocess.PIPE,
            env={**_environment(), "CONCURRENCY": str(concurrency)},
        )
        program = Program(process)
        self._programs.append(program)
        await program.hear("ready")
        return program

    async def until_settled(self, count: int, *, within_s: float = 60.0) -> QueueView:
        async with asyncio.timeout(within_s):
            while (view := await self.queue.get()).counters["acked"] < count or view.in_flight:
                await asyncio.sleep(0.05)
        return view

    async def close(self) -> None:
        for program in self._programs:
            if program.process.returncode is None:
                program.process.kill()
                await program.process.wait()


def _environment() -> dict[str, str]:
    import os

    return dict(os.environ)


@asynccontextmanager
async def a_world(topology: Topology, logs: Path, **options: int) -> AsyncIterator[World]:
    await topology.clear()
    async with Fleet(topology, logs, workers=0) as fleet, aiohttp.ClientSession() as http:
        await until_ready(http, fleet.url, path="/version")
        headers = {"Authorization": f"Bearer {ROOT_KEY}"}
        async with http.post(f"{fleet.url}/api_tokens", json={"name": "us"}, headers=headers) as answer:
            secret = (await answer.json())["token"]
        async with AsyncBus(fleet.url, secret, patience_s=30) as bus:
            world = World(fleet, topology, bus, secret)
            await world.queue.register(".*:jobs:.*", **options)  # type: ignore[arg-type]
            try:
                yield world
            finally:
                await world.close()


@pytest.fixture(params=["http", "redis"])
def source(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_handler_that_holds_the_interpreters_lock_past_the_lease_works_once(
    source: str, one: Topology, tmp_path: Path
):
    async with a_world(one, tmp_path, lease_ms=1_000) as world:
        await world.publish(2, hold_s=4)
        first = await world.consumer(source, "hold", concurrency=2)
        await first.hear("begun")
        second = await world.consumer(source, "hold", concurrency=2)
        view = await world.until_settled(2)
        await asyncio.gather(first.end(signal.SIGTERM), second.end(signal.SIGTERM))

        assert sorted(first.said("done") + second.said("done")) == [(0, 1), (1, 1)]
        assert view.counters["expired"] == 0


async def test_what_a_killed_consumer_held_is_done_by_another_long_before_the_leases_end(
    source: str, one: Topology, tmp_path: Path
):
    async with a_world(one, tmp_path, lease_ms=600_000) as world:
        await world.publish(3, hold_s=60)
        first = await world.consumer(source, "wait")
        await first.hear("begun", count=3)
        await first.end(signal.SIGKILL)
        second = await world.consumer(source, "wait")
        await second.hear("begun", count=3)

        assert sorted(first.said("begun")) == [(0, 1), (1, 1), (2, 1)]
        assert sorted(second.said("begun")) == [(0, 2), (1, 2), (2, 2)]


async def test_when_the_heartbeat_is_killed_with_the_consumer_the_leases_bring_everything_back(
    source: str, one: Topology, tmp_path: Path
):
    async with a_world(one, tmp_path, lease_ms=2_000) as world:
        await world.publish(3, hold_s=0.5)
        first = await world.consumer(source, "hold")
        await first.hear("begun")
        _kill_all(first.process.pid)
        await first.process.wait()
        second = await world.consumer(source, "wait")
        view = await world.until_settled(3)
        await second.end(signal.SIGTERM)

        assert {number for number, _ in first.said("done") + second.said("done")} == {0, 1, 2}
        assert view.counters["acked"] == 3


def _kill_all(pid: int) -> None:
    """The consumer and its heartbeat at the same moment, as a machine that dies would."""
    import os

    from cli.commands import children

    for each in (*children(pid), pid):
        os.kill(each, signal.SIGKILL)


async def test_sigterm_finishes_what_is_at_work_and_takes_nothing_more(source: str, one: Topology, tmp_path: Path):
    async with a_world(one, tmp_path) as world:
        await world.publish(10, hold_s=1.5)
        program = await world.consumer(source, "wait", concurrency=2)
        await program.hear("begun", count=2)
        exit_code = await program.end(signal.SIGTERM)
        view = await world.queue.get()

        assert exit_code == 0
        assert program.said("begun") == program.said("done")
        assert (view.in_flight, view.counters["acked"]) == (0, len(program.said("done")))
        assert view.waiting == 10 - len(program.said("done")) > 0


async def test_a_bus_that_is_restarted_meanwhile_loses_nothing(one: Topology, tmp_path: Path):
    async with a_world(one, tmp_path, lease_ms=5_000) as world:
        await world.publish(40, hold_s=0.1)
        program = await world.consumer("http", "wait", concurrency=4)
        await program.hear("done", count=3)
        await world.fleet.web.kill()
        await asyncio.sleep(1)
        await world.fleet.web.start()
        await world.publish(5, hold_s=0.1, first=40)
        await world.until_settled(45)
        await program.end(signal.SIGTERM)

        assert {number for number, _ in program.said("done")} == set(range(45))


async def test_heartbeats_end_with_their_consumers(source: str, one: Topology, tmp_path: Path):
    from cli.commands import children, is_running, until

    async with a_world(one, tmp_path) as world:
        program = await world.consumer(source, "wait")
        await world.publish(1, hold_s=0.1)
        await program.hear("done")
        beating = [pid for pid, line in children(program.process.pid).items() if "lease_keeper" in line]
        await program.end(signal.SIGKILL)

        assert len(beating) == 1
        await asyncio.to_thread(until, lambda: not is_running(beating[0]))
