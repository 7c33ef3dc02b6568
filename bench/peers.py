"""Peers: two well-known job queues on the same kind of Valkey, doing nothing, and doing what a delivery does.

A worker is started on a backlog. Its rate is taken between two looks at the length of its queue, the first when it has
begun, the last when the queue is empty or the time is over; the few jobs in its hands at either look do not matter.
"""

import asyncio
import importlib.util
from dataclasses import dataclass

from redis.asyncio import Redis

from bench import children
from bench.bus import a_server
from bench.children import a_receiver
from bench.scale import Scale

_START_S_MAX = 30.0
_GLANCE_S = 0.02


@dataclass(frozen=True)
class Peer:
    """A job queue: the module with its jobs, the list in which they wait, and how its worker is started."""

    name: str
    module: str
    queue: str
    worker: tuple[str, ...]
    shape: str

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.name) is not None


PEERS = (
    Peer(
        name="dramatiq",
        module="bench.jobs_dramatiq",
        queue="dramatiq:default",
        worker=("dramatiq", "bench.jobs_dramatiq", "--processes", "1", "--threads", "8"),
        shape="one worker process with 8 threads, its default number",
    ),
    Peer(
        name="celery",
        module="bench.jobs_celery",
        queue="celery",
        worker=("celery", "--app", "bench.jobs_celery", "worker", "--loglevel", "ERROR", "--concurrency", "2"),
        shape="one worker with 2 prefork children, its default on two cores",
    ),
)


async def measure(scale: Scale) -> dict[str, float]:
    figures: dict[str, float] = {}
    for peer in PEERS:
        if peer.is_installed:
            for job in ("noop", "post"):
                figures |= await _measure(peer, job, scale)
    return figures


async def _measure(peer: Peer, job: str, scale: Scale) -> dict[str, float]:
    async with a_server() as server, a_receiver() as receiver, Redis.from_url(server.url) as redis:
        environment = {"BENCH_REDIS_URL": server.url, "BENCH_RECEIVER_PORT": receiver.url.rpartition(":")[2]}
        async with children.started(peer.module, job, str(scale.jobs), environment=environment) as publisher:
            enqueued_per_s = float(await publisher.line(within_s=_START_S_MAX + scale.patience_s))
        async with children.started(*peer.worker, environment=environment):
            done_per_s = await _rate(redis, peer.queue, within_s=scale.patience_s)
    return {f"{peer.name}.{job}.enqueued_per_s": enqueued_per_s, f"{peer.name}.{job}.done_per_s": done_per_s}


async def _rate(redis: Redis, queue: str, *, within_s: float) -> float:
    """Jobs a second that leave the queue."""
    loop = asyncio.get_running_loop()
    waiting = await redis.llen(queue)
    async with asyncio.timeout(_START_S_MAX):
        while (first := await redis.llen(queue)) == waiting:  # noqa: ASYNC110 - a look from outside
            await asyncio.sleep(_GLANCE_S)
    first_s = loop.time()
    left = first
    while left > 0 and loop.time() < first_s + within_s:
        await asyncio.sleep(_GLANCE_S)
        left = await redis.llen(queue)
    return (first - left) / (loop.time() - first_s)
