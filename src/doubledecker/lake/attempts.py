"""Attempts that have landed, newest first, read without Spark and beside the event loop, as far as bounds allow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from doubledecker.lake import newest as newest_rows
from doubledecker.lake import queries
from doubledecker.lake.reads import ReadContext
from doubledecker.model import moment
from doubledecker.model.attempt import IDS_MAX, AttemptFilter, AttemptPlace, ListedAttempt


@dataclass(frozen=True)
class LandedAttempts:
    """Attempts, newest first; before `reached` none were looked at, None when the lake has no more."""

    attempts: Sequence[ListedAttempt]
    reached: AttemptPlace | None = None


async def newest(ground: ReadContext, wanted: AttemptFilter, *, limit: int, ids_max: int = IDS_MAX) -> LandedAttempts:
    """The newest that are wanted; none where there is no lake. Raises LakeUnfit when it cannot be read."""
    found = await newest_rows.read(ground, queries.newest_attempts(wanted, limit=limit, ids_max=ids_max))
    return LandedAttempts([_listed(row) for row in found.rows], found.reached)


async def read(ground: ReadContext, place: AttemptPlace, *, ids_max: int) -> ListedAttempt | None:
    """One attempt, with so many of the ids that it carried; None when it has not landed."""
    wanted = AttemptFilter(from_ms=place.ms, before=AttemptPlace(place.ms, place.seq, place.partition + 1))
    found = await newest(ground, wanted, limit=1, ids_max=ids_max)
    return next((each for each in found.attempts if each.place == place), None)


def _listed(row: Mapping[str, object]) -> ListedAttempt:
    def number(name: str) -> int | None:
        return None if row[name] is None else int(str(row[name]))

    events = row["events"]
    assert isinstance(events, list)
    return ListedAttempt(
        place=newest_rows.place(dict(row)),
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
