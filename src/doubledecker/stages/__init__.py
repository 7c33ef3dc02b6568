"""Stages: fault-tolerance techniques that guard production and run in virtual time, the same objects in both."""

from doubledecker.stages.blocking import Blocking, BlockingBound
from doubledecker.stages.bound import Bound
from doubledecker.stages.chain import Chain
from doubledecker.stages.context import Notice
from doubledecker.stages.distributions import Constant, Exponential, LogNormal, Normal, Observed, Ticks
from doubledecker.stages.event import Event
from doubledecker.stages.guard import Guarded
from doubledecker.stages.matching import Result
from doubledecker.stages.queues import CoDel, Fifo, Lifo, Priority, Queue, Waiter
from doubledecker.stages.simulation.loop import VirtualLoop
from doubledecker.stages.simulation.report import Estimate, Report
from doubledecker.stages.simulation.simulate import simulate
from doubledecker.stages.simulation.traffic import (
    Arrival,
    Bursty,
    Even,
    NormalKeys,
    Poisson,
    Ramp,
    Recorded,
    UniformKeys,
)
from doubledecker.stages.stage import Stage
from doubledecker.stages.statistics import Snapshot
from doubledecker.stages.techniques.adaptive import Adaptive
from doubledecker.stages.techniques.aside import AsideCache
from doubledecker.stages.techniques.batch import Batch
from doubledecker.stages.techniques.breaker import Breaker
from doubledecker.stages.techniques.bulkhead import Bulkhead
from doubledecker.stages.techniques.cache import Cache
from doubledecker.stages.techniques.fallback import Fallback, value
from doubledecker.stages.techniques.fault import Fault
from doubledecker.stages.techniques.hedge import Hedge
from doubledecker.stages.techniques.rate_limit import RateLimit
from doubledecker.stages.techniques.retry import AT_ONCE, Backoff, Budget, Retry
from doubledecker.stages.techniques.router import Router
from doubledecker.stages.techniques.shed import Shed
from doubledecker.stages.techniques.simulated import Outage, Saturation, Simulated
from doubledecker.stages.techniques.single_flight import SingleFlight
from doubledecker.stages.techniques.timeout import Deadline, Timeout
from doubledecker.stages.techniques.windows import Count, Time
from doubledecker.stages.workers import WorkerPool

__all__ = [
    "AT_ONCE",
    "Adaptive",
    "Arrival",
    "AsideCache",
    "Backoff",
    "Batch",
    "Blocking",
    "BlockingBound",
    "Bound",
    "Breaker",
    "Budget",
    "Bulkhead",
    "Bursty",
    "Cache",
    "Chain",
    "CoDel",
    "Constant",
    "Count",
    "Deadline",
    "Estimate",
    "Even",
    "Event",
    "Exponential",
    "Fallback",
    "Fault",
    "Fifo",
    "Guarded",
    "Hedge",
    "Lifo",
    "LogNormal",
    "Normal",
    "NormalKeys",
    "Notice",
    "Observed",
    "Outage",
    "Poisson",
    "Priority",
    "Queue",
    "Ramp",
    "RateLimit",
    "Recorded",
    "Report",
    "Result",
    "Retry",
    "Router",
    "Saturation",
    "Shed",
    "Simulated",
    "SingleFlight",
    "Snapshot",
    "Stage",
    "Ticks",
    "Time",
    "Timeout",
    "UniformKeys",
    "VirtualLoop",
    "Waiter",
    "WorkerPool",
    "simulate",
    "value",
]
