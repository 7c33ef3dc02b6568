"""The history of the bus: looked at each second by whichever worker comes first, and read by the dashboard.

A look reads what `status` and `/metrics` show (bus/overview.py). What counters grew by since the look before makes a
sample in each ring; that of a longer step is written anew with each look until its time is over.
"""

from collections.abc import Iterator, Sequence

from doubledecker.bus import overview, telemetry
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.bus.overview import Overview
from doubledecker.bus.registry import LiveRegistry
from doubledecker.store import history
from doubledecker.store.history import RINGS, Head, KeptHead, Ring, Sample, Stretch
from doubledecker.store.partitions import Partition, Partitions

_LATENCY = "latency.batches.last_attempt"
_BUCKETS = (*map(str, telemetry.LATENCY_MS), "+Inf")
# Looks take at most a tenth of the time, however many topics and subscribers there are.
_PAUSES = 10
_NO_LAG = -1


class HistoryWriter:
    """Adds a sample of the whole bus to its history."""

    def __init__(self, partitions: Partitions, live: LiveRegistry, rules: MemoryRules) -> None:
        self._partitions = partitions
        self._live = live
        self._rules = rules

    async def run(self) -> None:
        """Look and write, unless looking takes so long that it is too soon; of two who do at once, one counts."""
        home = self._partitions.home
        kept = await history.head(home)
        began_ms = await home.time_ms()
        if kept.head is not None and 0 <= began_ms - kept.head.at_ms < _PAUSES * kept.head.took_ms:
            return
        await self._live.refresh()
        known = self._live.snapshot.pushed_to
        view = await overview.look(self._partitions, known, now_ms=began_ms, rules=self._rules)
        await add(home, view, kept, took_ms=await home.time_ms() - began_ms)


async def add(home: Partition, view: Overview, kept: KeptHead, *, took_ms: int) -> bool:
    """Write what follows from a look; False when another process has written since the head was read."""
    # A head of a version that counts other things is none.
    former = kept.head if kept.head and len(kept.head.totals) == len(_totals(view)) else None
    head = _after(former, view, took_ms=took_ms)
    samples = list(_samples(former, head)) if former else []
    return await history.write(home, kept.packed, head, samples)


def _after(former: Head | None, view: Overview, *, took_ms: int) -> Head:
    """The head after a look."""
    totals, gauges = _totals(view), _gauges(view)
    stretches = []
    for place, ring in enumerate(RINGS):
        at_s = view.at // 1000 // ring.step_s * ring.step_s
        last = former.stretches[place] if former else None
        if last is not None and last.at_s == at_s:
            highest = tuple(map(max, last.gauges, gauges))
            stretches.append(Stretch(at_s, last.began_ms, last.totals, highest))
        elif former is not None:
            stretches.append(Stretch(at_s, former.at_ms, former.totals, gauges))
        else:
            stretches.append(Stretch(at_s, view.at, totals, gauges))
    return Head(view.at, took_ms, totals, tuple(stretches))


def _samples(former: Head, head: Head) -> Iterator[tuple[Ring, Sample]]:
    for ring, stretch in zip(RINGS, head.stretches, strict=True):
        span_s = (head.at_ms - stretch.began_ms) / 1000
        # The clock of a server that took another's place may be behind.
        if span_s <= 0 or head.at_ms <= former.at_ms:
            continue
        # A counter that shrank was lost, and began anew.
        published, due, delivered, *counts = map(_growth, stretch.totals, head.totals)
        batches = sum(counts)
        waiting, oldest_ms, dead, lag_ms = stretch.gauges
        yield (
            ring,
            Sample(
                stretch.at_s,
                span_s,
                published / span_s,
                due / span_s,
                delivered / span_s,
                waiting,
                oldest_ms,
                dead,
                None if lag_ms == _NO_LAG else lag_ms,
                batches,
                tuple(count / batches if batches else 0.0 for count in counts),
            ),
        )


def _growth(before: int, now: int) -> int:
    return max(0, now - before)


def _totals(view: Overview) -> tuple[int, ...]:
    names = (telemetry.counter(_LATENCY, le=le) for le in _BUCKETS)
    return (view.published, view.due, view.delivered, *(view.counters.get(name, 0) for name in names))


def _gauges(view: Overview) -> tuple[int, ...]:
    lag_ms = view.journal_ages["events"].lag_ms if "events" in view.journal_ages else None
    return (
        view.events_waiting,
        view.oldest_ms,
        sum(each.dead for each in view.subscribers),
        _NO_LAG if lag_ms is None else lag_ms,
    )


async def read(partitions: Partitions, ring: Ring, *, from_s: int, to_s: int) -> list[Sample]:
    """The samples of this time, in order."""
    return await history.read(partitions.home, ring, from_s=from_s, to_s=to_s)


def latency_ms(samples: Sequence[Sample], share: float) -> float | None:
    """Within how long this share of the batches of these samples were delivered; None when there were none."""
    counts = [sum(each.batches * each.shares[place] for each in samples) for place in range(len(_BUCKETS))]
    return telemetry.quantile(dict(zip(_BUCKETS, counts, strict=True)), share)
