"""A record: attempts that were really made at a dependency, and what they came to."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from doubledecker.stages.errors import ScenarioInvalid
from doubledecker.stages.simulation.report import Replication, Report, SimulationSample, looks
from doubledecker.stages.statistics import Histogram, Snapshot


@dataclass(frozen=True)
class RecordedTry:
    """One try: when it began, how long it took, how it ended.

    `event` names what was tried, so that its tries can be told to belong together; `number` counts them from 1. `key`
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
        """From there to the last attempt's beginning, and a mean gap more, so that the last one is inside."""
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
