"""Attempts that have landed, newest first, read without Spark and beside the event loop, as far as bounds allow."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from duckdb import DuckDBPyConnection

from doubledecker.errors import LakeMoved, LakeUnfit, ReadTooLarge
from doubledecker.lake import engine, queries, snapshots
from doubledecker.lake.queries import Found, Query, Row
from doubledecker.lake.reads import ReadContext
from doubledecker.model import moment
from doubledecker.model.attempt import IDS_MAX, AttemptFilter, AttemptPlace, ListedAttempt

_TRIES = 5
# Of what one request reads: about half a second of two cores. The next goes on where it ended.
_FILES_MAX = 1_000
_BYTES_MAX = 134_217_728
# Of the first part; each has twice as many as the one before, so a receiver's last attempts are found at once.
_PART_BYTES = 4_194_304


@dataclass(frozen=True)
class LandedAttempts:
    """Attempts, newest first; before `reached` none were looked at, None when the lake has no more."""

    attempts: Sequence[ListedAttempt]
    reached: AttemptPlace | None = None


async def newest(ground: ReadContext, wanted: AttemptFilter, *, limit: int, ids_max: int = IDS_MAX) -> LandedAttempts:
    """The newest that are wanted; none where there is no lake. Raises LakeUnfit when it cannot be read."""
    query = queries.newest_attempts(wanted, limit=limit, ids_max=ids_max)
    async with ground.slots, engine.opened_aside() as connection:
        for _ in range(_TRIES):
            try:
                return await _read(ground, query, connection)
            except LakeMoved:
                continue  # an erasure deleted files meanwhile: a newer version has others
    raise LakeUnfit(f"the lake cannot be read, tried {_TRIES} times: its files are being deleted")


async def read(ground: ReadContext, place: AttemptPlace, *, ids_max: int) -> ListedAttempt | None:
    """One attempt, with so many of the ids that it carried; None when it has not landed."""
    wanted = AttemptFilter(from_ms=place.ms, before=AttemptPlace(place.ms, place.seq, place.partition + 1))
    found = await newest(ground, wanted, limit=1, ids_max=ids_max)
    return next((each for each in found.attempts if each.place == place), None)


async def _read(ground: ReadContext, query: Query, connection: DuckDBPyConnection) -> LandedAttempts:
    whole = await asyncio.to_thread(snapshots.read, ground.root, query.name, partitions=len(ground.bus.all))
    found: Found = []
    files, size = 0, 0
    for part in whole.between(query.since, query.until).newest_first().parts(_PART_BYTES):
        if len(found) == query.limit and _at_us(found[-1]) > part.end:
            break
        # The first is read whatever its size: each request comes further.
        is_too_much = files > 0 and (files + len(part.files) > _FILES_MAX or size + part.bytes > _BYTES_MAX)
        files, size = files + len(part.files), size + part.bytes
        if is_too_much:
            return _cut(found, part.end, query)
        more = await engine.run(connection, partial(_select, part.paths(), query))
        found = sorted([*found, *more], key=_place, reverse=True)[: query.limit]
    listed = [_listed(row) for row in found]
    return LandedAttempts(listed, listed[-1].place if len(listed) == query.limit else None)


def _cut(found: Found, unread_us: int, query: Query) -> LandedAttempts:
    """What was found after the end of all that was not read: others may stand between those before it."""
    end = AttemptPlace(unread_us // 1000 + 1, 0, 0)
    if query.before is not None and end >= query.before:
        raise ReadTooLarge("too many files have rows of one time; the pipeline compacts them")
    return LandedAttempts([_listed(row) for row in found if _place(row) >= end], end)


def _select(paths: list[str], query: Query, connection: DuckDBPyConnection) -> Found:
    return engine.select_files(connection, paths, query)


def _at_us(row: Row) -> int:
    return moment.to_us(moment.parse(str(row["at"])))


def _place(row: Row) -> AttemptPlace:
    return AttemptPlace.of(str(row["entry"]), int(str(row["partition"])))


def _listed(row: Mapping[str, object]) -> ListedAttempt:
    def number(name: str) -> int | None:
        return None if row[name] is None else int(str(row[name]))

    events = row["events"]
    assert isinstance(events, list)
    return ListedAttempt(
        place=_place(dict(row)),
        receiver=str(row["subscriber"]),
        batch=str(row["batch"]),
        attempt=number("attempt") or 0,
        outcome=str(row["outcome"]),
        status=number("status"),
        took_ms=number("took_ms") or 0,
        at=moment.to_ms(moment.parse(str(row["attempted_at"]))),
        events=[str(each) for each in events],
        event_count=number("event_count") or 0,
        bytes=number("bytes"),
        detail=str(row["detail"] or ""),
        retry_ms=number("retry_ms"),
        accepted_at=moment.to_ms(moment.parse(str(row["accepted_at"]))) if row["accepted_at"] else 0,
        owner=str(row["owner"] or ""),
    )
