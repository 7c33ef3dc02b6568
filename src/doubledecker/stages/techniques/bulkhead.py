"""Bulkhead: so many at a time, some waiting, the rest turned away.

A ship's bulkheads keep one leak from flooding the whole. A slow dependency floods its callers with waiting work; a
bound on what may be inside it leaves the rest of the process its memory, its connections and its time.
"""

from dataclasses import dataclass

from doubledecker.stages.queues import Queue
from doubledecker.stages.stage import Stage
from doubledecker.stages.workers import WorkerPool


@dataclass
class Bulkhead(Stage):
    """`workers` at a time; the others wait in `queue`, or are rejected when there is none or it is full."""

    workers: int | WorkerPool | None = 16
    queue: Queue | None = None
