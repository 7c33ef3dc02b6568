"""A worker pool of your own: how many events a stage works on at a time, when that is no fixed number.

    class Nightly(WorkerPool):          # two workers by day, twenty by night
        def has_free(self):
            return self.busy < (20 if is_night() else 2)

    Bulkhead(workers=Nightly(), queue=Fifo(1_000))

A worker is a permission to work: the stage asks whether one is free, takes it for an event, and frees it when the event
is done with. A pool that gets more workers by itself, as time passes, says so with `self.changed()`.
"""

import copy
from collections.abc import Callable
from typing import Self


class WorkerPool:
    """As many workers as `has_free` allows; `busy` counts those at work."""

    busy: int = 0
    # Lets the stage look whether more can be worked on; set by binding.
    changed: Callable[[], None] = staticmethod(lambda: None)

    def fresh(self) -> Self:
        """The pool of one binding: a copy; a pool that several stages share returns itself."""
        return copy.deepcopy(self)

    @property
    def size(self) -> int | None:
        """How many workers there are now, for reports, where that is known."""
        return None

    def has_free(self) -> bool:
        """Whether a worker is free."""
        raise NotImplementedError

    def take(self) -> None:
        """A worker becomes busy."""
        self.busy += 1

    def free(self) -> None:
        """A worker is done."""
        self.busy -= 1
