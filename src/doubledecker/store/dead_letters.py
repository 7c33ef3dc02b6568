"""Dead letters of receivers, in each partition: kept, chosen by their values, taken away.

A letter takes about 520 bytes beside its record, for its places in five sorted sets. Letters with one value
(those of a topic, say) are listed by a command a page and counted by one command, however many others there are. With
several values the rarest is walked, a page at a time, and the others are looked up for its letters.

A receiver is a subscriber, by its token, or a queue, as `@<queue>`. A letter's stamp is unique among those of its
receiver in a partition: the time of death in microseconds, or the next that is free.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from doubledecker.model.cloud_event import ATTRIBUTES_BYTES_MAX
from doubledecker.model.dead_letter import FIELDS, DeadLetter, LetterFilter, LetterTotals
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.subscriber import Subscriber
from doubledecker.model.uid import uid
from doubledecker.store import queues, shared_connection
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import Encoded, Packable, load
from doubledecker.store.shared_connection import Reply

# What a letter takes at least, as lua/dead_letters.lua counts it.
LETTER_BYTES_MIN = 520
# Letters that one call takes or adds: a few milliseconds of the server's time.
SETTLED_MAX = 500
# Ids of a page that is looked through, and values whose sets one call destroys.
_PAGE = 1_000
# Records read at once: each may hold 64 KiB.
_RECORDS = 100
# Values of each field that totals name.
_VALUES_MAX = 20
_US = 1_000

# A call takes no more letters once it has taken so many bytes of them: they go through Lua.
_BYTES_ENOUGH = 1_048_576

_ADD, _PURGE, _REDRIVE = load("letter_add"), load("letter_purge"), load("letter_redrive")
_REVIVE, _DROP, _DESTROY = load("queue_redrive"), load("letter_drop"), load("letter_destroy")

# As lua/dead_letters.lua packs it.
_Record = tuple[str, str, str, int, int, int, int, str, str, str, str, str]
_decode = msgspec.msgpack.Decoder(_Record).decode

# Of an event what comes behind its data: its CloudEvent's attributes, and some fields of a few hundred bytes.
_TAIL_BYTES = ATTRIBUTES_BYTES_MAX + 2_048


@dataclass(frozen=True)
class Stamped:
    """A letter's id and its stamp."""

    id: str
    stamp: int


@dataclass(frozen=True)
class LettersTaken:
    """How many ids a call went through before the registry changed, and how many of them were letters."""

    through: int
    letters: int


@dataclass(frozen=True)
class DroppedLetters:
    """How many letters a call dropped, and their bytes."""

    letters: int
    bytes: int


def packed(letter: DeadLetter) -> dict[str, Packable]:
    """A letter as `add_dead_letter` takes it; the script knows when it died."""
    return {
        "id": letter.id,
        "topic": letter.topic,
        "tenant": letter.tenant,
        "reason": letter.reason,
        "status": letter.status,
        "attempts": letter.attempts,
        "accepted_at": letter.accepted_at,
        "detail": letter.detail,
        "answer_headers": "\n".join(letter.answer_headers),
        "answer": letter.answer,
        "batch": letter.batch,
        "event": letter.event.decode(),
    }


async def add(partition: Partition, receiver: str, letters: Sequence[DeadLetter]) -> None:
    """Keep letters; at most `SETTLED_MAX`."""
    await partition.run(_ADD, receiver=receiver, letters=[packed(letter) for letter in letters])


async def purge(
    partition: Partition, receiver: str, ids: Sequence[str], *, version: int, job: str = ""
) -> LettersTaken:
    """Destroy letters of one who has them by the registry of this version. What a job wants is counted for it."""

    def run(some: Sequence[str]) -> Awaitable[Reply]:
        bounds = {"version": version, "bytes_enough": _BYTES_ENOUGH}
        return partition.run(_PURGE, receiver=receiver, ids=some, job=job, **bounds)

    return await _in_pieces(ids, run)


async def redrive(
    partition: Partition, receiver: Subscriber, ids: Sequence[str], *, version: int, job: str = ""
) -> LettersTaken:
    """Have a subscriber, as it is in the registry of this version, sent the events of its letters once more."""

    def run(some: Sequence[str]) -> Awaitable[Reply]:
        return partition.run(
            _REDRIVE,
            version=version,
            receiver=receiver.token,
            ids=some,
            bytes_enough=_BYTES_ENOUGH,
            job=job,
            events_max=receiver.max_events,
            bytes_max=receiver.max_bytes,
            uids="".join([uid() for _ in some]),
        )

    return await _in_pieces(ids, run)


async def revive(
    partition: Partition, queue: RegisteredQueue, ids: Sequence[str], *, version: int, job: str = ""
) -> LettersTaken:
    """Bring letters back to their queue, as it is in the registry of this version, each to its place."""

    def run(some: Sequence[str]) -> Awaitable[Reply]:
        bounds = {"version": version, "bytes_enough": _BYTES_ENOUGH}
        return queues.run(partition, _REVIVE, queue, ids=some, job=job, **bounds)

    return await _in_pieces(ids, run)


async def drop_oldest(
    partition: Partition,
    receiver: str,
    *,
    owner: str = "",
    letters_max: int = SETTLED_MAX,
    bytes_enough: int = _BYTES_ENOUGH,
) -> DroppedLetters:
    """Drop the oldest letters, until one of the bounds is met; the journal has what they were.

    `owner` is the client that has the queue, who then finds that in the journal; empty for root and for subscribers.
    """
    dropped, size = cast(
        "tuple[int, int]",
        await partition.run(
            _DROP,
            receiver=receiver,
            owner=owner,
            letters_max=min(letters_max, SETTLED_MAX),
            bytes_enough=min(bytes_enough, _BYTES_ENOUGH),
            tail_bytes=_TAIL_BYTES,
        ),
    )
    return DroppedLetters(dropped, size)


async def done(partition: Partition, jobs: Sequence[str]) -> dict[str, int]:
    """How many letters each job has redriven or purged here."""
    if not jobs:
        return {}
    kept = await partition.command("HMGET", partition.key("dead:done"), *jobs)
    return {job: int(count or 0) for job, count in zip(jobs, cast("list[bytes | None]", kept), strict=True)}


async def forget_done(partition: Partition, jobs: Sequence[str]) -> None:
    if jobs:
        await partition.command("HDEL", partition.key("dead:done"), *jobs)


async def read(partition: Partition, receiver: str, ids: Sequence[str]) -> list[DeadLetter]:
    """Those of the letters that are there, in this order."""
    found: list[DeadLetter] = []
    for start in range(0, len(ids), _RECORDS):
        page = ids[start : start + _RECORDS]
        records = await partition.command("HMGET", partition.key(f"dead:letters:{receiver}"), *page)
        pairs = zip(page, cast("list[bytes | None]", records), strict=True)
        found += [_letter(id_, record) for id_, record in pairs if record is not None]
    return found


async def each(partition: Partition, receiver: str, *, most: int) -> AsyncIterator[DeadLetter]:
    """The oldest letters, one by one."""
    seen = 0
    async for page in _pages(partition, receiver, LetterFilter(), after=0, upto=None, most=_RECORDS):
        for letter in await read(partition, receiver, [stamped.id for stamped in page]):
            yield letter
        seen += len(page)
        if seen >= most:
            return


async def choose(
    partition: Partition, receiver: str, chosen: LetterFilter, *, most: int, after: int = 0, upto: int | None = None
) -> list[Stamped]:
    """The oldest letters that a filter means, beyond the stamp `after` and up to `upto`."""
    found: list[Stamped] = []
    async for page in _pages(partition, receiver, chosen, after=after, upto=upto, most=most):
        found += page
        if len(found) >= most:
            break
    return found[:most]


async def count(partition: Partition, receiver: str, chosen: LetterFilter) -> int:
    """How many letters a filter means."""
    if len(chosen.values) > 1:
        pages = _pages(partition, receiver, chosen, after=0, upto=None, most=_PAGE)
        return sum([len(page) async for page in pages])
    least, most = _bounds(chosen, after=0, upto=None)
    [index] = _indexes(partition, receiver, chosen)
    return cast("int", await partition.command("ZCOUNT", index, least, most))


async def totals(partition: Partition, receiver: str) -> LetterTotals:
    """All letters of a receiver, in one round trip."""
    commands: list[list[Encoded]] = [
        ["ZRANGE", partition.key(f"dead:counts:{receiver}:{field}"), 0, _VALUES_MAX - 1, "REV", "WITHSCORES"]
        for field in FIELDS
    ]
    commands.append(["ZCARD", partition.key(f"dead:index:{receiver}")])
    commands.append(["ZSCORE", partition.key("dead:bytes"), receiver])
    *counts, total, size = await partition.commands(commands)
    by = {field: _scores(found) for field, found in zip(FIELDS, counts, strict=True)}
    return LetterTotals(cast("int", total), int(float(cast("bytes | None", size) or 0)), by)


async def counts(partition: Partition, receivers: Sequence[str]) -> dict[str, int]:
    """How many letters each receiver has."""
    replies = await partition.commands([["ZCARD", partition.key(f"dead:index:{name}")] for name in receivers])
    return dict(zip(receivers, cast("list[int]", replies), strict=True))


async def oldest(partition: Partition, receiver: str) -> int | None:
    """The stamp of the oldest letter, if there is one."""
    found = await partition.command("ZRANGE", partition.key(f"dead:index:{receiver}"), 0, 0, "WITHSCORES")
    return next(iter(_scores(found).values()), None)


async def newest(partition: Partition, receivers: Sequence[str], *, most: int) -> list[tuple[str, Stamped]]:
    """The newest letters of these receivers together, each with whose it is."""
    asked: list[list[Encoded]] = [
        ["ZRANGE", partition.key(f"dead:index:{name}"), 0, most - 1, "REV", "WITHSCORES"] for name in receivers
    ]
    found = zip(receivers, await partition.commands(asked), strict=True)
    stamped = [(name, Stamped(id_, stamp)) for name, reply in found for id_, stamp in _scores(reply).items()]
    return sorted(stamped, key=lambda each: -each[1].stamp)[:most]


async def sizes(partition: Partition) -> dict[str, int]:
    """The receivers that have letters, and how many bytes these take."""
    reply = await partition.command("ZRANGE", partition.key("dead:bytes"), 1, "+inf", "BYSCORE", "WITHSCORES")
    return _scores(reply)


async def destroy(partition: Partition, receiver: str, *, version: int) -> bool:
    """Remove all letters of a receiver that this version of the registry does not have; safe to repeat.

    Returns False when the registry has changed since: it may be back, and have letters of its own.
    """
    while (reply := await partition.run(_DESTROY, receiver=receiver, values_max=_PAGE, version=version)) == 0:
        pass
    return reply == 1


async def _in_pieces(ids: Sequence[str], run: Callable[[Sequence[str]], Awaitable[Reply]]) -> LettersTaken:
    """Have a script go through ids, as many at a time as it will, until it goes through none."""
    start, total = 0, 0
    while start < len(ids):
        through, count = cast("tuple[int, int]", await run(ids[start : start + SETTLED_MAX]))
        if through == 0:
            break
        start, total = start + through, total + count
    return LettersTaken(start, total)


async def _pages(
    partition: Partition, receiver: str, chosen: LetterFilter, *, after: int, upto: int | None, most: int
) -> AsyncIterator[list[Stamped]]:
    """What a filter means in pieces of at most a page: letters of the rarest value that have the others too."""
    indexes = _indexes(partition, receiver, chosen)
    if len(indexes) > 1:
        sizes = cast("list[int]", await partition.commands([["ZCARD", index] for index in indexes]))
        indexes = [index for _, index in sorted(zip(sizes, indexes, strict=True))]
    rarest, *others = indexes
    size = _PAGE if others else min(most, _PAGE)
    while True:
        least, highest = _bounds(chosen, after=after, upto=upto)
        limits = ("BYSCORE", "LIMIT", 0, size, "WITHSCORES")
        page = [
            Stamped(id_, stamp)
            for id_, stamp in _scores(await partition.command("ZRANGE", rarest, least, highest, *limits)).items()
        ]
        yield await _in_all(partition, others, page)
        if len(page) < size:
            return
        after = page[-1].stamp


async def _in_all(partition: Partition, indexes: Sequence[str], page: Sequence[Stamped]) -> list[Stamped]:
    if not indexes or not page:
        return list(page)
    scores = await partition.commands([["ZMSCORE", index, *(each.id for each in page)] for index in indexes])
    rows = zip(*cast("list[list[bytes | None]]", scores), strict=True)
    return [each for each, row in zip(page, rows, strict=True) if None not in row]


def _indexes(partition: Partition, receiver: str, chosen: LetterFilter) -> list[str]:
    values = chosen.values.items()
    by = [partition.key(f"dead:by:{receiver}:{field}:{value}") for field, value in values]
    return by or [partition.key(f"dead:index:{receiver}")]


def _bounds(chosen: LetterFilter, *, after: int, upto: int | None) -> tuple[str, str]:
    """The least and the greatest stamp, as Redis writes ranges of scores."""
    begin, ends = (chosen.from_ms or 0) * _US, []
    least = f"({after}" if after >= begin else str(begin)
    if chosen.to_ms is not None:
        ends.append(chosen.to_ms * _US - 1)
    if upto is not None:
        ends.append(upto)
    return least, str(min(ends)) if ends else "+inf"


def _scores(reply: Reply) -> dict[str, int]:
    return {name: int(float(score)) for name, score in shared_connection.fields(reply).items()}


def _letter(id_: str, record: bytes) -> DeadLetter:
    topic, tenant, reason, status, attempts, accepted_at, died_at, detail, headers, answer, batch, event = _decode(
        record
    )
    return DeadLetter(
        id=id_,
        topic=topic,
        tenant=tenant,
        reason=reason,
        event=event.encode(),
        attempts=attempts,
        status=status,
        detail=detail,
        answer_headers=tuple(headers.split("\n")) if headers else (),
        answer=answer,
        accepted_at=accepted_at,
        died_at=died_at,
        batch=batch,
    )
