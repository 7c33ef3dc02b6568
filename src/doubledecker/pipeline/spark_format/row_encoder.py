"""Encodes the rows of an Arrow batch as events: plain ones by columns (column_encoder.py), the others one by one."""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Raw

from doubledecker.bus.exactly_once import PublishedRow
from doubledecker.errors import BadRequest, Refused
from doubledecker.model import event as parsing
from doubledecker.model.event import EventLimits, Offered
from doubledecker.pipeline.spark_format import column_encoder

COLUMNS = ("topic", "type", "url", "tenant", "key", "id", "timestamp", "data", "traceparent")

_check_json = msgspec.json.Decoder(Raw).decode
_encode = msgspec.json.Encoder().encode


class RowMaker:
    """Makes events of rows, all of one moment."""

    def __init__(self, now_ms: int, limits: EventLimits) -> None:
        self._now_ms = now_ms
        self._limits = limits
        self._moment = column_encoder.moment(now_ms)

    def make_all(self, arrow: pa.RecordBatch, ids: Sequence[str], refused: dict[int, str]) -> list[PublishedRow]:
        """The rows as events, in order; those that cannot be join the refused. `ids` are for those that have none."""
        found = _columns(arrow)
        rows = column_encoder.plain_rows(found, ids, now_ms=self._now_ms, limits=self._limits)
        for at in refused:
            rows[at] = None
        left = [at for at, row in enumerate(rows) if row is None and at not in refused]
        for at, values in zip(left, _values(found, left), strict=False):
            try:
                rows[at] = self.make(at, ids[at], *values)
            except Refused as refusal:
                refused[at] = refusal.detail
        return [row for row in rows if row is not None]

    def make(
        self,
        index: int,
        fallback_id: str,
        topic: str | None,
        type_: str | None,
        url: str | None,
        tenant: str | None,
        key: str | None,
        id_: str | None,
        timestamp: int | None,
        data: object,
        traceparent: str | None,
    ) -> PublishedRow:
        """A row as an event; raises BadRequest or TooLarge with the reason."""
        if topic is None or type_ is None:
            raise BadRequest(f"{'type' if topic is not None else 'topic'} is null; an event must have one")
        text = UNSET if data is None else _json(data)
        offered = Offered(topic, type_, url, tenant, key, id_, timestamp, text, traceparent)
        event = parsing.accept(offered, id_=fallback_id, now_ms=self._now_ms, limits=self._limits)
        message = parsing.encode(event)
        # The moment of publishing differs when a task is run again; nothing else does. Before it there are but names
        # and a URL, in which it cannot stand.
        mark = message if timestamp is not None else message.replace(self._moment, b"", 1)
        return PublishedRow(event.kind, event.key, message, mark, id_ or "", index)


def _columns(arrow: pa.RecordBatch) -> dict[str, pa.Array]:
    found = {name: arrow.column(name) for name in arrow.schema.names if name in COLUMNS}
    if "timestamp" in found:
        found["timestamp"] = _milliseconds(found["timestamp"])
    if "tenant" in found and pa.types.is_integer(found["tenant"].type):
        found["tenant"] = found["tenant"].cast(pa.string())
    return found


def _values(found: dict[str, pa.Array], at: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    """The values of some rows, in the order of COLUMNS; None where there is no such column."""
    places = pa.array(at, pa.int64())
    lists = [found[name].take(places).to_pylist() if name in found else repeat(None) for name in COLUMNS]
    # A row has a topic and a type at least, or nothing can be written: so some column has an end.
    return zip(*lists, strict=False)


def _milliseconds(column: pa.Array) -> pa.Array:
    """Timestamps as whole milliseconds; numbers are that already."""
    is_moment = pa.types.is_timestamp(column.type)
    return pc.cast(pc.cast(column, pa.timestamp("ms", column.type.tz), safe=False), pa.int64()) if is_moment else column


def _json(value: object) -> Raw:
    """Text is JSON as it is; anything else is written as JSON."""
    if not isinstance(value, str):
        return Raw(_encode(value))
    try:
        return _check_json(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"data is not JSON: {error}") from error
