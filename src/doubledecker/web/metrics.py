"""The overview as Prometheus metrics, rendered when asked for.

What has a row for each topic, client, subscriber or queue may have hundreds of thousands. As objects of the Prometheus
client they took ten times as long as the text itself, and looking through them for garbage held up the whole process:
those metrics are written line by line.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from doubledecker.bus import telemetry, usage
from doubledecker.bus.overview import Overview
from doubledecker.bus.usage import QuotaUsage
from doubledecker.model.quota import Quotas
from doubledecker.queues.view import QueueOverview
from doubledecker.stages import Bound
from doubledecker.stages.prometheus import StagesCollector
from doubledecker.store.processes import Family, MetricSample, ProcessReport

_HELP = {
    "events.published": "Events accepted, by topic",
    "events.added": "Events put in a subscriber's batches",
    "events.removed": "Events that left a subscriber's batches, for whatever reason",
    "events.autodropped": "Events dropped because memory was short",
    "events.dropped": "Events dropped because more waited for their subscriber than its backlog_max_bytes",
    "events.purged": "Events deleted with their subscriber",
    "delivery.batches": "Delivery attempts",
    "delivery.events": "Events in delivery attempts",
    "delivery.time": "Milliseconds spent in delivery attempts",
    "queue.dropped": "Messages that a full queue dropped",
    "letters.redriven": "Dead letters of subscribers that were redriven",
    "letters.dropped": "Dead letters that left for want of room",
    "queue.skipped": "Events that did not enter a queue: it was full, or its owner had reached a bound",
    "notifications.missed": "Events that listeners on Redis channels did not get",
    "streams.dropped": "Streams that the bus ended, by reason",
    "latency.batches.first_attempt": "From a batch's first event accepted to its first attempt",
    "latency.batches.last_attempt": "From a batch's first event accepted to its delivery",
}


# Clients whose requests under way a process reports, those with the most.
_CLIENTS_MAX = 20
_CIRCUITS = ("closed", "open", "half-open")


@dataclass(frozen=True)
class WebFigures:
    """What a web process counts for itself, and what bounds it."""

    streams: int
    connections: int
    address_connections: int
    address_connections_max: int
    requests: Counter[str]
    quotas: Quotas


def of_web(chains: Mapping[str, Bound], seen: WebFigures) -> list[Family]:
    """What a web process reports; to be called on its loop, as chains are not made for other threads."""
    gauges = {
        "doubledecker_streams": ("Streams open in a web process", seen.streams),
        "doubledecker_connections": ("Connections open to a web process", seen.connections),
        usage.CONNECTIONS: ("Connections of the address that has the most", seen.address_connections),
        usage.CONNECTIONS_BOUND: ("How many an address may have", seen.address_connections_max),
        usage.REQUESTS_BOUND: ("How many requests a client may have under way", seen.quotas.client_requests_max),
    }
    busiest = [
        MetricSample(usage.REQUESTS, {"client": id_}, count) for id_, count in seen.requests.most_common(_CLIENTS_MAX)
    ]
    bounds = [MetricSample(usage.BOUNDS, {"quota": name}, getattr(seen.quotas, name)) for name in usage.SETTINGS]
    # Numbered, as the servers of the other metrics are: an address is nobody's business.
    names = {f"redis-{number}": chains[server] for number, server in enumerate(sorted(chains))}
    return [
        *(Family(name, text, "gauge", [MetricSample(name, {}, value)]) for name, (text, value) in gauges.items()),
        Family(usage.REQUESTS, "Requests under way, of the clients that have the most", "gauge", busiest),
        Family(usage.BOUNDS, "The bounds of quotas that a web process checks; 0 is none", "gauge", bounds),
        *(_packed(metric) for metric in StagesCollector(names, prefix="doubledecker_stage").collect()),
    ]


def _packed(metric: Metric) -> Family:
    samples = [MetricSample(sample.name, sample.labels, sample.value) for sample in metric.samples]
    return Family(metric.name, metric.documentation, metric.type, samples)


@dataclass(frozen=True)
class BusFigures:
    """What was looked at of the whole bus."""

    view: Overview
    queues: Sequence[QueueOverview]
    usage: QuotaUsage


def render(bus: BusFigures | None, processes: Sequence[ProcessReport]) -> bytes:
    """The text that Prometheus reads: the whole bus unless it is away, and what processes report of themselves."""
    registry = CollectorRegistry()
    registry.register(_Collected(bus, processes))
    rows = (
        ()
        if bus is None
        else (
            _counters(bus.view),
            _of_subscribers(bus.view),
            _circuits(bus.view),
            _queues(bus.queues),
            _quotas(bus.usage),
        )
    )
    lines = (line for metric in itertools.chain.from_iterable(rows) for line in metric.lines())
    return generate_latest(registry) + "".join(lines).encode()


@dataclass(frozen=True)
class _Rows:
    """A metric with any number of samples: the values of its labels, and a number."""

    name: str
    help: str
    type: str
    labels: Sequence[str]
    samples: Iterable[tuple[Sequence[str], float]]

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.type}\n"
        for values, number in self.samples:
            pairs = sorted(f'{label}="{_escaped(value)}"' for label, value in zip(self.labels, values, strict=False))
            labels = f"{{{','.join(pairs)}}}" if pairs else ""
            yield f"{self.name}{labels} {float(number)}\n"


def _escaped(value: str) -> str:
    """As the text format wants it; names of ours need none of it."""
    if '"' in value or "\\" in value or "\n" in value:
        return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return value


@dataclass(frozen=True, eq=False)
class _Collected(Collector):
    """Hands what was looked at to the Prometheus client."""

    bus: BusFigures | None
    processes: Sequence[ProcessReport]

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("doubledecker_redis_up", "1 when Redis answers", value=float(self.bus is not None))
        if self.bus is not None:
            yield from _histograms(self.bus.view)
            yield from _gauges(self.bus.view)
            yield from _bounds(self.bus.usage)
        yield from _of_processes(self.processes)


def _bounds(seen: QuotaUsage) -> Iterator[Metric]:
    """What is used of the bounds that are not a client's, and all bounds."""
    together = GaugeMetricFamily("doubledecker_quota_used", "What is used of other bounds", labels=["quota"])
    for bound, count in seen.together.items():
        together.add_metric([bound], count)
    yield together
    most = GaugeMetricFamily("doubledecker_quota_max", "The bounds of quotas; 0 is none", labels=["quota"])
    for bound, count in seen.bounds.items():
        most.add_metric([bound], count)
    yield most


def _quotas(seen: QuotaUsage) -> Iterator[_Rows]:
    used = (((use.client, bound), count) for use in seen.clients for bound, count in use.counts.items())
    yield _Rows("doubledecker_client_quota_used", "What a client has", "gauge", ["client", "quota"], used)


def _of_processes(reports: Sequence[ProcessReport]) -> Iterator[Metric]:
    """What processes report, each series with the name of its process: a sum would fall when one of them ends."""
    alive = GaugeMetricFamily("doubledecker_processes", "Processes that report, by kind", labels=["kind"])
    for kind, count in sorted(Counter(report.kind for report in reports).items()):
        alive.add_metric([kind], count)
    yield alive
    families: dict[str, Metric] = {}
    for report in sorted(reports, key=lambda report: report.process):
        for family in report.families:
            metric = families.setdefault(family.name, Metric(family.name, family.help, family.type))
            for sample in family.samples:
                metric.add_sample(sample.name, sample.labels | {"process": report.process}, sample.value)
    yield from families.values()


def _counters(view: Overview) -> Iterator[_Rows]:
    found: dict[str, list[tuple[telemetry.Counter, int]]] = defaultdict(list)
    for field, value in sorted(view.counters.items()):
        parsed = telemetry.parse(field)
        if not parsed.name.startswith("latency."):
            found[parsed.name].append((parsed, value))
    for of, counted in found.items():
        name, scale = _counter_name(of)
        labels = [label for label, _ in counted[0][0].labels]
        samples = (([text for _, text in parsed.labels], value * scale) for parsed, value in counted)
        yield _Rows(f"{name}_total", _HELP.get(of, of), "counter", labels, samples)


def _counter_name(name: str) -> tuple[str, float]:
    if name == "delivery.time":
        return "doubledecker_delivery_seconds", 0.001
    return "doubledecker_" + name.replace(".", "_"), 1


def _histograms(view: Overview) -> Iterator[Metric]:
    buckets: dict[str, dict[str, int]] = defaultdict(dict)
    for field, value in view.counters.items():
        parsed = telemetry.parse(field)
        if parsed.name.startswith("latency.") and parsed.labels:
            buckets[parsed.name][parsed.labels[0][1]] = value
    for name, counts in sorted(buckets.items()):
        total = 0
        cumulative = []
        for le in telemetry.LATENCY_MS:
            total += counts.get(str(le), 0)
            cumulative.append((str(le / 1000), float(total)))
        cumulative.append(("+Inf", float(total + counts.get("+Inf", 0))))
        family = HistogramMetricFamily("doubledecker_" + name.replace(".", "_") + "_seconds", _HELP.get(name, name))
        family.add_metric([], cumulative, sum_value=view.counters.get(f"{name}.sum", 0) / 1000)
        yield family


def _gauges(view: Overview) -> Iterator[Metric]:
    waiting = GaugeMetricFamily("doubledecker_jobs", "Jobs, by queue and state", labels=["queue", "state"])
    for (queue, state), count in sorted(view.jobs.items()):
        waiting.add_metric([queue, "total" if state == "index" else state], count)
    yield waiting
    yield from _memory(view)
    journal = GaugeMetricFamily("doubledecker_journal_bytes", "What the journals hold", labels=["journal"])
    for name, size in sorted(view.journal_bytes.items()):
        journal.add_metric([name], size)
    yield journal
    yield from _journal_ages(view)
    slots = "Slots for deliveries with a fresh heartbeat"
    yield GaugeMetricFamily("doubledecker_worker_slots", slots, value=view.slots_alive)
    text, alive = "Processes that push queues, workers among them, with a fresh heartbeat", view.watches_alive
    yield GaugeMetricFamily("doubledecker_watch_processes", text, value=alive)
    age_s = 0 if view.oldest_at is None else max(0, view.at - view.oldest_at) / 1000
    yield GaugeMetricFamily("doubledecker_oldest_batch_age_seconds", "Age of the oldest waiting batch", value=age_s)


def _journal_ages(view: Overview) -> Iterator[Metric]:
    held = GaugeMetricFamily("doubledecker_journal_age_seconds", "Age of the oldest entry held", labels=["journal"])
    lag = GaugeMetricFamily(
        "doubledecker_pipeline_lag_seconds", "Age of the oldest entry that has not landed", labels=["journal"]
    )
    for name, age in sorted(view.journal_ages.items()):
        held.add_metric([name], age.held_ms / 1000)
        # Without a pipeline there is nothing to be behind, and an alert on the lag must not fire.
        if age.lag_ms is not None:
            lag.add_metric([name], age.lag_ms / 1000)
    yield held
    yield lag


def _memory(view: Overview) -> Iterator[Metric]:
    used = GaugeMetricFamily("doubledecker_redis_used_bytes", "Memory in use, by server", labels=["server"])
    limit = GaugeMetricFamily("doubledecker_redis_limit_bytes", "Memory that may be used, by server", labels=["server"])
    for index, each in enumerate(sorted(view.memory, key=lambda each: each.server)):
        used.add_metric([str(index)], each.used_bytes)
        limit.add_metric([str(index)], each.limit_bytes)
    yield used
    yield limit
    state = GaugeMetricFamily("doubledecker_memory_state", "1 for the state that memory is in", labels=["state"])
    for name in ("ok", "short", "full"):
        state.add_metric([name], float(view.memory_state == name))
    yield state


def _of_subscribers(view: Overview) -> Iterator[_Rows]:
    conditions = [each.condition for each in view.subscribers]
    shapes = {
        "queue_events": ("Events waiting, by subscriber", [each.events for each in view.subscribers]),
        "queue_batches": ("Batches waiting, by subscriber", [each.batches for each in view.subscribers]),
        "health_points": ("Health from 0 to 100, by subscriber", [each.health for each in conditions]),
        "failures": (
            "Batches that failed in a row, by subscriber; 0 unless it fails",
            [e.failures for e in conditions],
        ),
        "refusals": ("Batches refused in a row for their content, by subscriber", [e.refusals for e in conditions]),
        "calls": ("Deliveries under way, by subscriber", [each.calls for each in conditions]),
        "dead_letters": ("Dead letters, by subscriber", [each.dead for each in view.subscribers]),
        "paused": ("1 while a subscriber is paused", [int(each.subscriber.paused) for each in view.subscribers]),
        "disabled": (
            "1 while a subscriber is disabled, as it answered 410",
            [int(each.subscriber.disabled_at > 0) for each in view.subscribers],
        ),
    }
    tokens = [[each.subscriber.token] for each in view.subscribers]
    for name, (text, values) in shapes.items():
        samples = zip(tokens, values, strict=True)
        yield _Rows(f"doubledecker_subscriber_{name}", text, "gauge", ["subscriber"], samples)


def _circuits(view: Overview) -> Iterator[_Rows]:
    """The circuits of receivers: a circuit is open while its receiver fails, and half open while that is probed."""
    # All three states are shown, so that a graph has a zero and not a hole.
    circuits = (
        ((each.subscriber.token, state), int(each.condition.circuit == state))
        for each in view.subscribers
        for state in _CIRCUITS
    )
    labels = ["subscriber", "state"]
    yield _Rows("doubledecker_chain_circuits", "Circuits by state, of each receiver", "gauge", labels, circuits)
    calls = (((each.subscriber.token,), each.condition.calls) for each in view.subscribers)
    yield _Rows("doubledecker_chain_calls", "Calls under way", "gauge", ["subscriber"], calls)


def _queues(seen: Sequence[QueueOverview]) -> Iterator[_Rows]:
    messages = (
        ((each.queue.name, state), count)
        for each in seen
        for state, count in (
            ("waiting", each.waiting),
            ("in_flight", each.in_flight),
            ("delayed", each.delayed),
            ("dead", each.dead),
        )
    )
    yield _Rows("doubledecker_queue_messages", "Messages, by queue", "gauge", ["queue", "state"], messages)
    settled = (((each.queue.name, kind), count) for each in seen for kind, count in sorted(each.counters.items()))
    name, text = "doubledecker_queue_settlements_total", "What became of messages, by queue"
    yield _Rows(name, text, "counter", ["queue", "kind"], settled)
