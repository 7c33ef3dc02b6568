"""A consumer as its own process, for tests of how it ends: `URL SECRET HOW` prints `begun` when it has a message."""

import asyncio
import sys
import time

from doubledecker.client import AsyncBus, BlockingMessage, Bus, Message


def begun() -> None:
    sys.stdout.write("begun\n")
    sys.stdout.flush()


async def loop(url: str, secret: str, how: str) -> None:
    async with AsyncBus(url, secret) as bus:
        async for _ in bus.queue("jobs").messages():
            begun()
            if how == "break":
                break
            if how == "raise":
                raise ValueError("on purpose")
            await asyncio.sleep(60)


async def run(url: str, secret: str, how: str) -> None:
    async with AsyncBus(url, secret) as bus:

        @bus.queue("jobs").handler(grace_s=30)
        async def work(_message: Message) -> None:
            begun()
            if how == "run-blocked":
                time.sleep(60)  # noqa: ASYNC251 - it blocks the loop on purpose
            await asyncio.sleep(60)

        await bus.run()


def run_plain(url: str, secret: str) -> None:
    with Bus(url, secret) as bus:

        @bus.queue("jobs").handler(grace_s=30)
        def work(_message: BlockingMessage) -> None:
            begun()
            time.sleep(60)

        bus.run()


def loop_plain(url: str, secret: str) -> None:
    with Bus(url, secret) as bus:
        for _ in bus.queue("jobs").messages():
            begun()
            raise ValueError("on purpose")


if __name__ == "__main__":
    url, secret, how = sys.argv[1:]
    if how in {"run", "run-blocked"}:
        asyncio.run(run(url, secret, how))
    elif how == "run-plain":
        run_plain(url, secret)
    elif how == "raise-plain":
        loop_plain(url, secret)
    else:
        asyncio.run(loop(url, secret, how))
