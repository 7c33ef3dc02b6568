"""Migration: data of format 1, which 0.1.0 wrote, is brought to format 2 when a process of this version starts on it.

Format 2 keeps the events of a batch as chunks of lines after their number. A batch's job waits by its time, or in its
receiver's line; format 1 had lists for all subscribers together, others for retries, and jobs that were parked or
called. A receiver's failures are kept where its batches are; format 1 had them at home. Dead letters of queues are kept
like those of subscribers; format 1 had them with the queue.

1. One process at a time migrates; it holds a lock, which ends by itself when the process dies. The others wait.
2. It makes sure that no process of format 1 is at work (store/older_processes.py), and closes the data to them: none
   starts any more, no publish of theirs is accepted, no slot of theirs gets a job.
3. In each partition, a bounded piece in each call, batches are written anew, then times, lines and receivers. When all
   of this is written, and not before, what format 1 had in their place is deleted.
4. The format is set when all partitions are done.

A process that dies is followed by one that does the same again: a batch is written anew only once, and the rest is
written from scratch, from what is still there. Each call checks in the same step that its process is still the one that
migrates, so that one that was held up, and has lost the lock meanwhile, changes nothing.
"""

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import msgspec

from doubledecker import log
from doubledecker.background import beside
from doubledecker.errors import BusAway
from doubledecker.model.job import Job
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.uid import uid
from doubledecker.store import layout, older_processes, receivers, shared_connection, subscribers
from doubledecker.store.layout import DONE, FORMAT, UNDER_WAY
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.store.scripts import Encoded, Packable, Script, Value, load
from doubledecker.store.shared_connection import Reply

_BEGUN, _WRITTEN = "begun", "written"
# The lock is renewed three times in this; a process that was killed is followed by another after it.
_LEASE_S = 6.0
_LOOK_S = 0.25
# A process of format 1 that was suspended, and comes back later than this, finds slots that nobody remembers.
_BARRED_S = 86_400
# Batches written anew in one call, and their bytes, unless one has more: a millisecond or two of the server's time.
_PIECE_BATCHES, _PIECE_BYTES = 100, 524_288
# What is read or written in one call otherwise.
_PAGE = 1_000
_LINE_PIECE = 500
_PROGRESS_S = 1.0

# Lists of jobs, from those that were given out first to those that came last; what is first in one of them stands last.
_LISTS = (
    r"migration:pending",
    r"jobs:pending:retry:.+",
    r"jobs:pending:main:.+",
    r"jobs:called:retry",
    r"jobs:called:main",
    r"jobs:parked:retry:.+",
    r"jobs:parked:main:.+",
    r"jobs:instant:retry",
    r"jobs:instant:main",
)
_FIRSTS, _RETRIES = "migration:scheduled", "jobs:scheduled:retry"
# What else format 1 had and format 2 has not.
_REST = re.compile(
    r"jobs:(?:called|parked):index|jobs:(?:pending:)?index:(?:main|retry)|jobs:bell|jobs:sleeper"
    r"|(?:holds|invitations|waiting):.+|chains"
)
_FAILURES = ("failures", "retry_at", "failing_since")

_LOCK, _BEGIN, _CONVERT = load("migration_lock"), load("migration_begin"), load("migration_convert")
_SEAT, _WRITE, _END = load("migration_seat"), load("migration_write"), load("migration_end")
_LETTERS = load("migration_letters")

Say = Callable[[str], None]

_log = log.get("store")


async def run(
    partitions: Partitions, *, dead_s: float, stop: asyncio.Event | None = None, say: Say = lambda _: None
) -> None:
    """Bring the data to our format, or wait until another process has; raises ServerUnfit while an older version works.

    `dead_s` is after how long a silent slot counts as dead, `say` gets its progress. With `stop` set it ends.
    """
    if (await partitions.layout()).format >= FORMAT:
        return
    owner = f"{socket.gethostname()}:{os.getpid()}:{uid()}"
    is_awaited = False
    # Those who wait look at the lock alone: the process that migrates watches for readers of what `layout` reads.
    while (holder := await _lock(partitions.home, owner, lease_s=_LEASE_S)) != owner:
        _check_stop(stop)
        if not is_awaited:
            _log.info("migration.awaited", whom=holder)
            is_awaited = True
        await asyncio.sleep(_LOOK_S)
    try:
        async with beside(_keep_lock(partitions.home, owner)):
            await Migration(partitions, owner, stop, say).run(dead_s=dead_s)
    finally:
        with suppress(BusAway):  # then it ends by itself
            await _lock(partitions.home, owner, lease_s=0)


async def adopt_letters(partitions: Partitions, queues: Iterable[str]) -> None:
    """Move dead letters of queues that are still with their queue, as builds of format 2 kept them before its release.

    Safe to repeat, and beside other processes; where one migrates, it moves them.
    """

    async def call(partition: Partition, script: Script, **values: Value) -> Reply:
        return await partition.run(script, owner="", **values)

    names = list(queues)
    for partition in partitions.all:
        for first in range(0, len(names), _PAGE):
            some = names[first : first + _PAGE]
            there = await partition.commands([["EXISTS", partition.key(f"queue:dead:index:{name}")] for name in some])
            for name in (name for name, is_there in zip(some, there, strict=True) if is_there):
                await _move_letters(partition, name, call)
                _log.info("letters.adopted", queue=name, partition=partition.index)


@dataclass(frozen=True)
class FormerReceiver:
    """A receiver as format 1 knew it: how many batches it may be sent at a time, and how often it failed in a row."""

    token: str
    concurrency: int
    failures: int
    retry_at: int
    failing_since: int


@dataclass(frozen=True)
class Former:
    """Where format 1 had the jobs of batches: those that are due in the order of their turns, the others by time."""

    order: Mapping[str, int]
    times: Mapping[str, float]

    def line(self, batches: Sequence[tuple[float, str]]) -> list[str]:
        """Those that are due, in the order of their creation; of the same millisecond, in that of their turns."""
        due = [batch for batch in batches if batch[1] not in self.times]
        return [bid for _, bid in sorted(due, key=lambda batch: (batch[0], self.order.get(batch[1], len(self.order))))]


class Migration:
    """One process's work on data of format 1, under the lock."""

    def __init__(self, partitions: Partitions, owner: str, stop: asyncio.Event | None, say: Say) -> None:
        self._partitions = partitions
        self._owner = owner
        self._stop = stop
        self._say = say
        self._batches = self._events = self._receivers = 0
        self._told_at_s = float("-inf")

    async def run(self, *, dead_s: float) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        found = await self._partitions.layout()
        if found.format == FORMAT:
            return
        phases = await self._close(found, dead_s=dead_s)
        known = await _receivers(self._partitions)
        for partition, phase in phases.items():
            if phase == _BEGUN:
                await self._move(partition, known)
            await self._delete_old(partition)
        if self._partitions.home in phases:
            await self._forget_failures(known)
        for partition in phases:
            await self._call(partition, _END, done=DONE)
        await self._partitions.save_layout(layout.fresh(len(self._partitions.all)))
        took_ms = round((loop.time() - began_s) * 1000)
        _log.info(
            "migration.done",
            format=FORMAT,
            batches=self._batches,
            events=self._events,
            receivers=self._receivers,
            took_ms=took_ms,
        )
        self._say(
            f"the data has format {FORMAT} now: {self._events} events waiting, migrated in {took_ms / 1000:.1f} s"
        )

    async def _close(self, found: layout.DataLayout, *, dead_s: float) -> dict[Partition, str]:
        """Close the data to processes of format 1; returns how far each partition has come that is not done."""
        parts = self._partitions
        if found.was_migrated:
            return await self._begin()
        # Also when another has begun: it may have refused in the end, because of a heartbeat.
        before = await older_processes.until_gone(parts, dead_s=dead_s, stop=self._stop)
        self._say(f"the data has format {found.format}, and is migrated to format {FORMAT}")
        await parts.save_layout(layout.closing(len(parts.all)))
        # One that started while we looked may have beaten since. It is shut out too, but may have given out jobs.
        phases = await self._begin()
        await older_processes.check_silent(parts, since=before, dead_s=dead_s)
        return phases

    async def _begin(self) -> dict[Partition, str]:
        phases = {}
        for partition in self._partitions.all:
            [phase] = cast(
                "list[bytes]",
                await self._call(partition, _BEGIN, under_way=UNDER_WAY, done=DONE, barred_s=_BARRED_S),
            )
            if phase != b"done":
                phases[partition] = phase.decode()
        return phases

    async def _move(self, partition: Partition, known: Sequence[FormerReceiver]) -> None:
        """Write what the partition has in format 2, beside what it had; dead letters move at once."""
        async for key in _keys(partition, "queue:dead:index:*"):
            await _move_letters(partition, key.removeprefix("queue:dead:index:"), self._call)
        waiting = await self._convert(partition)
        former = await _former(partition)
        await self._schedule(partition, waiting, former.times)
        await self._seat(partition, known, {token: former.line(batches) for token, batches in waiting.items()})
        await self._write(partition, "HSET", "migration", "phase", _WRITTEN)

    async def _convert(self, partition: Partition) -> dict[str, list[tuple[float, str]]]:
        """Write all batches anew; returns those that wait for each subscriber, with the time of their creation."""
        waiting: dict[str, list[tuple[float, str]]] = {}
        index, sizes = partition.key("batches:index"), partition.key("batches:bytes")
        total = cast("int", await partition.command("ZCARD", index))
        for first in range(0, total, _PAGE):
            flat = cast("list[bytes]", await partition.command("ZRANGE", index, first, first + _PAGE - 1, "WITHSCORES"))
            bids = [bid.decode() for bid in flat[0::2]]
            created = dict(zip(bids, map(float, flat[1::2]), strict=True))
            weights = cast("list[bytes | None]", await partition.command("HMGET", sizes, *bids))
            for piece in _pieces(bids, [int(weight or 0) for weight in weights]):
                events, *tokens = cast(
                    "tuple[int, *tuple[bytes, ...]]", await self._call(partition, _CONVERT, bids=piece)
                )
                for bid, token in zip(piece, tokens, strict=True):
                    if token:
                        waiting.setdefault(token.decode(), []).append((created[bid], bid))
                self._batches, self._events = self._batches + len(piece), self._events + events
            self._tell(partition, "batches", min(first + _PAGE, total), total)
        return waiting

    async def _schedule(
        self, partition: Partition, waiting: Mapping[str, Sequence[tuple[float, str]]], later: Mapping[str, float]
    ) -> None:
        """Write when batches are due that are not yet."""
        jobs = [
            (later[bid], f"{bid} {token}") for token, batches in waiting.items() for _, bid in batches if bid in later
        ]
        await self._write(partition, "DEL", "jobs:scheduled:main")
        for first in range(0, len(jobs), _PAGE):
            words = [word for at, job in jobs[first : first + _PAGE] for word in (str(int(at)), job)]
            await self._write(partition, "ZADD", "jobs:scheduled:main", *words)

    async def _seat(
        self, partition: Partition, known: Sequence[FormerReceiver], lines: Mapping[str, Sequence[str]]
    ) -> None:
        """Write lines and receivers: all that have something waiting, and all that are failing."""
        of_token = {each.token: each for each in known}
        failing = {each.token for each in known if each.failures and self._keeps(partition, each.token)}
        tokens = sorted(lines.keys() | failing)
        call: list[Packable] = []
        room = _LINE_PIECE
        for i, token in enumerate(tokens):
            for entry, size in _entries(partition, token, of_token.get(token), lines.get(token, ())):
                if call and size > room:
                    await self._call(partition, _SEAT, lines=call)
                    call, room = [], _LINE_PIECE
                    self._tell(partition, "receivers", i, len(tokens))
                call.append(entry)
                room -= size
        if call:
            await self._call(partition, _SEAT, lines=call)
        self._receivers += len(tokens)

    def _keeps(self, partition: Partition, token: str) -> bool:
        """Whether a partition counts a receiver's permits: every one those of subscribers, one those of a queue's."""
        return not token.startswith("@") or self._partitions.keeper(token) is partition

    async def _delete_old(self, partition: Partition) -> None:
        """Delete what format 1 had where format 2 has something else."""
        lists = [key for keys in await _lists(partition) for key in keys]
        rest = [key async for key in _keys(partition, "[hijwc]*") if _REST.fullmatch(key)]
        old = [*lists, _FIRSTS, _RETRIES, *sorted(set(rest))]
        for first in range(0, len(old), _PAGE):
            name, *others = old[first : first + _PAGE]
            await self._write(partition, "UNLINK", name, *map(partition.key, others))

    async def _forget_failures(self, known: Sequence[FormerReceiver]) -> None:
        """Delete how subscribers fared, now that all partitions have it."""
        home = self._partitions.home
        names = [f"subscriber:{each.token}" for each in known]
        for first in range(0, len(names), _PAGE):
            await asyncio.gather(
                *(self._write(home, "HDEL", name, *_FAILURES) for name in names[first : first + _PAGE])
            )

    async def _write(self, partition: Partition, verb: str, name: str, *words: Encoded) -> None:
        await self._call(partition, _WRITE, *words, verb=verb, name=name)

    async def _call(self, partition: Partition, script: Script, *rest: Encoded, **values: Value) -> Reply:
        _check_stop(self._stop)
        reply = await partition.run(script, *rest, owner=self._owner, **values)
        if not reply:
            raise BusAway("another process has taken over the migration of the data")
        return reply

    def _tell(self, partition: Partition, what: str, done: int, total: int) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._told_at_s >= _PROGRESS_S:
            self._told_at_s = now_s
            _log.info("migration.progress", partition=partition.index, what=what, done=done, total=total)
            self._say(f"migrated {done} of {total} {what} of partition {partition.index}")


async def _lock(home: Partition, owner: str, *, lease_s: float) -> str:
    """Take or keep the lock, or give it back; returns who has it."""
    return cast("bytes", await home.run(_LOCK, owner=owner, lease_ms=round(lease_s * 1000))).decode()


async def _keep_lock(home: Partition, owner: str) -> None:
    while True:
        await asyncio.sleep(_LEASE_S / 3)
        with suppress(BusAway):  # a process that takes it over shuts this one out
            await _lock(home, owner, lease_s=_LEASE_S)


def _check_stop(stop: asyncio.Event | None) -> None:
    if stop is not None and stop.is_set():
        raise BusAway("stopped before the data was migrated; the next start goes on with it")


async def _move_letters(partition: Partition, queue: str, call: Callable[..., Awaitable[Reply]]) -> None:
    index = partition.key(f"queue:dead:index:{queue}")
    while ids := shared_connection.words(await partition.command("ZRANGE", index, 0, _PIECE_BATCHES - 1)):
        if not await call(partition, _LETTERS, queue=queue, ids=ids):
            return


async def _receivers(partitions: Partitions) -> list[FormerReceiver]:
    """All subscribers and queues with a callback, as format 1 has them."""
    home = partitions.home
    now_ms = await home.time_ms()
    found = []
    tokens = await subscribers.all_tokens(home)
    records = cast("list[bytes]", await home.command("HVALS", home.key("queues")))
    queues = [msgspec.json.decode(record, type=RegisteredQueue) for record in records]
    concurrency = {queue.receiver.token: queue.concurrency for queue in queues if queue.callback}
    names = [*tokens, *concurrency]
    fields = ("concurrency", *_FAILURES, "last_attempted_at")
    replies = await home.commands([["HMGET", home.key(f"subscriber:{name}"), *fields] for name in names])
    for name, reply in zip(names, cast("list[list[bytes | None]]", replies), strict=True):
        asked, failures, retry_at, since, last_at = (int(value or 0) for value in reply)
        is_failing = failures > 0
        # 0.1.0 did not keep since when.
        began = (since or last_at or now_ms) if is_failing else 0
        found.append(FormerReceiver(name, concurrency.get(name, asked), failures, retry_at if is_failing else 0, began))
    return found


async def _former(partition: Partition) -> Former:
    """Where the jobs are that format 1 wrote; of batches that are gone, too."""
    now_ms = await partition.time_ms()
    retries, firsts = await _times(partition, _RETRIES), await _times(partition, _FIRSTS)
    due = [bid for bid, at in retries.items() if at <= now_ms]
    for keys in await _lists(partition):
        for key in keys:
            packed = [job async for page in _pages(partition, key) for job in page]
            due += map(_bid, reversed(packed))
    due += [bid for bid, at in firsts.items() if at <= now_ms]
    order = {bid: i for i, bid in enumerate(dict.fromkeys(due))}
    return Former(order, {bid: at for bid, at in (firsts | retries).items() if bid not in order})


async def _times(partition: Partition, name: str) -> dict[str, float]:
    """When batches are due, the next one first."""
    times: dict[str, float] = {}
    key = partition.key(name)
    first = 0
    while flat := cast("list[bytes]", await partition.command("ZRANGE", key, first, first + _PAGE - 1, "WITHSCORES")):
        times |= {_bid(job): float(at) for job, at in zip(flat[0::2], flat[1::2], strict=True)}
        first += _PAGE
    return times


async def _lists(partition: Partition) -> list[list[str]]:
    """The lists of jobs that format 1 wrote, by kind; one that bars a slot is no list."""
    names = {name async for name in _keys(partition, "[jm]*", "TYPE", "list")}
    return [sorted(name for name in names if re.fullmatch(kind, name)) for kind in _LISTS]


async def _keys(partition: Partition, pattern: str, *words: str) -> AsyncIterator[str]:
    """The names of keys that match, some of them perhaps twice."""
    match = re.sub(r"([*?\[\]\\])", r"\\\1", partition.prefix) + pattern
    cursor = b"0"
    while True:
        reply = await partition.command("SCAN", cursor, "MATCH", match, "COUNT", _PAGE, *words)
        cursor, found = cast("tuple[bytes, list[bytes]]", reply)
        for key in found:
            yield key.decode().removeprefix(partition.prefix)
        if cursor == b"0":
            return


async def _pages(partition: Partition, name: str) -> AsyncIterator[list[bytes]]:
    first = 0
    while page := cast("list[bytes]", await partition.command("LRANGE", partition.key(name), first, first + _PAGE - 1)):
        yield page
        first += _PAGE


def _bid(packed: bytes) -> str:
    """The batch that a job delivers; one of format 2 is there if a server lost the end of a migration."""
    return packed.split(b" ")[0].decode() if packed[:1].isascii() else Job.decode(packed).args[0]


def _pieces(bids: Sequence[str], weights: Sequence[int]) -> Iterator[list[str]]:
    """Batches that are written anew together: not too many, nor too heavy unless one is alone."""
    piece: list[str] = []
    weight = 0
    for bid, more in zip(bids, weights, strict=True):
        if piece and (len(piece) == _PIECE_BATCHES or weight + more > _PIECE_BYTES):
            yield piece
            piece, weight = [], 0
        piece.append(bid)
        weight += more
    if piece:
        yield piece


def _entries(
    partition: Partition, token: str, receiver: FormerReceiver | None, line: Sequence[str]
) -> Iterator[tuple[Packable, int]]:
    """A receiver with its line, in pieces, and how large each is; one that is gone has no permits of its own."""
    asked = receiver.concurrency if receiver else 0
    limit = asked if not asked or token.startswith("@") else receivers.permits(asked, partition)
    state = [receiver.failures, receiver.retry_at, receiver.failing_since] if receiver else [0, 0, 0]
    for first in range(0, len(line) or 1, _LINE_PIECE):
        bids = list(line[first : first + _LINE_PIECE])
        yield [token, limit, *state, int(first == 0), bids], len(bids) + 1
