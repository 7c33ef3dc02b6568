"""The report: figures as tables, and words that stay true whatever the figures are."""

import statistics
from collections.abc import Mapping, Sequence

from bench.rows import TABLES, Row, Table

Samples = Mapping[str, Sequence[float]]

_COLUMNS = ("what", "median", "least to most", "floor", "ratio to floor", "peer", "ratio to peer", "aim")
_INTRODUCTION = """# Benchmarks

Written by `make bench`, which starts and stops everything that it measures, on the loopback address, and takes some
half an hour. Do not edit this page: the next run writes it again. `.venv/bin/python -m bench --quick` prints shorter,
rougher tables and writes nothing; `--only ingest` (or `drain`, `latency`, …) measures one part. `make bench
AGAINST=COMMIT` measures the product of this tree and of another commit in turns, and writes the last section alone.
"""
_RULES = """## How to read it

- Each figure is the median of {repetitions} repetitions, each on a fresh Valkey with the persistence that
  `doubledecker up` gives it; beside it are the least and the most. The parts take turns, so that a slow minute of the
  machine touches all of them.
- The load generator and the receiver run on the same cores as what they measure. On a machine with few cores they take
  a share of the processor, so rates are lower than with clients elsewhere. Processor time an event does not have
  this fault: it is read from the kernel for the process itself, in steps of 10 ms.
- A floor is the same work without the bus. For rates, a ratio to it below 1 is the price of the bus; for times and
  sizes the price is what lies above 1.
- Compare figures within one run. Between runs and machines only ratios mean something, and differences smaller than the
  spread mean nothing.
"""
_NOISE = (
    "- The rate that varied most is `{widest}`: its least and its most are {spread:.0%} of the median apart. "
    "Take that as the noise of this run."
)


def page(samples: Samples, facts: Mapping[str, str], *, repetitions: int) -> str:
    """The whole of docs/benchmarks.md."""
    machine = "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items())])
    parts = [
        _INTRODUCTION,
        f"## The machine\n\n{machine}\n",
        _RULES.format(repetitions=repetitions),
        f"## In short\n\n{_summary(samples)}\n",
        tables(samples),
    ]
    return "\n".join(parts)


def tables(samples: Samples) -> str:
    """Every table that has a figure."""
    return "\n".join(_table(table, samples) for table in TABLES if any(row.key in samples for row in table.rows))


def _table(table: Table, samples: Samples) -> str:
    lines = [_line(row, samples) for row in table.rows if row.key in samples]
    rule = "|---|" + "---:|" * (len(_COLUMNS) - 1)
    return "\n".join([f"## {table.title}\n", f"{table.how}\n", f"| {' | '.join(_COLUMNS)} |", rule, *lines, ""])


def _line(row: Row, samples: Samples) -> str:
    values = samples[row.key]
    median = statistics.median(values)
    floor = statistics.median(samples[row.floor]) if row.floor in samples else None
    peer = _best_peer(row, samples)
    cells = (
        row.what,
        f"**{shown(median)}** {row.unit}",
        f"{shown(min(values))} to {shown(max(values))}",
        shown(floor),
        _ratio(median, floor),
        f"{peer[0]} {shown(peer[1])}" if peer else "",
        _ratio(median, peer[1]) if peer else "",
        _aim(row, samples),
    )
    return f"| {' | '.join(cells)} |"


def _best_peer(row: Row, samples: Samples) -> tuple[str, float] | None:
    """The fastest peer there is a figure of: the highest rate, the shortest time."""
    found = [
        (key.partition(".")[0].capitalize(), statistics.median(samples[key])) for key in row.peers if key in samples
    ]
    fastest = max if row.unit == "/s" else min
    return fastest(found, key=lambda peer: peer[1], default=None)


def _aim(row: Row, samples: Samples) -> str:
    if row.aim is None:
        return ""
    value = _aimed_at(row, samples)
    bound = f"≥ {shown(row.aim.least)}" if row.aim.least is not None else f"≤ {shown(row.aim.most)}"
    of = f" of the {row.aim.of}" if row.aim.of else ""
    if value is None:
        return f"{bound}{of}"
    return f"{bound}{of}: {'met' if row.aim.is_met_by(value) else '**not met**'}"


def _aimed_at(row: Row, samples: Samples) -> float | None:
    """What the aim of a row bounds: its median, or the ratio of it to the floor or the best peer, if that is known."""
    median = statistics.median(samples[row.key])
    if row.aim is None or not row.aim.of:
        return median
    if row.aim.of == "floor":
        return median / statistics.median(samples[row.floor]) if row.floor in samples else None
    peer = _best_peer(row, samples)
    return median / peer[1] if peer else None


def _summary(samples: Samples) -> str:
    aimed = [
        (row.aim, value)
        for table in TABLES
        for row in table.rows
        if row.aim and row.key in samples and (value := _aimed_at(row, samples)) is not None
    ]
    met = [value for aim, value in aimed if aim.is_met_by(value)]
    rates = [row for table in TABLES for row in table.rows if row.unit == "/s" and row.key in samples]
    widest = max(rates, key=lambda row: _spread(samples[row.key]))
    lines = [
        f"- {len(met)} of {len(aimed)} aims are met.",
        _NOISE.format(widest=widest.key, spread=_spread(samples[widest.key])),
        *_comparisons(samples),
    ]
    return "\n".join(lines)


def _comparisons(samples: Samples) -> list[str]:
    """What the ratios say, for those that could be measured."""
    said = (
        ("A single event costs the web process {:.1f} times the processor time of an empty request",
         "ingest.single.web_cpu_us", "floor.http.single.web_cpu_us"),
        ("An event among 100 in a request costs the web process {:.2f} times what one alone does",
         "ingest.array.web_cpu_us", "ingest.single.web_cpu_us"),
        ("A worker delivers batches of 1000 at {:.2f} times the rate of a bare POST loop",
         "drain.1000.batches_per_s", "floor.posts.1000.batches_per_s"),
        ("It delivers batches of 1 at {:.2f} times the rate of a bare POST loop",
         "drain.1.batches_per_s", "floor.posts.1.batches_per_s"),
        ("That is {:.2f} times the rate at which Dramatiq runs jobs that POST the same",
         "drain.1.batches_per_s", "dramatiq.post.done_per_s"),
        ("A call through retry, timeout, breaker and bulkhead takes {:.2f} times what `asyncio.timeout` alone does",
         "guarded.four_us", "asyncio.guarded_us"),
        ("A simulated queue passes {:.2f} times as many customers a second as SimPy's",
         "simulation.mm1.customers_per_s", "simpy.mm1.customers_per_s"),
        ("A waiting event takes {:.1f} times its size in memory, its copy in the journal included",
         "memory.with_journal_bytes", "memory.event_bytes"),
    )  # fmt: skip
    return [
        f"- {text.format(statistics.median(samples[ours]) / statistics.median(samples[theirs]))}."
        for text, ours, theirs in said
        if ours in samples and theirs in samples
    ]


def _spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / statistics.median(values)


def _ratio(ours: float, theirs: float | None) -> str:
    return f"{ours / theirs:.2f}" if theirs else ""


def shown(value: float | None) -> str:
    """A figure with as many digits as matter."""
    if value is None:
        return ""
    if value >= 100:
        return f"{value:,.0f}".replace(",", "\N{NO-BREAK SPACE}")
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
