"""A consumer in a process of its own, next to Redis: pulls, works a little, acks, and writes down what it got."""

import asyncio
import random
import sys
from pathlib import Path

from doubledecker.errors import BusAway
from doubledecker.model.queue import RegisteredQueue
from doubledecker.queues.ring import Bell, Rings
from doubledecker.store.partitions import wait_for
from doubledecker.store.queues import LeasedMessage

LEASE_MS = 1_000


async def consume(url: str, count: int, queue: RegisteredQueue, ledger: Path) -> None:
    partitions = await wait_for(url, namespace="rm:", count=count, patience_s=30)
    bell = Bell(partitions)
    rings = Rings(partitions, bell)
    with ledger.open("a", buffering=1) as book:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bell.run())
            while True:
                try:
                    pull = await rings.pull_waiting(queue, most=random.choice([1, 5, 20]), wait_ms=1_000)
                    book.writelines(f"got {message.id} {message.attempt}\n" for message in pull.messages)
                    await asyncio.sleep(random.uniform(0, 0.05))
                    held = [LeasedMessage(message.id, message.attempt) for message in pull.messages]
                    # Some are given back, some are left to their leases.
                    back = [each for each in held if random.random() < 0.05]
                    await rings.nack(queue, back)
                    acked = await rings.ack(queue, [each for each in held if each not in back])
                    book.writelines(f"acked {id_}\n" for id_ in acked)
                except BusAway:
                    await asyncio.sleep(0.05)


if __name__ == "__main__":
    _, redis_url, partitions_count, path = sys.argv
    work = RegisteredQueue("work", "", (".*",), lease_ms=LEASE_MS, attempts_max=1_000)
    asyncio.run(consume(redis_url, int(partitions_count), work, Path(path)))
