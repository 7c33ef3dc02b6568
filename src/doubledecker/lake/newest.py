"""The newest rows of a table that fit, read without Spark and beside the event loop, as far as bounds allow."""

import asyncio
from dataclasses import dataclass
from functools import partial

from duckdb import DuckDBPyConnection

from doubledecker.errors import LakeMoved, LakeUnfit, ReadTooLarge
from doubledecker.lake import engine, snapshots
from doubledecker.lake.queries import Found, Query, Row
from doubledecker.lake.reads import ReadContext
from doubledecker.model import moment
from doubledecker.model.attempt import AttemptPlace

_TRIES = 5
# Of what one request reads: about half a second of two cores. The next goes on where it ended.
_FILES_MAX = 1_000
_BYTES_MAX = 134_217_728
# Of the first part; each has twice as many as the one before, so a receiver's last attempts are found at once.
_PART_BYTES = 4_194_304


@dataclass(frozen=True)
class NewestRows:
    """Rows, newest first; before `reached` none were looked at, None when the lake has no more."""

    rows: Found
    reached: AttemptPlace | None = None


async def read(ground: ReadContext, query: Query) -> NewestRows:
    """The newest that fit; none where there is no lake. Raises LakeUnfit when it cannot be read."""
    async with ground.slots, engine.opened_aside() as connection:
        for _ in range(_TRIES):
            try:
                return await _read(ground, query, connection)
            except LakeMoved:
                continue  # an erasure deleted files meanwhile: a newer version has others
    raise LakeUnfit(f"the lake cannot be read, tried {_TRIES} times: its files are being deleted")


def place(row: Row) -> AttemptPlace:
    """Where a row stands among all."""
    return AttemptPlace.of(str(row["entry"]), int(str(row["partition"])))


async def _read(ground: ReadContext, query: Query, connection: DuckDBPyConnection) -> NewestRows:
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
        found = sorted([*found, *more], key=place, reverse=True)[: query.limit]
    return NewestRows(found, place(found[-1]) if len(found) == query.limit else None)


def _cut(found: Found, unread_us: int, query: Query) -> NewestRows:
    """What was found after the end of all that was not read: others may stand between those before it."""
    end = AttemptPlace(unread_us // 1000 + 1, 0, 0)
    if query.before is not None and end >= query.before:
        raise ReadTooLarge("too many files have rows of one time; the pipeline compacts them")
    return NewestRows([row for row in found if place(row) >= end], end)


def _select(paths: list[str], query: Query, connection: DuckDBPyConnection) -> Found:
    return engine.select_files(connection, paths, query)


def _at_us(row: Row) -> int:
    return moment.to_us(moment.parse(str(row["at"])))
