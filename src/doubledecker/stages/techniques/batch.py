"""Batching: a worker takes several events at once.

Asking for ten things in one call is often as cheap as asking for one. The first event opens a batch and waits up to `wait_s` for
company; a full batch goes at once. What is inside is called once with the list of what each was called with, and gives
back a list in the same order. One failure fails the whole batch.

The worker is a task of its own, so that one caller who gives up does not take the answer from the others.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from doubledecker.stages.errors import ChainInvalid, QueueFull
from doubledecker.stages.event import Event
from doubledecker.stages.queues import Fifo, Queue, Waiter
from doubledecker.stages.stage import Stage


@dataclass
class Batch(Stage):
    """Up to `size_max` events a call, `workers` calls at a time."""

    size_max: int = 10
    wait_s: float = 0.0
    workers: int | None = 1
    queue: Queue | None = field(default_factory=Fifo)
