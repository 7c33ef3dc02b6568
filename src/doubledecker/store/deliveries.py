"""Deliveries: jobs of batches in the hands of slots, given out by the ring of receivers (lua/receiver_ring.lua).

One call does all that a process wants of a partition: it settles what its slots have done, and gives those that are
free their next jobs, with the batches opened.
"""

import random
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
from msgspec import structs

from doubledecker.model.batch_part import BatchDivision, Halves, Remainder
from doubledecker.model.dead_letter import DeadLetter
from doubledecker.model.settlement import Settlement
from doubledecker.store import dead_letters
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import Packable, load

# Due jobs and receivers that one call moves, and dead jobs that it ends: well under a millisecond of the server's time.
DUE_MAX = 200
# Settlements of one call: a millisecond or two of the server's time, and few enough to be written by one command.
SETTLED_MAX = 100
# Dead slots that one call forgets: each may hold a job of another receiver, and one command writes all receivers.
_SCRUBBED_MAX = 500
# A call gives no further job when the batches that it gives hold so much.
BYTES_MAX = 4_194_304
# A batch in several pieces that holds more than this is read only when the worker that has its job has room for it.
LARGE_BYTES = 65_536
# What comes before the events in a batch: token, creation time, attempts, number of events.
_HEAD = 4
# Processes that wait for the same moment wake this much later than the one that owns it, so that one wakes and not all.
LAG_MS = 30

_TURN, _SCRUB = load("delivery_turn"), load("delivery_scrub")


class OpenedBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch as it is delivered; `chunks` are lines of events, in order of acceptance."""

    bid: str
    token: str
    created_at: int
    attempts: int
    events: int
    chunks: Sequence[bytes]


class DeliveryJob(msgspec.Struct, frozen=True, gc=False):
    """A job in a slot's hands, as it is held there; `failures` are those of its receiver when it was given."""

    slot: str
    held: str
    failures: int
    batch: OpenedBatch | None
    # Lanes whose events must not be delivered with it: earlier ones of these are put aside.
    lanes: frozenset[str] = frozenset()
    # What its batch holds, while that is yet to be read.
    unread_bytes: int = 0

    @property
    def is_probe(self) -> bool:
        """Whether the receiver is failing, and this call is to find out if it still is."""
        return self.held.endswith(" 1")

    @property
    def token(self) -> str:
        return self.held.split(" ")[1]

    @property
    def size_bytes(self) -> int:
        return self.unread_bytes or (sum(map(len, self.batch.chunks)) if self.batch else 0)


class Settled(msgspec.Struct, frozen=True, gc=False):
    """What a slot has done: how its job is settled, and what is kept of the attempt, if there was one.

    `why` is what went wrong, if the receiver's owner is to be notified of it; `anew_since` is the receiver's as it was
    called.
    """

    job: DeliveryJob
    settlement: Settlement
    attempt: bytes = b""
    counts: Mapping[str, int] = {}
    why: str = ""
    anew_since: int = 0
    # What the batch is replaced with, unless it is done or tried again as it is.
    halves: Halves | None = None
    remainder: Remainder | None = None
    letters: Sequence[DeadLetter] = ()
    # Of an ordered receiver: the lane of an event that is put aside; what a batch is divided into by lanes that are
    # held, and how large a batch of such events may be.
    lane: str = ""
    # The lanes that its letters hold, one for each.
    blocked: Sequence[str] = ()
    division: BatchDivision | None = None
    size_max: tuple[int, int] = (0, 0)


class SettlementResult(msgspec.Struct, frozen=True, gc=False):
    """Whether a settlement counted, and the receiver's failures in a row before and after it."""

    is_ours: bool
    failures_before: int
    failures: int


class Turn(msgspec.Struct, frozen=True, gc=False):
    """What a turn gave, how long to wait for more (None: until the bell rings), and the result of each settlement.

    Receivers are to be called as the registry of this version has them.
    """

    wait_ms: int | None
    jobs: Sequence[DeliveryJob]
    results: Sequence[SettlementResult]
    version: int


async def turn(
    partition: Partition, settled: Sequence[Settled], slots: Sequence[str], *, process: str, probes_max: int
) -> Turn:
    """Settle, and give free slots their next jobs; of these no more than `probes_max` are for failing receivers."""
    # A name is sent once, however many settlements count by it.
    counted: dict[str, int] = {}
    reply = await partition.run(
        _TURN,
        *[each.attempt for each in settled],
        settled=[_packed(each, counted) for each in settled],
        counted=list(counted),
        slots=list(slots),
        probes_max=probes_max,
        process=process,
        lag_ms=LAG_MS + random.randrange(LAG_MS),  # noqa: S311 - spreads load, protects nothing
        due_max=DUE_MAX,
        bytes_max=BYTES_MAX,
    )
    wait_ms, flat, given, version, lanes = cast("tuple[int, list[int], list[bytes], int, list[bytes]]", reply)
    results = [SettlementResult(flat[i] == 1, flat[i + 1], flat[i + 2]) for i in range(0, len(flat), 3)]
    held = {lanes[i]: _names(lanes[i + 1]) for i in range(0, len(lanes), 2)} if lanes else {}
    jobs = [_job(given[i : i + 4], held) for i in range(0, len(given), 4)]
    await _read_small(partition, jobs)
    return Turn(None if wait_ms < 0 else wait_ms, jobs, results, version)


async def read(partition: Partition, jobs: Sequence[DeliveryJob]) -> list[DeliveryJob]:
    """Jobs with the events of their batches, by one round trip; a batch that was dropped meanwhile is gone."""
    if not jobs:
        return []
    keys = [partition.key(f"batch:{job.held.partition(' ')[0]}") for job in jobs]
    found = cast("list[list[bytes]]", await partition.commands([["LRANGE", key, _HEAD, -1] for key in keys]))
    return [_opened(job, chunks) for job, chunks in zip(jobs, found, strict=True)]


def _opened(job: DeliveryJob, chunks: Sequence[bytes]) -> DeliveryJob:
    assert job.batch is not None, "it is unread"
    batch = structs.replace(job.batch, chunks=chunks) if chunks else None
    return structs.replace(job, batch=batch, unread_bytes=0)


async def scrub(partition: Partition, *, dead_ms: int) -> tuple[int, int]:
    """Take jobs back from slots without a heartbeat; returns how many slots and jobs."""
    forgotten, returned, is_more = 0, 0, True
    while is_more:
        slots, jobs = cast("tuple[int, int]", await partition.run(_SCRUB, dead_ms=dead_ms, most=_SCRUBBED_MAX))
        forgotten, returned, is_more = forgotten + slots, returned + jobs, slots == _SCRUBBED_MAX
    return forgotten, returned


def _packed(settled: Settled, counted: dict[str, int]) -> Packable:
    job, what = settled.job, settled.settlement
    counts: list[Packable] = []
    for name, amount in settled.counts.items():
        counts += (counted.setdefault(name, len(counted) + 1), amount)
    return [
        job.slot,
        job.held,
        what.what,
        settled.anew_since,
        job.failures,
        int(what.raises),
        what.probe_ms,
        what.retry_ms,
        job.batch.events if job.batch else 0,
        counts,
        settled.why,
        what.parts_max,
        int(what.is_counted),
        _change(settled),
    ]


def _change(settled: Settled) -> Packable:
    """As lua/delivery_turn.lua takes it."""
    if settled.letters:
        return ["dead", [dead_letters.packed(letter) for letter in settled.letters], list(settled.blocked)]
    if settled.halves:
        return ["split", *structs.astuple(settled.halves)]
    pause_ms = settled.settlement.pause_ms
    if settled.remainder:
        return ["keep", *structs.astuple(settled.remainder), settled.lane, pause_ms]
    if settled.division:
        return _division(settled.division, settled.size_max)
    if settled.lane:
        return ["aside", settled.lane]
    return ["pause", pause_ms] if pause_ms else []


def _division(division: BatchDivision, size_max: tuple[int, int]) -> Packable:
    if division.events == 0 and len(division.lanes) == 1:
        return ["wait", division.lanes[0].lane]
    chunks = [word for pair in division.chunks for word in pair]
    lanes = [structs.astuple(lane) for lane in division.lanes]
    return ["divide", chunks, division.events, division.bytes, lanes, *size_max]


async def _read_small(partition: Partition, jobs: list[DeliveryJob]) -> None:
    """Read batches in several pieces, unless they are large.

    If the reply is lost, the slots get the same jobs again.
    """
    at = [i for i, job in enumerate(jobs) if 0 < job.unread_bytes <= LARGE_BYTES]
    for i, job in zip(at, await read(partition, [jobs[i] for i in at]), strict=True):
        jobs[i] = job


def _job(words: Sequence[bytes], lanes: Mapping[bytes, frozenset[str]]) -> DeliveryJob:
    slot, held, failures, parts = cast("tuple[bytes, bytes, int, list[bytes | int]]", words)
    text = held.decode()
    batch, unread_bytes = None, 0
    if parts[_HEAD:]:
        token, created_at, attempts, events, what = cast("tuple[bytes, bytes, bytes, bytes, bytes | int]", parts)
        unread_bytes, chunks = (what, []) if isinstance(what, int) else (0, [what])
        bid = text.partition(" ")[0]
        batch = OpenedBatch(bid, token.decode(), int(created_at), int(attempts), int(events), chunks)
    return DeliveryJob(slot.decode(), text, failures, batch, lanes.get(slot, frozenset()), unread_bytes)


def _names(lanes: bytes) -> frozenset[str]:
    return frozenset(lane.decode() for lane in cast("list[bytes]", lanes))
