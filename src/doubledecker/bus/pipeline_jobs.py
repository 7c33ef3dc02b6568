"""Asks for pipeline jobs: who may have what replayed to whom, and what erased; the pipeline carries them out.

A client may have any event replayed that its token may see, but only to what is its own: its subscriber, its
queues, its topics. A condition in SQL is for root alone: it is run by the pipeline, and SQL can do more than compare.
"""

from collections.abc import Sequence

import msgspec
from msgspec import structs

from doubledecker import clock
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import BadRequest, Conflict, Forbidden, NotFound, TopicOwned, TopicReserved
from doubledecker.model import erasure as erasing
from doubledecker.model import replay as replaying
from doubledecker.model.erasure import Erasure, ErasureAsked
from doubledecker.model.pipeline_job import PipelineJob
from doubledecker.model.replay import Replay, ReplayAsked
from doubledecker.model.reserved import is_reserved
from doubledecker.model.token import Caller
from doubledecker.model.uid import uid
from doubledecker.store import pipeline, pipeline_jobs, registry
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.store.pipeline_jobs import ERASURES, REPLAYS

# The note of a job that nobody would carry out now.
_LEFT_ALONE = frozenset({"cancelled", "failed"})
NO_PIPELINE = "no pipeline runs on this bus; it waits for one: start it with `doubledecker pipeline run`"


class PipelineJobs:
    """Takes jobs from callers, and shows each its own; root has them all."""

    def __init__(self, partitions: Partitions, live: LiveRegistry, *, rate: int) -> None:
        self._partitions = partitions
        self._registry = live
        self._rate = rate

    async def ask_replay(self, asked: ReplayAsked, caller: Caller) -> PipelineJob:
        """Keep a replay for the pipeline; raises when the caller may not have it, or there is no such target."""
        if asked.where is not None and not caller.is_root:
            raise Forbidden(
                "where is SQL that the pipeline runs, and only the root key may give it; use topic and tenant"
            )
        replay = replaying.plan(asked, now_ms=await self._home.time_ms(), rate=self._rate)
        caller.scopes.check_topics([replay.topic] if replay.topic else [], to="replay")
        caller.scopes.check_tenants([replay.tenant] if replay.tenant else [], to="replay")
        await self._registry.refresh()
        return await self._keep(REPLAYS, await self._aimed(replay, caller), caller)

    async def ask_erasure(self, asked: ErasureAsked, caller: Caller) -> PipelineJob:
        return await self._keep(ERASURES, erasing.plan(asked, now_ms=await self._home.time_ms()), caller)

    async def list_(self, kind: str, caller: Caller) -> list[PipelineJob]:
        """Those that the caller may see, the newest first."""
        found = await pipeline_jobs.read_all(self._home, kind)
        mine = [each for each in reversed(found) if caller.is_admin or each.owner == caller.id]
        return await self._noted(mine)

    async def read(self, kind: str, id_: str, caller: Caller) -> PipelineJob:
        """One that the caller may see."""
        found = await pipeline_jobs.read(self._home, kind, id_)
        if not caller.is_admin and found.owner != caller.id:
            raise Forbidden(f"{kind.removesuffix('s')} {id_!r} belongs to another client")
        [noted] = await self._noted([found])
        return noted

    async def cancel(self, kind: str, id_: str, caller: Caller) -> PipelineJob:
        """End one that is not over; what is sent stays sent."""
        await self.read(kind, id_, caller)
        now_ms = await self._home.time_ms()
        return await pipeline_jobs.change(self._home, kind, id_, lambda now: _cancelled(now, kind, now_ms))

    @property
    def _home(self) -> Partition:
        return self._partitions.home

    async def _aimed(self, replay: Replay, caller: Caller) -> Replay:
        """The replay with its target's own name, if the caller may have it sent there."""
        if replay.target == "queue":
            await self._registry.queue(replay.name, caller=caller)
            return replay
        if replay.target == "subscriber":
            return structs.replace(replay, name=self._subscriber(replay.name, caller))
        if is_reserved(replay.name):
            raise TopicReserved(replay.name)
        caller.scopes.check_topics([replay.name], to="publish on")
        [rights] = await registry.topic_rights(self._home, [replay.name])
        if rights is not None and not caller.is_admin and not rights.allow(caller.id):
            raise TopicOwned(replay.name, rights.owner)
        if rights is None and caller.is_root:
            raise NotFound(
                f"no topic named {replay.name!r}; the first client that publishes on it owns it, and root cannot"
            )
        if rights is None:
            await self._registry.topics.claim([replay.name], publisher=caller.id)
        # Who may not publish there, an admin or root, does so in its owner's name.
        return structs.replace(replay, publisher=caller.id if not rights or rights.allow(caller.id) else rights.owner)

    def _subscriber(self, named: str, caller: Caller) -> str:
        """A subscriber's id, given that or a name that is its alone."""
        found = self._registry.snapshot.subscribers_named(named)
        if not caller.is_admin:
            own = [each for each in found if self._registry.snapshot.owner_of(each) == caller.id]
            if not own and (found or named.partition("/")[0] not in {caller.id, caller.name}):
                raise Forbidden(f"subscriber {named[:80]!r} is not yours; a client replays to its own")
            found = own
        if not found:
            raise NotFound(f"no subscriber named {named[:80]!r}")
        if len(found) > 1:
            raise BadRequest(
                f"{len(found)} subscribers are named {named[:80]!r}; give an id, one of {', '.join(found)}"
            )
        return found[0]

    async def _keep(self, kind: str, asked: msgspec.Struct, caller: Caller) -> PipelineJob:
        now_ms = await self._home.time_ms()
        owner = "" if caller.is_root else caller.id
        job = PipelineJob(uid(), owner, msgspec.Raw(msgspec.json.encode(asked)), now_ms, changed_at=now_ms)
        [noted] = await self._noted([await pipeline_jobs.create(self._home, kind, job)])
        return noted

    async def _noted(self, found: Sequence[PipelineJob]) -> list[PipelineJob]:
        """The jobs; those that are not over get a note when no pipeline runs that could carry them out."""
        if not any(each.is_active for each in found):
            return list(found)
        run = (await pipeline.read(self._home)).run
        if run is not None and run.is_alive(clock.now_ms()):
            return list(found)
        return [structs.replace(each, note=NO_PIPELINE) if each.is_active else each for each in found]


async def asked_erasures(home: Partition) -> list[Erasure]:
    """What was erased, or is about to be: the journal may still have it."""
    kept = await pipeline_jobs.read_all(home, ERASURES)
    found = [msgspec.json.decode(each.asked, type=Erasure) for each in kept if each.state not in _LEFT_ALONE]
    return [erasure for erasure in found if not erasure.dry_run]


def _cancelled(now: PipelineJob, kind: str, now_ms: int) -> PipelineJob:
    if not now.is_active:
        raise Conflict(f"{kind.removesuffix('s')} {now.id!r} is over: {now.state}")
    return structs.replace(now, state="cancelled", note="", changed_at=now_ms)
