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


# Four seconds hold forty ticks of processor time at least, so that a share of it is known to a few per cent.
FULL = Scale(
    repetitions=3, warm_s=1.0, measure_s=4.0, backlog=100_000, singles=20_000, light_s=10.0, jobs=5_000, patience_s=20.0
)
QUICK = Scale(
    repetitions=1, warm_s=0.3, measure_s=1.0, backlog=10_000, singles=2_000, light_s=2.0, jobs=1_000, patience_s=10.0
)
