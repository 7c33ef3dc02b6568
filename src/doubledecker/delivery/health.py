"""How receivers fare, as the home partition keeps it: points and the time of the last attempt.

It is shown to people and drives nothing, so it is written off the path of deliveries, a few times a second for all
attempts since. A process that dies loses what it had not written yet: points, never events.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from doubledecker.background import sleep_until
from doubledecker.errors import BusAway
from doubledecker.store import subscribers
from doubledecker.store.partitions import Partition
from doubledecker.store.subscribers import Attempts

_WRITE_S = 0.2


@dataclass(frozen=True)
class Points:
    """What a success heals and a failure costs, of 100."""

    heal: int = 1
    damage: int = 2


@dataclass
class Health:
    """Gathers what attempts say of receivers, and writes it home."""

    home: Partition
    points: Points = field(default_factory=Points)
    _noted: dict[str, tuple[list[int], int]] = field(default_factory=dict)

    def note(self, token: str, *, is_delivered: bool, at: int) -> None:
        """One more attempt, which began at this time."""
        points, last_at = self._noted.get(token, ([], 0))
        points.append(self.points.heal if is_delivered else -self.points.damage)
        self._noted[token] = (points, max(last_at, at))

    async def write(self) -> None:
        """Write what has been noted; what cannot be written now is written the next time."""
        if not self._noted:
            return
        noted, self._noted = self._noted, {}
        try:
            await subscribers.note_attempts(self.home, {t: Attempts(*each) for t, each in noted.items()})
        except BusAway:
            for token, (points, at) in noted.items():
                later, last_at = self._noted.get(token, ([], 0))
                self._noted[token] = ([*points, *later], max(at, last_at))

    @contextlib.asynccontextmanager
    async def written(self) -> AsyncIterator[None]:
        """Write now and then while the block runs, and once more at its end, however short it was."""
        is_over = asyncio.Event()
        # Told to end, not cancelled: what a write that is cut off had in hand would be lost.
        writing = asyncio.create_task(self._keep_writing(is_over))
        try:
            yield
        finally:
            is_over.set()
            await writing

    async def _keep_writing(self, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            await sleep_until(is_over, _WRITE_S)
            await self.write()
