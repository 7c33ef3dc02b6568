"""How receivers fare, as the home partition keeps it: points and the time of the last attempt.

It is shown to people and drives nothing, so it is written off the path of deliveries, every other second for all
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

# As often as people look; five times a second it was a call for every tenth event of a receiver with 50 a second.
_WRITE_S = 2.0


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
    _noted: dict[str, Attempts] = field(default_factory=dict)

    def note(self, token: str, *, is_delivered: bool, at: int) -> None:
        """One more attempt, which began at this time."""
        made = Attempts(self.points.heal if is_delivered else -self.points.damage, at)
        before = self._noted.get(token)
        self._noted[token] = before.then(made) if before else made

    async def write(self) -> None:
        """Write what has been noted; what cannot be written now is written the next time."""
        if not self._noted:
            return
        noted, self._noted = self._noted, {}
        try:
            await subscribers.note_attempts(self.home, noted)
        except BusAway:
            for token, made in noted.items():
                later = self._noted.get(token)
                self._noted[token] = made.then(later) if later else made

    @contextlib.asynccontextmanager
    async def written(self) -> AsyncIterator[None]:
        """Write now and then while the block runs, and once more at its end, however short it was."""
        is_over = asyncio.Event()
        # Asked to end, not cancelled: a write that is cut off would lose what it holds.
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
