"""What a series of overviews tells: rates, latency quantiles and sparklines. Pure, so that a test needs no bus."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

from doubledecker.bus import telemetry
from doubledecker.bus.overview import Overview

KEPT_S = 60
# Long enough that a number does not flicker, short enough that a change shows.
CALM_MS = 4_000
LATENCY_MS = 10_000
_LATENCY = "latency.batches.last_attempt"
_BARS = "▁▂▃▄▅▆▇█"

Measure = Callable[[Overview], int]


class Trail:
    """The overviews of the last minute."""

    def __init__(self) -> None:
        self._views: deque[Overview] = deque(maxlen=KEPT_S + 1)

    @property
    def last(self) -> Overview | None:
        return self._views[-1] if self._views else None

    def add(self, view: Overview) -> None:
        self._views.append(view)

    def rate(self, measure: Measure, *, over_ms: int = CALM_MS) -> float:
        """By how much a counter grew a second, lately."""
        if self.last is None:
            return 0.0
        return per_second(measure, self._before(over_ms), self.last)

    def rates(self, measure: Measure) -> list[float]:
        """The same for each moment of the last minute."""
        return [per_second(measure, former, latter) for former, latter in pairwise(self._views)]

    def levels(self, measure: Measure) -> list[float]:
        """A gauge at each moment of the last minute."""
        return [float(measure(view)) for view in self._views]

    def latency_ms(self, share: float) -> float | None:
        """Within how long this share of the batches delivered lately were delivered; None when there were none."""
        if self.last is None:
            return None
        before = self._before(LATENCY_MS).counters
        names = {str(le): telemetry.counter(_LATENCY, le=str(le)) for le in (*telemetry.LATENCY_MS, "+Inf")}
        return quantile({le: self.last.counters.get(n, 0) - before.get(n, 0) for le, n in names.items()}, share)

    def _before(self, over_ms: int) -> Overview:
        since = self._views[-1].at - over_ms
        return next(view for view in self._views if view.at >= since)


def per_second(measure: Measure, former: Overview, latter: Overview) -> float:
    """How fast a counter grew between two looks; one that shrank was lost and began anew."""
    took_s = (latter.at - former.at) / 1000
    return max(0, measure(latter) - measure(former)) / took_s if took_s > 0 else 0.0


def published(view: Overview) -> int:
    return view.total("events.published")


def delivered(view: Overview) -> int:
    """Events in successful deliveries, over all subscribers that are or were."""
    return sum(value for field, value in view.counters.items() if _is_delivered(field))


def waiting(view: Overview) -> int:
    return view.events_waiting


def sent_to(token: str) -> Measure:
    """Events delivered to one subscriber."""
    return lambda view: sum(each.sent for each in view.subscribers if each.subscriber.token == token)


def quantile(counts: dict[str, int], share: float) -> float | None:
    """A quantile of a histogram, taking each bucket as evenly filled; infinite when it lies beyond the last bucket."""
    total = sum(counts.values())
    if total <= 0:
        return None
    wanted = total * share
    below, floor = 0, 0
    for le in telemetry.LATENCY_MS:
        inside = counts.get(str(le), 0)
        if inside and below + inside >= wanted:
            return floor + (le - floor) * (wanted - below) / inside
        below, floor = below + inside, le
    return float("inf")


def sparkline(values: Sequence[float], *, width: int) -> str:
    """The last values as bars from zero to the highest; nothing at all is a flat line."""
    shown = values[-width:]
    highest = max(shown, default=0)
    if highest <= 0:
        return _BARS[0] * len(shown)
    return "".join(_BARS[round(value / highest * (len(_BARS) - 1))] for value in shown)


def _is_delivered(field: str) -> bool:
    return field.startswith("delivery.events:") and ("outcome", "delivered") in telemetry.parse(field).labels
