"""The processes of the bus: what each reports of itself in the home partition, for as long as it is alive.

What a process counts for itself, such as its open connections, is known to it alone. Each writes it down every few
seconds, so that any of them can show all. Watches have heartbeats besides, wherever they run.
"""

from collections.abc import Sequence
from typing import cast

import msgspec

from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import load

# A process that has been silent for this long is forgotten; four times as long as one may be silent and still be shown.
DEAD_MS = 60_000
_FORGOTTEN_MAX = 100

_REPORT = load("process_report")


class MetricSample(msgspec.Struct, frozen=True, array_like=True):
    """One number of a metric, as Prometheus has it."""

    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, frozen=True, array_like=True):
    name: str
    help: str
    type: str
    samples: list[MetricSample]


class ProcessReport(msgspec.Struct, frozen=True, array_like=True):
    """What a process reports: its name, what kind it is, and its metrics."""

    process: str
    kind: str
    families: list[Family]


_DECODER = msgspec.msgpack.Decoder(ProcessReport)


async def report(home: Partition, found: ProcessReport) -> None:
    """Replace what a process reported before."""
    packed = msgspec.msgpack.encode(found)
    await home.run(_REPORT, process=found.process, report=packed, dead_ms=DEAD_MS, most=_FORGOTTEN_MAX)


async def reports(home: Partition, *, silent_ms_max: int) -> list[ProcessReport]:
    now_ms = await home.time_ms()
    alive = cast(
        "list[bytes]", await home.command("ZRANGEBYSCORE", home.key("processes"), now_ms - silent_ms_max, "+inf")
    )
    if not alive:
        return []
    packed = cast("list[bytes | None]", await home.command("HMGET", home.key("processes:reports"), *alive))
    return [_DECODER.decode(each) for each in packed if each is not None]


async def sign_off(home: Partition, processes: Sequence[str]) -> None:
    """Forget processes that ended."""
    await home.commands(
        [["ZREM", home.key("processes"), *processes], ["HDEL", home.key("processes:reports"), *processes]]
    )


async def beat_watch(home: Partition, watch: str, *, dead_ms: int) -> None:
    """Say that a watch is alive, by the server's clock, and forget those that died long ago."""
    now_ms = await home.time_ms()
    key = home.key("watchers")
    await home.write("ZADD", key, now_ms, watch)
    await home.command("ZREMRANGEBYSCORE", key, "-inf", now_ms - dead_ms)


async def watches_alive(home: Partition, *, silent_ms_max: int) -> int:
    now_ms = await home.time_ms()
    return cast("int", await home.command("ZCOUNT", home.key("watchers"), now_ms - silent_ms_max, "+inf"))


async def sign_off_watch(home: Partition, watch: str) -> None:
    """One that ends cleanly is not missed."""
    await home.command("ZREM", home.key("watchers"), watch)
