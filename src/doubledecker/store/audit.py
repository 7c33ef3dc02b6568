"""The audit trail in Redis: what was begun, and the newest records of what was done; all of it at home.

An action is noted in `audit:begun` before it changes anything, and its record is written to `journal:audit` when it is
over. What a process that died leaves begun is recorded later, as unknown: so no change goes without a record.

Unlike other journals this one is not cut when the archive has confirmed it: web processes that cannot read the lake
show it too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from doubledecker.model.attempt import AttemptPlace
from doubledecker.model.audit import AuditFilter, AuditRecord, ListedRecord
from doubledecker.model.position import Position
from doubledecker.store import journal, shared_connection
from doubledecker.store.journal import JournalEntry
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import load

# Some fifty thousand records; one of a bus that is set up by hand has a few hundred.
BYTES_MAX = 16_777_216
# A client's records in Redis: no client pushes out what others did.
CLIENT_MAX = 4_000
_CUTS_MAX = 20
# Longer than any request takes: bodies have ten seconds, and the longest purge some more.
LEFT_MS = 300_000
_BEGUN = "audit:begun"
_FIELD = "audit"
# One call looks at so many entries, some 100 KB, and a request at so many calls.
_ENTRIES_MAX, _CALLS_MAX = 500, 20
_END = load("audit_end")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AuditRecord).decode


@dataclass(frozen=True)
class RecordsFound:
    """Records, newest first; `reached` is the last place that was looked at, None when Redis has no more.

    `whole_from` is where all that was recorded is still there: what is older may have been cut.
    """

    records: Sequence[ListedRecord]
    reached: AttemptPlace | None
    whole_from: AttemptPlace | None


async def begin(home: Partition, record: AuditRecord) -> None:
    """Note an action before it changes anything."""
    await home.write("HSET", home.key(_BEGUN), record.request, _encode(record))


async def end(home: Partition, begun: AuditRecord, record: AuditRecord | None) -> None:
    """Keep the record of an action that is over; None when nothing was changed."""
    await _end(home, begun, record, is_left=False)


async def end_left(home: Partition, *, now_ms: int) -> int:
    """Record, as unknown, what was begun so long ago that nobody will end it; returns how many."""
    begun = shared_connection.texts(await home.command("HGETALL", home.key(_BEGUN)))
    found = [_decode(text) for text in begun.values()]
    left = [each for each in found if each.at <= now_ms - LEFT_MS]
    return sum([await _end(home, each, each, is_left=True) for each in left])


async def newest(home: Partition, wanted: AuditFilter, *, limit: int) -> RecordsFound:
    """The newest that are wanted, as far as one request may look."""
    # First: what is cut while entries are read was there when this was asked.
    trimmed = cast("bytes | None", await home.command("HGET", home.key("journal"), "audit_trimmed"))
    found: list[ListedRecord] = []
    last, reached = _last(wanted), AttemptPlace(2**63, 0, 0)
    for _ in range(_CALLS_MAX):
        reply = await home.command(
            "XREVRANGE", home.key("journal:audit"), last, wanted.from_ms or "-", "COUNT", _ENTRIES_MAX
        )
        entries = journal.entries(reply)
        listed = [ListedRecord(AttemptPlace.of(each.id, home.index), _record(each)) for each in entries]
        found += [each for each in listed if wanted.fits(each.record)]
        if len(found) >= limit or len(entries) < _ENTRIES_MAX:
            break
        last, reached = f"({entries[-1].id}", listed[-1].place
    is_whole = len(found) < limit and len(entries) < _ENTRIES_MAX
    if len(found) >= limit:
        found = found[:limit]
        reached = found[-1].place
    whole_from = AttemptPlace.of(trimmed.decode(), home.index) if trimmed else None
    return RecordsFound(found, None if is_whole else reached, whole_from)


def _last(wanted: AuditFilter) -> str:
    """Where to begin, as XREVRANGE has it."""
    top = Position(wanted.to_ms, 0) if wanted.to_ms is not None else None
    before = wanted.before and Position(wanted.before.ms, wanted.before.seq)
    first = min((each for each in (top, before) if each is not None), default=None)
    if first is None:
        return "+"
    # Redis refuses to be asked for what is older than the first of all.
    return f"({first}" if first > Position(0, 0) else "0-0"


def _record(entry: JournalEntry) -> AuditRecord:
    return _decode(dict(entry.fields)[_FIELD])


async def _end(home: Partition, begun: AuditRecord, record: AuditRecord | None, *, is_left: bool) -> int:
    kept = await home.run(
        _END,
        request=begun.request,
        is_left=int(is_left),
        client=begun.client,
        record=b"" if record is None else _encode(record),
        client_max=CLIENT_MAX,
        bytes_max=BYTES_MAX,
        cuts_max=_CUTS_MAX,
    )
    return cast("int", kept)
