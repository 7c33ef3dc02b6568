"""How a receiver is called: through a chain of stages of its own. Whoever calls receivers does it here.

    deadline   the whole call, shorter than the hold on the subscriber that goes with it
    breaker    a receiver that mostly fails is asked by one batch, once in a while
    bulkhead   no more calls from this process than the subscriber allows in all; a few wait for a place
    timeout    the attempt itself

There is no retry inside: a failed batch goes back to its job, which remembers over restarts how often it was tried. And
what must hold over all processes is in Redis. A chain is the experience of this process alone; it is forgotten when it
has not been used for a while, and begins anew when the subscriber moves to another callback.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from doubledecker import log
from doubledecker.delivery.attempt import Dialer
from doubledecker.errors import CallRejected
from doubledecker.model.outcome import Kind, Outcome
from doubledecker.model.subscriber import Subscriber
from doubledecker.pickling import Portable
from doubledecker.stages import Breaker, Bulkhead, Count, Deadline, Event, Fifo, Timeout
from doubledecker.stages.errors import Rejected, TimedOut
from doubledecker.stages.transitions import Transitions
from doubledecker.store.chains import ChainState

# A place in the process is a matter of moments: Redis has counted the calls before.
PLACE_S = 5.0
# When a stage cannot say when to come back: its probe or its workers are busy with calls that may end any moment.
_AGAIN_S = 1.0
# Longer than the breaker stays open, so that what it knows is not forgotten while it matters.
_IDLE_S = 300.0
_PLAIN: Mapping[str, str] = {}

_log = log.get("delivery")


@dataclass(frozen=True)
class ChainRules:
    """The numbers that all chains go by; more than `threshold` of the last `calls` must fail to open a circuit."""

    timeout_s: float = 20.0
    calls: int = 10
    threshold: float = 0.5
    open_s: float = 5.0

    @property
    def deadline_s(self) -> float:
        """How long a call takes at most, with the wait for a place."""
        return self.timeout_s + PLACE_S


class _Failed(Portable):
    """The attempt failed: how the stages hear of it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.detail)
        self.outcome = outcome


class _Unwell(_Failed):
    """The receiver is to blame: another batch would fail too."""


class _Chain:
    """A bound chain, whom it leads to, and when it was last of use."""

    def __init__(self, subscriber: Subscriber, rules: ChainRules) -> None:
        spec = (
            Deadline(rules.deadline_s)
            | Breaker(Count(rules.calls), rules.threshold, (rules.calls + 1) // 2, rules.open_s, on=(_Unwell, TimedOut))
            | Bulkhead(workers=subscriber.concurrency, queue=Fifo(subscriber.concurrency))
            | Timeout(rules.timeout_s)
        )
        self.subscriber = subscriber
        self.bound = spec.bind(listener=Transitions(opened=self._log_opened, closed=self._log_closed))
        self.breaker = self.bound.stage(Breaker)
        self.used_at = 0.0

    def _log_opened(self) -> None:
        who = self.subscriber
        _log.warning("circuit.opened", subscriber=who.token, callback=who.callback, open_s=self.breaker.open_s)

    def _log_closed(self) -> None:
        _log.info("circuit.closed", subscriber=self.subscriber.token, callback=self.subscriber.callback)

    @property
    def is_busy(self) -> bool:
        return self.bound["deadline"].working > 0

    @property
    def state(self) -> ChainState:
        bulkhead = self.bound["bulkhead"]
        return ChainState(self.subscriber.token, self.breaker.state, bulkhead.working, bulkhead.queued)


class Chains:
    """One chain for each subscriber that this process calls."""

    def __init__(self, dialer: Dialer, rules: ChainRules) -> None:
        self._dialer = dialer
        self._rules = rules
        self._chains: dict[str, _Chain] = {}
        self._rejected: Counter[tuple[str, str]] = Counter()
        self._swept_at = 0.0

    async def attempt(
        self, subscriber: Subscriber, messages: Sequence[bytes], headers: Mapping[str, str] = _PLAIN
    ) -> Outcome:
        """Post messages to a subscriber and say how it went; raises CallRejected when nothing was sent."""
        chain = self._chain(subscriber)
        try:
            return await chain.bound.call(self._post, subscriber, messages, headers)
        except _Failed as failed:
            return failed.outcome
        except TimedOut as late:
            return Outcome(Kind.TIMED_OUT, round(late.after_s * 1000), detail=f"no answer within {late.after_s:g} s")
        except Rejected as rejected:
            raise self._rejection(subscriber, rejected) from rejected

    def check(self, subscriber: Subscriber) -> None:
        """Raise CallRejected if a call would not pass the breaker now: asked before a call costs anything."""
        refusal = self._chain(subscriber).breaker.refusal(_ANY)
        if refusal is not None:
            raise self._rejection(subscriber, refusal)

    def states(self) -> list[ChainState]:
        """Every chain that is in use."""
        self._sweep(asyncio.get_running_loop().time())
        return [chain.state for chain in self._chains.values()]

    def rejections(self) -> Mapping[tuple[str, str], int]:
        """Calls that were not let through, by subscriber and stage, since this was last asked."""
        taken, self._rejected = self._rejected, Counter()
        return taken

    async def close(self) -> None:
        for chain in self._chains.values():
            await chain.bound.close()
        await self._dialer.close()

    async def _post(self, subscriber: Subscriber, messages: Sequence[bytes], headers: Mapping[str, str]) -> Outcome:
        outcome = await self._dialer.attempt(subscriber, messages, headers)
        if outcome.is_delivered:
            return outcome
        raise _Failed(outcome) if outcome.is_receiver_well else _Unwell(outcome)

    def _rejection(self, subscriber: Subscriber, why: Rejected) -> CallRejected:
        self._rejected[subscriber.token, why.stage] += 1
        again_s = _AGAIN_S if why.retry_after_s is None else why.retry_after_s
        # A millisecond more: a job that comes back too early would be rejected once more.
        return CallRejected(why.stage, int(again_s * 1000) + 1)

    def _chain(self, subscriber: Subscriber) -> _Chain:
        now = asyncio.get_running_loop().time()
        chain = self._chains.get(subscriber.token)
        if chain is None or chain.subscriber.callback != subscriber.callback:
            self._sweep(now)
            chain = self._chains[subscriber.token] = _Chain(subscriber, self._rules)
        elif chain.subscriber.concurrency != subscriber.concurrency:
            chain.bound["bulkhead"].resize(subscriber.concurrency)
        chain.subscriber = subscriber
        chain.used_at = now
        return chain

    def _sweep(self, now: float) -> None:
        """Forget the chains that nobody has used for long."""
        if now - self._swept_at < _IDLE_S:
            return
        self._swept_at = now
        idle = [t for t, chain in self._chains.items() if now - chain.used_at > _IDLE_S and not chain.is_busy]
        for token in idle:
            del self._chains[token]


# A breaker that is not per key treats all events alike.
_ANY = Event()
