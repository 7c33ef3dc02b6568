"""The first page: how the bus fares as a whole, and what needs attention."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from doubledecker.bus import history
from doubledecker.bus.overview import STATES, Overview, SubscriberView
from doubledecker.dashboard import figures
from doubledecker.dashboard.bus_view import BusView
from doubledecker.dashboard.drawing import Line, Plot
from doubledecker.dashboard.figures import Figure
from doubledecker.dashboard.pages import Visit
from doubledecker.dashboard.series import DEFAULT_SPAN, SPANS, Series, Y
from doubledecker.model import token
from doubledecker.model.scopes import LOOKING, SEEING_QUEUES

# Over how many seconds a rate that is shown as a number is taken, and a latency: `doubledecker up` shows the same.
_CALM_S, _LATENCY_S = 4, 10
_SPARK_POINTS = 60
_ROWS_MAX = 8
_LETTERS_MAX = 6
_TENANTS_MAX = 6


@dataclass(frozen=True)
class Tile:
    """One number, its unit, and how it came to be."""

    name: str
    figure: Figure
    ys: Sequence[Y]
    link: str
    is_bad: bool = False


class OverviewPage:
    def __init__(self, bus: BusView) -> None:
        self._bus = bus

    async def look(self, visit: Visit) -> Mapping[str, object]:
        view = await self._bus.overview()
        key = visit.query.get("span", DEFAULT_SPAN)
        span = SPANS.get(key, SPANS[DEFAULT_SPAN])
        series = await self._bus.series(span.key)
        recent = series if span.key == DEFAULT_SPAN else await self._bus.series(DEFAULT_SPAN)
        seen = self._bus.seen(view, visit)
        readable = seen if visit.may(*LOOKING) else []
        return {
            "spans": list(SPANS.values()),
            "span": span,
            "tiles": tiles(view, seen, recent, visit),
            "throughput": throughput(series, recent) if visit.sees_bus else None,
            "latency": latencies(series, recent) if visit.sees_bus else None,
            "names": token.names([each.subscriber.token for each in seen]),
            "receivers": _needy_first(seen)[:_ROWS_MAX],
            "receivers_in_all": len(seen),
            "most_waiting": max((each.events for each in seen), default=0),
            "fairness": await self._bus.busiest(visit.caller) if visit.may(*SEEING_QUEUES) else None,
            "tenants_max": _TENANTS_MAX,
            "letters": await self._bus.newest_letters(readable, visit.caller, most=_LETTERS_MAX),
            "letters_in_all": sum(each.dead for each in seen),
            "letters_by_status": await self._bus.letter_counts(readable, "status"),
            "pipeline": await self._bus.pipeline(),
            "lag_ms": view.journal_ages["events"].lag_ms,
            "at": view.at,
            "memory_state": view.memory_state,
            "slots": view.slots_alive,
        }


def tiles(view: Overview, seen: Sequence[SubscriberView], recent: Series, visit: Visit) -> list[Tile]:
    """The six numbers; of a client those of its own receivers where they are of receivers."""
    calm, lately = recent.last(_CALM_S), recent.last(_LATENCY_S)
    published = _mean([each.published for each in calm])
    delivered = _mean([each.delivered for each in calm])
    p99_ms = history.latency_ms(lately, 0.99)
    waiting, dead = sum(each.events for each in seen), sum(each.dead for each in seen)
    oldest = min((each.oldest_at for each in seen if each.oldest_at is not None), default=None)
    oldest_ms = 0 if oldest is None else max(0, view.at - oldest)

    def spark(ys: Sequence[Y], *, is_bus_wide: bool = True) -> Sequence[Y]:
        return thinned(ys, _SPARK_POINTS) if is_bus_wide or visit.caller.is_admin else []

    of_bus = [
        Tile("Published", Figure(figures.rate(published), "/s"), spark(recent.published), "#throughput"),
        Tile("Delivered", Figure(figures.rate(delivered), "/s"), spark(recent.delivered), "#throughput"),
        Tile("Latency p99", figures.duration(p99_ms), spark(recent.latency_ms(0.99)), "#latency"),
    ]
    return [
        *(of_bus if visit.sees_bus else ()),
        Tile("Backlog", Figure(figures.count(waiting)), spark(recent.waiting, is_bus_wide=False), "#receivers"),
        Tile("Oldest waiting", figures.duration(oldest_ms), spark(recent.oldest_ms, is_bus_wide=False), "#receivers"),
        Tile("Dead letters", Figure(figures.count(dead)), spark(recent.dead, is_bus_wide=False), "#dead", dead > 0),
    ]


def throughput(series: Series, recent: Series) -> Plot:
    """What was to be delivered against what was, and what was published: each of it has some receivers."""
    calm = recent.last(_CALM_S)

    def line(name: str, measure: str) -> Line:
        now = figures.rate(_mean([getattr(each, measure) for each in calm]))
        return Line(name, getattr(series, measure), f"{now}/s", measure)

    lines = [line("To deliver", "due"), line("Delivered", "delivered"), line("Published", "published")]
    span = series.span
    return Plot(lines, span.title, span.seconds, series.end_s, "/s", figures.count, fills_gap=True)


def latencies(series: Series, recent: Series) -> Plot:
    """From an event accepted to the answer that it was delivered, slowest first."""
    lately = recent.last(_LATENCY_S)

    def line(share: int) -> Line:
        now = figures.duration(history.latency_ms(lately, share / 100))
        return Line(f"p{share}", series.latency_ms(share / 100), str(now), f"p{share}")

    span = series.span
    lines = [line(share) for share in (99, 95, 50)]
    return Plot(lines, span.title, span.seconds, series.end_s, "ms", figures.axis_duration)


def thinned(ys: Sequence[Y], most: int) -> list[Y]:
    """At most so many of the values, each the mean of those that it stands for."""
    size = max(1, -(-len(ys) // most))
    parts = [[y for y in ys[at : at + size] if y is not None] for at in range(0, len(ys), size)]
    return [sum(part) / len(part) if part else None for part in parts]


def _needy_first(views: Sequence[SubscriberView]) -> list[SubscriberView]:
    """Those in need first, then those with the most waiting; the others keep the order of their names."""
    return sorted(views, key=lambda each: (STATES.index(each.state), -each.events, each.subscriber.token))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
