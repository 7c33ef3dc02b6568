"""A consumer as its own process, for tests that kill it: `http|redis ADDRESS SECRET HOW` prints what it does.

HOW is what its handler does with a message: `hold` holds the interpreter's lock for the `hold_s` of the event's data,
as a call into C may do; `wait` awaits that long.
"""

import asyncio
import ctypes
import os
import sys
from contextlib import AsyncExitStack

from doubledecker.client import AsyncBus, Message
from doubledecker.client.consumer import Consumer
from doubledecker.queues import consume

# PyDLL, unlike CDLL, keeps the lock while the call runs: no thread of this process does anything meanwhile.
_usleep = ctypes.PyDLL(None).usleep


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(source: str, address: str, secret: str, how: str) -> None:
    async with AsyncExitStack() as stack:
        queue = await _queue(stack, source, address, secret)

        @queue.handler(concurrency=int(os.environ.get("CONCURRENCY", "4")), grace_s=20)
        async def work(message: Message) -> None:
            number, wait_s = message.event.data["n"], message.event.data["hold_s"]
            say("begun", number, message.attempt)
            if how == "hold":
                _usleep(int(wait_s * 1_000_000))
            else:
                await asyncio.sleep(wait_s)
            say("done", number, message.attempt)

        say("ready")
        await queue.run()


async def _queue(stack: AsyncExitStack, source: str, address: str, secret: str) -> Consumer:
    if source == "http":
        return (await stack.enter_async_context(AsyncBus(address, secret))).queue("jobs")
    return await (await stack.enter_async_context(consume.connected(address))).queue("jobs")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
