"""One snapshot of the whole bus, for metrics, status and the live view alike."""

import asyncio
from collections import Counter as Sum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from doubledecker.bus import telemetry
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.bus.telemetry import counter
from doubledecker.model.subscriber import Subscriber, health
from doubledecker.store import (
    batches,
    bulk,
    counters,
    dead_letters,
    jobs,
    journal,
    losses,
    memory,
    pipeline,
    processes,
    queues,
    subscribers,
)
from doubledecker.store.losses import Loss
from doubledecker.store.memory import MemoryState, MemoryUsage, State
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.store.subscribers import Condition

# Three missed heartbeats, so that one slow reply does not look like a death.
ALIVE_MS = 15_000
# What a state of memory means, for people.
MEMORY_MEANS: dict[State, str] = {
    "ok": "",
    "short": "journals are cut, and what may be dropped is dropped",
    "full": "nothing is left that may be dropped, or no worker does so, and publishing is refused at the limit",
}

# How a receiver may fare, those in need first.
STATES = ("disabled", "failing", "refusing", "paused", "recovering", "healthy")

_T = TypeVar("_T")


@dataclass(frozen=True)
class SubscriberView:
    """A subscriber with what waits for it and how it fares."""

    subscriber: Subscriber
    condition: Condition
    events: int
    batches: int
    sent: int
    oldest_at: int | None
    lost: Loss | None = None
    dead: int = 0

    @property
    def state(self) -> str:
        """How it fares, in a word."""
        at, halt = self.condition, self.subscriber.halt
        return health(at.health, failures=at.failures, refusals=at.refusals, halt=halt)


@dataclass(frozen=True)
class ServerMemory:
    """The memory of one server: used, allowed (0: nothing bounds it), and how it stands."""

    server: str
    used_bytes: int
    limit_bytes: int
    state: State


@dataclass(frozen=True)
class Overview:
    at: int
    subscribers: tuple[SubscriberView, ...]
    counters: dict[str, int]
    jobs: dict[tuple[str, str], int]
    slots_alive: int
    memory: tuple[ServerMemory, ...]
    journal_bytes: dict[str, int]
    oldest_at: int | None
    watches_alive: int = 0
    is_piped: bool = False
    journal_ages: Mapping[str, journal.Age] = field(default_factory=dict)

    @property
    def unserved(self) -> list[str]:
        """The subscribers of the bulk tier, while no pipeline runs that would deliver to them."""
        bulk_tier = (view.subscriber for view in self.subscribers if view.subscriber.is_bulk)
        return [] if self.is_piped else [subscriber.token for subscriber in bulk_tier]

    @property
    def memory_state(self) -> State:
        """How memory stands on the server that has least left."""
        return worst(self.memory)

    @property
    def published(self) -> int:
        """Events accepted, ever."""
        return self.total("events.published")

    @property
    def delivered(self) -> int:
        """Events in successful deliveries, over all subscribers that are or were."""
        return sum(value for field, value in self.counters.items() if _is_delivered(field))

    @property
    def due(self) -> int:
        """Events that were to be delivered, each as often as it has receivers; grows as fast as these get events.

        What a queue with a callback got is what it has, and what was delivered of it.
        """
        pushed = sum(count for field, count in self.counters.items() if _is_delivered(field, to="@"))
        held = sum(each.events for each in self.subscribers if each.subscriber.token.startswith("@"))
        return self.total("events.added") + pushed + held

    @property
    def oldest_ms(self) -> int:
        """How long the oldest batch has waited; 0 when none waits."""
        return 0 if self.oldest_at is None else max(0, self.at - self.oldest_at)

    @property
    def events_waiting(self) -> int:
        return sum(view.events for view in self.subscribers)

    def total(self, name: str) -> int:
        """A counter added up over all its labels."""
        return sum(value for field, value in self.counters.items() if field.partition(":")[0] == name)


async def look(partitions: Partitions, known: dict[str, Subscriber], *, now_ms: int, rules: MemoryRules) -> Overview:
    """Read everything, a few round trips a partition."""
    slots = await _each(partitions, partial(jobs.alive, silent_ms_max=ALIVE_MS))
    states = await _each(partitions, journal.state)
    aged = [(name, await _each(partitions, partial(journal.age, name=name))) for name in journal.ALL]
    run = (await pipeline.read(partitions.home)).run
    return Overview(
        at=now_ms,
        subscribers=tuple(await look_at(partitions, sorted(known.values(), key=lambda s: s.token))),
        counters=_total(await _each(partitions, counters.read)),
        jobs=_total(await _each(partitions, jobs.counts)),
        slots_alive=sum(not jobs.is_aux_slot(slot) for slot in set().union(*slots)),
        watches_alive=await processes.watches_alive(partitions.home, silent_ms_max=ALIVE_MS),
        memory=tuple(await look_at_memory(partitions, rules)),
        journal_bytes={name: sum(int(state.get(f"{name}_bytes", 0)) for state in states) for name in journal.ALL},
        oldest_at=min((at for at in await _each(partitions, batches.oldest) if at is not None), default=None),
        journal_ages={name: _oldest(ages) for name, ages in aged},
        is_piped=run is not None and run.is_alive(now_ms),
    )


async def look_at_memory(partitions: Partitions, rules: MemoryRules) -> list[ServerMemory]:
    found = []
    for first, *_ in partitions.by_server():
        usage, standing = await memory.usage(first), await memory.standing(first)
        found.append(judge(first.server, usage, standing, rules, now_ms=await first.time_ms()))
    return found


def judge(server: str, usage: MemoryUsage, standing: MemoryState, rules: MemoryRules, *, now_ms: int) -> ServerMemory:
    """How a server's memory stands: as a worker last found it; if none looks, by what is used alone.

    A worker looks each second, and its settings count before the caller's, which may be a command without any.
    Where none looks nothing is freed, so that memory is full where it would be short.
    """
    if standing.is_recent(now_ms, look_ms=rules.look_ms):
        return ServerMemory(server, usage.used_bytes, standing.limit_bytes, standing.state(now_ms))
    limit = rules.limit_of(usage.bytes_max)
    is_full = limit > 0 and usage.used_bytes > rules.bound_of(limit)
    state: State = "full" if is_full else "short" if standing.was_short(now_ms) else "ok"
    return ServerMemory(server, usage.used_bytes, limit, state)


def worst(servers: Sequence[ServerMemory]) -> State:
    """The state of the server that has least left."""
    found = {each.state for each in servers}
    return "full" if "full" in found else "short" if "short" in found else "ok"


async def look_at(partitions: Partitions, known: list[Subscriber]) -> list[SubscriberView]:
    tokens = [subscriber.token for subscriber in known]
    conditions = await subscribers.conditions(partitions, tokens)
    events: Sum[str] = Sum()
    waiting: Sum[str] = Sum()
    sent: Sum[str] = Sum()
    oldest: dict[str, int] = {}
    lost: dict[str, list[Loss]] = {}
    dead: Sum[str] = Sum()
    for partition in partitions.all:
        event_gauges, batch_gauges = await batches.gauges_of(partition, tokens)
        events.update(event_gauges)
        events.update(await queues.lengths(partition, [token for token in tokens if token.startswith("@")]))
        waiting.update(batch_gauges)
        sent.update(await counters.read_some(partition, list(map(_delivered, tokens))))
        for token, at in (await batches.oldest_by_token(partition, tokens)).items():
            oldest[token] = min(at, oldest.get(token, at))
        dead.update(await dead_letters.counts(partition, tokens))
        for token, found in (await losses.of_subscribers(partition, tokens)).items():
            lost[token] = [*lost.get(token, ()), *found]
    for token, backlog in (await bulk.backlogs(partitions)).items():
        events[token] += backlog.events
        if backlog.oldest_at is not None:
            oldest[token] = min(backlog.oldest_at, oldest.get(token, backlog.oldest_at))
    return [
        SubscriberView(
            subscriber=subscriber,
            condition=conditions[subscriber.token],
            events=events[subscriber.token],
            batches=waiting[subscriber.token],
            sent=sent[_delivered(subscriber.token)],
            oldest_at=oldest.get(subscriber.token),
            lost=losses.total(lost.get(subscriber.token, ())),
            dead=dead[subscriber.token],
        )
        for subscriber in known
    ]


def _is_delivered(field: str, *, to: str = "") -> bool:
    """Whether it counts events that were delivered, to a receiver whose name begins so."""
    if not field.startswith("delivery.events:"):
        return False
    labels = dict(telemetry.parse(field).labels)
    return labels["outcome"] == "delivered" and labels["subscriber"].startswith(to)


def _delivered(token: str) -> str:
    return counter("delivery.events", subscriber=token, outcome="delivered")


def _total(parts: Sequence[Mapping[_T, int]]) -> dict[_T, int]:
    # Not by `+`, which would leave out what is zero.
    total: Sum[_T] = Sum()
    for part in parts:
        total.update(part)
    return dict(total)


async def _each(partitions: Partitions, read: Callable[[Partition], Awaitable[_T]]) -> list[_T]:
    """What a function reads from every partition, side by side."""
    return await asyncio.gather(*(read(partition) for partition in partitions.all))


def _oldest(ages: Sequence[journal.Age]) -> journal.Age:
    """The age of a journal over all partitions: that of the one that is furthest behind."""
    lags = [age.lag_ms for age in ages if age.lag_ms is not None]
    return journal.Age(max(age.held_ms for age in ages), max(lags, default=None))
