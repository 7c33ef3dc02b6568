"""Pace: how often a client may ask for something costly, in all web processes together.

A client may do as much at once as in a minute; what it did is paid for at that rate, and beyond it waits. No person and
no script of a deployment comes near; a loop does, and takes the servers' time from the others no longer.
"""

import math

from doubledecker.errors import TooOften
from doubledecker.model.token import Caller
from doubledecker.store import quotas
from doubledecker.store.partitions import Partitions

# What one tenant of a client may have through portals is this part of what the client may.
PORTALS = 10


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

    async def pay_by(self, caller: Caller, *, minute_max: int) -> None:
        """Count one more of a caller's.

        What portals ask for takes no share of their client's own, and of theirs together one tenant has a tenth.
        """
        if caller.portal is None:
            await self.pay(caller.id, minute_max=minute_max)
            return
        await self.pay(caller.share, minute_max=max(1, minute_max // PORTALS))
        await self.pay(f"{caller.id}/", minute_max=minute_max)
