"""What all laws share: a real server on a loop of its own, emptied before each example, whose time the law moves.

Time moves in ages, each so long that an example never lasts one: whatever happens in an age is due in the age that its
delay names, and not before, however slow the machine is.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import redis.asyncio as redis
import uvloop
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from conftest import Topology
from doubledecker.store.partitions import Partition, Partitions

AGE_MS = 1_000_000

T = TypeVar("T")


def law(*, examples: int, steps: int) -> settings:
    """Settings of a law; the numbers are what fits a few seconds on two cores, LAW_SCALE=50 is for a night.

    The fast tests try a fifth of it (conftest.py).
    """
    return settings(
        max_examples=max(1, int(examples * float(os.environ.get("LAW_SCALE", "1")))),
        stateful_step_count=steps,
        deadline=None,
        print_blob=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


class Ear:
    """Listens for the bell of one process."""

    def __init__(self, partition: Partition, process: str) -> None:
        self._channel = partition.key(f"bell:{process}")
        self._client = redis.from_url(partition.server)
        self._listening = self._client.pubsub()

    async def open(self) -> None:
        await self._listening.subscribe(self._channel)
        await self.heard()

    async def heard(self) -> int:
        """How often the bell has rung since this was last asked: whatever comes before the server's pong."""
        await self._listening.ping()
        kinds: list[str] = []
        while "pong" not in kinds:
            message = await self._listening.get_message(timeout=10)
            assert message is not None, "the server says nothing"
            kinds.append(message["type"])
        return kinds.count("message")

    async def close(self) -> None:
        await self._listening.aclose()
        await self._client.aclose()


@dataclass(frozen=True)
class World:
    """Partitions, and the loop that their connections live on."""

    runner: asyncio.Runner
    partitions: Partitions
    ears: dict[tuple[int, str], Ear] = field(default_factory=dict)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def empty(self) -> None:
        """Start over: no keys, and the time as it is."""
        for partition in self.partitions.all:
            self.run(partition.command("FLUSHALL"))
            partition.shift_ms = 0

    def pass_ages(self, ages: int) -> None:
        for partition in self.partitions.all:
            partition.shift_ms += ages * AGE_MS

    def tick(self) -> None:
        """No two steps in the same millisecond: ties would be broken by chance, and an example not repeatable."""
        for partition in self.partitions.all:
            partition.shift_ms += 1

    def ear(self, partition: Partition, process: str) -> Ear:
        """What a process hears from now on."""
        where = (partition.index, process)
        if where not in self.ears:
            self.ears[where] = Ear(partition, process)
            self.run(self.ears[where].open())
        self.run(self.ears[where].heard())
        return self.ears[where]

    def ask(self, partition: Partition, *commands: list[str | int]) -> list[Any]:
        """Several commands in one round trip; the second word of each is a key's name."""
        named = [[word, partition.key(str(name)), *rest] for word, name, *rest in commands]
        return self.run(partition.commands(named))


@contextmanager
def a_world(topology: Topology) -> Iterator[World]:
    # A loop factory keeps the Runner from touching the loop that pytest-asyncio has set.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        # Whatever another test left there may have another number of partitions.
        runner.run(topology.clear())
        connecting = Partitions.connect(topology.url, namespace="rm:", count=topology.partitions)
        partitions = runner.run(connecting)
        world = World(runner, partitions)
        try:
            yield world
        finally:
            for ear in world.ears.values():
                runner.run(ear.close())
            runner.run(partitions.close())


def hold_law(topology: Topology, machine: Callable[[World], RuleBasedStateMachine], how: settings) -> None:
    """Run a state machine's examples in one world."""
    with a_world(topology) as world:
        run_state_machine_as_test(lambda: machine(world), settings=how)


def strings(members: list[bytes]) -> list[str]:
    return [member.decode() for member in members]


def pairs(flat: list[bytes]) -> dict[bytes, int]:
    """A hash, or a sorted set with its scores, of whole numbers."""
    return {name: int(value) for name, value in zip(flat[0::2], flat[1::2], strict=True)}
