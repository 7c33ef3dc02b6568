"""From rows back to events: the lake has every field, so the encoder makes of one the very bytes it made at first."""

from collections.abc import Iterator

import pyarrow as pa
from msgspec import UNSET, Raw

from doubledecker.model.event import DEFAULT_TENANT, AcceptedEvent

COLUMNS = (
    *("topic", "type", "url", "timestamp", "data", "id", "tenant", "key", "traceparent"),
    *("cloudevent", "replay", "replay_of"),
)


def events(arrow: pa.RecordBatch) -> Iterator[AcceptedEvent]:
    """The event of each row, in order."""
    values = (arrow[name].to_pylist() for name in COLUMNS)
    for topic, type_, url, t, data, id_, tenant, key, trace, cloudevent, replay, replay_of in zip(*values, strict=True):
        yield AcceptedEvent(
            topic,
            type_,
            UNSET if url is None else url,
            t,
            UNSET if data is None else Raw(data.encode()),
            id_,
            # The constant itself, not an equal string: the encoder leaves out what is identical to the default.
            DEFAULT_TENANT if tenant == DEFAULT_TENANT else tenant,
            key or "",
            UNSET if trace is None else trace,
            UNSET if cloudevent is None else Raw(cloudevent.encode()),
            replay or "",
            replay_of or "",
        )
