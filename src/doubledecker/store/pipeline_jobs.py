"""Pipeline jobs as kept at home: a hash for each kind, a job a field, changed only by a process that saw it last."""

from collections.abc import Callable
from typing import cast

import msgspec
from msgspec import structs

from doubledecker.errors import NotFound, TooMany
from doubledecker.model.pipeline_job import PipelineJob
from doubledecker.store.partitions import Partition
from doubledecker.store.scripts import load

REPLAYS, ERASURES = "replays", "erasures"
# Of each kind: those that are over are kept for a look at what was done, the oldest forgotten first.
KEPT_MAX = 200
ACTIVE_MAX = 50

Change = Callable[[PipelineJob], PipelineJob]

_REPLACE, _PACE = load("pipeline_job_replace"), load("replay_pace")
_decode = msgspec.json.Decoder(PipelineJob).decode
_SECOND_US = 1_000_000


async def create(home: Partition, kind: str, job: PipelineJob) -> PipelineJob:
    """Keep a new job, and return it as kept; raises TooMany while as many wait as may."""
    known = await read_all(home, kind)
    active = sum(each.is_active for each in known)
    if active >= ACTIVE_MAX:
        raise TooMany(f"{active} {kind} are not done yet; at most {ACTIVE_MAX} may be")
    over = [each.id for each in known if not each.is_active]
    if len(known) >= KEPT_MAX and over:
        await home.command("HDEL", home.key(kind), *over[: len(known) - KEPT_MAX + 1])
    # Two jobs of one millisecond would be listed in the order of their random ids.
    created_at = max([job.created_at, *(each.created_at + 1 for each in known)])
    kept = structs.replace(job, created_at=created_at)
    await home.run(_REPLACE, kind=kind, id=kept.id, former="", latter=msgspec.json.encode(kept))
    return kept


async def read_all(home: Partition, kind: str) -> list[PipelineJob]:
    """All jobs of a kind, the oldest first."""
    values = cast("list[bytes]", await home.command("HVALS", home.key(kind)))
    return sorted((_decode(value) for value in values), key=lambda job: (job.created_at, job.id))


async def read(home: Partition, kind: str, id_: str) -> PipelineJob:
    """One job; raises NotFound."""
    return _decode(await _packed(home, kind, id_))


async def change(home: Partition, kind: str, id_: str, by: Change) -> PipelineJob:
    """Change a job as it is now; `by` may be called again when another was faster. Raises NotFound."""
    while True:
        former = await _packed(home, kind, id_)
        changed = by(_decode(former))
        latter = msgspec.json.encode(changed)
        if latter == former or await home.run(_REPLACE, kind=kind, id=id_, former=former, latter=latter) == 1:
            return changed


async def keep_turn(home: Partition, replay: str, *, count: int, rate: int) -> int:
    """In how many milliseconds so many events of a replay may be sent, over all its tasks."""
    reply = await home.run(_PACE, id=replay, count=count, gap_us=max(1, _SECOND_US // rate))
    return cast("int", reply)


async def _packed(home: Partition, kind: str, id_: str) -> bytes:
    found = cast("bytes | None", await home.command("HGET", home.key(kind), id_))
    if found is None:
        raise NotFound(f"there is no {kind.removesuffix('s')} {id_[:80]!r}")
    return found
