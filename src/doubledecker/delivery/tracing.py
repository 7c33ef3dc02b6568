"""Deliveries as spans of OpenTelemetry, each with links to the traces in which its events were published.

It is on where OTEL_EXPORTER_OTLP_ENDPOINT (or its variant for traces) is set, and the extra `otel` is installed; all
that OpenTelemetry reads from the environment holds. Spans are sent by a thread of their own, and are lost rather than
waited for.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from doubledecker import __version__, log
from doubledecker.model.outcome import Outcome
from doubledecker.model.subscriber import Subscriber

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext, Tracer

VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
# Of a batch of thousands; a backend keeps about so many.
_LINKS_MAX = 100

_log = log.get("tracing")


class DeliverySpans:
    """Makes a span of each attempt, once it is over."""

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer

    def add(
        self, receiver: Subscriber, outcome: Outcome, traces: Sequence[str], *, at: int, batch: str, events: int
    ) -> None:
        """`traces` are the traceparents of the events; where all have the same, the span is a child of that."""
        from opentelemetry import trace  # noqa: PLC0415 - not everybody has it installed

        contexts = [_context(each) for each in list(dict.fromkeys(traces))[:_LINKS_MAX]]
        parent = trace.set_span_in_context(trace.NonRecordingSpan(contexts[0])) if len(contexts) == 1 else None
        span = self._tracer.start_span(
            f"deliver {receiver.token}",
            parent,
            kind=trace.SpanKind.CLIENT,
            attributes={
                "messaging.system": "doubledecker",
                "messaging.operation.type": "process",
                "messaging.destination.subscription.name": receiver.token,
                "messaging.batch.message_count": events,
                "doubledecker.batch": batch,
                "doubledecker.outcome": outcome.kind.value,
                **({"http.response.status_code": outcome.status} if outcome.status else {}),
            },
            links=[trace.Link(each) for each in contexts],
            start_time=at * 1_000_000,
        )
        if not outcome.is_delivered:
            span.set_status(trace.StatusCode.ERROR, outcome.detail or outcome.kind.value)
        span.end((at + outcome.took_ms) * 1_000_000)


@asynccontextmanager
async def delivery_spans(environment: Mapping[str, str]) -> AsyncIterator[DeliverySpans | None]:
    """What notes deliveries, None where nobody asks for them; what it holds is sent on the way out."""
    if not any(environment.get(name) for name in VARIABLES):
        yield None
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - the same
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - the same
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - the same
    except ImportError as error:
        _log.warning("tracing.unavailable", error=str(error), fix="pip install 'doubledecker[otel]'")
        yield None
        return
    is_named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    name = {} if is_named else {"service.name": "doubledecker"}
    resource = Resource.create({"service.version": __version__, **name})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield DeliverySpans(provider.get_tracer("doubledecker", __version__))
    finally:
        await asyncio.to_thread(provider.shutdown)


def _context(traceparent: str) -> "SpanContext":
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415 - not everybody has it installed

    _, trace, span, flags = traceparent.split("-")[:4]
    return SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
