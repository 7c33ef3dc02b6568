"""Load shedding: turn some away early, so that the others are served well.

Near its limit a service that takes everything serves nobody in time. Shedding starts softly: above `soft` events at
work the chance to be turned away grows, until at `hard` nobody is let in. So the load levels off before the cliff,
and callers are not all turned away at the same moment, to come back at the same moment. Important events (`priority`
at least `spare`) are let in until `hard`.
"""

from dataclasses import dataclass

from doubledecker.stages import errors, limits
from doubledecker.stages.event import Event
from doubledecker.stages.stage import Stage


@dataclass
class Shed(Stage):
    """Between `soft` and `hard` events at work or waiting, ever more are turned away."""

    soft: int = 50
    hard: int = 100
    spare: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(self, soft=limits.WHOLE_ZERO_OR_MORE, hard=limits.ONE_OR_MORE)
        limits.check_order(self, "soft", "hard")

    def start(self) -> None:
        self._inside = 0

    def admit(self, event: Event) -> None:
        if self._inside >= self.hard or (self._inside > self.soft and self._draws(event)):
            raise errors.Shed(self.name)
        self._inside += 1

    def succeeded(self, event: Event, result: object) -> None:  # noqa: ARG002
        self._inside -= 1

    def failed(self, event: Event, error: Exception) -> None:  # noqa: ARG002
        self._inside -= 1

    def cancelled(self, event: Event) -> None:  # noqa: ARG002
        self._inside -= 1

    def _draws(self, event: Event) -> bool:
        if self.spare is not None and event.priority >= self.spare:
            return False
        return self.context.random.random() < (self._inside - self.soft) / (self.hard - self.soft)
