"""Jobs that redrive or purge a receiver's dead letters at a rate, in the background.

1. Whoever asks writes what is to be done, and an aux job of home; the sweep adds that again if it is missing.
2. A worker does a second's worth at a time. Each letter is taken, and counted for the job, by one script.
3. When no letter is left that the job is for, its end is written.

A process that dies leaves the aux job to another, which goes on with what is still there.
"""

from dataclasses import replace

from doubledecker.bus import dead_letters
from doubledecker.bus.dead_letters import Action, LetterOwner
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import Conflict, NotFound, RetryLater
from doubledecker.model.dead_letter import LetterFilter
from doubledecker.model.job import Job
from doubledecker.model.uid import uid
from doubledecker.store import dead_letters as kept_letters
from doubledecker.store import jobs, letter_jobs
from doubledecker.store.letter_jobs import LetterJob, State
from doubledecker.store.partitions import Partition, Partitions

# The name of its aux job.
NAME = "letters"
# Jobs of a receiver that are remembered.
_KEPT_MAX = 20
_STEP_MS = 1_000


class LetterJobs:
    """The jobs of all receivers: begun and looked at by web processes, carried out by workers."""

    def __init__(self, partitions: Partitions, live: LiveRegistry) -> None:
        self._partitions = partitions
        self._live = live

    async def begin(self, owner: LetterOwner, action: Action, chosen: LetterFilter, *, rate_per_s: float) -> LetterJob:
        """Have the letters that a filter means redriven or purged; raises Conflict while another job of theirs runs."""
        known = await self.of(owner)
        running = next((job.id for job in known if job.state == "running"), None)
        if running is not None:
            raise Conflict(f"job {running!r} is at work on these letters; cancel it, or wait until it is done")
        await self._forget([job.id for job in known[_KEPT_MAX - 1 :]])
        count = await dead_letters.count(self._partitions, owner, chosen)
        now_ms = await dead_letters.latest_ms(self._partitions)
        job = LetterJob(uid(), owner.token, action, rate_per_s, count, now_ms, chosen)
        await letter_jobs.write(self._home, job)
        await self._push(job)
        return job

    async def of(self, owner: LetterOwner) -> list[LetterJob]:
        """The jobs of a receiver, the newest first."""
        return [job for job in reversed(await letter_jobs.read_all(self._home)) if job.receiver == owner.token]

    async def find(self, owner: LetterOwner, id_: str) -> LetterJob:
        """One of them; raises NotFound."""
        job = await letter_jobs.read(self._home, id_)
        if job is None or job.receiver != owner.token:
            raise NotFound(f"no job {id_[:80]!r} on these letters")
        return job

    async def done(self, ids: list[str]) -> dict[str, int]:
        """How many letters each job has redriven or purged."""
        parts = [await kept_letters.done(partition, ids) for partition in self._partitions.all]
        return {id_: sum(part[id_] for part in parts) for id_ in ids}

    async def cancel(self, owner: LetterOwner, id_: str) -> LetterJob:
        """End a job, what it has done stays done; raises Conflict when it has ended."""
        job = await self.find(owner, id_)
        if job.state != "running":
            raise Conflict(f"job {id_!r} has ended: it is {job.state}")
        return await self._end(job, "cancelled")

    async def step(self, id_: str) -> None:
        """Do a second's worth of a job, and ask to be called again unless it has ended."""
        job = await letter_jobs.read(self._home, id_)
        if job is None or job.state != "running":
            return
        owner = await self._owner(job.receiver)
        if owner is None:
            await self._end(job, "gone")
            return
        pause_ms = max(_STEP_MS, round(1_000 / job.rate_per_s))
        most = max(1, round(job.rate_per_s * pause_ms / 1_000))
        try:
            done = await dead_letters.settle(
                self._partitions,
                self._live,
                owner,
                job.action,
                job.chosen,
                most=most,
                until_ms=job.asked_at,
                job=job.id,
            )
        except NotFound:
            await self._end(job, "gone")
            return
        if done == 0:
            await self._end(job, "done")
            return
        raise RetryLater(pause_ms)

    async def sweep(self) -> None:
        """Have jobs carried out whose process died as it began them, and forget those of receivers that are gone."""
        known = await letter_jobs.read_all(self._home)
        for job in known:
            if job.state == "running":
                await self._push(job)
        snapshot = self._live.snapshot
        await self._forget(
            [job.id for job in known if job.state != "running" and not snapshot.is_receiver(job.receiver)]
        )

    @property
    def _home(self) -> Partition:
        return self._partitions.home

    async def _owner(self, token: str) -> LetterOwner | None:
        if not self._live.snapshot.is_receiver(token):
            await self._live.refresh()
        snapshot = self._live.snapshot
        if not snapshot.is_receiver(token):
            return None
        if token.startswith("@"):
            queue = snapshot.queues[token[1:]]
            return LetterOwner(queue.receiver, queue)
        return LetterOwner(snapshot.subscribers[token])

    async def _end(self, job: LetterJob, state: State) -> LetterJob:
        ended = replace(job, state=state, ended_at=await self._home.time_ms())
        await letter_jobs.write(self._home, ended)
        return ended

    async def _push(self, job: LetterJob) -> None:
        await jobs.push(self._home, Job(NAME, (job.id,)))

    async def _forget(self, ids: list[str]) -> None:
        await letter_jobs.forget(self._home, ids)
        for partition in self._partitions.all:
            await kept_letters.forget_done(partition, ids)
