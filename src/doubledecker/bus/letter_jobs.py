"""Jobs that redrive or purge a receiver's dead letters at a rate, in the background.

1. A request writes the job, and an aux job of home, one a receiver; the sweep adds the aux job if it is missing.
2. A worker takes what is due, some at a time. Each letter is taken, and counted for the job, by one script.
3. When no letter is left that the job is for, its end is written.

A process that dies leaves the aux job to another, which goes on with what is still there.

What is due follows from the time since the job began and from how many letters were taken, so that a rate holds however
long the work takes, and nothing is due twice when a worker dies. Letters that were due while no worker had time are
not made up for, beyond those of a second: else they came all at once, to a receiver that was to be spared that.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from doubledecker.bus import dead_letters
from doubledecker.bus.dead_letters import Action, LetterOwner
from doubledecker.bus.publish_rate import Pacer
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import Conflict, NotFound, QuotaExceeded, RetryLater
from doubledecker.model.dead_letter import LetterFilter
from doubledecker.model.job import Job
from doubledecker.model.uid import uid
from doubledecker.store import dead_letters as kept_letters
from doubledecker.store import jobs, letter_jobs
from doubledecker.store.letter_jobs import LetterJob, State
from doubledecker.store.partitions import Partition, Partitions

# The name of its aux job.
NAME = "dead letters"
# Jobs of a receiver that are remembered.
_KEPT_MAX = 20
# Letters that a step takes, while other chores wait: some tens of milliseconds, or tenths of a second at 64 KiB each.
_TAKEN_MAX = 500
# A step takes what is due in so long: half of what is made up for, so that one that comes late loses nothing.
_STEP_MS = 500
_BURST_MS = 1_000
# A job that is begun when another of its receiver was cancelled waits for that one's next step.
_WAIT_MS_MAX = 5_000


class LetterJobs:
    """The jobs of all receivers: begun and looked at by web processes, carried out by workers."""

    def __init__(self, partitions: Partitions, live: LiveRegistry) -> None:
        self._partitions = partitions
        self._live = live
        self._pacer = Pacer(partitions, live)

    async def begin(self, owner: LetterOwner, action: Action, chosen: LetterFilter, *, rate_per_s: float) -> LetterJob:
        """Have the letters that a filter means redriven or purged; raises Conflict while another job of theirs runs.

        One over no letters is done at once, and nothing is kept of it.
        """
        known = await letter_jobs.of(self._home, owner.token)
        kept = _kept(known, owner)
        asked_at = await dead_letters.latest_ms(self._partitions)
        died = replace(chosen, to_ms=asked_at + 1 if chosen.to_ms is None else min(chosen.to_ms, asked_at + 1))
        count = await dead_letters.count(self._partitions, owner, died)
        job = LetterJob(
            uid(), owner.token, owner.client, action, rate_per_s, count, asked_at, await self._home.time_ms(), died
        )
        if count == 0:
            return replace(job, state="done", ended_at=asked_at)
        # Before the jobs: their counts are found by these alone.
        await self._forget_done([each for each in known if each not in kept])
        await letter_jobs.change(self._home, owner.token, lambda known: [*_kept(known, owner), job])
        await self._push(job)
        return job

    async def of(self, owner: LetterOwner) -> list[LetterJob]:
        """The jobs of a receiver, the newest first."""
        return [job for job in reversed(await letter_jobs.of(self._home, owner.token)) if job.client == owner.client]

    async def find(self, owner: LetterOwner, id_: str) -> LetterJob:
        """One of them; raises NotFound."""
        for job in await self.of(owner):
            if job.id == id_:
                return job
        raise NotFound(f"no job {id_[:80]!r} on these letters; GET …/dead/jobs lists the last {_KEPT_MAX}")

    async def done(self, ids: list[str]) -> dict[str, int]:
        """How many letters each job has redriven or purged."""
        parts = [await kept_letters.done(partition, ids) for partition in self._partitions.all]
        return {id_: sum(part[id_] for part in parts) for id_ in ids}

    async def cancel(self, owner: LetterOwner, id_: str) -> LetterJob:
        """End a job, what it has done stays done; raises Conflict when it has ended."""
        job = await self.find(owner, id_)
        if not job.is_running:
            raise Conflict(f"job {id_!r} has ended: it is {job.state}")
        await self._end(job, "cancelled")
        ended = await self.find(owner, id_)
        if ended.state != "cancelled":
            raise Conflict(f"job {id_!r} has just ended: it is {ended.state}")
        return ended

    async def step(self, receiver: str) -> None:
        """Take what is due of a receiver's job, and ask to be called again until none runs."""
        for job in await letter_jobs.of(self._home, receiver):
            if job.is_running:
                raise RetryLater(await self._work(job))

    async def look_again(self, receiver: str) -> None:
        """Have a job carried out that was begun as the aux job ended.

        That did not see it, and kept another from being added.
        """
        for job in await letter_jobs.of(self._home, receiver):
            if job.is_running:
                await self._push(job)

    async def sweep(self) -> None:
        """Have jobs carried out whose process died as it began them, and forget those of receivers that are gone."""
        for job in await letter_jobs.running(self._home):
            await self._push(job)
        holders = await letter_jobs.receivers(self._home)
        if all(map(self._live.snapshot.is_receiver, holders)):
            return
        # One that was registered since the last look has its jobs by right.
        await self._live.refresh()
        for receiver in holders:
            if not self._live.snapshot.is_receiver(receiver):
                await self._forget(receiver)

    @property
    def _home(self) -> Partition:
        return self._partitions.home

    async def _work(self, job: LetterJob) -> int:
        """Take what is due; returns how long until the next step, also when the job has ended: another may begin."""
        owner = await self._owner(job)
        if owner is None:
            await self._end(job, "gone")
            return _STEP_MS
        now_ms = await self._home.time_ms()
        done = (await self.done([job.id]))[job.id]
        job = await self._paced(job, done=done, now_ms=now_ms)
        most = min(due(job, done=done, now_ms=now_ms), job.count - done)
        try:
            await dead_letters.admit(self._pacer, owner, job.action, most)
            taken = await self._take(job, owner, most)
        except NotFound:
            await self._end(job, "gone")
            return _STEP_MS
        except QuotaExceeded as error:
            # Its owner publishes as much as it may, or has as much waiting.
            return min(_WAIT_MS_MAX, 1_000 * max(1, error.retry_after_s or 0))
        if taken < most or done + taken >= job.count:
            await self._end(job, "done")
            return _STEP_MS
        return wait_ms(job, done=done + taken, now_ms=await self._home.time_ms())

    async def _owner(self, job: LetterJob) -> LetterOwner | None:
        owner = LetterOwner.find(self._live.snapshot, job.receiver, client=job.client)
        if owner is None:
            await self._live.refresh()
            owner = LetterOwner.find(self._live.snapshot, job.receiver, client=job.client)
        return owner

    async def _take(self, job: LetterJob, owner: LetterOwner, most: int) -> int:
        return await dead_letters.settle(
            self._partitions,
            self._live,
            owner,
            job.action,
            job.chosen,
            most=most,
            until_ms=job.asked_at,
            job=job.id,
        )

    async def _paced(self, job: LetterJob, *, done: int, now_ms: int) -> LetterJob:
        """Written before a letter is taken: else one who dies then would have what was missed made up for."""
        caught_up = catch_up(job, done=done, now_ms=now_ms)
        if caught_up != job:
            await self._replace(job, caught_up)
        return caught_up

    async def _end(self, job: LetterJob, state: State) -> None:
        """Write the end of a job, unless it has ended."""
        await self._replace(job, replace(job, state=state, ended_at=await self._home.time_ms()))

    async def _replace(self, former: LetterJob, latter: LetterJob) -> None:
        def by(known: Sequence[LetterJob]) -> list[LetterJob]:
            return [latter if job.id == former.id and job.is_running else job for job in known]

        await letter_jobs.change(self._home, former.receiver, by)

    async def _push(self, job: LetterJob) -> None:
        await jobs.push(self._home, Job(NAME, (job.receiver,)))

    async def _forget(self, receiver: str) -> None:
        known = await letter_jobs.of(self._home, receiver)
        await self._forget_done(known)
        await letter_jobs.change(self._home, receiver, lambda now: [] if now == known else now)

    async def _forget_done(self, known: Sequence[LetterJob]) -> None:
        for partition in self._partitions.all:
            await kept_letters.forget_done(partition, [job.id for job in known])


def due(job: LetterJob, *, done: int, now_ms: int) -> int:
    """How many letters a step may take now: the first of a job at once, and each other by its rate."""
    by_now = math.floor((now_ms - job.paced_from) * job.rate_per_s / 1_000) + 1
    return min(_TAKEN_MAX, max(0, by_now - done))


def catch_up(job: LetterJob, *, done: int, now_ms: int) -> LetterJob:
    """The job with its rate counted from later on, if it is behind by more than is made up for."""
    late_ms = math.ceil(now_ms - _BURST_MS - _due_ms(job, done))
    return replace(job, paced_from=job.paced_from + late_ms) if late_ms > 0 else job


def wait_ms(job: LetterJob, *, done: int, now_ms: int) -> int:
    """How long until the next step, for which enough is due: one letter at least, or none when that takes long."""
    enough = min(_TAKEN_MAX, max(1, math.floor(job.rate_per_s * _STEP_MS / 1_000)))
    return min(_WAIT_MS_MAX, max(1, math.ceil(_due_ms(job, done + enough - 1)) - now_ms))


def _due_ms(job: LetterJob, done: int) -> float:
    """When the next letter is due, after so many."""
    return job.paced_from + done * 1_000 / job.rate_per_s


def _kept(known: Sequence[LetterJob], owner: LetterOwner) -> list[LetterJob]:
    """What stays of a receiver's jobs beside a new one; raises Conflict while one runs.

    Those of another client, whose queue had its name, do not.
    """
    own = [job for job in known if job.client == owner.client]
    for job in own:
        if job.is_running:
            raise Conflict(f"job {job.id!r} is at work on these letters; cancel it, or wait until it is done")
    return own[1 - _KEPT_MAX :]
