"""One event's whole life: when it was accepted, where it waits now, every attempt that carried it, its replays."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import msgspec

from doubledecker.errors import BadRequest
from doubledecker.lake import engine, queries, reads, rows
from doubledecker.lake.queries import Found, Query, Row
from doubledecker.lake.reads import ReadContext, Reader
from doubledecker.model import condition, moment
from doubledecker.model.pipeline_job import PipelineJob
from doubledecker.model.replay import Replay
from doubledecker.store import locate, pipeline_jobs
from doubledecker.store.locate import Location
from doubledecker.store.pipeline_jobs import REPLAYS

# Attempts are made after acceptance, by the same clock, unless that clock was set back.
_BEFORE = timedelta(minutes=10)


@dataclass(frozen=True)
class EventHistory:
    """All that is known of one event; the lists are empty when there is none.

    `attempts_until` is from when on attempts that have landed were not looked at, because they are too many; None when
    all were.
    """

    events: Found
    attempts: Found
    waiting: Found
    replays: Found
    attempts_until: str | None = None


async def look(
    ground: ReadContext, id_: str, *, since: datetime | None = None, reader: Reader | None = None
) -> EventHistory:
    """Look for an event in lake, journal and Redis.

    Attempts are looked for from `since` on, or from acceptance on; they have no index of ids, so of many files the
    earliest are read: most events are delivered within minutes.
    """
    accepted = await reads.find(ground, queries.event(id_), reader=reader)
    if not accepted:
        return EventHistory([], [], [], [])
    begin = since or min(_at(row) for row in accepted) - _BEFORE
    attempts = await reads.find_far(ground, queries.attempts(id_, since=begin), reader=reader)
    seen = [each for partition in ground.bus.all for each in await locate.find(partition, id_)]
    kept = await pipeline_jobs.read_all(ground.bus.home, REPLAYS)
    waiting, sent = [_row(each) for each in seen], await replays(accepted, kept)
    until = moment.to_text(attempts.until) if attempts.until else None
    return EventHistory(accepted, attempts.found, waiting, sent, until)


def _row(location: Location) -> Row:
    return {name: getattr(location, name) for name in ("kind", "name", "id", "attempts", "why", "replay")}


async def replays(accepted: Found, kept: Sequence[PipelineJob]) -> Found:
    """The remembered replays that have sent it: by what was asked for, and how far they have come.

    `sent` is null when that is not known: a condition in Spark's own SQL is evaluated by Spark alone.
    """
    found = []
    for job in kept:
        asked = msgspec.json.decode(job.asked, type=Replay)
        if asked.dry_run or not job.done:
            continue
        likely = [row for row in accepted if _is_likely(row, asked, upto_ms=min(asked.upto_ms, job.cursor))]
        is_sent = await _fits(likely, asked.where) if likely else False
        if is_sent is not False:
            known = {"id": job.id, "at": job.created_at, "state": job.state}
            found.append({**known, "target": asked.target, "name": asked.name, "sent": is_sent})
    return found


def _is_likely(row: Row, asked: Replay, *, upto_ms: int) -> bool:
    is_within = asked.from_ms <= moment.to_ms(_at(row)) < upto_ms
    return is_within and asked.topic in {"", row["topic"]} and asked.tenant in {"", row["tenant"]}


async def _fits(likely: Found, text: str) -> bool | None:
    """Whether one of some events fits a replay's condition; None when it is not one of ours."""
    if not text:
        return True
    try:
        query = Query("events", condition.parse_where(text), limit=1)
    except BadRequest:
        return None
    columns = {name: [row.get(name) for row in likely] for name in rows.shown("events")}
    columns["at"] = [moment.to_us(_at(row)) for row in likely]
    with engine.opened() as connection:
        return bool(await engine.run(connection, partial(engine.select_rows, columns=columns, query=query)))


def _at(row: Row) -> datetime:
    return moment.parse(str(row["at"]))
