"""Replaying in a Spark task: the rows of its lanes become events again, and are sent in order, paced and fenced."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b

import pyarrow as pa

from doubledecker.assembly import build
from doubledecker.assembly.build import BusParts
from doubledecker.assembly.settings import Settings
from doubledecker.bus.replay_writer import PastEvent, Rank, ReceiverTarget, ReplayTarget, Sender, TopicTarget
from doubledecker.model.position import Position
from doubledecker.model.replay import Replay
from doubledecker.pipeline.lake import stored_events
from doubledecker.pipeline.spark_format import publish_task
from doubledecker.store.partitions import Partition

SENT = pa.schema([("sent", pa.int64()), ("passed", pa.int64()), ("refused", pa.int64())])

Targets = Callable[[Partition], ReplayTarget]


@dataclass(frozen=True)
class Work:
    """What a task has to know of its replay."""

    settings: Settings
    id: str
    replay: Replay

    def task(self, lane: int) -> str:
        """What the fence calls a lane of this replay."""
        return blake2b(f"replay\0{self.id}\0{lane}".encode(), digest_size=16).hexdigest()


def send(batches: Iterable[pa.RecordBatch], *, work: Work) -> Iterator[pa.RecordBatch]:
    """In a task: send all rows; returns how many were sent now, how many before, and how many full queues refused."""
    yield pa.RecordBatch.from_pylist([asyncio.run(_send_all(work, batches))], schema=SENT)


async def _send_all(work: Work, batches: Iterable[pa.RecordBatch]) -> dict[str, int]:
    senders: dict[int, Sender] = {}
    async with build.open_bus(work.settings) as bus, _open_targets(bus, work) as targets:
        for batch in batches:
            for lane, pasts in _by_lane(batch).items():
                if lane not in senders:
                    senders[lane] = _sender(bus, work, targets, lane)
                await senders[lane].send(pasts)
    return {name: sum(getattr(each, name) for each in senders.values()) for name in SENT.names}


def _sender(bus: BusParts, work: Work, targets: Targets, lane: int) -> Sender:
    partition = bus.partitions.all[lane % len(bus.partitions.all)]
    return Sender(
        targets(partition),
        bus.registry,
        home=bus.partitions.home,
        partition=partition,
        task=work.task(lane),
        id_=work.id,
        rate=work.replay.rate,
    )


@asynccontextmanager
async def _open_targets(bus: BusParts, work: Work) -> AsyncIterator[Targets]:
    """The targets by partition; at the end listeners have been notified, or a moment has passed."""
    if work.replay.target != "topic":
        yield lambda partition: ReceiverTarget(partition, work.replay, work.id)
        return
    async with publish_task.notifying(bus, work.settings) as notifiers:
        yield lambda partition: TopicTarget(partition, work.replay, work.id, bus.headroom, notifiers[partition.index])


def _by_lane(batch: pa.RecordBatch) -> dict[int, list[PastEvent]]:
    found: dict[int, list[PastEvent]] = {}
    ranks = zip(*(batch[name].to_pylist() for name in ("lane", "partition", "entry", "line")), strict=True)
    for (lane, partition, entry, line), event in zip(ranks, stored_events.events(batch), strict=True):
        at = Position.parse(entry)
        found.setdefault(lane, []).append(PastEvent(Rank(at.ms, partition, at.seq, line), event))
    return found
