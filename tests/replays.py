"""Pipeline jobs in tests: asked for as a caller asks, and carried out round by round as the pipeline does."""

import asyncio
from dataclasses import replace

from msgspec import structs

from doubledecker.assembly import build
from doubledecker.bus.pipeline_jobs import PipelineJobs
from doubledecker.model.erasure import ErasureAsked
from doubledecker.model.pipeline_job import PipelineJob
from doubledecker.model.replay import ReplayAsked
from doubledecker.model.token import Caller
from doubledecker.pipeline.erase.eraser import Eraser
from doubledecker.pipeline.replay.replayer import Replayer
from doubledecker.pipeline.search import SparkReadContext
from doubledecker.store import pipeline_jobs
from doubledecker.store.pipeline_jobs import ERASURES, REPLAYS
from harness import quick_settings
from lakes import Lake

ROOT = Caller("", "root", is_root=True)


class Desk:
    """Asks for jobs on a lake's bus, and carries them out."""

    def __init__(self, lake: Lake, topology: object, **settings: object) -> None:
        self.settings = replace(quick_settings(topology), **{"replay_rate_per_s": 1_000_000, **settings})
        self.ground = SparkReadContext(lake.spark, lake.access, lake.root)
        self.replayer = Replayer(self.ground, self.settings)
        self.eraser = Eraser(self.ground)

    async def ask(self, caller: Caller = ROOT, **asked: object) -> PipelineJob:
        async with build.open_bus(self.settings) as bus:
            desk = PipelineJobs(bus.partitions, bus.registry, rate=self.settings.replay_rate_per_s)
            return await desk.ask_replay(ReplayAsked(**asked), caller)

    async def ask_erasure(self, **asked: object) -> PipelineJob:
        async with build.open_bus(self.settings) as bus:
            desk = PipelineJobs(bus.partitions, bus.registry, rate=1)
            return await desk.ask_erasure(ErasureAsked(**asked), ROOT)

    async def read(self, job: PipelineJob, kind: str = REPLAYS) -> PipelineJob:
        async with build.open_bus(self.settings) as bus:
            return await pipeline_jobs.read(bus.partitions.home, kind, job.id)

    async def replay(self, caller: Caller = ROOT, **asked: object) -> PipelineJob:
        """Ask for a replay and carry it out to its end."""
        job = await self.ask(caller, **asked)
        await self.run()
        return await self.read(job)

    async def run(self) -> None:
        async with asyncio.timeout(240):
            while (await asyncio.to_thread(self.replayer.round)).has_more:
                pass

    async def erase(self, **asked: object) -> PipelineJob:
        job = await self.ask_erasure(**asked)
        await self.run_erasures(job)
        return await self.read(job, ERASURES)

    async def run_erasures(self, job: PipelineJob) -> None:
        """Rounds, as many as it takes."""
        async with asyncio.timeout(240):
            while (await self.read(job, ERASURES)).is_active:
                await asyncio.to_thread(self.eraser.round)

    async def set(self, job: PipelineJob, **changes: object) -> None:
        async with build.open_bus(self.settings) as bus:
            change = lambda now: structs.replace(now, **changes)  # noqa: E731 - read where it is used
            await pipeline_jobs.change(bus.partitions.home, REPLAYS, job.id, change)
