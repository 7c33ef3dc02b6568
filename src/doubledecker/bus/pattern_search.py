"""Runs searches over patterns in pieces, so that the event loop is never held for long.

A piece is one key on one bounded set of patterns. Cheap ones run on the loop, a millisecond at a time. Sets that have
proved costly are matched in a thread of their own, where RE2 releases the interpreter; for cheap ones the way there and
back would cost more than the match. The thread serves requests in turns of some pieces, so that one request with many
new keys does not hold up the next.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from doubledecker.model.event import EventKind
from doubledecker.model.matching import Lookup, NamedSet, Search
from doubledecker.model.routing import Registry

# How long the loop is held before others have their turn.
_SLICE_S = 0.001
# Beyond this a match is worth the way to the thread and back.
_COSTLY_S = 0.0002
# Pieces of one request that the thread runs before those of another.
_TURN = 10

_Piece = tuple[Lookup, NamedSet]


class Searcher:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="patterns")

    async def run(self, search: Search) -> None:
        """Wait until every piece is matched."""
        costly: list[_Piece] = []
        until = time.perf_counter() + _SLICE_S
        for piece in search.pieces():
            if piece[1].patterns.took_s > _COSTLY_S:
                costly.append(piece)
                if len(costly) >= _TURN:
                    await self._run_apart(costly)
                    costly, until = [], time.perf_counter() + _SLICE_S
                continue
            _match(piece)
            if time.perf_counter() > until:
                await asyncio.sleep(0)
                until = time.perf_counter() + _SLICE_S
        if costly:
            await self._run_apart(costly)

    async def learn(self, registry: Registry, kinds: Iterable[EventKind]) -> None:
        """Match new kinds with the patterns of queues, and their topics with globs, and have the answers remembered."""
        for matcher, search in registry.searches(kinds):
            await self.run(search)
            matcher.take(search)

    def close(self) -> None:
        """End the thread; what it has not begun is left."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run_apart(self, pieces: Sequence[_Piece]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, _match_all, pieces)


def _match_all(pieces: Sequence[_Piece]) -> None:
    for piece in pieces:
        _match(piece)


def _match(piece: _Piece) -> None:
    """Match, and note what it took: this thread's time, as waiting for others says nothing of the patterns."""
    lookup, named = piece
    started = time.thread_time()
    lookup.add(named.match(lookup.key))
    named.patterns.took_s = (named.patterns.took_s + time.thread_time() - started) / 2
