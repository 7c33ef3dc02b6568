"""Telemetry counters: a hash of numbers that only grow, named `name:label=value,…`."""

from collections.abc import Sequence
from typing import cast

from doubledecker.store import shared_connection
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import load

_TAKE = load("counters_take")


async def read(partition: Partition) -> dict[str, int]:
    return shared_connection.numbers(await partition.command("HGETALL", partition.key("counters")))


async def read_some(partition: Partition, names: Sequence[str]) -> dict[str, int]:
    """Some counters; those that have not grown yet are left out."""
    if not names:
        return {}
    values = cast("list[bytes | None]", await partition.command("HMGET", partition.key("counters"), *names))
    return {name: int(value) for name, value in zip(names, values, strict=True) if value is not None}


async def take_growth(partition: Partition) -> dict[str, int]:
    """By how much each counter has grown since this was last asked, by anyone."""
    return shared_connection.numbers(await partition.run(_TAKE))


async def add(partition: Partition, name: str, by: int) -> None:
    await partition.write("HINCRBY", partition.key("counters"), name, by)
