"""Circuit breaker: stop asking a dependency that mostly fails, and ask carefully whether it is back.

    closed ──failures over the threshold──▶ open ──after open_s──▶ half-open ──probes succeed──▶ closed
                                             ▲                         │
                                             └────────a probe fails────┘

Open, it fails at once: callers do not wait for what will fail, and the dependency gets room to recover. Half-open, it
lets in at most `probes` events and judges by them alone; calls that began before the circuit opened belong to the past,
and no longer count. A probe that is cancelled says nothing, and gives its place back. A rejection from a stage inside
(a full bulkhead, a rate limit) says nothing of the dependency either, and is not counted.

With `slow_s` an answer that took longer counts as a failure: a dependency that answers everything, but too late, is
down too. The time is that of this process, which may itself be what is slow: so there is no limit unless you set one.

`force_open` and `force_closed` hold a circuit where an operator wants it, whatever happens, until `release`.

Put a timeout inside: a probe that never ends keeps the circuit half-open for ever.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Protocol

from doubledecker.stages import limits
from doubledecker.stages.context import Event
from doubledecker.stages.errors import ChainInvalid, CircuitOpen, KeyMissing, Rejected
from doubledecker.stages.limits import MATCHES, On, OutcomeMatcher
from doubledecker.stages.stage import Stage

# Windows: the outcomes that a breaker judges by, the last so many or those of the last so many seconds.


class Outcomes(Protocol):
    """The outcomes in a window; `failures` is right after `calls` or `record`."""

    failures: int

    def record(self, *, is_failure: bool, now: float) -> None: ...

    def calls(self, now: float) -> int: ...


@dataclass(frozen=True)
class Count:
    """The last `size` calls."""

    size: int = 20

    def __post_init__(self) -> None:
        limits.check(self, size=limits.ONE_OR_MORE)

    def fresh(self) -> "Outcomes":
        return _Ring(self.size)


@dataclass(frozen=True)
class Time:
    """The calls of the last `span_s`, in `slices` parts: an old part is forgotten at once, for constant memory."""

    span_s: float = 10.0
    slices: int = 10

    def __post_init__(self) -> None:
        limits.check(self, span_s=limits.FINITE_ABOVE_ZERO, slices=limits.ONE_OR_MORE)

    def fresh(self) -> "Outcomes":
        return _Slices(self.span_s / self.slices, self.slices)


class _Ring:
    __slots__ = ("_size", "failures", "ring")

    def __init__(self, size: int) -> None:
        self.ring: deque[bool] = deque()
        self.failures = 0
        self._size = size

    def record(self, *, is_failure: bool, now: float) -> None:  # noqa: ARG002 - a ring knows no time
        ring = self.ring
        if len(ring) == self._size:
            self.failures -= ring.popleft()
        ring.append(is_failure)
        self.failures += is_failure

    def calls(self, now: float) -> int:  # noqa: ARG002
        return len(self.ring)


@dataclass
class _Slice:
    number: int
    calls: int = 0
    failures: int = 0


class _Slices:
    __slots__ = ("_calls", "_length_s", "_slices", "_slices_max", "failures")

    def __init__(self, length_s: float, slices_max: int) -> None:
        self._length_s = length_s
        self._slices_max = slices_max
        self._slices: deque[_Slice] = deque()
        self._calls = 0
        self.failures = 0

    def record(self, *, is_failure: bool, now: float) -> None:
        self._forget(now)
        number = int(now / self._length_s)
        if not self._slices or self._slices[-1].number != number:
            self._slices.append(_Slice(number))
        self._slices[-1].calls += 1
        self._slices[-1].failures += is_failure
        self._calls += 1
        self.failures += is_failure

    def calls(self, now: float) -> int:
        self._forget(now)
        return self._calls

    def _forget(self, now: float) -> None:
        oldest = int(now / self._length_s) - self._slices_max
        while self._slices and self._slices[0].number <= oldest:
            gone = self._slices.popleft()
            self._calls -= gone.calls
            self.failures -= gone.failures


FORCED_OPEN, FORCED_CLOSED = "forced open", "forced closed"


class Circuit:
    """The state of one circuit: one for all events, or one for each key."""

    __slots__ = ("opened_at", "outcomes", "probed", "probes", "state")

    def __init__(self, outcomes: Outcomes) -> None:
        self.state = "closed"
        self.opened_at = 0.0
        self.outcomes = outcomes
        # Events that admit made for one passage each: a call that is older than the probe is never taken for it.
        self.probes: set[Event] = set()
        self.probed = 0


@dataclass
class Breaker(Stage):
    """Opens when more than `threshold` of the window failed, with at least `calls_min` in it, or when it is full."""

    window: Count | Time = field(default_factory=Count)
    threshold: float = 0.5
    calls_min: int = 10
    open_s: float = 5.0
    probes: int = 1
    per_key: bool = False
    keys_max: int = 10_000
    on: On = (Exception,)
    slow_s: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.check(
            self,
            window=limits.a(Count, Time),
            threshold=limits.SHARE,
            calls_min=limits.ONE_OR_MORE,
            open_s=limits.ABOVE_ZERO,
            probes=limits.ONE_OR_MORE,
            keys_max=limits.ONE_OR_MORE,
            on=MATCHES,
            slow_s=limits.or_none(limits.FINITE_ABOVE_ZERO),
        )

    def start(self) -> None:
        self._shared = Circuit(self.window.fresh())
        self._by_key: OrderedDict[str | None, Circuit] = OrderedDict()
        # Circuits of keys that are forced, and under None the one that all keys share then.
        self._forced: dict[str | None, Circuit] = {}
        self._on = OutcomeMatcher(self.on)
        self._judges_results = self._on.asks_results or self.slow_s is not None
        self._took_s = 0.0
        if self.slow_s is None:
            self._does = self.inner
        # A short window would else never hold enough calls to open.
        self._calls_min = min(self.calls_min, self.window.size) if isinstance(self.window, Count) else self.calls_min

    @property
    def state(self) -> str:
        if not self.per_key:
            return self._shared.state
        if None in self._forced:
            return self._forced[None].state
        circuits = {**self._by_key, **self._forced}
        amount = sum(circuit.state != "closed" for circuit in circuits.values())
        return f"{amount} of {len(circuits)} not closed"

    @property
    def needs_key(self) -> bool:
        return self.per_key

    @property
    def is_admission(self) -> bool:
        return True

    def force_open(self, key: str | None = None) -> None:
        """Let nothing in until `release`; with circuits by key, that of one key or of all."""
        self._force(FORCED_OPEN, key)

    def force_closed(self, key: str | None = None) -> None:
        """Let everything in until `release`, whatever fails."""
        self._force(FORCED_CLOSED, key)

    def release(self, key: str | None = None) -> None:
        """Go by what happens again; the circuit begins closed, without a past."""
        if not self.per_key:
            self._change(self._shared, "closed")
        elif self._forced.pop(key, None) is not None:
            self._by_key.pop(key, None)
            self.notify("closed")

    def _force(self, state: str, key: str | None) -> None:
        if key is not None and not self.per_key:
            raise ChainInvalid(f"{self.name} has one circuit for all keys; with per_key=True it has one for each")
        circuit = self._forced.setdefault(key, Circuit(self.window.fresh())) if self.per_key else self._shared
        self._change(circuit, state)

    def admit(self, event: Event) -> Event | None:
        circuit = self._circuit(event) if self.per_key else self._shared
        if circuit.state == "closed" or circuit.state == FORCED_CLOSED:  # noqa: PLR1714 - the first costs half as much
            return None
        refusal = self._refusal(circuit)
        if refusal is not None:
            raise refusal
        if circuit.state == "open":
            self._change(circuit, "half-open", event)
        probe = event.again()
        circuit.probes.add(probe)
        return probe

    async def work(self, event: Event) -> object:
        """Only where slow calls count: note how long it took."""
        began_at = self._clock()
        try:
            return await self.inner(event)
        finally:
            # Read by whichever of succeeded and failed is called next, before anybody else can run.
            self._took_s = self._clock() - began_at

    def refusal(self, event: Event) -> CircuitOpen | None:
        """Why the event would be turned away now, for who has work to do before calling; asking changes nothing."""
        return self._refusal(self._circuit(event))

    def _refusal(self, circuit: Circuit) -> CircuitOpen | None:
        if circuit.state == FORCED_OPEN:
            return CircuitOpen(self.name)
        if circuit.state == "open":
            left_s = circuit.opened_at + self.open_s - self.context.clock()
            return CircuitOpen(self.name, retry_after_s=left_s) if left_s > 0.0 else None
        if circuit.state == "half-open" and len(circuit.probes) + circuit.probed >= self.probes:
            return CircuitOpen(self.name)
        return None

    def succeeded(self, event: Event, result: object) -> None:
        circuit = self._circuit(event) if self.per_key else self._shared
        if self._judges_results and (self._is_slow or self._on.holds_for_result(result)):
            self._count_failure(circuit, event)
        elif circuit.state == "closed":
            circuit.outcomes.record(is_failure=False, now=self._clock())
        else:
            self._count_success(circuit, event)

    @property
    def _is_slow(self) -> bool:
        return self.slow_s is not None and self._took_s > self.slow_s

    def _count_success(self, circuit: Circuit, event: Event) -> None:
        if circuit.state == "closed":
            circuit.outcomes.record(is_failure=False, now=self._clock())
        elif event in circuit.probes:
            circuit.probes.discard(event)
            circuit.probed += 1
            if circuit.probed >= self.probes:
                self._change(circuit, "closed", event)

    def failed(self, event: Event, error: Exception) -> None:
        if isinstance(error, Rejected):
            self.cancelled(event)
        elif self._is_slow or self._on.holds_for_error(error):
            self._count_failure(self._circuit(event), event)
        else:
            self._count_success(self._circuit(event), event)

    def cancelled(self, event: Event) -> None:
        self._circuit(event).probes.discard(event)

    def _count_failure(self, circuit: Circuit, event: Event) -> None:
        if circuit.state == "closed":
            now = self.context.clock()
            circuit.outcomes.record(is_failure=True, now=now)
            calls = circuit.outcomes.calls(now)
            if calls >= self._calls_min and circuit.outcomes.failures > self.threshold * calls:
                self._change(circuit, "open", event)
        elif event in circuit.probes:
            self._change(circuit, "open", event)

    def _change(self, circuit: Circuit, state: str, event: Event | None = None) -> None:
        circuit.state = state
        circuit.opened_at = self.context.clock()
        circuit.outcomes = self.window.fresh()
        circuit.probes.clear()
        circuit.probed = 0
        self.notify(state, event)

    def _circuit(self, event: Event) -> Circuit:
        if not self.per_key:
            return self._shared
        if event.key is None:
            raise KeyMissing(self.name)
        if self._forced and (forced := self._forced.get(event.key) or self._forced.get(None)):
            return forced
        circuit = self._by_key.get(event.key)
        if circuit is None:
            circuit = self._by_key[event.key] = Circuit(self.window.fresh())
            if len(self._by_key) > self.keys_max:
                self._by_key.popitem(last=False)
        else:
            self._by_key.move_to_end(event.key)
        return circuit
