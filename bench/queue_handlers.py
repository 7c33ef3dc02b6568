"""A handler that does nothing, called by the runner in one process until the queue is empty; run as a child.

The clock runs from the first message handled to the last, so that starting the process is no part of it.
"""

import asyncio
import os
import sys
import time

import uvloop

from doubledecker.client import AsyncBus
from doubledecker.client.consumer import Consumer
from doubledecker.queues import consume

_CONCURRENCY = 10


async def main() -> None:
    count = int(sys.argv[2])
    if sys.argv[1] == "redis":
        async with consume.connected(os.environ["BENCH_REDIS_URL"]) as bus:
            print(await _handled(await bus.queue("work"), count), flush=True)
    else:
        async with AsyncBus(os.environ["BENCH_BUS_URL"], os.environ["BENCH_ROOT_KEY"]) as bus:
            print(await _handled(bus.queue("work"), count), flush=True)


async def _handled(queue: Consumer, count: int) -> float:
    """Messages handled a second."""
    done, began_s, ended_s = 0, 0.0, 0.0

    @queue.handler(concurrency=_CONCURRENCY)
    async def work(_message: object) -> None:
        nonlocal done, began_s, ended_s
        if done == 0:
            began_s = time.perf_counter()
        done += 1
        if done == count:
            ended_s = time.perf_counter()
            queue.stop()

    async with asyncio.timeout(120):
        await queue.run()
    return count / (ended_s - began_s)


if __name__ == "__main__":
    uvloop.run(main())
