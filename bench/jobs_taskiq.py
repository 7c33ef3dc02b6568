"""taskiq's side of the comparison, on its stream broker, the one that acknowledges: the jobs, and enqueueing them."""

import asyncio

from taskiq_redis import RedisStreamBroker

from bench import jobs

broker = RedisStreamBroker(url=jobs.URL)


@broker.task
async def noop() -> None:
    """Nothing."""


if __name__ == "__main__":
    with asyncio.Runner() as runner:
        runner.run(broker.startup())
        jobs.enqueue_as_asked({"noop": lambda: runner.run(noop.kiq())})
        runner.run(broker.shutdown())
