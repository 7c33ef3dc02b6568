"""What workers tell of the chains through which they call subscribers, so that others can show it.

A chain's state lives in its process. Each process writes the states of its own under its name now and then; whoever
looks takes no account of a process that has been silent. What chains rejected is added to the counters, which outlive
the process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import load


@dataclass(frozen=True)
class ChainState:
    """How the chain to one subscriber stands in one process: its circuit, calls under way, calls that wait."""

    subscriber: str
    circuit: str
    calls: int
    queued: int


class _Told(msgspec.Struct, array_like=True):
    at: int
    states: list[tuple[str, str, int, int]]


_TOLD = msgspec.msgpack.Decoder(_Told)
_TELL = load("chain_tell")


async def tell(home: Partition, process: str, states: Sequence[ChainState], *, counts: Mapping[str, int]) -> None:
    """Replace what a process has told before, and add to the counters; both are done, or neither."""
    rows = [(state.subscriber, state.circuit, state.calls, state.queued) for state in states]
    told = msgspec.msgpack.encode(_Told(await home.time_ms(), rows))
    await home.run(_TELL, process=process, told=told, counts=list(counts.items()))


async def states(home: Partition, *, silent_ms_max: int) -> list[ChainState]:
    """The chains of all processes that told of theirs lately; one row for each process and subscriber."""
    now_ms = await home.time_ms()
    told = (_TOLD.decode(value) for value in (await _all(home)).values())
    return [ChainState(*row) for each in told if each.at + silent_ms_max > now_ms for row in each.states]


async def forget(home: Partition, processes: Sequence[str]) -> None:
    """Remove what processes told that have ended."""
    if processes:
        await home.command("HDEL", home.key("chains"), *processes)


async def silent(home: Partition, *, silent_ms_max: int) -> list[str]:
    """The processes that have told nothing for long."""
    now_ms = await home.time_ms()
    return [who for who, value in (await _all(home)).items() if _TOLD.decode(value).at + silent_ms_max <= now_ms]


async def _all(home: Partition) -> dict[str, bytes]:
    flat = cast("list[bytes]", await home.command("HGETALL", home.key("chains")))
    return {who.decode(): value for who, value in zip(flat[0::2], flat[1::2], strict=True)}
