"""Encodes rows as events: plain rows by whole columns, others one by one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Raw

from doubledecker.bus.exactly_once import PublishedRow
from doubledecker.errors import BadRequest, Refused
from doubledecker.model import event as parsing
from doubledecker.model.event import AcceptedEvent, EventKind, EventLimits, Offered, are_plain_numbers

# Events made of whole columns: rows that are plain, which most are, at a tenth of what each would cost for itself.
#
# A row is plain when every field surely is as it may be, and stands in the message as it stands in the row: names, URLs
# and ids of ASCII that JSON does not escape, data that is JSON on one line. Rows of the same topic and type, and with
# the same fields, have the same *form*: one event of theirs is accepted and encoded by the bus's own rules, with holes
# where the rows differ. Arrow fills the holes, for all rows at once. What is not plain is left to others.

# No name, and no character of one, is like a hole.
_HOLE = re.compile(rb"<([a-z]+)>")
_OPTIONAL = ("url", "data", "tenant", "key", "traceparent")
# In the order in which they stand in a message.
_HOLES = tuple(name for name in AcceptedEvent.__struct_fields__ if name in {*_OPTIONAL, "t", "id"})
# Printable ASCII, but for the two characters that JSON escapes.
_UNESCAPED = r"[!#-\[\]-~]*"
# None of parsing.STEPS; RE2 cannot say exactly that, and what has nothing but dots is looked at by itself.
_NO_STEP = r".*[^.].*"
_PATTERNS = {
    "url": (parsing.PLAIN_URL.pattern, _UNESCAPED),
    "tenant": (parsing.NAME.pattern, _NO_STEP),
    "key": (parsing.NAME.pattern,),
    "id": (parsing.EVENT_ID.pattern, _UNESCAPED),
    # parsing.TRACEPARENT without what RE2 has not: no version ff, and no id of zeros alone.
    "traceparent": (
        r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}",
        r"(?:[0-9a-e].|f[0-9a-e]).*",
        r".{3}0{0,31}[1-9a-f].*",
        r".{36}0{0,15}[1-9a-f].*",
    ),
}
# A column of Arrow's holds two gibibytes; what is made of a larger batch might not fit.
_BATCH_BYTES_MAX = 1_073_741_824

_check_json = msgspec.json.Decoder(Raw).decode


# What rows with the same fields have in common: the texts before each hole, and at the end.
_Form = tuple[str, ...]


def plain_rows(
    columns: Mapping[str, pa.Array], ids: Sequence[str], *, now_ms: int, limits: EventLimits
) -> list[PublishedRow | None]:
    """The plain ones among the rows, and None in place of each other one; `ids` are for those that have none."""
    texts = {name: column for name, column in columns.items() if name != "timestamp"}
    is_text = all(pa.types.is_string(column.type) for column in texts.values())
    if not is_text or sum(column.nbytes for column in columns.values()) > _BATCH_BYTES_MAX:
        return [None] * len(ids)
    if "tenant" in texts:
        # The encoder leaves the default out, so it is as if the row did not say.
        is_default = pc.equal(texts["tenant"], parsing.DEFAULT_TENANT)
        texts["tenant"] = pc.if_else(is_default, pa.scalar(None, pa.string()), texts["tenant"])
    codes, forms = _forms(texts, now_ms=now_ms, limits=limits)
    others = _others(columns, codes, forms, limits)
    if len(others) == len(ids):
        return [None] * len(ids)
    holes = {name: _filled(texts[name]) for name in _OPTIONAL if name in texts}
    made = pa.array(ids, pa.string())
    holes["id"] = pc.coalesce(texts["id"], made) if "id" in texts else made
    messages = _joined(codes, forms, holes | {"t": _moments(columns.get("timestamp"), now_ms)})
    marks = _marks(messages, columns.get("timestamp"), now_ms)
    nothing = [""] * len(ids)
    keys = holes["key"].to_pylist() if "key" in holes else nothing
    given = _filled(texts["id"]).to_pylist() if "id" in texts else nothing
    rows: list[PublishedRow | None] = list(
        map(PublishedRow, _kinds(texts), keys, messages, marks, given, range(len(ids)))
    )
    for at in others:
        rows[at] = None
    return rows


def _kinds(texts: Mapping[str, pa.Array]) -> list[EventKind]:
    codes, distinct = _distinct([texts[name] for name in EventKind.__struct_fields__ if name in texts])
    kinds = [
        EventKind(topic, type_, (*tenant, None)[0] or parsing.DEFAULT_TENANT) for topic, type_, *tenant in distinct
    ]
    return [kinds[code] for code in codes.to_pylist()]


def _forms(texts: Mapping[str, pa.Array], *, now_ms: int, limits: EventLimits) -> tuple[pa.Array, list[_Form | None]]:
    """The number of each row's form, and the forms; None for one that cannot be."""
    names = [name for name in _OPTIONAL if name in texts]
    codes, distinct = _distinct([texts["topic"], texts["type"], *(texts[name].is_valid() for name in names)])
    forms = []
    for topic, type_, *are_there in distinct:
        fields = [name for name, is_there in zip(names, are_there, strict=True) if is_there]
        forms.append(_form(topic, type_, fields, now_ms=now_ms, limits=limits))
    return codes, forms


def _distinct(columns: Sequence[pa.Array]) -> tuple[pa.Array, list[tuple[Any, ...]]]:
    """The number of each row's combination of values, and the combinations."""
    encoded = [column.dictionary_encode("encode") for column in columns]
    code = pa.scalar(0)
    for each in encoded:
        code = pc.add(pc.multiply(code, len(each.dictionary)), each.indices.cast(pa.int64()))
    numbered = code.dictionary_encode()
    left, values = numbered.dictionary, []
    for each in reversed(encoded):
        rest = pc.divide(left, len(each.dictionary))
        values.append(each.dictionary.take(pc.subtract(left, pc.multiply(rest, len(each.dictionary)))).to_pylist())
        left = rest
    return numbered.indices, list(zip(*reversed(values), strict=True))


def _form(
    topic: str | None, type_: str | None, fields: Sequence[str], *, now_ms: int, limits: EventLimits
) -> _Form | None:
    if topic is None or type_ is None:
        return None
    try:
        event = parsing.accept(Offered(topic, type_), id_="<id>", now_ms=now_ms, limits=limits)
    except Refused:
        return None
    holes = {name: Raw(b"<data>") if name == "data" else f"<{name}>" for name in fields}
    message = parsing.encode(msgspec.structs.replace(event, **holes))
    *before, end = _HOLE.split(message.replace(moment(now_ms), b"<t>", 1))
    texts = {name.decode(): text.decode() for text, name in zip(before[0::2], before[1::2], strict=True)}
    return (*(texts.get(name, "") for name in _HOLES), end.decode())


def _joined(codes: pa.Array, forms: Sequence[_Form | None], holes: Mapping[str, pa.Array | pa.Scalar]) -> list[bytes]:
    """The texts of each row's form, with its holes filled."""
    parts: list[pa.Array | pa.Scalar] = []
    for at, name in enumerate((*_HOLES, "")):
        texts = [form[at] if form else "" for form in forms]
        parts.append(pa.scalar(texts[0]) if len(set(texts)) == 1 else pa.array(texts).take(codes))
        if name in holes:
            parts.append(holes[name])
    joined: pa.Array = pc.binary_join_element_wise(*parts, "")
    messages: list[bytes] = joined.cast(pa.binary()).to_pylist()
    return messages


def moment(now_ms: int) -> bytes:
    """When an event happened, as it stands in a message: with its name and a comma, as nothing before it does."""
    return b'"t":%d,' % now_ms


def _moments(stamps: pa.Array | None, now_ms: int) -> pa.Array | pa.Scalar:
    """When each event happened, which is now where the row does not say."""
    now = moment(now_ms).decode()
    if stamps is None:
        return pa.scalar(now)
    return pc.binary_join_element_wise('"t":', stamps.cast(pa.string()), ",", "").fill_null(now)


def _marks(messages: list[bytes], stamps: pa.Array | None, now_ms: int) -> list[bytes]:
    """What does not change when the rows are published at another moment: the messages without it."""
    if stamps is not None and not stamps.null_count:
        return messages
    now = moment(now_ms)
    are_said = repeat(False) if stamps is None else stamps.is_valid().to_pylist()  # noqa: FBT003 - as a value
    pairs = zip(messages, are_said, strict=False)
    return [message if is_said else message.replace(now, b"", 1) for message, is_said in pairs]


def _others(
    columns: Mapping[str, pa.Array], codes: pa.Array, forms: Sequence[_Form | None], limits: EventLimits
) -> set[int]:
    """Where the rows are that are not plain."""
    are_plain = [pa.array([form is not None for form in forms]).take(codes)]
    for name, patterns in _PATTERNS.items():
        if name in columns:
            are_plain += [pc.match_substring_regex(columns[name], f"^(?:{pattern})$") for pattern in patterns]
    if "url" in columns:
        are_plain.append(pc.less_equal(pc.binary_length(columns["url"]), parsing.URL_LENGTH_MAX))
    if "timestamp" in columns:
        stamps = columns["timestamp"]
        are_plain += [pc.greater_equal(stamps, 0), pc.less_equal(stamps, parsing.TIMESTAMP_MS_MAX)]
    if "data" in columns:
        are_plain.append(_is_plain_data(columns["data"], limits))
    others: set[int] = set()
    for each in are_plain:
        # What is not there is null here, and cannot be wrong.
        if each.false_count:
            others.update(pc.indices_nonzero(pc.invert(each)).to_pylist())
    return others


def _is_plain_data(column: pa.Array, limits: EventLimits) -> pa.Array:
    """Whether each is short and flat enough, and JSON on one line with nothing around it."""
    sizes = pc.binary_length(column)
    is_plain = pc.and_(pc.less_equal(sizes, limits.data_bytes_max), pc.not_equal(column, "null"))
    texts = column.to_pylist()
    if not _are_all_json([text for text in texts if text is not None], pc.sum(sizes).as_py()):
        is_plain = pc.and_(is_plain, pa.array([None if text is None else _is_json(text) for text in texts]))
    # Brackets come in pairs: what is short cannot be deep.
    if (pc.max(sizes).as_py() or 0) > 2 * limits.depth_max:
        depths = (None if text is None else text.count("{") + text.count("[") for text in texts)
        is_plain = pc.and_(is_plain, pc.less_equal(pa.array(depths, pa.int64()), limits.depth_max))
    return is_plain


def _are_all_json(texts: Sequence[str], size: int | None) -> bool:
    """Whether all are JSON on one line, with plain numbers; white space around one is missing from what was read."""
    try:
        parts = [bytes(_check_json(text)) for text in texts]
    except (msgspec.DecodeError, RecursionError):
        return False
    read = b"".join(parts)
    is_one_line = len(read) == (size or 0) and b"\n" not in read and b"\r" not in read
    return is_one_line and all(map(are_plain_numbers, parts))


def _is_json(text: str) -> bool:
    return _are_all_json([text], len(text.encode()))


def _filled(column: pa.Array) -> pa.Array:
    return column.fill_null("") if column.null_count else column


# Encodes the rows of an Arrow batch as events: plain ones by columns (column_encoder.py), the others one by one.

COLUMNS = ("topic", "type", "url", "tenant", "key", "id", "timestamp", "data", "traceparent")

_encode = msgspec.json.Encoder().encode


class RowMaker:
    """Makes events of rows, all of one moment."""

    def __init__(self, now_ms: int, limits: EventLimits) -> None:
        self._now_ms = now_ms
        self._limits = limits
        self._moment = moment(now_ms)

    def make_all(self, arrow: pa.RecordBatch, ids: Sequence[str], refused: dict[int, str]) -> list[PublishedRow]:
        """The rows as events, in order; those that cannot be join the refused. `ids` are for those that have none."""
        found = _columns(arrow)
        rows = plain_rows(found, ids, now_ms=self._now_ms, limits=self._limits)
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
