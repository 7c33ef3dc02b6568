"""A loop over a queue's messages, from its first to whoever leaves it.

A loop that is left by `break` or an exception is a generator that nobody closes: Python does so when it finds it, which
may be after its bus was closed. So the bus knows its loops, and leaves them before it hangs up.
"""

import asyncio
import contextlib

from doubledecker.client.message import Message, MessageSource
from doubledecker.client.session import Holding, Rules, asked, holding

_WHY_LEFT = "the loop was left"


class Loop:
    """One message after the other: acked when the next is asked for, given back when the loop is left."""

    def __init__(self, source: MessageSource, rules: Rules) -> None:
        self._source = source
        self._rules = rules
        self._stack = contextlib.AsyncExitStack()
        self._lock = asyncio.Lock()
        self._held: Holding | None = None
        self._message: Message | None = None
        self._is_left = False

    async def next(self) -> Message | None:
        """The next message; None when the loop was left. Raises what ended the pulling, if something did."""
        if self._held is None and not self._is_left:
            terms = await asked(self._source)
            self._held = await self._stack.enter_async_context(holding(self._source, self._rules, terms))
        held = self._held
        if held is None or self._is_left:
            return None
        self._end(held)
        if not await _has_ready(held) or self._is_left:
            return None
        self._message = held.prefetch.start_one(asyncio.get_running_loop().time())
        held.ack_buffer.begin(self._message)
        return self._message

    async def leave(self) -> None:
        """Give back what is in hand, and end; who comes second waits for the first."""
        self._is_left = True
        async with self._lock:
            held, self._held = self._held, None
            if held is None:
                return
            try:
                held.stop()
                self._end(held)
            finally:
                await self._stack.aclose()

    def _end(self, held: Holding) -> None:
        """Settle the message that the loop had, unless it did so itself."""
        message, self._message = self._message, None
        if message is None:
            return
        held.prefetch.finish_one(asyncio.get_running_loop().time())
        if message.is_settled:
            return
        if self._is_left:
            delay_ms = round(self._rules.backoff.delay_s(message.attempt) * 1000)
            held.ack_buffer.nack(message, delay_ms=delay_ms, why=_WHY_LEFT)
        else:
            held.ack_buffer.ack(message)


async def _has_ready(held: Holding) -> bool:
    """Wait for a message; raises what ended the pulling, if something did."""
    while not held.prefetch.ready:
        arrived = asyncio.Event()
        held.prefetch.on_arrival = arrived.set
        waiting = asyncio.create_task(arrived.wait())
        try:
            await held.until_over(waiting)
        finally:
            waiting.cancel()
        if held.is_over and not held.prefetch.ready:
            held.check()
            return False
    return True
