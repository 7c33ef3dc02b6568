"""Pace: how often a client may ask for something costly, in all web processes together.

A client may do as much at once as in a minute; what it did is paid for at that rate, and beyond it waits. No person and
no script of a deployment comes near; a loop does, and takes the servers' time from the others no longer.
"""

import math

from doubledecker.errors import TooOften
from doubledecker.store import quotas
from doubledecker.store.partitions import Partitions


class ClientPace:
    """Counts what each client does of one kind."""

    def __init__(self, partitions: Partitions, kind: str, done: str, noun: str) -> None:
        self._partitions = partitions
        self._kind, self._done, self._noun = kind, done, noun

    async def pay(self, client: str, *, minute_max: float) -> None:
        """Count one more of a client's; raises TooOften when it did too much in the last minute."""
        wait_ms = await quotas.pay(self._partitions.home, client, kind=self._kind, minute_max=minute_max)
        if wait_ms > 0:
            what = f"this client has {self._done} {minute_max} {self._noun} in a minute"
            raise TooOften(what, retry_after_s=math.ceil(wait_ms / 1000))
