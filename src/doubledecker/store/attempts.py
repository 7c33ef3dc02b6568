"""Attempts as the journals have them, newest first: found by reading backwards, a bounded number of entries."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from doubledecker.model.attempt import FAILED, IDS_MAX, AttemptFilter, AttemptPlace, ListedAttempt
from doubledecker.model.outcome import OutcomeKind
from doubledecker.store import journal
from doubledecker.store.journal import AttemptRecord
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.store.scripts import load
from doubledecker.store.shared_connection import Reply

# One call looks at so many entries, or bytes: some two milliseconds of the server, and others come in between.
_ENTRIES_MAX = 500
_BYTES_MAX = 1_048_576
# Of compressed entries, which are sent whatever is in them: one of a hundred events has some 500 bytes here, and twelve
# times as many inflated.
_PACKED_BYTES_MAX = 131_072
# So a request looks at ten thousand entries: of a busy bus a second's worth, of a quiet one days.
_CALLS_MAX = 20

_DELIVERED = OutcomeKind.DELIVERED.value
_FIND = load("attempts_find")
_RECORD = msgspec.json.Decoder(AttemptRecord)


@dataclass(frozen=True)
class AttemptsFound:
    """Attempts, newest first; `reached` is the last place that was looked at, None when the journals have no more.

    `is_partly_empty` says that some journal has no more, so that what came before may be in the lake.
    """

    attempts: Sequence[ListedAttempt]
    reached: AttemptPlace | None
    is_partly_empty: bool


async def newest(partitions: Partitions, wanted: AttemptFilter, *, limit: int) -> AttemptsFound:
    """The newest that are wanted, as far as one request may look."""
    top = AttemptPlace(wanted.to_ms, 0, 0) if wanted.to_ms is not None else None
    begin = min((each for each in (top, wanted.before) if each is not None), default=None)
    heads: dict[int, AttemptPlace | None] = {partition.index: begin for partition in partitions.all}
    found: list[ListedAttempt] = []
    for _ in range(_CALLS_MAX):
        # The one that is least far back, so that all are read to about the same time.
        index = max(heads, key=lambda each: heads[each] or _NEWEST)
        more, reached = await _find(partitions.all[index], wanted, heads[index], most=limit)
        found += more
        if reached is None:
            del heads[index]
        else:
            heads[index] = reached
        if not heads or len(_from(found, _horizon(heads))) >= limit:
            break
    horizon = _horizon(heads) if heads else None
    listed = sorted(_from(found, horizon), key=lambda each: each.place, reverse=True)
    reached = listed[limit - 1].place if len(listed) > limit else horizon
    return AttemptsFound(listed[:limit], reached, len(heads) < len(partitions.all))


async def read(partition: Partition, place: AttemptPlace, *, ids_max: int) -> ListedAttempt | None:
    """One attempt, with so many of the ids that it carried; None when the journal no longer has it."""
    reply = await partition.command("XRANGE", partition.key("journal:attempts"), place.entry, place.entry)
    for entry in journal.entries(reply):
        return _listed(partition, entry.id, _record(entry.fields[0][1]), ids_max)[0]
    return None


# Before it nothing was written yet.
_NEWEST = AttemptPlace(2**63, 0, 0)


def _horizon(heads: dict[int, AttemptPlace | None]) -> AttemptPlace:
    return max(each or _NEWEST for each in heads.values())


def _from(found: Sequence[ListedAttempt], horizon: AttemptPlace | None) -> list[ListedAttempt]:
    """Those at a place or after it."""
    return [each for each in found if horizon is None or each.place >= horizon]


async def _find(
    partition: Partition, wanted: AttemptFilter, before: AttemptPlace | None, *, most: int
) -> tuple[list[ListedAttempt], AttemptPlace | None]:
    """What one call finds, and where it ended; None at the journal's beginning."""
    last = "+"
    if before is not None and not before.ms and not before.seq:
        # Redis refuses to be asked for what is older than that.
        return [], None
    if before is not None:
        last = before.entry if partition.index < before.partition else f"({before.entry}"
    reply = await partition.run(
        _FIND,
        last=last,
        first=f"{wanted.from_ms}-0" if wanted.from_ms else "-",
        text=_sign(wanted),
        most=most,
        entries_max=_ENTRIES_MAX,
        bytes_max=_BYTES_MAX,
        packed_max=_PACKED_BYTES_MAX,
    )
    rows, ended = cast("tuple[Reply, bytes]", reply)
    # In a thread: inflating a megabyte takes some milliseconds.
    found = await asyncio.to_thread(_wanted_of, rows, partition, wanted) if rows else []
    return found, AttemptPlace.of(ended.decode(), partition.index) if ended else None


def _wanted_of(rows: Reply, partition: Partition, wanted: AttemptFilter) -> list[ListedAttempt]:
    """Those of the entries that are wanted; the call has looked for the sign only in what is not compressed."""
    sign = _sign(wanted).encode()
    texts = ((entry.id, entry.fields[0][1]) for entry in journal.entries(rows))
    listed = (_listed(partition, id_, _record(text)) for id_, text in texts if sign in text)
    return [each for each, record in listed if _fits(each, record, wanted)]


def _sign(wanted: AttemptFilter) -> str:
    """What the text of an attempt that is wanted has in it."""
    if wanted.event:
        return msgspec.json.encode(wanted.event).decode()
    if wanted.receivers is not None and len(wanted.receivers) == 1:
        [receiver] = wanted.receivers
        return f'"subscriber":{msgspec.json.encode(receiver).decode()}'
    return '"subscriber":'


def _record(text: bytes) -> AttemptRecord:
    return _RECORD.decode(text)


def _listed(
    partition: Partition, entry: str, record: AttemptRecord, ids_max: int = IDS_MAX
) -> tuple[ListedAttempt, AttemptRecord]:
    listed = ListedAttempt(
        place=AttemptPlace.of(entry, partition.index),
        receiver=record.subscriber,
        batch=record.batch,
        attempt=record.attempt,
        outcome=record.outcome,
        status=record.status,
        took_ms=record.took_ms,
        at=record.at,
        events=record.events[:ids_max],
        event_count=len(record.events),
        bytes=record.bytes or None,
        detail=record.detail,
        retry_ms=record.retry_ms,
        accepted_at=record.accepted_at,
        owner=record.owner,
    )
    return listed, record


def _fits(listed: ListedAttempt, record: AttemptRecord, wanted: AttemptFilter) -> bool:
    """Whether it is wanted; so far its time was looked at, and whether its text has the sign."""
    return (
        (wanted.receivers is None or listed.receiver in wanted.receivers)
        and (wanted.client is None or listed.is_of(wanted.client))
        and (not wanted.event or wanted.event in record.events)
        and (wanted.outcome in {"", listed.outcome} or (wanted.outcome == FAILED and listed.outcome != _DELIVERED))
        and wanted.status in {None, listed.status}
    )
