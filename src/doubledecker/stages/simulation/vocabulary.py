"""The words of a declared rehearsal, and the classes that they stand for."""

from collections.abc import Mapping

from doubledecker.stages import errors
from doubledecker.stages.distributions import Constant, Exponential, LogNormal, Normal, Observed, Ticks
from doubledecker.stages.naming import in_words
from doubledecker.stages.queues import CoDel, Fifo, Lifo, Priority
from doubledecker.stages.simulation.traffic import Bursty, Even, NormalKeys, Poisson, Ramp, UniformKeys
from doubledecker.stages.stage import Stage
from doubledecker.stages.techniques.adaptive import Adaptive
from doubledecker.stages.techniques.aside import AsideCache
from doubledecker.stages.techniques.batch import Batch
from doubledecker.stages.techniques.breaker import Breaker
from doubledecker.stages.techniques.bulkhead import Bulkhead
from doubledecker.stages.techniques.cache import Cache
from doubledecker.stages.techniques.fallback import Fallback
from doubledecker.stages.techniques.fault import Fault
from doubledecker.stages.techniques.hedge import Hedge
from doubledecker.stages.techniques.rate_limit import RateLimit
from doubledecker.stages.techniques.retry import Retry
from doubledecker.stages.techniques.router import Router
from doubledecker.stages.techniques.shed import Shed
from doubledecker.stages.techniques.simulated import Simulated
from doubledecker.stages.techniques.single_flight import SingleFlight
from doubledecker.stages.techniques.timeout import Deadline, Timeout
from doubledecker.stages.techniques.windows import Count, Time

Kinds = Mapping[str, type]


def _by_name(*kinds: type) -> Kinds:
    return {in_words(kind): kind for kind in kinds}


STAGES = _by_name(
    *(Adaptive, AsideCache, Batch, Breaker, Bulkhead, Cache, Deadline, Fallback, Fault, Hedge, RateLimit, Retry),
    *(Router, Shed, Simulated, SingleFlight, Stage, Timeout),
)
DISTRIBUTIONS = _by_name(Constant, Exponential, LogNormal, Normal, Observed, Ticks)
QUEUES = {**_by_name(Fifo, Lifo, Priority), "codel": CoDel}
WINDOWS = _by_name(Count, Time)
TRAFFIC = _by_name(Bursty, Even, Poisson, Ramp)
KEYS = {"uniform": UniformKeys, "normal": NormalKeys}
# What a stage or a dependency may raise; the rest of the tree is about chains and virtual time.
EXCEPTIONS: Mapping[str, type[Exception]] = {
    "Exception": Exception,
    "TimeoutError": TimeoutError,
    **{
        kind.__name__: kind
        for kind in (
            *(errors.Rejected, errors.QueueFull, errors.Overdue, errors.CircuitOpen, errors.RateExceeded, errors.Shed),
            *(errors.DeadlinePassed, errors.NotCached, errors.TimedOut, errors.DeadlineReached),
            *(errors.FaultInjected, errors.DependencyFailed),
        )
    },
}
