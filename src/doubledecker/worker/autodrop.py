"""Autodrop: keeps journals within their bound, and frees memory when it is short, as bus/memory_relief.py decides.

Memory is measured once a run. What is freed after that is counted by the bytes of what was removed, which is less than
it took: the server may free it a moment later, and a second look would make us drop more than needed.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from doubledecker import log
from doubledecker.bus import memory_relief
from doubledecker.bus.memory_relief import (
    Action,
    CutJournal,
    DropBatches,
    DropMessages,
    DroppingQueue,
    Freeable,
    Journal,
    MemoryRules,
    StalledReceiver,
)
from doubledecker.bus.registry import LiveRegistry
from doubledecker.model.queue import RegisteredQueue
from doubledecker.store import batches, dead_letters, journal, memory, queue_contents, queues, receivers
from doubledecker.store.memory import MemoryState, QueueUsage
from doubledecker.store.partitions import Partition, Partitions

# Batches or messages deleted by one script call: a few milliseconds of the server's time at most.
_BATCHES_MAX = 100
_MESSAGES_MAX = 500
# Calls of one run; the next run goes on.
_CALLS_MAX = 1_000

_log = log.get("worker")


@dataclass
class _Run:
    """One run on one server: its partitions, what is still to be freed, and how many calls it may still make."""

    partitions: Sequence[Partition]
    excess_bytes: int
    calls_left: int = _CALLS_MAX

    def partition(self, index: int) -> Partition:
        return next(each for each in self.partitions if each.index == index)

    def spend(self) -> bool:
        """Take one more call; False when there are none left."""
        self.calls_left -= 1
        return self.calls_left >= 0


class Autodrop:
    def __init__(self, partitions: Partitions, live: LiveRegistry, rules: MemoryRules) -> None:
        self._partitions = partitions
        self._live = live
        self._rules = rules

    async def run(self) -> None:
        """Free memory on every server that is short of it, and write down how it stands."""
        for partitions in self._partitions.by_server():
            await self._relieve(partitions)

    async def trim_journals(self) -> None:
        """Cut what the archive has confirmed, and all journals of a server to their common bound."""
        for partitions in self._partitions.by_server():
            limit = self._rules.limit_of((await memory.usage(partitions[0])).bytes_max)
            await self._trim(partitions, self._rules.journals_max(limit))

    async def _relieve(self, partitions: Sequence[Partition]) -> None:
        first = partitions[0]
        usage, before, now_ms = await asyncio.gather(memory.usage(first), memory.standing(first), first.time_ms())
        limit = self._rules.limit_of(usage.bytes_max)
        excess = usage.used_bytes - self._rules.bound_of(limit) if limit else 0
        if excess <= 0:
            await memory.note(first, MemoryState(now_ms, limit, is_full=False, short_at=before.short_at))
            return
        run = _Run(partitions, excess)
        await self._free(run)
        is_full = run.excess_bytes > 0 and run.calls_left > 0
        standing = MemoryState(now_ms, limit, is_full=is_full, short_at=now_ms)
        await memory.note(first, standing)
        # Not each second: when it begins, gets worse or gets better.
        if standing.state(now_ms) != before.state(now_ms):
            fields = {"used_bytes": usage.used_bytes, "limit_bytes": limit, "freed_bytes": excess - run.excess_bytes}
            if is_full:
                _log.error("memory.full", **fields)
            else:
                _log.warning("memory.short", **fields)

    async def _free(self, run: _Run) -> None:
        before = await self._journals(run.partitions)
        await self._trim(run.partitions, sum(each.bytes for each in before))
        freeable = await self._look(run.partitions)
        run.excess_bytes -= sum(each.bytes for each in before) - sum(each.bytes for each in freeable.journals)
        while run.calls_left > 0:
            action = memory_relief.decide(freeable, run.excess_bytes, journal_refuses=self._rules.journal_refuses)
            if action is None:
                return
            run.excess_bytes -= await self._carry_out(run, action)
            freeable = memory_relief.without(freeable, action)
            if isinstance(action, DropBatches):
                again = await self._stalled(run.partition(action.receiver.partition), [action.receiver.token])
                freeable = Freeable(freeable.journals, freeable.queues, (*freeable.stalled, *again))

    async def _carry_out(self, run: _Run, action: Action) -> int:
        """Do it; returns how many bytes were freed."""
        match action:
            case CutJournal(each, keep_bytes, is_forced):
                bytes_left = each.bytes
                while bytes_left > keep_bytes and run.spend():
                    partition = run.partition(each.partition)
                    trimmed = await journal.trim(partition, each.name, bytes_max=keep_bytes, is_forced=is_forced)
                    _log_gap(partition, each.name, trimmed.lost)
                    bytes_left = trimmed.bytes_left
                    if not trimmed.removed:
                        break
                return each.bytes - bytes_left
            case DropMessages(each, wanted):
                return await self._drop_messages(run, each, wanted)
            case DropBatches(receiver, wanted, created_max):
                run.spend()
                lost = await batches.drop_oldest(
                    run.partition(receiver.partition),
                    receiver.token,
                    batches_max=_BATCHES_MAX,
                    created_max=created_max,
                    bytes_enough=wanted,
                    counter="events.autodropped",
                )
                if lost.batches:
                    _log.warning("batches.autodropped", subscriber=lost.token, batches=lost.batches, events=lost.events)
                return lost.bytes

    async def _drop_messages(self, run: _Run, held: DroppingQueue, wanted: int) -> int:
        """Drop dead letters, then, of a queue, what waits."""
        queue, partition = self._queue(held), run.partition(held.partition)
        owner = self._live.snapshot.owner_of(held.receiver).removeprefix(held.receiver)
        messages, size = 0, 0
        while size < wanted and run.spend():
            enough = wanted - size
            lost = await dead_letters.drop_oldest(partition, held.receiver, owner=owner, bytes_enough=enough)
            if lost.letters == 0:
                break
            messages, size = messages + lost.letters, size + lost.bytes
        while queue is not None and size < wanted and run.spend():
            dropped, gone = await queues.drop_oldest(
                partition, queue, messages_max=_MESSAGES_MAX, bytes_enough=wanted - size
            )
            if dropped == 0:
                break
            messages, size = messages + dropped, size + gone
        if messages:
            _log.warning("messages.autodropped", receiver=held.receiver, partition=held.partition, messages=messages)
        return size

    def _queue(self, held: DroppingQueue) -> RegisteredQueue | None:
        """The queue, unless it was deleted since; None for a subscriber: a queue may have a token's name."""
        queues = self._live.snapshot.queues
        return queues.get(held.receiver[1:]) if held.receiver.startswith("@") else None

    async def _trim(self, partitions: Sequence[Partition], total: int) -> None:
        """Cut journals to a common bound; events that an archive has yet to read only if they may be."""
        found = await self._journals(partitions)
        by_index = {partition.index: partition for partition in partitions}
        for each, bound in zip(found, memory_relief.journal_bounds([each.bytes for each in found], total), strict=True):
            if each.bytes <= bound and not each.is_archived:
                continue
            is_forced = not (self._rules.journal_refuses and each.name == "events")
            for _ in range(_CALLS_MAX):
                trimmed = await journal.trim(by_index[each.partition], each.name, bytes_max=bound, is_forced=is_forced)
                _log_gap(by_index[each.partition], each.name, trimmed.lost)
                if not trimmed.removed:
                    break

    async def _look(self, partitions: Sequence[Partition]) -> Freeable:
        await self._live.refresh()
        dropping: list[DroppingQueue] = []
        stalled: list[StalledReceiver] = []
        for partition in partitions:
            dropping += await self._queues(partition)
            _, waiting = await batches.gauges(partition)
            stalled += await self._stalled(partition, [token for token, count in waiting.items() if count > 0])
        return Freeable(tuple(await self._journals(partitions)), tuple(dropping), tuple(stalled))

    async def _journals(self, partitions: Sequence[Partition]) -> list[Journal]:
        found = []
        for partition in partitions:
            state = await journal.state(partition)
            for name in journal.NAMES:
                size = int(state.get(f"{name}_bytes", 0))
                found.append(Journal(partition.index, name, size, is_archived="archive" in state))
        return found

    async def _queues(self, partition: Partition) -> list[DroppingQueue]:
        known = self._live.snapshot.queues
        held = await queue_contents.names_held(partition)
        names = [name for name in sorted(held & known.keys()) if not known[name].refuses and not known[name].paused]
        served_since = await partition.time_ms() - self._rules.stalled_ms
        found = [
            DroppingQueue(partition.index, f"@{name}", usage.bytes, is_served=_is_served(usage, since=served_since))
            for name, usage in (await memory.of_queues(partition, names)).items()
        ]
        subscribers = self._live.snapshot.subscribers
        for token, size in (await dead_letters.sizes(partition)).items():
            if token in subscribers and not subscribers[token].paused:
                found.append(DroppingQueue(partition.index, token, size, is_served=False))
        return found

    async def _stalled(self, partition: Partition, tokens: Sequence[str]) -> list[StalledReceiver]:
        """Those that failed for long, in all partitions, or were disabled so long ago, and have something waiting here.

        Of one that is paused, nothing is dropped.
        """
        since = await partition.time_ms() - self._rules.stalled_ms
        known = self._live.snapshot.subscribers
        paused = {token for token in tokens if token in known and known[token].paused}
        disabled = {token for token in tokens if token in known and 0 < known[token].disabled_at <= since}
        states = await receivers.states(partition, [token for token in tokens if token not in paused])
        failing = [
            token
            for token, state in states.items()
            if token in disabled or (state.failures > 0 and state.failing_since <= since)
        ]
        served = await self._served(failing, since)
        oldest = await batches.oldest_by_token(partition, [token for token in failing if token not in served])
        return [StalledReceiver(partition.index, token, at) for token, at in oldest.items()]

    async def _served(self, tokens: Sequence[str], since: int) -> set[str]:
        """Those of the subscribers that took a batch lately, of any partition."""
        found: set[str] = set()
        for partition in self._partitions.all if tokens else ():
            states = await receivers.states(partition, tokens)
            found.update(token for token, state in states.items() if state.delivered_at > since)
        return found


def _is_served(usage: QueueUsage, *, since: int) -> bool:
    """Whether a message was acked lately; data of an older release knows only that some were."""
    return usage.acked > 0 if usage.acked_at is None else usage.acked_at > since


def _log_gap(partition: Partition, name: str, entries: int) -> None:
    if entries:
        _log.error("journal.gap", partition=partition.index, journal=name, entries=entries)
