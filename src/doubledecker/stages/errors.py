"""Everything that stages raise on purpose, as a tree. What a dependency raises passes through unchanged.

StagesError
├── Rejected                 a stage did not let the event in; the dependency was not called
│   ├── QueueFull            no free worker, and no place to wait
│   ├── Overdue              waited longer than the queue thinks useful
│   ├── CircuitOpen          the breaker is open, or its probes are taken
│   ├── RateExceeded         more events than the rate allows
│   ├── Shed                 turned away to protect what is already inside
│   ├── DeadlinePassed       too late to begin
│   └── NotCached            an aside cache has nothing yet; it is being fetched
├── TimedOut                 the work took too long (also a TimeoutError)
│   └── DeadlineReached      the event's own deadline came during the work
├── FaultInjected            a failure made on purpose
├── DependencyFailed         the simulated dependency failed
├── ChainInvalid             a chain that cannot work as written
│   ├── SettingInvalid       a setting out of its limits
│   ├── KeyMissing           a stage that goes by keys got an event without one
│   └── ScenarioInvalid      a file for a rehearsal that says what cannot be
├── ExtraMissing             a package that this needs is not installed
├── Deadlock                 virtual time: everyone waits, and nothing is scheduled
└── RealWorldRefused         virtual time: a socket, a thread or a process was asked for
"""

from doubledecker.pickling import Portable


class StagesError(Portable):
    """The root: catching it catches everything the stages raise themselves."""


class Rejected(StagesError):
    """An event that stage `stage` did not let in; `retry_after_s` says when to come back, if the stage knows."""

    reason = "rejected"

    def __init__(self, stage: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(stage)
        self.stage = stage
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        again = "" if self.retry_after_s is None else f", again in {self.retry_after_s:.3g} s"
        return f"{self.stage}: {self.reason}{again}"


class QueueFull(Rejected):
    """No free worker, and no place to wait."""

    reason = "no free worker and no place to wait"


class Overdue(Rejected):
    """Waited longer than the queue thinks useful."""

    reason = "waited too long in the queue"


class CircuitOpen(Rejected):
    """The breaker is open, or half-open with all its probes taken."""

    reason = "the circuit is open"


class RateExceeded(Rejected):
    """More events than the rate allows."""

    reason = "more events than the rate allows"


class Shed(Rejected):
    """Turned away to protect what is already inside."""

    reason = "shed under load"


class DeadlinePassed(Rejected):
    """Its deadline had passed before the work began."""

    reason = "its deadline has passed"


class NotCached(Rejected):
    """An aside cache has nothing for the key yet."""

    reason = "not in the cache yet"


class TimedOut(StagesError, TimeoutError):
    """The work inside stage `stage` took longer than `after_s`."""

    def __init__(self, stage: str, after_s: float) -> None:
        super().__init__(f"{stage}: not done after {after_s:.6g} s")
        self.stage = stage
        self.after_s = after_s


class DeadlineReached(TimedOut):
    """The event's own deadline came while it was worked on."""


class FaultInjected(StagesError):
    """A failure made on purpose, to see what the rest does."""


class DependencyFailed(StagesError):
    """The simulated dependency failed: by chance, or in an outage."""


class ChainInvalid(StagesError):
    """A chain that cannot work as written."""


class SettingInvalid(ChainInvalid):
    """A setting of `owner` that is `seen`, and must be what `allowed` says."""

    def __init__(self, owner: str, setting: str, seen: object, allowed: str) -> None:
        super().__init__(owner, setting, seen, allowed)
        self.owner = owner
        self.setting = setting
        self.seen = seen
        self.allowed = allowed

    def __str__(self) -> str:
        return f"{self.owner}.{self.setting} is {self.seen!r}; it must be {self.allowed}"


class KeyMissing(ChainInvalid):
    """An event without a key came to stage `stage`, which goes by keys."""

    def __init__(self, stage: str) -> None:
        super().__init__(
            f"{stage} needs events with a key: guard the function with chain.keyed(…), or call it with "
            "bound.options(key=…).call(…)"
        )
        self.stage = stage


class ScenarioInvalid(ChainInvalid):
    """A file for a rehearsal that says what cannot be."""


class ExtraMissing(StagesError):
    """A package that `what` needs is not installed; it comes with an extra."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs a package that is not installed; get it with: pip install 'doubledecker[{extra}]'"
        )
        self.what = what
        self.extra = extra


class Deadlock(StagesError):
    """Everyone waits and nothing is scheduled; `waiting` names the tasks."""

    def __init__(self, waiting: list[str]) -> None:
        super().__init__(f"nothing is scheduled, and {len(waiting)} tasks wait: {', '.join(waiting[:5])}")
        self.waiting = waiting


class RealWorldRefused(StagesError):
    """Virtual time has no sockets, threads or processes; `what` was asked for."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} needs the real world, and this loop runs in virtual time")
        self.what = what
