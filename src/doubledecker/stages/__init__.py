"""Stages: fault-tolerance techniques that guard production and run in virtual time, the same objects in both."""

from doubledecker.stages.blocking import Blocking, BlockingBound
from doubledecker.stages.bound import Bound
from doubledecker.stages.chain import Chain, Guarded
from doubledecker.stages.context import Event, Notice
from doubledecker.stages.distributions import Constant, Exponential, LogNormal, Normal, Observed, Ticks
from doubledecker.stages.limits import Result
from doubledecker.stages.pool import CoDel, Fifo, Lifo, Priority, Queue, Waiter, WorkerPool
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
from doubledecker.stages.techniques.batch import Batch
from doubledecker.stages.techniques.branch import Fallback, Router, value
from doubledecker.stages.techniques.breaker import Breaker, Count, Time
from doubledecker.stages.techniques.cache import AsideCache, Cache, SingleFlight
from doubledecker.stages.techniques.load import Adaptive, Bulkhead, RateLimit, Shed
from doubledecker.stages.techniques.retry import AT_ONCE, Backoff, Budget, Hedge, Retry
from doubledecker.stages.techniques.simulated import Fault, Outage, Saturation, Simulated
from doubledecker.stages.techniques.timeout import Deadline, Timeout

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
