"""The heartbeat of a consumer next to Redis: client/lease_keeper_process.py with another way to extend leases."""

import asyncio
import sys
from typing import Any

import msgspec

from doubledecker.client.lease_keeper_process import CRASH_DELAY_MS, WHY_CRASHED, WHY_UNBEGUN, Pair, beat
from doubledecker.errors import BusAway
from doubledecker.model.queue import RegisteredQueue
from doubledecker.queues.ring import Bell, Rings
from doubledecker.store import partitions as store
from doubledecker.store.queues import LeasedMessage

_PATIENCE_S = 15.0


class RedisLease:
    """Extends by script, on a loop that runs for each call alone."""

    def __init__(self, greeting: dict[str, Any]) -> None:
        self._queue = msgspec.convert(greeting["queue"], RegisteredQueue)
        self._lease_ms = greeting["lease_ms"]
        self._runner = asyncio.Runner()
        self._partitions = self._runner.run(
            store.wait_for(
                greeting["url"],
                namespace=greeting["namespace"],
                count=greeting["partitions"],
                patience_s=_PATIENCE_S,
            )
        )
        self._rings = Rings(self._partitions, Bell(self._partitions))

    def extend(self, held: list[Pair]) -> None:
        named = [LeasedMessage(id_, attempt) for id_, attempt in held]
        try:
            self._runner.run(self._rings.extend(self._queue, named, lease_ms=self._lease_ms))
        except BusAway as error:
            raise OSError(str(error)) from error

    def give_back(self, held: list[Pair], *, attempted: bool) -> None:
        delay_ms, why = (CRASH_DELAY_MS, WHY_CRASHED) if attempted else (0, WHY_UNBEGUN)
        named = [LeasedMessage(id_, attempt, delay_ms, is_spared=not attempted) for id_, attempt in held]
        try:
            self._runner.run(self._rings.nack(self._queue, named, why=why))
        except BusAway as error:
            raise OSError(str(error)) from error

    def close(self) -> None:
        self._runner.run(self._partitions.close())
        self._runner.close()


if __name__ == "__main__":
    beat(sys.stdin.buffer, sys.stdout.buffer, RedisLease)
