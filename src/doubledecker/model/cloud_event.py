"""CloudEvents 1.0: how one becomes an event of the bus, and the other way; docs/cloudevents.md has the table.

Some attributes become fields of the event. The others, extensions among them, are kept as they came, as one object in
its field `cloudevent`, so that a receiver of CloudEvents gets them back.

Data that is JSON is the event's `data` as it is. Text is a JSON string; other bytes are one too, in base64, which
`"data_base64": true` among the kept attributes shows: no attribute can have that name.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, unquote_to_bytes

import msgspec
from msgspec import UNSET, Raw, UnsetType

from doubledecker.errors import BadRequest
from doubledecker.model import event as events
from doubledecker.model import moment, schema
from doubledecker.model.event import NAME, AcceptedEvent, Draft, EventLimits, Offered, is_name

SPECVERSION = "1.0"
HEADER_PREFIX = "ce-"
# All that is kept of one, as JSON. As headers it must fit what servers take, which is 8 KiB of them at least.
ATTRIBUTES_BYTES_MAX = 4_096
NAME_LENGTH_MAX = 64
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
_NAME = re.compile(rf"[a-z0-9]{{1,{NAME_LENGTH_MAX}}}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_URI_REFERENCE = re.compile(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+")
_URI = re.compile(rf"[A-Za-z][A-Za-z0-9+.-]*:{_URI_REFERENCE.pattern}")
_MEDIA_NAME = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_MEDIA_TYPE = re.compile(rf"{_MEDIA_NAME}/{_MEDIA_NAME}(?:[ \t]*;[\x20-\x7e]*[\x21-\x7e])?")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:)(\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_TEXT_TYPES = frozenset({"application/xml", "application/x-www-form-urlencoded", "application/javascript"})
_CHARSET = re.compile(r";\s*charset\s*=\s*\"?([^\";\s]+)", re.IGNORECASE)
_UTF_8 = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})
# Those that are fields of the event, and what is no attribute but stands beside them in JSON.
_MAPPED = frozenset(
    {"specversion", "id", "type", "time", "topic", "tenant", "partitionkey", "traceparent", "url", "data"}
)

Attribute = str | int | bool
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_ATTRIBUTE = msgspec.json.Decoder(bool | int | str | None)
_TEXT = msgspec.json.Decoder(str)
_encode = msgspec.json.Encoder().encode


# An event of the bus as a CloudEvent.
_KEPT = msgspec.json.Decoder(dict[str, bool | int | str])
_PLAIN_TYPE, _BYTES_TYPE = "application/json", "application/octet-stream"
# In a header all else is percent-encoded, as the HTTP binding has it.
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
# Beside the kept attributes, and no attribute: whether data is bytes in base64.
_IS_BASE64 = "data_base64"


class BinaryCloudEvent(msgspec.Struct, frozen=True, gc=False):
    """A CloudEvent in binary mode: its headers, the content type of its data, empty without data, and its data."""

    headers: dict[str, str]
    content_type: str
    body: bytes


def to_json(event: AcceptedEvent) -> bytes:
    """An event as a CloudEvent in JSON."""
    attributes = _attributes_of(event)
    member = "data_base64" if attributes.pop(_IS_BASE64, False) else "data"
    data = {} if event.data is UNSET else {member: event.data}
    return _encode({**attributes, **data})


def to_binary(event: AcceptedEvent) -> BinaryCloudEvent:
    """An event as a CloudEvent whose attributes are headers."""
    attributes = _attributes_of(event)
    is_base64 = bool(attributes.pop(_IS_BASE64, False))
    # A body without a type is read as JSON.
    content_type = str(attributes.pop("datacontenttype", _BYTES_TYPE if is_base64 else ""))
    headers = {f"{HEADER_PREFIX}{name}": quote(_in_header(value), safe=_SAFE) for name, value in attributes.items()}
    return BinaryCloudEvent(headers, content_type, _body(event, content_type, is_base64=is_base64))


def _attributes_of(event: AcceptedEvent) -> dict[str, Attribute]:
    """All of its attributes, and whether its data is in base64."""
    fields: dict[str, Attribute | None] = {
        "specversion": SPECVERSION,
        "id": event.id,
        # A topic is one publisher's, and an id its publisher's own: together they name one event.
        "source": f"/topics/{event.topic}",
        "type": event.type,
        "time": time_of(event.t),
        "topic": event.topic,
        "tenant": None if event.tenant == events.DEFAULT_TENANT else event.tenant,
        "partitionkey": event.key or None,
        "traceparent": None if event.traceparent is UNSET else event.traceparent,
        "url": None if event.url is UNSET else event.url,
        "datacontenttype": None if event.data is UNSET else _PLAIN_TYPE,
    }
    if event.cloudevent is not UNSET:
        kept = _KEPT.decode(event.cloudevent)
        fields |= {"datacontenttype": None, **kept} if kept.get(_IS_BASE64) else kept
    # Of what the bus has done with it itself, also where it came with an attribute of that name.
    done: dict[str, Attribute] = {"replay": event.replay, "replayof": event.replay_of, "redriven": event.redriven}
    fields |= {name: value for name, value in done.items() if value}
    return {name: value for name, value in fields.items() if value is not None}


def _in_header(value: Attribute) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _body(event: AcceptedEvent, content_type: str, *, is_base64: bool) -> bytes:
    if event.data is UNSET:
        return b""
    data = bytes(event.data)
    if is_base64:
        return base64.b64decode(_TEXT.decode(data))
    # Text is a JSON string in the event; what says that it is no JSON, and is no string, can only be sent as JSON.
    return data if is_json(content_type) or data[:1] != b'"' else _TEXT.decode(data).encode()


class OfferedCloudEvent(msgspec.Struct, frozen=True, gc=False):
    """A CloudEvent as the bus takes it: the fields of an event, and what is kept beside them, in JSON."""

    offered: Offered
    kept: Raw
    source: str

    @property
    def repeat_id(self) -> str:
        """The id that a repeat has: an id is its source's alone. No event without a source can have the same."""
        return _repeat_id(self.source, self.offered.id)


def _repeat_id(source: str, id_: str | None) -> str:
    name = f"{source}\n{id_}".encode()
    return f"ce {hashlib.sha256(name).hexdigest()[:32]}"


class _Sourced(msgspec.Struct, gc=False):
    """The attribute, of those that are kept, which names the source."""

    source: str = ""


_SOURCED = msgspec.json.Decoder(_Sourced)


def source_of(event: AcceptedEvent) -> str:
    """The source of an event that came as a CloudEvent, whose id is that source's alone; else empty."""
    return "" if event.cloudevent is UNSET else _SOURCED.decode(event.cloudevent).source


def known_by(event: AcceptedEvent) -> str:
    """What distinguishes an event from others with its id: the id, and of a CloudEvent its source with it."""
    source = source_of(event)
    return _repeat_id(source, event.id) if source else event.id


def accept(item: OfferedCloudEvent, *, now_ms: int, limits: EventLimits) -> AcceptedEvent:
    """The event; raises BadRequest or TooLarge."""
    event = events.accept(item.offered, id_="", now_ms=now_ms, limits=limits)
    return msgspec.structs.replace(event, cloudevent=item.kept)


def draft(item: OfferedCloudEvent, *, now_ms: int, limits: EventLimits, index: int) -> Draft:
    """The event, ready to be published; raises BadRequest or TooLarge."""
    event = accept(item, now_ms=now_ms, limits=limits)
    return events.draft(event, is_id_given=True, index=index, repeat_id=item.repeat_id)


def parse_structured(item: bytes | Raw, *, topic: str | None) -> OfferedCloudEvent:
    """One in JSON; `topic` is for one that names none. Raises BadRequest with the attribute and what is allowed."""
    members = schema.decode(_MEMBERS, item, what="a CloudEvent")
    data, encoded = members.pop("data", None), members.pop("data_base64", None)
    found = {name: _attribute(name, value) for name, value in members.items()}
    attributes = {name: value for name, value in found.items() if value is not None}
    if encoded is None or bytes(encoded) == b"null":
        return _offered(attributes, UNSET if data is None else data, topic=topic)
    if data is not None:
        raise BadRequest("the CloudEvent has both data and data_base64; send one of them")
    try:
        body = base64.b64decode(schema.decode(_TEXT, encoded, what="data_base64"), validate=True)
    except ValueError as error:
        raise BadRequest(f"data_base64 is not base64: {error}") from error
    return _with_bytes(attributes, body, topic=topic, is_encoded=True)


def parse_binary(
    headers: Iterable[tuple[bytes, bytes]], content_type: str, body: bytes, *, topic: str | None
) -> OfferedCloudEvent:
    """One whose attributes are headers, and whose data is the body; raises BadRequest."""
    attributes: dict[str, Attribute] = {}
    for header, value in headers:
        name = header.decode("latin-1").lower().removeprefix(HEADER_PREFIX)
        if name in attributes:
            raise BadRequest(f"the header {HEADER_PREFIX}{name} is there twice; send it once")
        if name in {"datacontenttype", "data"}:
            raise BadRequest(f"there is a header {HEADER_PREFIX}{name}; send {_PLACES[name]}")
        attributes[name] = _checked(name, _from_header(name, value))
    if content_type:
        attributes["datacontenttype"] = content_type
    return _with_bytes(attributes, body, topic=topic, is_encoded=False)


_PLACES = {"datacontenttype": "the type of the data as Content-Type", "data": "the data as the body"}


def is_json(content_type: str) -> bool:
    """Whether data of this type is JSON, as it is where no type is given."""
    kind = _kind(content_type)
    return kind in {"", "application/json", "text/json"} or kind.endswith("+json")


def _is_text(content_type: str) -> bool:
    kind = _kind(content_type)
    charset = _CHARSET.search(content_type)
    is_utf8 = charset is None or charset[1].lower() in _UTF_8
    return is_utf8 and (kind.startswith("text/") or kind.endswith("+xml") or kind in _TEXT_TYPES)


def _kind(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _attribute(name: str, value: Raw) -> Attribute | None:
    try:
        found = _ATTRIBUTE.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = bytes(value)[:60].decode(errors="replace")
        raise BadRequest(f"{name} is {shown}; it must be a string, a whole number, true, false or null") from error
    return None if found is None else _checked(name, found)


def _checked(name: str, value: Attribute) -> Attribute:
    if not _NAME.fullmatch(name):
        raise BadRequest(
            f"there is an attribute {name[:80]!r}; a name has 1 to {NAME_LENGTH_MAX} lower-case letters and digits"
        )
    if isinstance(value, str) and _CONTROL.search(value):
        raise BadRequest(f"{name} is {_shown(value)}; no attribute may have control characters")
    if isinstance(value, int) and name != "tenant" and not _INT_MIN <= value <= _INT_MAX:
        raise BadRequest(
            f"{name} is {value}; a whole number must be from {_INT_MIN} to {_INT_MAX}: send it as a string"
        )
    return value


def _from_header(name: str, value: bytes) -> str:
    """The value of an attribute, as the HTTP binding decodes it: quotes are taken off, and escapes of bytes undone."""
    try:
        text = value.decode("ascii").strip()
        quoted = _QUOTED.fullmatch(text)
        if quoted:
            text = re.sub(r"\\(.)", r"\1", quoted[1])
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError as error:
        raise BadRequest(
            f"the header {HEADER_PREFIX}{name} is no UTF-8 in percent-encoding; write what is not ASCII as %XX, "
            "a byte each"
        ) from error


def _with_bytes(
    attributes: dict[str, Attribute], body: bytes, *, topic: str | None, is_encoded: bool
) -> OfferedCloudEvent:
    """One whose data came as bytes: JSON and text are data as they are, others are kept in base64."""
    if not body and not is_encoded:
        return _offered(attributes, UNSET, topic=topic)
    content_type = str(attributes.get("datacontenttype", ""))
    # In JSON, data_base64 without a type is of an unknown one; a body without a type is read as JSON.
    if is_json(content_type) and (content_type or not is_encoded):
        schema.check_text(body)
        data = schema.decode(_RAW, body, what=f"JSON, as data of {content_type or 'no content type'} must be")
        return _offered(attributes, data, topic=topic)
    if _is_text(content_type):
        try:
            return _offered(attributes, Raw(_encode(body.decode())), topic=topic)
        except UnicodeDecodeError:
            pass  # It says that it is text, but is in another encoding; its bytes are what can be kept.
    return _offered(attributes, Raw(_encode(base64.b64encode(body).decode())), topic=topic, is_base64=True)


_RAW = msgspec.json.Decoder(Raw)


def _offered(
    attributes: Mapping[str, Attribute], data: Raw | UnsetType, *, topic: str | None, is_base64: bool = False
) -> OfferedCloudEvent:
    version = attributes.get("specversion")
    if version != SPECVERSION:
        raise BadRequest(f"specversion is {_shown(version)}; it must be {SPECVERSION!r}")
    source = _required(attributes, "source", _URI_REFERENCE, "a URI reference, such as /shop or https://shop.example")
    at_ms, time = _time(attributes)
    named = _text(attributes, "topic")
    named = topic if named is None else named
    if named is None:
        raise BadRequest("the CloudEvent names no topic; give it the extension attribute topic, or the request ?topic=")
    offered = Offered(
        topic=named,
        type=_required(attributes, "type", NAME, f"a name that matches {NAME.pattern}"),
        url=_text(attributes, "url"),
        tenant=_tenant(attributes),
        key=_key(attributes),
        id=_required(attributes, "id", events.EVENT_ID, f"1 to {events.ID_LENGTH_MAX} printable ASCII characters"),
        timestamp=at_ms,
        data=data,
        traceparent=_text(attributes, "traceparent"),
    )
    return OfferedCloudEvent(offered, _kept(attributes, source, time, is_base64=is_base64), source)


def _kept(attributes: Mapping[str, Attribute], source: str, time: str | None, *, is_base64: bool) -> Raw:
    """What is no field of the event, in JSON; of the time, what its milliseconds do not hold."""
    kept: dict[str, Attribute] = {"source": source}
    if "dataschema" in attributes:
        kept["dataschema"] = _required(attributes, "dataschema", _URI, "an absolute URI")
    if "datacontenttype" in attributes:
        kept["datacontenttype"] = _required(attributes, "datacontenttype", _MEDIA_TYPE, "a media type, as text/plain")
    if time is not None:
        kept["time"] = time
    if _text(attributes, "subject") == "":
        raise BadRequest("subject is empty; give it a value, or leave it out")
    kept |= {name: value for name, value in attributes.items() if name not in _MAPPED and name not in kept}
    if is_base64:
        kept[_IS_BASE64] = True
    encoded = _encode(kept)
    if len(encoded) > ATTRIBUTES_BYTES_MAX:
        raise BadRequest(
            f"the attributes that are kept take {len(encoded)} bytes as JSON; at most {ATTRIBUTES_BYTES_MAX} are "
            "allowed: send what is larger as data"
        )
    return Raw(encoded)


def _required(attributes: Mapping[str, Attribute], name: str, pattern: re.Pattern[str], allowed: str) -> str:
    value = attributes.get(name)
    if value is None:
        raise BadRequest(f"the CloudEvent has no {name}; it must be {allowed}")
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise BadRequest(f"{name} is {_shown(value)}; it must be {allowed}")
    return value


def _text(attributes: Mapping[str, Attribute], name: str) -> str | None:
    value = attributes.get(name)
    if value is not None and not isinstance(value, str):
        raise BadRequest(f"{name} is {_shown(value)}; it must be a string")
    return value


def _tenant(attributes: Mapping[str, Attribute]) -> str | int | None:
    value = attributes.get("tenant")
    if isinstance(value, bool):
        raise BadRequest(f"tenant is {_shown(value)}; it must be a string or a whole number")
    return value


def _key(attributes: Mapping[str, Attribute]) -> str | None:
    key = _text(attributes, "partitionkey")
    if key is not None and not is_name(key):
        raise BadRequest(f"partitionkey is {_shown(key)}; it must match {NAME.pattern}")
    return key


def _time(attributes: Mapping[str, Attribute]) -> tuple[int | None, str | None]:
    """Milliseconds since 1970, and the time as it was given where these do not hold it."""
    text = _text(attributes, "time")
    if text is None:
        return None, None
    at_ms = _to_ms(text)
    if at_ms is None or at_ms < 0:
        raise BadRequest(
            f"time is {_shown(text)}; it must be like 2026-11-15T11:00:00Z, by RFC 3339, and not before 1970"
        )
    return at_ms, None if time_of(at_ms) == text else text


def _to_ms(text: str) -> int | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    day, minute, second, fraction, offset = found.groups()
    # A leap second is taken as the one after it, as the clocks of computers have none.
    is_leap = second == "60"
    ms = ((fraction or "") + "000")[:3]
    try:
        written = f"{day}T{minute}{'59' if is_leap else second}.{ms}{offset.upper()}"
        at = datetime.fromisoformat(written).astimezone(UTC)
        return moment.to_ms(at + timedelta(seconds=is_leap))
    except (ValueError, OverflowError):
        return None


# RFC 3339 has years of four digits.
_TIME_MS_MAX = 253_402_300_799_999


def time_of(at_ms: int) -> str | None:
    """A time of the bus as a CloudEvent has it; None for one that it cannot have."""
    return moment.to_text(moment.from_ms(at_ms)) if 0 <= at_ms <= _TIME_MS_MAX else None


def _shown(value: object) -> str:
    """What was seen, short enough for an error message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"  # noqa: PLR2004 - one line of a terminal
