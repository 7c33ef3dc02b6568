"""Metrics with any number of rows: the text that Prometheus reads, written without an object for each of them."""

import pytest
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from doubledecker.bus.overview import Overview
from doubledecker.bus.usage import QuotaUsage, Use
from doubledecker.model.queue import RegisteredQueue
from doubledecker.queues.view import QueueOverview
from doubledecker.web import metrics
from doubledecker.web.metrics import BusFigures


def an_overview(counters: dict[str, int]) -> Overview:
    return Overview(0, (), counters, {}, 0, (), {}, None)


def families(text: bytes) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def test_rows_are_read_by_prometheus_as_they_were_meant():
    queue = QueueOverview(RegisteredQueue("jobs", "ann-1", (".*",)), 1, 2, 3, 4, {"acked": 5})
    used = QuotaUsage([Use('a "quoted" \\ name', {"client_topics_max": 1_234_567})], {}, {"client_topics_max": 7})
    view = an_overview({"delivery.time:subscriber=a,outcome=ok": 1500, "notifications.missed": 3})
    found = families(metrics.render(BusFigures(view, [queue], used), []))

    [quota] = found["doubledecker_client_quota_used"].samples
    assert (quota.labels["client"], quota.labels["quota"], quota.value) == (
        'a "quoted" \\ name',
        "client_topics_max",
        1_234_567,
    )
    held = {sample.labels["state"]: sample.value for sample in found["doubledecker_queue_messages"].samples}
    assert held == {"waiting": 1, "in_flight": 2, "delayed": 3, "dead": 4}
    [settled] = found["doubledecker_queue_settlements"].samples
    assert (settled.labels, settled.value) == ({"queue": "jobs", "kind": "acked"}, 5)
    assert found["doubledecker_queue_settlements"].type == "counter"
    [time] = found["doubledecker_delivery_seconds"].samples
    assert (time.labels, time.value) == ({"subscriber": "a", "outcome": "ok"}, 1.5)
    [missed] = found["doubledecker_notifications_missed"].samples
    assert (missed.labels, missed.value) == ({}, 3)


def test_a_row_is_no_sample_of_the_prometheus_client(monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []
    add_sample = Metric.add_sample

    def noted(metric: Metric, name: str, *rest: object) -> None:
        made.append(name)
        add_sample(metric, name, *rest)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(Metric, "add_sample", noted)
    monkeypatch.setattr(GaugeMetricFamily, "add_metric", lambda family, *_: made.append(family.name))
    monkeypatch.setattr(CounterMetricFamily, "add_metric", lambda family, *_: made.append(family.name))
    queues = [QueueOverview(RegisteredQueue(f"q{n}", "ann-1", (".*",)), 1, 2, 3, 4, {"acked": 5}) for n in range(1_000)]
    used = QuotaUsage([Use(f"c{n}-1", {"client_topics_max": 1}) for n in range(1_000)], {}, {})
    view = an_overview({f"events.published:topic=t{n}": 1 for n in range(1_000)})
    text = metrics.render(BusFigures(view, queues, used), [])

    assert text.count(b"\n") > 7_000
    assert len(made) < 100
