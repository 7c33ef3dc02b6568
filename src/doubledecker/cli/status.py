"""`doubledecker status`: one overview, read straight from Redis, so that it works when the web process does not."""

import asyncio
import contextlib
import json
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import click
import msgspec

from doubledecker import clock
from doubledecker.assembly import build
from doubledecker.assembly import settings as reading
from doubledecker.assembly.settings import Settings
from doubledecker.bus import overview, telemetry, usage
from doubledecker.bus.overview import Overview, ServerMemory, SubscriberView
from doubledecker.bus.usage import QuotaUsage, Use
from doubledecker.cli import folder, words
from doubledecker.errors import BusAway
from doubledecker.model import replay
from doubledecker.store import partitions, processes
from doubledecker.store.losses import Loss

# What a series of overviews shows: rates, latency quantiles and sparklines. Pure, so that a test needs no bus.

KEPT_S = 60
# Long enough that a number does not flicker, short enough that a change shows.
CALM_MS = 4_000
LATENCY_MS = 10_000
_LATENCY = "latency.batches.last_attempt"
_BARS = "▁▂▃▄▅▆▇█"

Measure = Callable[[Overview], int]


class Trail:
    """The overviews of the last minute."""

    def __init__(self) -> None:
        self._views: deque[Overview] = deque(maxlen=KEPT_S + 1)

    @property
    def last(self) -> Overview | None:
        return self._views[-1] if self._views else None

    def add(self, view: Overview) -> None:
        self._views.append(view)

    def rate(self, measure: Measure, *, over_ms: int = CALM_MS) -> float:
        """By how much a counter grew a second, lately."""
        if self.last is None:
            return 0.0
        return per_second(measure, self._before(over_ms), self.last)

    def rates(self, measure: Measure) -> list[float]:
        """The same for each moment of the last minute."""
        return [per_second(measure, former, latter) for former, latter in pairwise(self._views)]

    def levels(self, measure: Measure) -> list[float]:
        """A gauge at each moment of the last minute."""
        return [float(measure(view)) for view in self._views]

    def latency_ms(self, share: float) -> float | None:
        """Within how long this share of the batches delivered lately were delivered; None when there were none."""
        if self.last is None:
            return None
        before = self._before(LATENCY_MS).counters
        names = {str(le): telemetry.counter(_LATENCY, le=str(le)) for le in (*telemetry.LATENCY_MS, "+Inf")}
        return telemetry.quantile(
            {le: self.last.counters.get(n, 0) - before.get(n, 0) for le, n in names.items()}, share
        )

    def _before(self, over_ms: int) -> Overview:
        since = self._views[-1].at - over_ms
        return next(view for view in self._views if view.at >= since)


def per_second(measure: Measure, former: Overview, latter: Overview) -> float:
    """How fast a counter grew between two looks; one that shrank was lost and began anew."""
    took_s = (latter.at - former.at) / 1000
    return max(0, measure(latter) - measure(former)) / took_s if took_s > 0 else 0.0


def published(view: Overview) -> int:
    return view.published


def delivered(view: Overview) -> int:
    """Events in successful deliveries, over all subscribers that are or were."""
    return view.delivered


def waiting(view: Overview) -> int:
    return view.events_waiting


def sent_to(token: str) -> Measure:
    """Events delivered to one subscriber."""
    return lambda view: sum(each.sent for each in view.subscribers if each.subscriber.token == token)


def sparkline(values: Sequence[float], *, width: int) -> str:
    """The last values as bars from zero to the highest; nothing at all is a flat line."""
    shown = values[-width:]
    highest = max(shown, default=0)
    if highest <= 0:
        return _BARS[0] * len(shown)
    return "".join(_BARS[round(value / highest * (len(_BARS) - 1))] for value in shown)


_START = "start one with `doubledecker pipeline run`"
_NAMED_MAX = 5  # what fits a line
_CLIENTS_MAX = 20  # what fits a screen
# What a client may have, in words that are short enough for a terminal; docs/operations.md has what they count.
_BOUNDS = {
    "client_topics_max": "topics",
    "client_queues_max": "queues",
    "client_copies_max": "copies",
    "client_refusing_queues_max": "refusing",
    "client_pattern_steps_max": "steps",
    "client_filter_steps_max": "filter steps",
    "client_subscribers_max": "subscriptions",
    "client_subscriptions_max": "subscribed",
    "client_streams_max": "streams",
    "client_requests_max": "requests",
    "client_events_per_s": "events/s",
    "client_idempotency_keys_max": "keys",
    "client_waiting_bytes_max": "waiting",
    "queue_tenants_max": "tenants",
}
# What all clients have together, and an address.
_BOUNDS_TOGETHER = {
    "pattern_steps_max": "pattern steps",
    "filter_steps_max": "filter steps",
    "address_connections_max": "connections of an address",
}


def status(*, url: str | None, data: Path | None, as_json: bool) -> None:
    """Print the state of the bus."""
    settings = find(url, data)
    view, seen = _look(settings)
    if as_json:
        click.echo(json.dumps({**as_json_of(view), **_usage_as_json(seen)}))
        return
    words.show(["bus", ""], [*totals(view), *_used_together(seen)])
    click.echo()
    words.show(SUBSCRIBER_TITLES, [subscriber_row(each, view.at) for each in view.subscribers])
    click.echo()
    words.show(["client", *_BOUNDS.values()], [_bounds_row(seen), *map(_use_row, _nearest(seen))])
    if not view.subscribers:
        click.echo("There are no subscribers; a client makes one with `doubledecker subscribe`", err=True)
    for each in view.subscribers:
        if each.condition.held_key_count:
            click.echo(_held(each), err=True)
        if each.lost:
            click.echo(_lost(each, each.lost), err=True)
    if view.memory_state != "ok":
        means = overview.MEMORY_MEANS[view.memory_state]
        click.echo(f"Memory is {view.memory_state}: {means}; docs/operations.md has the order", err=True)
    if view.unserved:
        click.echo(f"No pipeline runs, so {_named(view.unserved)} of the bulk tier get nothing; {_START}", err=True)


def find(url: str | None, data: Path | None) -> Settings:
    """Settings that lead to the bus that is meant: by its Redis, by its folder, or by the environment.

    Over how many partitions it is, its data says; what is only looked at needs no setting for that.
    """
    settings = reading.read(os.environ)
    if url:
        settings = replace(settings, redis_url=url)
    else:
        settings = folder.find(settings, data, is_url_set=settings.redis_url != Settings.redis_url)
    with contextlib.suppress(BusAway):  # the next connection reports it
        count = asyncio.run(partitions.kept_count(settings.redis_url, namespace=settings.namespace))
        settings = replace(settings, partitions=count or settings.partitions)
    return settings


def _look(settings: Settings) -> tuple[Overview, QuotaUsage]:
    try:
        return asyncio.run(_read(settings))
    except BusAway as error:
        raise folder.away(error, options="--data or --url") from error


async def _read(settings: Settings) -> tuple[Overview, QuotaUsage]:
    async with build.open_bus(settings, patience_s=0) as bus:
        known, rules = bus.registry.snapshot.pushed_to, bus.headroom.rules
        view = await overview.look(bus.partitions, known, now_ms=clock.now_ms(), rules=rules)
        reports = await processes.reports(bus.partitions.home, silent_ms_max=overview.ALIVE_MS)
        connections_max = settings.address_connections_max
        return view, await usage.look(bus.partitions, bus.registry, reports, connections_max=connections_max)


SUBSCRIBER_TITLES = ("subscriber", "tier", "health", "points", "waiting", "in flight", "failures", "sent", "oldest")


def totals(view: Overview) -> list[list[str]]:
    """The main numbers of a bus, a row each."""
    return [
        ["published", f"{published(view):,}"],
        ["delivered", f"{delivered(view):,}"],
        ["waiting", f"{view.events_waiting:,}"],
        ["oldest", words.age(_age_ms(view.oldest_at, view.at))],
        ["worker slots", str(view.slots_alive)],
        ["processes that push queues", str(view.watches_alive)],
        ["memory", ", ".join(map(_memory, view.memory))],
        ["dead letters", f"{sum(each.dead for each in view.subscribers):,}"],
        ["dropped", f"{_dropped(view):,}"],
        ["skipped", f"{view.total('queue.skipped'):,}"],
        ["journal", words.size(sum(view.journal_bytes.values()))],
    ]


def _memory(server: ServerMemory) -> str:
    used, limit = words.size(server.used_bytes), server.limit_bytes
    return f"{used} of {words.size(limit)}" if limit else f"{used}, no limit"


# Those of a queue are among what the queue has dropped.
_LETTERS_DROPPED = "letters.dropped:"


def _dropped(view: Overview) -> int:
    """Events that were dropped because memory was short, a queue full, or too much waited for a subscriber."""
    names = ("events.autodropped", "events.dropped", "queue.dropped")
    return sum(view.total(name) for name in names) + sum(
        count for name, count in view.counters.items() if name.startswith(_LETTERS_DROPPED) and "@" not in name
    )


def subscriber_row(each: SubscriberView, now_ms: int) -> list[str]:
    """One receiver, below the titles."""
    condition = each.condition
    numbers = (condition.health, each.events, condition.calls, condition.failures, each.sent)
    points, *others = (f"{number:,}" for number in numbers)
    age = words.age(_age_ms(each.oldest_at, now_ms))
    state = _state(each)
    return [each.subscriber.token, each.subscriber.tier, state, points, *others, age]


def _state(each: SubscriberView) -> str:
    return each.state


def _held(each: SubscriberView) -> str:
    """Which keys of an ordered subscriber wait for an event that it did not take."""
    count, some = each.condition.held_key_count, ", ".join(each.condition.held_keys)
    more = ", …" if count > len(each.condition.held_keys) else ""
    keys = "1 key waits" if count == 1 else f"{count:,} keys wait"
    return f"{each.subscriber.token} is ordered; {keys} for an event that it did not take: {some}{more}"


def _lost(each: SubscriberView, lost: Loss) -> str:
    """What a subscriber lost, and what brings it back from the lake."""
    what = f"{lost.events:,} events ({words.size(lost.bytes)})"
    return (
        f"{each.subscriber.token} lost {what}, as more waited than its backlog_max_bytes. From the lake, this sends "
        f"again what was accepted in that time on the topics that it has now: {_replay(each, lost)}"
    )


def _replay(each: SubscriberView, lost: Loss) -> str:
    subscriber = each.subscriber
    return replay.command(subscriber.token, subscriber.topics, from_ms=lost.from_ms, upto_ms=lost.upto_ms)


def _lost_as_json(each: SubscriberView) -> dict[str, object] | None:
    if each.lost is None:
        return None
    return {**msgspec.structs.asdict(each.lost), "replay": _replay(each, each.lost)}


def as_json_of(view: Overview) -> dict[str, object]:
    """What `--json` prints of a bus."""
    return {
        "at": view.at,
        "published": published(view),
        "delivered": delivered(view),
        "waiting": view.events_waiting,
        "oldest_ms": _age_ms(view.oldest_at, view.at),
        "worker_slots": view.slots_alive,
        "watch_processes": view.watches_alive,
        "pipeline": view.is_piped,
        "memory_bytes": sum(each.used_bytes for each in view.memory),
        "memory_limit_bytes": sum(each.limit_bytes for each in view.memory),
        "memory": view.memory_state,
        "dropped": _dropped(view),
        "skipped": view.total("queue.skipped"),
        "journal_bytes": view.journal_bytes,
        "subscribers": [_subscriber_as_json(each, view.at) for each in view.subscribers],
    }


def _subscriber_as_json(each: SubscriberView, now_ms: int) -> dict[str, object]:
    condition = each.condition
    return {
        "subscriber": each.subscriber.token,
        "callback": each.subscriber.callback,
        "topics": list(each.subscriber.topics),
        "tier": each.subscriber.tier,
        "state": _state(each),
        "health": condition.health,
        "failures": condition.failures,
        "refusals": condition.refusals,
        "in_flight": condition.calls,
        "waiting": each.events,
        "sent": each.sent,
        "dead": each.dead,
        "oldest_ms": _age_ms(each.oldest_at, now_ms),
        "dropped": _lost_as_json(each),
        "held_key_count": condition.held_key_count,
        "held_keys": condition.held_keys,
    }


def _nearest(seen: QuotaUsage) -> list[Use]:
    """The clients that are nearest to one of their bounds."""
    return sorted(seen.clients, key=lambda use: -use.nearness(seen.bounds))[:_CLIENTS_MAX]


def _bounds_row(seen: QuotaUsage) -> list[str]:
    """What a client may have; in a row, since beside each number it would make the table too wide."""
    return ["at most", *(_number(name, seen.bounds[name]) if seen.bounds[name] else "no bound" for name in _BOUNDS)]


def _use_row(use: Use) -> list[str]:
    return [use.client, *(_number(name, use.counts[name]) for name in _BOUNDS)]


def _used_together(seen: QuotaUsage) -> list[list[str]]:
    return [
        [
            title,
            f"{seen.together[name]:,} of {seen.bounds[name]:,}" if seen.bounds[name] else f"{seen.together[name]:,}",
        ]
        for name, title in _BOUNDS_TOGETHER.items()
    ]


def _number(bound: str, count: int) -> str:
    return words.size(count) if bound.endswith("_bytes_max") else f"{count:,}"


def _usage_as_json(seen: QuotaUsage) -> dict[str, object]:
    return {
        "bounds": seen.bounds,
        "quotas": _beside_bounds(seen.together, seen),
        "clients": [{"client": use.client, "quotas": _beside_bounds(use.counts, seen)} for use in seen.clients],
    }


def _beside_bounds(counts: Mapping[str, int], seen: QuotaUsage) -> dict[str, dict[str, int]]:
    return {name: {"used": count, "max": seen.bounds[name]} for name, count in counts.items()}


def _named(tokens: list[str]) -> str:
    """A few of them by name."""
    more = f" and {len(tokens) - _NAMED_MAX} more" if len(tokens) > _NAMED_MAX else ""
    return ", ".join(tokens[:_NAMED_MAX]) + more


def _age_ms(at: int | None, now_ms: int) -> int | None:
    return None if at is None else max(0, now_ms - at)
