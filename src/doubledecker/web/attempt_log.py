"""The log of delivery attempts: recent ones from the journals, older ones from the lake where this process can read it.

The journals are read first. What they are cut of meanwhile has landed before, so the lake, read after them, has it; an
attempt that is in both is listed once.
"""

import asyncio
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from doubledecker import log
from doubledecker.errors import BadRequest, LakeUnfit, NotFound, ReadTooLarge
from doubledecker.model.attempt import AttemptFilter, AttemptPlace, ListedAttempt
from doubledecker.store import attempts, journal
from doubledecker.store.attempts import AttemptsFound
from doubledecker.store.partitions import Partitions
from doubledecker.web import newest_page
from doubledecker.web.newest_page import NewestPage

if TYPE_CHECKING:
    from doubledecker.lake.reads import ReadContext

_WHY = newest_page.why_not_listed("attempts")

_log = log.get("web")


class AttemptLog:
    """Reads attempts, for a process that answers others meanwhile."""

    def __init__(self, partitions: Partitions, *, lake: str) -> None:
        self._partitions = partitions
        is_installed = all(importlib.util.find_spec(name) for name in ("duckdb", "deltalake"))
        self._lake = lake if is_installed and "://" not in lake else ""
        self._ground: ReadContext | None = None

    async def newest(self, wanted: AttemptFilter, *, limit: int) -> NewestPage[ListedAttempt]:
        """The newest that are wanted."""
        recent = await attempts.newest(self._partitions, wanted, limit=limit)
        if not recent.is_partly_empty:
            return NewestPage(recent.attempts, recent.reached)
        try:
            ground = await self.ground()
            if ground is None:
                return NewestPage(recent.attempts, recent.reached, await self._why_not(recent))
            from doubledecker.lake import attempts as landed  # noqa: PLC0415 - not there without the extra

            # Down to where the journals were read: those before have their turn with the next page.
            since_ms = max(wanted.from_ms, recent.reached.ms if recent.reached else 0)
            older = await landed.newest(ground, replace(wanted, from_ms=since_ms), limit=limit)
        except (LakeUnfit, ReadTooLarge) as error:
            _log.warning("lake.unreadable", error=str(error))
            return NewestPage(recent.attempts, recent.reached, _WHY.unreadable)
        return newest_page.join(
            NewestPage(recent.attempts, recent.reached), NewestPage(older.attempts, older.reached), limit=limit
        )

    async def one(self, place: AttemptPlace, *, ids_max: int) -> ListedAttempt:
        """One attempt with so many of its ids; raises NotFound when it is no longer there."""
        if place.partition >= len(self._partitions.all):
            raise BadRequest(f"no partition {place.partition} is there; the id of an attempt ends with its own")
        found = await attempts.read(self._partitions.all[place.partition], place, ids_max=ids_max)
        ground = None if found else await self.ground()
        if ground:
            from doubledecker.lake import attempts as landed  # noqa: PLC0415 - not there without the extra

            found = await landed.read(ground, place, ids_max=ids_max)
        if found is None:
            raise NotFound(f"no attempt {str(place)!r}; those that are kept are listed by GET on attempts")
        return found

    async def ground(self) -> "ReadContext | None":
        """Where the lake is; None when there is none that this process can read."""
        if not self._lake or not await asyncio.to_thread(Path(self._lake, "attempts", "_delta_log").is_dir):
            return None
        if self._ground is None:
            # In a thread: what reads the lake takes a third of a second to import.
            self._ground = await asyncio.to_thread(_ground, self._lake, self._partitions)
        return self._ground

    async def _why_not(self, recent: AttemptsFound) -> str:
        """Why what came before the journals is not listed; empty when nothing did, or when it is not their turn."""
        if recent.reached is not None:
            return ""
        states = [await journal.state(partition) for partition in self._partitions.all]
        if not any("attempts_trimmed" in state for state in states):
            return ""
        return _WHY.elsewhere if any("archive" in state for state in states) else _WHY.not_kept


def _ground(lake: str, partitions: Partitions) -> "ReadContext":
    from doubledecker.lake import attempts, reads  # noqa: F401, PLC0415 - imported here, to be there for all later uses

    return reads.ReadContext(str(Path(lake).resolve()), partitions)
