"""Keeps each subscriber's backlog within its `backlog_max_bytes`: beyond it, its own oldest batches are dropped.

Nobody else is touched, and no publisher is refused. To keep count of bytes would cost each publish and each delivery,
also for subscribers without a bound; so those with one are looked at about once a second. Between two looks more may
wait than the bound, by what is published meanwhile.
"""

import asyncio
from collections.abc import Sequence

from doubledecker import log
from doubledecker.bus.registry import LiveRegistry
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import batches, losses
from doubledecker.store.losses import Dropped
from doubledecker.store.partitions import Partition, Partitions

# For so many times as long as a look took, others use the server and the slot.
_PAUSE_TIMES = 4
# Calls for one subscriber and look, and how long a look goes on to others; the next goes on where it ended.
_CALLS_MAX = 200
_LOOK_S = 1.0
# Over several partitions the oldest batch of all is dropped first, to about so long.
_ORDER_MS = 1_000

_log = log.get("worker")


class BacklogBounds:
    """Drops what is beyond subscribers' bounds."""

    def __init__(self, partitions: Partitions, live: LiveRegistry) -> None:
        self._partitions = partitions
        self._live = live
        self._not_before_s = 0.0
        # The subscriber that was looked at last.
        self._last = ""

    async def run(self) -> None:
        """Look, unless the last look took long and was not long ago."""
        time = asyncio.get_running_loop().time
        started_s = time()
        if started_s >= self._not_before_s:
            await self.enforce()
            self._not_before_s = time() + _PAUSE_TIMES * (time() - started_s)

    async def enforce(self) -> None:
        """Look at those that have a bound, each in its turn, and drop what is beyond it."""
        time = asyncio.get_running_loop().time
        until_s = time() + _LOOK_S
        await self._live.refresh()
        bounded = {each.token: each for each in self._live.snapshot.subscribers.values() if each.backlog_max_bytes}
        tokens = sorted(bounded, key=lambda token: (token <= self._last, token))
        counts = [(await batches.gauges_of(partition, tokens))[1] for partition in self._partitions.all]
        for token in tokens:
            pairs = zip(self._partitions.all, counts, strict=True)
            await self._bound(bounded[token], [partition for partition, count in pairs if count.get(token, 0) > 0])
            self._last = token
            if time() >= until_s:
                break

    async def _bound(self, subscriber: Subscriber, where: Sequence[Partition]) -> None:
        sizes = [await losses.measure(partition, subscriber.token) for partition in where]
        excess = sum(sizes) - subscriber.backlog_max_bytes
        if excess <= 0:
            return
        found = await self._drop(subscriber.token, where, excess)
        if found.batches:
            _log.warning(
                "batches.dropped",
                subscriber=subscriber.token,
                batches=found.batches,
                events=found.events,
                bytes=found.bytes,
                bytes_max=subscriber.backlog_max_bytes,
            )

    async def _drop(self, token: str, where: Sequence[Partition], excess: int) -> Dropped:
        done = Dropped(0, 0, 0)
        left = list(where)
        for _ in range(_CALLS_MAX):
            if not left or done.bytes >= excess:
                break
            partition, created_max = await _oldest(left, token)
            dropped = await losses.drop_oldest(
                partition, token, bytes_enough=excess - done.bytes, created_max=created_max
            )
            if not dropped.batches:
                left.remove(partition)
            done = Dropped(done.batches + dropped.batches, done.events + dropped.events, done.bytes + dropped.bytes)
        return done


async def _oldest(where: Sequence[Partition], token: str) -> tuple[Partition, int | None]:
    """The partition that has the oldest batch, and until when it is its turn, if there are others."""
    if len(where) == 1:
        return where[0], None
    heads = [(await batches.oldest_by_token(partition, [token])).get(token) for partition in where]
    known = sorted((at, index) for index, at in enumerate(heads) if at is not None)
    if not known:
        return where[0], None
    return where[known[0][1]], known[1][0] + _ORDER_MS if len(known) > 1 else None
