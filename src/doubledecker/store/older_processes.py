"""Processes of an older version: whether any is still at work on the data.

Workers beat by slot, watches and all kinds of processes by name. Those that were stopped have signed off. Those that
were killed left beats behind, which look like a living process's until they are old: one has to wait, and see whether
they advance. Web processes of 0.1.0 have no heartbeat, but read the registry twice a second, as all of that version do:
they are gone once nobody has read it for a while. There is nothing to wait for when all connections to the servers are
of processes in our format, since one that is at work holds a connection.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from doubledecker import log
from doubledecker.errors import BusAway, ServerUnfit
from doubledecker.store import jobs, layout
from doubledecker.store.partitions import Partitions

# Three reports of a process (bus/presence.py); a watch beats more often.
REPORT_DEAD_S = 15.0
_LOOK_S = 0.25
# The server counts in whole seconds: so long, and at least five reads of a process of 0.1.0 were missed.
UNREAD_S = 3
# A process of ours reads the registry once when it starts, which may begin the wait anew.
READERS_S = 8.0

_log = log.get("store")


@dataclass(frozen=True)
class Beats:
    """When each last sent a heartbeat, by name."""

    slots: Mapping[str, int]
    watches: Mapping[str, int]
    processes: Mapping[str, int]

    def is_ahead_of(self, former: "Beats") -> bool:
        """Whether anyone has sent a heartbeat since."""
        mine, theirs = self.by_name(), former.by_name()
        return any(at > theirs.get(name, -1) for name, at in mine.items())

    def wait_s(self, *, now_ms: int, dead_s: float) -> float:
        """How long until all would count as dead without another heartbeat."""
        ends = [at + dead_s * 1000 for at in self.slots.values()]
        ends += [at + REPORT_DEAD_S * 1000 for at in (*self.watches.values(), *self.processes.values())]
        # A server's clock may have been set back since.
        return min(max(dead_s, REPORT_DEAD_S), max([0.0, *((end - now_ms) / 1000 for end in ends)]))

    def recent(self, *, now_ms: int, dead_s: float) -> str:
        """How many have sent a heartbeat lately, in words."""
        kinds = {"processes": self.processes, "watches": self.watches, "slots of workers": self.slots}
        since = now_ms - max(dead_s, REPORT_DEAD_S) * 1000
        counts = {kind: sum(at >= since for at in beats.values()) for kind, beats in kinds.items()}
        return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)

    def by_name(self) -> dict[tuple[str, str], int]:
        """All of them, by kind and name."""
        kinds = {"slot": self.slots, "watch": self.watches, "process": self.processes}
        return {(kind, name): at for kind, beats in kinds.items() for name, at in beats.items()}


async def beats(partitions: Partitions) -> Beats:
    """When slots, watches and processes last sent a heartbeat."""
    home = partitions.home
    slots: dict[str, int] = {}
    for partition in partitions.all:
        slots |= {f"{partition.index} {slot}": at for slot, at in (await jobs.beats(partition)).items()}
    flat = await home.commands([["ZRANGE", home.key(key), 0, -1, "WITHSCORES"] for key in ("watchers", "processes")])
    watches, processes = (_scores(cast("list[bytes]", each)) for each in flat)
    return Beats(slots, watches, processes)


async def until_gone(partitions: Partitions, *, dead_s: float, stop: asyncio.Event | None = None) -> Beats:
    """Wait until nobody of an older version can be at work; raises ServerUnfit when somebody is."""
    first = await beats(partitions)
    wait_s = first.wait_s(now_ms=await partitions.home.time_ms(), dead_s=dead_s)
    if await _are_all_ours(partitions):
        return first
    await _until_unread(partitions, stop=stop)
    if wait_s <= 0:
        return first
    _log.info("migration.awaited", whom="processes of an older version", wait_s=round(wait_s, 1))
    loop = asyncio.get_running_loop()
    end_s = loop.time() + wait_s
    while loop.time() < end_s:
        _check_stop(stop)
        await asyncio.sleep(min(_LOOK_S, max(0.0, end_s - loop.time())))
        await check_silent(partitions, since=first, dead_s=dead_s)
    return first


async def check_silent(partitions: Partitions, *, since: Beats, dead_s: float) -> None:
    """Raise ServerUnfit when a process of an older version has sent a heartbeat since."""
    now = await beats(partitions)
    if now.is_ahead_of(since):
        known = now.recent(now_ms=await partitions.home.time_ms(), dead_s=dead_s)
        raise ServerUnfit(
            f"an older version is at work on this data ({known} seen lately), and this one would migrate it to "
            f"format {layout.FORMAT}: stop all processes of the older version, then start this one again"
        )


async def _until_unread(partitions: Partitions, *, stop: asyncio.Event | None) -> None:
    """Wait until nobody has read the registry for a while; raises ServerUnfit when somebody goes on reading it."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + READERS_S
    home = partitions.home
    while True:
        try:
            reply = await home.command("OBJECT", "IDLETIME", home.key("registry"))
        except BusAway:
            return  # a server that forbids the command; what older processes write is shut out all the same
        # None if there is no registry, so that there is nothing to serve.
        if (unread_s := cast("int | None", reply)) is None or unread_s >= UNREAD_S:
            return
        if loop.time() >= end_s:
            raise ServerUnfit(
                "an older version is at work on this data (something reads its registry all the time, as web processes "
                f"and consumers of 0.1.0 do), and this one would migrate it to format {layout.FORMAT}: stop all "
                "processes of the older version, then start this one again"
            )
        _check_stop(stop)
        await asyncio.sleep(_LOOK_S)


async def _are_all_ours(partitions: Partitions) -> bool:
    """Whether all connections to the servers are of processes in our format; False if a server does not list them."""
    try:
        replies = await partitions.home.everywhere([["CLIENT", "LIST", "TYPE", "normal"]])
    except BusAway:
        return False
    lines = [line for [text] in cast("Sequence[list[bytes]]", replies) for line in text.decode().splitlines()]
    return all(f" lib-name={layout.DRIVER.formatted_name} " in line for line in lines)


def _check_stop(stop: asyncio.Event | None) -> None:
    if stop is not None and stop.is_set():
        raise BusAway("stopped before the data was migrated")


def _scores(flat: Sequence[bytes]) -> dict[str, int]:
    return {name.decode(): int(float(at)) for name, at in zip(flat[0::2], flat[1::2], strict=True)}
