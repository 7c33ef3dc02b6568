"""Peers: well-known job queues on the same kind of Valkey, doing nothing, and doing what a delivery does.

A worker is started on a backlog. Its rate is taken between two looks at the length of its queue, the first when it has
begun, the last when the queue is empty or the time is over; the few jobs in its hands at either look do not matter.
"""

import asyncio
import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from redis.asyncio import Redis

from bench import children
from bench.bus import a_server
from bench.children import a_receiver
from bench.scale import Scale

_START_S_MAX = 30.0
_GLANCE_S = 0.02
_BULLMQ = Path(__file__).parent / "bullmq"
_INSTALL_S_MAX = 120


@dataclass(frozen=True)
class Peer:
    """A job queue: how its jobs are enqueued, the key in which they wait, and how its worker is started."""

    name: str
    title: str
    enqueue: tuple[str, ...]
    queue: str
    worker: tuple[str, ...]
    jobs: tuple[str, ...] = ("noop",)
    program: tuple[str, ...] = (sys.executable, "-m")
    is_stream: bool = False

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.name) is not None

    @property
    def version(self) -> str:
        return metadata.version(self.name)

    async def left(self, redis: Redis) -> int:
        """Jobs that no worker has taken yet."""
        if not self.is_stream:
            return await redis.llen(self.queue)
        groups = await redis.xinfo_groups(self.queue)
        return int(groups[0]["lag"])


@dataclass(frozen=True)
class NodePeer(Peer):
    """One that runs on Node; its packages are fetched when they are first needed."""

    @property
    def is_installed(self) -> bool:
        if shutil.which("node") is None or shutil.which("npm") is None:
            return False
        if not (_BULLMQ / "node_modules").exists():
            words = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--silent"]
            return subprocess.run(words, cwd=_BULLMQ, timeout=_INSTALL_S_MAX, check=False).returncode == 0
        return True

    @property
    def version(self) -> str:
        return json.loads((_BULLMQ / "package.json").read_text())["dependencies"][self.name]


PEERS = (
    Peer(
        name="dramatiq",
        title="Dramatiq",
        enqueue=("bench.jobs_dramatiq",),
        queue="dramatiq:default",
        worker=("dramatiq", "bench.jobs_dramatiq", "--processes", "1", "--threads", "8"),
        jobs=("noop", "post"),
    ),
    Peer(
        name="celery",
        title="Celery",
        enqueue=("bench.jobs_celery",),
        queue="celery",
        worker=("celery", "--app", "bench.jobs_celery", "worker", "--loglevel", "ERROR", "--concurrency", "2"),
        jobs=("noop", "post"),
    ),
    Peer(
        name="rq",
        title="RQ",
        enqueue=("bench.jobs_rq",),
        queue="rq:queue:default",
        worker=("rq.cli", "worker", "--quiet"),
    ),
    Peer(
        name="taskiq",
        title="taskiq",
        enqueue=("bench.jobs_taskiq",),
        queue="taskiq",
        worker=("taskiq", "worker", "bench.jobs_taskiq:broker", "--workers", "1", "--log-level", "ERROR"),
        is_stream=True,
    ),
    NodePeer(
        name="bullmq",
        title="BullMQ",
        enqueue=(str(_BULLMQ / "enqueue.js"),),
        queue="bull:bench:wait",
        worker=(str(_BULLMQ / "worker.js"),),
        program=("node",),
    ),
)


async def measure(scale: Scale) -> dict[str, float]:
    figures: dict[str, float] = {}
    for peer in PEERS:
        if peer.is_installed:
            for job in peer.jobs:
                figures |= await _measure(peer, job, scale)
    return figures


async def _measure(peer: Peer, job: str, scale: Scale) -> dict[str, float]:
    async with a_server() as server, a_receiver() as receiver, Redis.from_url(server.url) as redis:
        environment = {
            "BENCH_REDIS_URL": server.url,
            "RQ_REDIS_URL": server.url,
            "BENCH_RECEIVER_PORT": receiver.url.rpartition(":")[2],
        }
        asked = (*peer.enqueue, job, str(scale.jobs))
        async with children.started(*asked, environment=environment, program=peer.program) as publisher:
            enqueued_per_s = float(await publisher.line(within_s=_START_S_MAX + scale.patience_s))
        async with children.started(*peer.worker, environment=environment, program=peer.program):
            done_per_s = await _rate(redis, peer, within_s=scale.patience_s)
    return {f"{peer.name}.{job}.enqueued_per_s": enqueued_per_s, f"{peer.name}.{job}.done_per_s": done_per_s}


async def _rate(redis: Redis, peer: Peer, *, within_s: float) -> float:
    """Jobs a second that leave the queue."""
    loop = asyncio.get_running_loop()
    waiting = await peer.left(redis)
    async with asyncio.timeout(_START_S_MAX):
        while (first := await peer.left(redis)) == waiting:  # noqa: ASYNC110 - a look from outside
            await asyncio.sleep(_GLANCE_S)
    first_s = loop.time()
    left = first
    while left > 0 and loop.time() < first_s + within_s:
        await asyncio.sleep(_GLANCE_S)
        left = await peer.left(redis)
    return (first - left) / (loop.time() - first_s)
