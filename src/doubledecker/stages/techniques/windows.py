"""Windows: the outcomes that a breaker judges by, the last so many or those of the last so many seconds."""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from doubledecker.stages import limits


class Outcomes(Protocol):
    """The outcomes in a window; `failures` is right after `calls` or `record`."""

    failures: int

    def record(self, *, is_failure: bool, now: float) -> None: ...

    def calls(self, now: float) -> int: ...


@dataclass(frozen=True)
class Count:
    """The last `size` calls."""

    size: int = 20

    def __post_init__(self) -> None:
        limits.check(self, size=limits.ONE_OR_MORE)

    def fresh(self) -> "Outcomes":
        return _Ring(self.size)


@dataclass(frozen=True)
class Time:
    """The calls of the last `span_s`, in `slices` parts: an old part is forgotten at once, for constant memory."""

    span_s: float = 10.0
    slices: int = 10

    def __post_init__(self) -> None:
        limits.check(self, span_s=limits.FINITE_ABOVE_ZERO, slices=limits.ONE_OR_MORE)

    def fresh(self) -> "Outcomes":
        return _Slices(self.span_s / self.slices, self.slices)


class _Ring:
    __slots__ = ("_size", "failures", "ring")

    def __init__(self, size: int) -> None:
        self.ring: deque[bool] = deque()
        self.failures = 0
        self._size = size

    def record(self, *, is_failure: bool, now: float) -> None:  # noqa: ARG002 - a ring knows no time
        ring = self.ring
        if len(ring) == self._size:
            self.failures -= ring.popleft()
        ring.append(is_failure)
        self.failures += is_failure

    def calls(self, now: float) -> int:  # noqa: ARG002
        return len(self.ring)


@dataclass
class _Slice:
    number: int
    calls: int = 0
    failures: int = 0


class _Slices:
    __slots__ = ("_calls", "_length_s", "_slices", "_slices_max", "failures")

    def __init__(self, length_s: float, slices_max: int) -> None:
        self._length_s = length_s
        self._slices_max = slices_max
        self._slices: deque[_Slice] = deque()
        self._calls = 0
        self.failures = 0

    def record(self, *, is_failure: bool, now: float) -> None:
        self._forget(now)
        number = int(now / self._length_s)
        if not self._slices or self._slices[-1].number != number:
            self._slices.append(_Slice(number))
        self._slices[-1].calls += 1
        self._slices[-1].failures += is_failure
        self._calls += 1
        self.failures += is_failure

    def calls(self, now: float) -> int:
        self._forget(now)
        return self._calls

    def _forget(self, now: float) -> None:
        oldest = int(now / self._length_s) - self._slices_max
        while self._slices and self._slices[0].number <= oldest:
            gone = self._slices.popleft()
            self._calls -= gone.calls
            self.failures -= gone.failures
