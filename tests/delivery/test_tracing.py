"""Deliveries as spans: what a collector gets, over OpenTelemetry's own protocol."""

import sys
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from structlog.testing import capture_logs

from conftest import Topology
from doubledecker.delivery.tracing import delivery_spans
from doubledecker.store import machine
from harness import a_bus, an_event
from receiver import Receiver

TRACES = [f"00-{n:032x}-{n:016x}-01" for n in (1, 2)]


@pytest.fixture
async def collected(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[ExportTraceServiceRequest]]:
    """What arrives at a collector of ours."""
    requests: list[ExportTraceServiceRequest] = []

    async def take(request: web.Request) -> web.Response:
        requests.append(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response()

    app, port = web.Application(), machine.free_port()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    yield requests
    await runner.cleanup()


def spans(requests: list[ExportTraceServiceRequest]) -> list[Span]:
    return [
        span for each in requests for some in each.resource_spans for scope in some.scope_spans for span in scope.spans
    ]


async def test_a_delivery_is_a_span_with_links_to_the_traces_of_its_events(
    one: Topology, collected: list[ExportTraceServiceRequest]
):
    plan = iter([500])
    async with Receiver(plan=lambda _: next(plan, 200)) as receiver, a_bus(one, backoff_base_ms=1) as bus:
        shop = await bus.token("shop")
        await bus.subscribe(shop, receiver.url, "widgets", timeout=50, max=2)
        await bus.publish(shop, [an_event(n, traceparent=trace) for n, trace in enumerate(TRACES)])
        await receiver.until_attempts(2)

    failed, delivered = spans(collected)
    assert (failed.status.code, delivered.status.code) == (Status.STATUS_CODE_ERROR, Status.STATUS_CODE_UNSET)
    assert [{link.trace_id.hex() for link in span.links} for span in (failed, delivered)] == [
        {trace.split("-")[1] for trace in TRACES}
    ] * 2
    attributes = {each.key: each.value for each in delivered.attributes}
    assert attributes["messaging.batch.message_count"].int_value == 2
    assert attributes["http.response.status_code"].int_value == 200
    named = {each.key: each.value.string_value for each in collected[0].resource_spans[0].resource.attributes}
    assert named["service.name"] == "doubledecker"


async def test_a_delivery_of_one_trace_belongs_to_it(one: Topology, collected: list[ExportTraceServiceRequest]):
    async with Receiver() as receiver, a_bus(one) as bus:
        shop = await bus.token("shop")
        await bus.subscribe(shop, receiver.url, "widgets", timeout=0)
        await bus.publish(shop, [an_event(0, traceparent=TRACES[0])])
        await receiver.until_attempts(1)

    [span] = spans(collected)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == tuple(TRACES[0].split("-")[1:3])


async def test_without_the_extra_a_log_line_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with capture_logs() as lines:
        async with delivery_spans({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}) as found:
            assert found is None

    assert [(line["event"], line["fix"]) for line in lines] == [
        ("tracing.unavailable", "pip install 'doubledecker[otel]'")
    ]


async def test_it_is_off_unless_it_is_asked_for():
    async with delivery_spans({}) as found:
        assert found is None
