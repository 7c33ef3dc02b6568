"""One who listens to a stream, as the feed sees it."""

import asyncio

from doubledecker.model.glob import Glob
from doubledecker.model.token import ROOT_NAME
from doubledecker.web.sse import Reason


class Listener:
    """One who listens: a pattern, and a bounded buffer of frames on their way."""

    def __init__(self, pattern: Glob, *, buffer_bytes: int, is_strict: bool = False, client: str = "") -> None:
        self.pattern = pattern
        self.client = client
        self.is_strict = is_strict
        self.end: Reason | None = None
        self._buffer_bytes = buffer_bytes
        self._frames: list[bytes] = []
        self._bytes = 0
        self._has_news = asyncio.Event()
        self._must_go = asyncio.Event()

    def may_see(self, owner: str) -> bool:
        """Whether it is this client's, or root's, as an event on a reserved topic demands."""
        return self.client in {owner, ROOT_NAME}

    def push(self, frame: bytes) -> None:
        """Put a frame into the buffer; when that is full, the listener is dropped instead."""
        if self.end is not None:
            return
        if self._frames and self._bytes + len(frame) > self._buffer_bytes:
            self.drop(Reason.SLOW)
            return
        self._frames.append(frame)
        self._bytes += len(frame)
        self._has_news.set()

    def drop(self, reason: Reason) -> None:
        """End it: what is in its buffer is let go, since it can be read again from the journal."""
        self.end = self.end or reason
        self._frames, self._bytes = [], 0
        self._has_news.set()

    def stop(self) -> None:
        """End it because the process ends; also one that was dropped already, and has not heard of it."""
        self.drop(Reason.STOPPING)
        self._must_go.set()

    async def until_stopped(self) -> None:
        await self._must_go.wait()

    async def take(self, *, wait_s: float) -> bytes:
        """All that is in the buffer; waits for something, and after a while returns nothing."""
        if not self._frames and self.end is None:
            try:
                async with asyncio.timeout(wait_s):
                    await self._has_news.wait()
            except TimeoutError:
                return b""
        frames, self._frames, self._bytes = self._frames, [], 0
        self._has_news.clear()
        return b"".join(frames)
