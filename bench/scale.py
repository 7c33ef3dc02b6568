"""How much is measured, and for how long: everything is bounded in time and in number."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """The bounds of one run."""

    repetitions: int
    warm_s: float
    measure_s: float
    backlog: int
    singles: int
    light_s: float
    jobs: int
    patience_s: float
    subscribers: int = 10_000
    # Of the pipeline: so many that to start and stop a job of Spark's is not most of it.
    rows: int = 500_000
    # No part is measured again when it would end later than this after the start; 0 is no bound.
    seconds_max: float = 0.0

    def is_time_for(self, *, elapsed_s: float, last_s: float | None) -> bool:
        """Whether a part that took so long the last time fits in; each is measured once, whatever it takes."""
        return last_s is None or not self.seconds_max or elapsed_s + last_s <= self.seconds_max


FULL = Scale(
    repetitions=3, warm_s=1.0, measure_s=4.0, backlog=100_000, singles=20_000, light_s=10.0, jobs=5_000, patience_s=20.0
)
# Two trees in turns: less than half of the work, so that both take no longer than the whole of one.
COMPARING = Scale(
    repetitions=3,
    warm_s=0.5,
    measure_s=2.0,
    backlog=40_000,
    singles=10_000,
    light_s=6.0,
    jobs=2_000,
    patience_s=20.0,
    # As many as the benchmark of 0.1.0 takes, five backlogs: of fewer, more of the time goes to starting Spark's jobs.
    rows=5 * 40_000,
    seconds_max=24 * 60,
)
QUICK = Scale(
    repetitions=1,
    warm_s=0.3,
    measure_s=1.0,
    backlog=10_000,
    singles=2_000,
    light_s=4.0,
    jobs=1_000,
    patience_s=10.0,
    subscribers=1_000,
    rows=50_000,
)
