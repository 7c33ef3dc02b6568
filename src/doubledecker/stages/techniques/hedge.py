"""Hedge: when the answer is late, ask a second time, and take whichever comes first.

The slowest one in a hundred often waits for bad luck (a pause, a lost packet), not for hard work; a second question
has better luck. Asked only after `delay_s`, about the time that 95 % of the answers need, it adds 5 % of traffic and
cuts off the tail. The others are cancelled when one has succeeded. Only for questions that may be asked twice.
"""

import asyncio
from dataclasses import dataclass

from doubledecker.stages import limits
from doubledecker.stages.event import Event
from doubledecker.stages.stage import Stage


@dataclass
class Hedge(Stage):
    """Up to `attempts` at the same time, one more each `delay_s`; when all have failed, raises the first failure."""

    delay_s: float = 0.1
    attempts: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(self, delay_s=limits.FINITE_ZERO_OR_MORE, attempts=limits.ONE_OR_MORE)

    async def work(self, event: Event) -> object:
        asked: list[asyncio.Task[object]] = []
        try:
            while True:
                if len(asked) < self.attempts:
                    if asked:
                        self.notify("hedged", event)
                    asked.append(self.ask(event.again()))
                winner = await self._first_success(asked)
                if winner is not None:
                    return winner.result()
                if len(asked) == self.attempts and all(task.done() for task in asked):
                    return asked[0].result()
        finally:
            await self._call_off(asked)

    async def _first_success(self, asked: "list[asyncio.Task[object]]") -> "asyncio.Task[object] | None":
        """Wait until one succeeds, all have failed, or it is time for the next."""
        until = self.context.clock() + self.delay_s
        while running := [task for task in asked if not task.done()]:
            left_s = None if len(asked) == self.attempts else max(0.0, until - self.context.clock())
            done, _ = await asyncio.wait(running, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled() and task.exception() is None:
                    return task
            if not done:
                return None
        return None

    async def _call_off(self, asked: "list[asyncio.Task[object]]") -> None:
        running = [task for task in asked if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
