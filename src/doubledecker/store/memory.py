"""The memory of the servers: how much is used and allowed, what queues take of it, whether it was short lately."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from doubledecker.store.partitions import Partition

State = Literal["ok", "short", "full"]
_SHORT_MS = 60_000
# Looks of a worker that may fail before it counts as gone, and how long it takes at least, as for its heartbeats.
_LOOKS, _GONE_MS = 5, 15_000
# Messages of a queue that are measured to estimate the rest.
_SAMPLES = 10


@dataclass(frozen=True)
class MemoryUsage:
    """Bytes in use on a server, and its `maxmemory` (0: none)."""

    used_bytes: int
    bytes_max: int


@dataclass(frozen=True)
class MemoryState:
    """How a server stood when a worker last looked: its limit (0: none), and when it was last short.

    It is full when it is short and nothing is left that may be freed.
    """

    at: int = 0
    limit_bytes: int = 0
    is_full: bool = False
    short_at: int = 0

    def state(self, now_ms: int) -> State:
        """As a word; memory counts as short for a while after some was freed, or the word would change each second."""
        if self.is_full:
            return "full"
        return "short" if self.was_short(now_ms) else "ok"

    def was_short(self, now_ms: int) -> bool:
        return now_ms - self.short_at < _SHORT_MS

    def is_recent(self, now_ms: int, *, look_ms: int) -> bool:
        """Whether a worker still looks, when it does so this often; what one that is gone has seen says nothing."""
        return now_ms - self.at < max(_LOOKS * look_ms, _GONE_MS)


@dataclass(frozen=True)
class QueueUsage:
    """What messages and dead letters of a queue take in a partition; when one was last acked (None: not known)."""

    bytes: int
    acked: int
    acked_at: int | None


async def usage(partition: Partition) -> MemoryUsage:
    """The memory of the server that holds the partition, as the server compares it with its `maxmemory`."""
    info = cast("bytes", await partition.command("INFO", "memory")).decode()
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    not_counted = int(fields.get("mem_not_counted_for_evict", 0))
    return MemoryUsage(int(fields["used_memory"]) - not_counted, int(fields["maxmemory"]))


async def of_queues(partition: Partition, names: Sequence[str]) -> dict[str, QueueUsage]:
    """What queues take in a partition; an estimate from a few of their messages."""
    commands: list[list[str | int]] = []
    for name in names:
        commands.append(["MEMORY", "USAGE", partition.key(f"queue:data:{name}"), "SAMPLES", _SAMPLES])
        commands.append(["ZSCORE", partition.key("dead:bytes"), f"@{name}"])
        commands.append(["HMGET", partition.key(f"queue:state:{name}"), "acked", "acked_at"])
    replies = await partition.commands(commands)
    found = {}
    for name, data, dead, state in zip(names, replies[0::3], replies[1::3], replies[2::3], strict=True):
        acked, acked_at = cast("tuple[bytes | None, bytes | None]", state)
        taken = cast("int", data or 0) + int(float(cast("bytes", dead or 0)))
        found[name] = QueueUsage(taken, int(acked or 0), int(acked_at) if acked_at else None)
    return found


async def note(partition: Partition, standing: MemoryState) -> None:
    """Write down how the server of a partition stands, for `status`, `/readyz` and metrics."""
    await partition.write(
        "HSET",
        partition.key("memory"),
        *("at", standing.at, "limit_bytes", standing.limit_bytes),
        *("is_full", int(standing.is_full), "short_at", standing.short_at),
    )


async def standing(partition: Partition) -> MemoryState:
    kept = await partition.command("HMGET", partition.key("memory"), "at", "limit_bytes", "is_full", "short_at")
    at, limit_bytes, is_full, short_at = (int(value or 0) for value in cast("list[bytes | None]", kept))
    return MemoryState(at, limit_bytes, is_full == 1, short_at)
