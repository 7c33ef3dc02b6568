"""A record: attempts that were really made at a dependency, and what they came to."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from doubledecker.stages.distributions import Observed
from doubledecker.stages.errors import ScenarioInvalid
from doubledecker.stages.simulation.report import Replication, Report, SimulationSample, looks, quantile
from doubledecker.stages.simulation.traffic import Arrival, Recorded
from doubledecker.stages.statistics import Histogram, Snapshot
from doubledecker.stages.techniques.simulated import Outage, Simulated


@dataclass(frozen=True)
class RecordedTry:
    """One try: when it began, how long it took, how it ended.

    `event` names what was tried, so that its tries can be found together; `number` counts them from 1. `key`
    is whom or what it asked. `is_cut` says that a timeout ended it: the answer would have come later, or never.
    `arrived_s` is when what was tried arrived, where that is known; it may have waited before it was tried.
    """

    at_s: float
    took_s: float
    is_success: bool
    event: str | None = None
    number: int = 1
    key: str | None = None
    is_cut: bool = False
    arrived_s: float | None = None

    @property
    def since_s(self) -> float:
        """When what was tried arrived, as far as it is known: no later than the try."""
        return self.at_s if self.arrived_s is None else min(self.arrived_s, self.at_s)

    @property
    def ended_s(self) -> float:
        return self.at_s + self.took_s


class Record:
    """Attempts in the order in which they began."""

    def __init__(self, attempts: Sequence[RecordedTry]) -> None:
        if not attempts:
            raise ScenarioInvalid("the record has no attempts; there is nothing to go by")
        self.attempts = sorted(attempts, key=lambda one: one.at_s)

    @cached_property
    def begun_s(self) -> float:
        """When the first event arrived, or the first attempt began."""
        return min([self.attempts[0].at_s, *(tries[0].since_s for tries in self.events)])

    @property
    def duration_s(self) -> float:
        """The time to the last attempt's beginning, and a mean gap more, so that the last one is inside."""
        span_s = self.attempts[-1].at_s - self.begun_s
        return (span_s or 1.0) * (1.0 + 1.0 / len(self.attempts))

    def first(self, duration_s: float) -> "Record":
        """Only the attempts of the first so many seconds, since the first of them."""
        return Record([one for one in self.attempts if one.at_s < self.attempts[0].at_s + duration_s])

    @cached_property
    def events(self) -> list[list[RecordedTry]]:
        """The attempts of each event whose first one is in the record; what has no name is an event of its own."""
        by_event: dict[object, list[RecordedTry]] = {}
        for i, one in enumerate(self.attempts):
            by_event.setdefault(i if one.event is None else (one.key, one.event), []).append(one)
        return [tries for tries in by_event.values() if tries[0].number == 1]

    def report(self, *, sample_every: float) -> Report:
        """The record in the shape of a simulation's report, to stand beside one: its callers, and its dependency."""
        callers = _Tally("callers", [_whole(tries) for tries in self.events], self.begun_s)
        dependency = _Tally("dependency", self.attempts, self.begun_s)
        whole = Replication(
            self.duration_s,
            (callers.at(math.inf), dependency.at(math.inf)),
            {"succeeded": len(callers.successes), "failed": len(callers.ends) - len(callers.successes)},
            callers.durations_s,
            tuple(callers.sample(moment, dependency) for moment in looks(self.duration_s, sample_every)),
        )
        return Report((whole,))


def _whole(tries: Sequence[RecordedTry]) -> RecordedTry:
    """All tries of an event as one, from when it arrived to the end of the last."""
    since_s, ended_s = tries[0].since_s, max(one.ended_s for one in tries)
    return RecordedTry(since_s, ended_s - since_s, any(one.is_success for one in tries))


class _Tally:
    """Attempts, counted as a stage counts its events."""

    def __init__(self, name: str, attempts: Sequence[RecordedTry], begun_s: float) -> None:
        ordered = sorted(attempts, key=lambda one: one.ended_s)
        self.durations_s = [one.took_s for one in ordered]
        self.ends = [one.ended_s - begun_s for one in ordered]
        self.successes = [one.ended_s - begun_s for one in ordered if one.is_success]
        self._starts = sorted(one.at_s - begun_s for one in attempts)
        self._name = name

    def sample(self, at: float, dependency: "_Tally") -> SimulationSample:
        ended, succeeded = bisect_right(self.ends, at), bisect_right(self.successes, at)
        return SimulationSample(at, (self.at(at), dependency.at(at)), ended, succeeded)

    def at(self, moment: float) -> Snapshot:
        arrived = bisect_right(self._starts, moment)
        ended, succeeded = bisect_right(self.ends, moment), bisect_right(self.successes, moment)
        times = Histogram()
        for duration_s in self.durations_s if math.isinf(moment) else ():
            times.note(duration_s)
        return Snapshot(
            stage=self._name,
            arrived=arrived,
            rejected=0,
            queued=0,
            cancelled_in_queue=0,
            started=arrived,
            working=arrived - ended,
            succeeded=succeeded,
            failed=ended - succeeded,
            cancelled=0,
            workers=None,
            queue_time=Histogram().freeze(),
            work_time=times.freeze(),
        )


# Fit: traffic and dependency from a record, so that another chain can be tried on what really happened.
#
# Traffic is what was tried, at the times when it arrived, or else when it was first tried. The dependency is what was
# seen: durations of successes and of failures are drawn from those recorded, the availability is the share that
# succeeded. Where failures follow one another for longer than chance explains, the dependency was out; an outage is no
# part of the availability.
#
# What a record does not contain: how slow an answer would have been that a timeout cut off, and how the dependency
# would have borne another load.

_Z = 1.96  # 95 % of a normal distribution lie within so many deviations
# Failures in a row are an outage when chance would bring such a row less than once in a thousand records.
_CHANCE_MAX, _ROW_MIN = 0.001, 5
# Durations to draw from; so many evenly spaced quantiles show as much as all of a million.
_DRAWN_MAX = 10_000


@dataclass(frozen=True)
class Bounded:
    """What was measured, and between which values the truth lies in 95 of 100 cases."""

    value: float
    low: float
    high: float

    def covers(self, truth: float) -> bool:
        return self.low <= truth <= self.high


@dataclass(frozen=True)
class Fit:
    """Traffic and dependency as recorded; `cut` is the share of attempts whose end a timeout hides."""

    traffic: Recorded
    dependency: Simulated
    duration_s: float
    availability: Bounded
    median_s: Bounded
    outages: tuple[Outage, ...]
    cut: float


def fit(record: Record) -> Fit:
    """Raises ScenarioInvalid when no attempt succeeded, or none is a first one: there is nothing to speak of."""
    if not any(one.is_success for one in record.attempts):
        raise ScenarioInvalid(
            f"none of the {len(record.attempts)} recorded attempts succeeded; there is nothing to fit"
        )
    if not record.events:
        raise ScenarioInvalid("the record has no first attempts, only later ones; there is no traffic to go by")
    rows = _outage_rows(record.attempts)
    out = {id(one) for row in rows for one in row}
    usual = [one for one in record.attempts if id(one) not in out]
    succeeded = [one.took_s for one in usual if one.is_success]
    failed = [one.took_s for one in usual if not one.is_success]
    outages = tuple(_outage(row, record) for row in rows)
    arrivals = [Arrival(tries[0].since_s - record.begun_s, tries[0].key) for tries in record.events]
    dependency = Simulated(
        Observed(_thinned(succeeded)),
        availability=len(succeeded) / len(usual),
        failure_latency=Observed(_thinned(failed)) if failed else None,
        outages=outages,
        outage_latency_s=quantile([one.took_s for row in rows for one in row], 0.5),
    )
    return Fit(
        traffic=Recorded(sorted(arrivals, key=lambda arrival: arrival.at)),
        dependency=dependency,
        duration_s=record.duration_s,
        availability=share_of(len(succeeded), len(usual)),
        median_s=quantile_of(succeeded, 0.5),
        outages=outages,
        cut=sum(one.is_cut for one in record.attempts) / len(record.attempts),
    )


def share_of(part: int, whole: int) -> Bounded:
    """A share with Wilson's interval, which holds near 0 and 1 too."""
    share, spread = part / whole, _Z * _Z / whole
    middle = (share + spread / 2) / (1 + spread)
    margin = _Z / (1 + spread) * math.sqrt(share * (1 - share) / whole + spread / (4 * whole))
    return Bounded(share, middle - margin, middle + margin)


def quantile_of(values: Sequence[float], share: float) -> Bounded:
    """A quantile with the interval that the ranks around it give, whatever the distribution."""
    ordered = sorted(values)
    last = len(ordered) - 1
    rank, margin = share * len(ordered), _Z * math.sqrt(len(ordered) * share * (1 - share))
    low, high = max(0, math.floor(rank - margin)), min(last, math.ceil(rank + margin))
    return Bounded(quantile(ordered, share), ordered[low], ordered[high])


def _outage_rows(attempts: Sequence[RecordedTry]) -> list[list[RecordedTry]]:
    """Failures in a row that chance does not explain.

    How often chance fails is judged without the outages, and they are found by how often chance fails: so it begins
    with counting every failure as chance's, and counts again without the outages found, until no more are.
    """
    rows = [list(row) for is_success, row in groupby(attempts, key=lambda one: one.is_success) if not is_success]
    failures = sum(map(len, rows))
    found: list[list[RecordedTry]] = []
    while True:
        out = sum(map(len, found))
        # Never none: a failure that was not seen yet is not impossible.
        rate = (failures - out + 1) / (len(attempts) - out + 1)
        clear = [row for row in rows if len(row) >= _ROW_MIN and rate ** len(row) * len(attempts) < _CHANCE_MAX]
        if len(clear) <= len(found):
            return found
        found = clear


def _outage(row: Sequence[RecordedTry], record: Record) -> Outage:
    """An outage from its first failure to the middle between its last and the next success."""
    last = row[-1].at_s
    after = [one.at_s for one in record.attempts if one.is_success and one.at_s > last]
    end_s = (last + min(after)) / 2 if after else record.begun_s + record.duration_s
    return Outage(row[0].at_s - record.begun_s, end_s - record.begun_s)


def _thinned(values: Sequence[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    if len(ordered) <= _DRAWN_MAX:
        return tuple(ordered)
    return tuple(ordered[(2 * i + 1) * len(ordered) // (2 * _DRAWN_MAX)] for i in range(_DRAWN_MAX))
