"""How long to wait before trying again: longer each time, and never at the same moment as others."""

import math
import random
from dataclasses import dataclass, field


def check_seconds(name: str, seen: object) -> None:
    """Raise ValueError unless it is a span of time; asked when it is given, because its use is far from there."""
    if not isinstance(seen, int | float) or isinstance(seen, bool) or not math.isfinite(seen) or seen < 0:
        raise ValueError(f"{name} is {seen!r}; it must be a number of seconds, 0 or more")


@dataclass(frozen=True)
class Backoff:
    """The delay before a failed message is delivered again: its bound doubles with each attempt, up to `cap_s`."""

    base_s: float = 1.0
    cap_s: float = 300.0

    def __post_init__(self) -> None:
        check_seconds("base_s", self.base_s)
        check_seconds("cap_s", self.cap_s)

    def delay_s(self, attempt: int) -> float:
        """A random delay from half to all of the bound, so that messages that failed together return apart."""
        # Beyond 2^30 the cap has long been reached; floats would overflow.
        span_s = min(self.cap_s, self.base_s * 2.0 ** min(attempt - 1, 30))
        return span_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


@dataclass
class Pauses:
    """Pauses between tries to reach a bus that is away: they double up to a few seconds."""

    _backoff: Backoff = field(default=Backoff(0.1, 5.0))
    _tries: int = 0

    def next_s(self) -> float:
        self._tries += 1
        return self._backoff.delay_s(self._tries)
