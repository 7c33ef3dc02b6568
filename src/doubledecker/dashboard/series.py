"""Series for plots: the samples of a span of time, at so many equal steps as a plot shows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from doubledecker.bus import history
from doubledecker.store.history import RINGS, Ring, Sample
from doubledecker.store.partitions import Partitions

Y = float | None
_SECONDS, _TENS, _MINUTES = RINGS
# A sample is up to so much late while workers are well; the plot then ends with the last one.
_LATE_S = 10
# A look that took the place of this many that were missed says what the rates were meanwhile.
_COVERED_MAX = 30


@dataclass(frozen=True)
class Span:
    """A stretch of time up to now that plots can show, and how many steps of a ring make one of theirs."""

    key: str
    title: str
    seconds: int
    ring: Ring
    steps: int = 1

    @property
    def points(self) -> int:
        return self.seconds // self.ring.step_s // self.steps


SPANS = {
    span.key: span
    for span in (
        Span("5m", "5 min", 300, _SECONDS),
        Span("15m", "15 min", 900, _SECONDS, 3),
        Span("1h", "1 h", 3_600, _TENS),
        Span("6h", "6 h", 21_600, _TENS, 6),
        Span("1d", "1 day", 86_400, _MINUTES, 4),
        Span("7d", "7 days", 604_800, _MINUTES, 30),
    )
}
DEFAULT_SPAN = "5m"


@dataclass(frozen=True)
class Series:
    """The bus over a span: for each step the samples of it, which may be none."""

    span: Span
    end_s: int
    steps: Sequence[Sequence[Sample]]

    def each(self, measure: Callable[[Sequence[Sample]], Y]) -> list[Y]:
        """A value for each step; None where nothing is known."""
        return [measure(some) if some else None for some in self.steps]

    @property
    def published(self) -> list[Y]:
        return self.each(lambda some: sum(each.published for each in some) / len(some))

    @property
    def due(self) -> list[Y]:
        return self.each(lambda some: sum(each.due for each in some) / len(some))

    @property
    def delivered(self) -> list[Y]:
        return self.each(lambda some: sum(each.delivered for each in some) / len(some))

    @property
    def waiting(self) -> list[Y]:
        return self.each(lambda some: max(each.waiting for each in some))

    @property
    def oldest_ms(self) -> list[Y]:
        return self.each(lambda some: max(each.oldest_ms for each in some))

    @property
    def dead(self) -> list[Y]:
        return self.each(lambda some: some[-1].dead)

    @property
    def lag_ms(self) -> list[Y]:
        return self.each(lambda some: max((each.lag_ms for each in some if each.lag_ms is not None), default=None))

    def latency_ms(self, share: float) -> list[Y]:
        """Within how long this share of the batches was delivered."""
        return self.each(lambda some: history.latency_ms(some, share))

    def last(self, seconds: int) -> list[Sample]:
        """The samples of its last seconds."""
        known = [each for some in self.steps for each in some]
        return [each for each in dict.fromkeys(known) if each.at_s > self.end_s - seconds]


async def look(partitions: Partitions, span: Span, *, now_s: int) -> Series:
    """The series of a span that ends now."""
    step_s = span.ring.step_s
    begin_s = now_s - span.seconds - _LATE_S - step_s
    samples = await history.read(partitions, span.ring, from_s=begin_s, to_s=now_s)
    return arrange(samples, span, now_s=now_s)


def arrange(samples: Sequence[Sample], span: Span, *, now_s: int) -> Series:
    """Samples by the steps of a plot; one that is of several of a ring's steps counts in each."""
    step_s = span.ring.step_s
    end_s = now_s // step_s * step_s
    if samples and end_s - samples[-1].at_s <= max(_LATE_S, step_s):
        end_s = samples[-1].at_s
    by_place: dict[int, Sample] = {}
    for sample in samples:
        covered = min(_COVERED_MAX, max(1, round(sample.span_s / step_s)))
        for back in reversed(range(covered)):
            by_place[(end_s - sample.at_s) // step_s + back] = sample
    count = span.points * span.steps
    row = [by_place.get(place) for place in reversed(range(count))]
    steps = [[each for each in row[at : at + span.steps] if each is not None] for at in range(0, count, span.steps)]
    return Series(span, end_s, steps)
