"""`async with`: the body of the block is the work.

The stages run in a task of their own, whose innermost call says "let in" and then waits for the block to end. So the
block sees the same stages as a guarded function does. It works for stages that call what is inside them exactly once
and leave it alone; one that would cancel or repeat the block is refused.
"""

import asyncio
from collections.abc import Iterable
from types import TracebackType

from doubledecker.stages.errors import ChainInvalid
from doubledecker.stages.event import Event
from doubledecker.stages.stage import Inner, Stage


class Admission:
    """One passage; enter it once."""

    def __init__(self, stages: Iterable[Stage], run: Inner, event: Event) -> None:
        for stage in stages:
            if not stage.is_admission:
                raise ChainInvalid(f"{stage.name} does more than let in: guard a function with it")
        self._run = run
        self._event = event

    async def __aenter__(self) -> Event:
        loop = asyncio.get_running_loop()
        self._is_in: asyncio.Future[None] = loop.create_future()
        self._is_out: asyncio.Future[None] = loop.create_future()
        event = self._event.again()
        event.function, event.args, event.kwargs = self._body, (), None
        self._passage = loop.create_task(self._pass(event))
        try:
            await asyncio.wait((self._is_in, self._passage), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._give_up()
            raise
        if not self._is_in.done():
            self._passage.result()
        return event

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._is_out.set_result(None)
        elif isinstance(error, Exception):
            self._is_out.set_exception(error)
        else:
            await self._give_up()
            return
        # Shielded: the block has ended, and its outcome is to be counted whatever happens to the caller.
        await asyncio.shield(asyncio.wait((self._passage,)))
        if not self._passage.cancelled():
            self._passage.exception()

    async def _pass(self, event: Event) -> None:
        await self._run(event)

    async def _body(self) -> None:
        self._is_in.set_result(None)
        await self._is_out

    async def _give_up(self) -> None:
        self._passage.cancel()
        await asyncio.wait((self._passage,))
