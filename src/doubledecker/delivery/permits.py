"""Permits on lease, of a process that has no slots: a watch, or a Spark task.

It renews them for as long as it has them. One whose process died, or whose reply was lost, ends by itself.
"""

import contextlib

from doubledecker.errors import BusAway
from doubledecker.model.settlement import RETURNED, Settlement
from doubledecker.model.uid import uid
from doubledecker.store import receivers
from doubledecker.store.partitions import Partition
from doubledecker.store.receivers import Answer, Permit


class Permits:
    def __init__(self, token: str, *, lease_ms: int) -> None:
        self._token = token
        self._lease_ms = lease_ms
        self._held: dict[str, tuple[Partition, Permit]] = {}
        # Asked for, and no answer came: the next call asks for the same ones, as they may have been given.
        self._unanswered: dict[Partition, list[str]] = {}

    @property
    def count(self) -> int:
        """How many this process has."""
        return len(self._held)

    async def take(
        self, partition: Partition, *, limit: int, every_ms: float = 0.0, anew_since: int = 0, version: int
    ) -> Permit:
        """Ask for one of the permits that a partition has, for a process that knows the registry by this version."""
        unanswered = self._unanswered.setdefault(partition, [])
        lease = unanswered.pop() if unanswered else uid()
        try:
            permit = await receivers.take_permit(
                partition,
                self._token,
                lease=lease,
                limit=limit,
                every=every_ms,
                anew_since=anew_since,
                version=version,
                lease_ms=self._lease_ms,
            )
        except BusAway:
            unanswered.append(lease)
            raise
        if permit.answer is Answer.GO:
            self._held[permit.lease] = partition, permit
        return permit

    async def renew(self) -> None:
        """Keep them for another lease; where that fails, it may succeed the next time."""
        for partition in {partition for partition, _ in self._held.values()}:
            mine = [lease for lease, (where, _) in self._held.items() if where is partition]
            with contextlib.suppress(BusAway):
                await receivers.renew(partition, self._token, mine, lease_ms=self._lease_ms)

    async def settle(
        self, partition: Partition, permit: Permit, settlement: Settlement = RETURNED, *, why: str = ""
    ) -> tuple[int, int]:
        """Give one back, with the outcome of the call; returns the receiver's failures before and after."""
        self.forget(permit)
        return await receivers.settle(partition, self._token, permit, settlement, why=why)

    async def give_all_back(self) -> None:
        """Give back all, after calls were cut short."""
        for partition, permit in list(self._held.values()):
            await self.settle(partition, permit)

    def forget(self, permit: Permit) -> None:
        """Renew one no longer: its call is over, and if its end gets lost, the lease must end."""
        self._held.pop(permit.lease, None)
