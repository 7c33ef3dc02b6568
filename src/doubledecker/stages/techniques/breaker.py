"""Circuit breaker: stop asking a dependency that mostly fails, and ask carefully whether it is back.

    closed ──failures over the threshold──▶ open ──after open_s──▶ half-open ──probes succeed──▶ closed
                                             ▲                         │
                                             └────────a probe fails────┘

Open, it fails at once: callers do not wait for what will fail, and the dependency gets room to recover. Half-open, it
lets in at most `probes` events and judges by them alone; calls that began before the circuit opened tell of the past,
and no longer count. A probe that is cancelled says nothing, and gives its place back. A rejection from a stage inside
(a full bulkhead, a rate limit) says nothing of the dependency either, and is not counted.

Put a timeout inside: a probe that never ends keeps the circuit half-open for ever.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from doubledecker.stages import limits
from doubledecker.stages.errors import CircuitOpen, Rejected
from doubledecker.stages.event import Event
from doubledecker.stages.stage import Stage
from doubledecker.stages.techniques.windows import Count, Outcomes, Time


class Circuit:
    """The state of one circuit: one for all events, or one for each key."""

    __slots__ = ("opened_at", "outcomes", "probed", "probes", "state")

    def __init__(self, outcomes: Outcomes) -> None:
        self.state = "closed"
        self.opened_at = 0.0
        self.outcomes = outcomes
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
    on: tuple[type[Exception], ...] = (Exception,)

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
            on=limits.EXCEPTIONS,
        )

    def start(self) -> None:
        self._shared = Circuit(self.window.fresh())
        self._by_key: OrderedDict[str | None, Circuit] = OrderedDict()
        # A short window would else never hold enough calls to open.
        self._calls_min = min(self.calls_min, self.window.size) if isinstance(self.window, Count) else self.calls_min

    @property
    def state(self) -> str:
        if not self.per_key:
            return self._shared.state
        amount = sum(circuit.state != "closed" for circuit in self._by_key.values())
        return f"{amount} of {len(self._by_key)} not closed"

    def admit(self, event: Event) -> None:
        circuit = self._circuit(event) if self.per_key else self._shared
        if circuit.state == "closed":
            return
        refusal = self._refusal(circuit)
        if refusal is not None:
            raise refusal
        if circuit.state == "open":
            self._change(circuit, "half-open", event)
        circuit.probes.add(event)

    def refusal(self, event: Event) -> CircuitOpen | None:
        """Why the event would be turned away now, for who has work to do before calling; asking changes nothing."""
        return self._refusal(self._circuit(event))

    def _refusal(self, circuit: Circuit) -> CircuitOpen | None:
        if circuit.state == "open":
            left_s = circuit.opened_at + self.open_s - self.context.clock()
            return CircuitOpen(self.name, retry_after_s=left_s) if left_s > 0.0 else None
        if circuit.state == "half-open" and len(circuit.probes) + circuit.probed >= self.probes:
            return CircuitOpen(self.name)
        return None

    def succeeded(self, event: Event, result: object) -> None:  # noqa: ARG002 - any result is a success
        circuit = self._circuit(event) if self.per_key else self._shared
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
        elif not isinstance(error, self.on):
            self.succeeded(event, error)
        else:
            self._count_failure(self._circuit(event), event)

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

    def _change(self, circuit: Circuit, state: str, event: Event) -> None:
        circuit.state = state
        circuit.opened_at = self.context.clock()
        circuit.outcomes = self.window.fresh()
        circuit.probes.clear()
        circuit.probed = 0
        self.notify(state, event)

    def _circuit(self, event: Event) -> Circuit:
        if not self.per_key:
            return self._shared
        circuit = self._by_key.get(event.key)
        if circuit is None:
            circuit = self._by_key[event.key] = Circuit(self.window.fresh())
            if len(self._by_key) > self.keys_max:
                self._by_key.popitem(last=False)
        else:
            self._by_key.move_to_end(event.key)
        return circuit
