"""Consume a queue fairly across tenants: register it, then handle its messages until SIGTERM or Ctrl-C.

BUS=http://127.0.0.1:17890 TOKEN=<a client's token> python examples/consume.py
"""

import asyncio
import os

from doubledecker.client import AsyncBus, Message, Reject, RetryLater


async def main() -> None:
    async with AsyncBus(os.environ["BUS"], os.environ["TOKEN"]) as bus:
        queue = bus.queue("billing")
        await queue.register(r"[^:]*:orders:(create|paid)", lease_ms=10_000, attempts_max=5)

        # Up to 20 at a time. Returning acks the message; raising gives it back, for later. It may come twice, when an
        # ack is lost or a process dies: `event.id` tells a repeat, `attempt` how often it was tried.
        @queue.handler(concurrency=20)
        async def bill(message: Message) -> None:
            order = message.event.data or {}
            if "n" not in order:
                raise Reject("an order without a number")  # straight to the dead letters
            if order["n"] == 2 and message.attempt == 1:  # noqa: PLR2004 - an example of bad luck
                raise RetryLater(0.2)  # not now: again in 200 ms
            print("billed", message.tenant, order["n"], "attempt", message.attempt, flush=True)

        print("ready", flush=True)
        await queue.run()


asyncio.run(main())
