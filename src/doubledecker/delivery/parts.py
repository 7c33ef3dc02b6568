"""Parts of a batch that was not taken as a whole: halves, what the receiver named as failed, dead letters. Pure.

A batch is in Redis, so a worker names only where it is cut (lua/delivery_turn.lua).
"""

from collections.abc import Collection, Sequence

import msgspec

from doubledecker.model import dead_letter
from doubledecker.model.batch_part import BatchDivision, Halves, LanePart, Remainder
from doubledecker.model.dead_letter import DeadLetter
from doubledecker.model.event import DEFAULT_TENANT
from doubledecker.model.outcome import NAMED, Outcome
from doubledecker.model.uid import uid

# A division takes out the events of so many lanes: each is about 15 µs of the server's time. The next takes out more.
LANES_DIVIDED_MAX = 200


class _Origin(msgspec.Struct, gc=False):
    """What a dead letter is found by, and in which lane it was."""

    id: str = ""
    topic: str = ""
    tenant: str = DEFAULT_TENANT
    key: str = ""


_decode = msgspec.json.Decoder(_Origin).decode


def _origin(line: bytes) -> _Origin:
    """Also of what is no event, which no attempt can be made at: it must be given up like any other."""
    try:
        return _decode(line)
    except msgspec.DecodeError:
        return _Origin()


def halves(chunks: Sequence[bytes], events: int, *, attempts: int = 0) -> Halves:
    """The middle of a batch of at least two events; a chunk holds lines, of which there may be many or one."""
    wanted, size = events // 2, 0
    left = wanted
    for index, chunk in enumerate(chunks):
        lines = chunk.count(b"\n") + 1
        if lines > left:
            at = 0
            for _ in range(left):
                at = chunk.index(b"\n", at) + 1
            # Line breaks are not counted as a batch's bytes.
            return Halves(index, at, wanted, size + at - left, attempts)
        size += len(chunk) - (lines - 1)
        left -= lines
        if left == 0:
            return Halves(index + 1, 0, wanted, size, attempts)
    raise ValueError(f"{events} events were expected, and there are fewer")


def chosen(chunks: Sequence[bytes], ids: Collection[str]) -> list[bytes]:
    """The lines of the events with these ids."""
    return [line for chunk in chunks for line in chunk.split(b"\n") if _decode(line).id in ids]


def remainder(chunks: Sequence[bytes], failed: Collection[str]) -> Remainder:
    """The events with these ids."""
    lines = chosen(chunks, failed)
    return Remainder(b"\n".join(lines).decode(), len(lines), sum(map(len, lines)))


def lane(line: bytes) -> str:
    """What an event is in order with: those of its tenant with its key or, without one, of its topic."""
    event = _origin(line)
    return f"{event.tenant}/{event.key}" if event.key else f"{event.tenant}:{event.topic}"


def division(chunks: Sequence[bytes], held: Collection[str]) -> BatchDivision | None:
    """A batch without the events of lanes that are held, or of many of these; None when it has none of them."""
    changed: list[tuple[int, str]] = []
    waiting: dict[str, list[bytes]] = {}
    left: list[bytes] = []
    for index, chunk in enumerate(chunks):
        kept: list[bytes] = []
        for line in chunk.split(b"\n"):
            whose = lane(line)
            is_out = whose in held and (whose in waiting or len(waiting) < LANES_DIVIDED_MAX)
            (waiting.setdefault(whose, []) if is_out else kept).append(line)
        left += kept
        if len(kept) <= chunk.count(b"\n"):
            changed.append((index, b"\n".join(kept).decode()))
    if not waiting:
        return None
    parts = [LanePart(whose, uid(), b"\n".join(lines).decode(), *_size(lines)) for whose, lines in waiting.items()]
    return BatchDivision(changed, *_size(left), parts)


def _size(lines: Sequence[bytes]) -> tuple[int, int]:
    return len(lines), sum(map(len, lines))


def letters(
    lines: Sequence[bytes],
    outcome: Outcome,
    *,
    reason: str,
    attempts: int,
    accepted_at: int,
    batch: str,
    partition: int,
) -> list[DeadLetter]:
    """A dead letter for each event, with the last answer."""
    found = []
    for line in lines:
        origin = _origin(line)
        found.append(
            DeadLetter(
                id=f"{partition}-{uid()}",
                topic=origin.topic,
                tenant=origin.tenant,
                reason=reason,
                event=line,
                attempts=attempts,
                status=outcome.status or 0,
                detail=NAMED if outcome.is_delivered else outcome.detail,
                answer_headers=outcome.answer_headers,
                answer=dead_letter.text(outcome.answer),
                accepted_at=accepted_at,
                batch=batch,
            )
        )
    return found
