"""Events: what a publisher says happened, checked, and in the form in which they are stored and delivered.

An accepted event is encoded to JSON once. Those bytes are what batches hold, what the journal holds and what a
subscriber receives; nothing on the way parses them again. `data` is checked when it comes in: its bytes are passed on.
"""

import math
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import re2
from msgspec import UNSET, Meta, Raw, UnsetType

from doubledecker.errors import BadRequest, TooLarge
from doubledecker.model import schema
from doubledecker.model.schema import between, matching, one_of

# The numbers that an event's `data` may have: those that every common reader of JSON can hold.
#
# A reader decodes many events at once: in a batch, or in the answer to a pull. A number that its decoder refuses would
# cost it all of them. Most decoders refuse what a double cannot hold, and Java's most used one long numbers too.

# Jackson's bound, and with it Spark's.
LENGTH_MAX = 1_000
# Fewer digits are in the range of a double, also with an exponent of two digits.
_DIGITS_MIN = 200
_AS_ZEROS = bytes.maketrans(b"123456789E", b"000000000e")
_RUN = b"0" * _DIGITS_MIN
_EXPONENT, _SIGNED_EXPONENT = b"0e000", b"0e+000"
# What is shorter than 1e309 is in the range too.
_LONG_NUMBER = re.compile(rb"-?[0-9][0-9.eE+-]{4,}")
_SHOWN_LENGTH_MAX = 40


def check_numbers(text: bytes) -> None:
    """Raise BadRequest if a valid JSON text has a number that is not allowed; nothing is decoded."""
    if are_plain_numbers(text):
        return
    long_numbers = _LONG_NUMBER.findall(_without_strings(text))
    # In C for all of them: an event may have ten thousand.
    if max(map(len, long_numbers), default=0) > LENGTH_MAX or not all(map(math.isfinite, map(float, long_numbers))):
        _refuse(long_numbers)


def are_plain_numbers(text: bytes) -> bool:
    """Whether all numbers of a valid JSON text surely are allowed; False means that `check` has to look closer.

    It is not decoded: some valid numbers take a decoder 8 µs each.
    """
    zeros = text.translate(_AS_ZEROS)
    if _EXPONENT in zeros or _SIGNED_EXPONENT in zeros:
        return False
    return len(text) < _DIGITS_MIN or _RUN not in zeros


def _refuse(long_numbers: list[bytes]) -> None:
    """Raise BadRequest for the first number that is not allowed."""
    for number in long_numbers:
        if len(number) > LENGTH_MAX or not math.isfinite(float(number)):
            raise BadRequest(
                f"data has the number {_shown_number(number)}; a number must be from -{sys.float_info.max} to "
                f"{sys.float_info.max}, written in at most {LENGTH_MAX} characters: send it as a string"
            )


def _without_strings(text: bytes) -> bytes:
    """A valid JSON text with its strings left out; backslashes are in strings alone."""
    unescaped = text.replace(rb"\\", b"").replace(rb"\"", b"")
    return b'"'.join(unescaped.split(b'"')[::2])


def _shown_number(number: bytes) -> str:
    text = number.decode()
    if len(text) <= _SHOWN_LENGTH_MAX:
        return text
    return f"{text[:_SHOWN_LENGTH_MAX]}… ({len(text)} characters)"


# Wider than Routemaster's [a-z_]{1,64}, whose clients check their names themselves.
TOPIC = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# Whatever handles URLs takes these for steps in a path, so that nothing with such a name could be asked for.
STEPS = (".", "..")
ROUTEMASTER_TYPES = frozenset({"create", "update", "delete", "noop"})
DEFAULT_TENANT = "default"
NAME_LENGTH_MAX = 64
# A number of 64 digits has 213 bits.
_TENANT_BITS_MAX = 213
URL_LENGTH_MAX = 1024
# 2^53: beyond it a JavaScript reader would see another number.
TIMESTAMP_MS_MAX = 9_007_199_254_740_992
_PATH = r"(?:/[^\s?#\x00-\x1f\x7f]*)?"
# Most are so plain that no parser need look at them; of the others the authority has to parse.
PLAIN_URL = re.compile(rf"https://[A-Za-z0-9._~-]+{_PATH}")
_NOT_IN_HOST = r"\s/?#@\[\]\x00-\x1f\x7f"
URL = re.compile(
    rf"https://(?:[^{_NOT_IN_HOST}]*@)?(?:\[[0-9A-Fa-f:.]+\]|[^:{_NOT_IN_HOST}]+)(?::[0-9]{{0,5}})?{_PATH}"
)
TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
# Patterns of RE2 nest up to a thousand deep, and few parsers of JSON read more than this.
DEPTH_MAX = 256
# For so many levels RE2 needs between 8 and 16 MiB. With less it takes a slower way, and says so on standard error.
_NESTED_BYTES = 33_554_432
_UNNESTED = rb'[^\[\]{}"]*(?:"(?:[^"\\]|\\.)*"[^\[\]{}"]*)*'
_LINE_FEED, _RETURN = b"\n\r"  # numbers, as a byte is found several times faster than bytes
ID_LENGTH_MAX = 128
EVENT_ID = re.compile(rf"[\x21-\x7e]{{1,{ID_LENGTH_MAX}}}")


# Of all other fields and the blanks between them.
_BESIDE_DATA_BYTES_MAX = 65_536


@dataclass(frozen=True)
class EventLimits:
    """How large a single event may be."""

    data_bytes_max: int = 65_536
    depth_max: int = 64  # what generated JSON rarely reaches; every receiver has to parse it

    @property
    def event_bytes_max(self) -> int:
        """The most bytes of an event as it is offered: no valid one has more, so a larger one is not decoded.

        Its data may be in base64, which takes a third more, and all other fields have a few thousand characters.
        """
        return 2 * self.data_bytes_max + _BESIDE_DATA_BYTES_MAX


class EventKind(msgspec.Struct, frozen=True, gc=False):
    """What decides who receives an event. A struct, because one is made for every event."""

    topic: str
    type: str
    tenant: str

    @property
    def routing_key(self) -> str:
        """What patterns are matched against, and the channel on which listeners are notified."""
        return f"{self.tenant}:{self.topic}:{self.type}"


class AcceptedEvent(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An accepted event; its fields, in this order, are a delivered message."""

    topic: str
    type: str
    url: str | UnsetType = UNSET
    t: int = -1
    data: Raw | UnsetType = UNSET
    id: str = ""
    tenant: str = DEFAULT_TENANT
    key: str = ""
    traceparent: str | UnsetType = UNSET
    # Of one that came as a CloudEvent: its attributes that are no field here (model/cloud_event.py).
    cloudevent: Raw | UnsetType = UNSET
    # Of a replayed event: the replay, and, where it got a new id, the id of the event that it repeats.
    replay: str = ""
    replay_of: str = ""
    # How often it was brought back from the dead letters, as lua/dead_letters.lua writes it.
    redriven: int = 0

    @property
    def kind(self) -> EventKind:
        return EventKind(self.topic, self.type, self.tenant)


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A checked and encoded event of a request, where `index` is its place; `key` and `kind` say where it goes.

    Its publisher's other events with the same `repeat_id` are repeats of it; nobody repeats one that has none.
    """

    kind: EventKind
    key: str
    message: bytes
    id: str
    repeat_id: str
    index: int


# What may stand in a request, as the API's document has it; the functions below check it.
_NO_STEP = {"not": {"enum": list(STEPS)}}
TopicName = Annotated[str, matching(TOPIC)]
Name = Annotated[str, matching(NAME)]
Tenant = Annotated[str, matching(NAME), Meta(extra_json_schema=_NO_STEP)]
GivenTenant = Annotated[
    str | int | None,
    matching(NAME),
    Meta(extra_json_schema={**_NO_STEP, "minimum": -(2**63), "maximum": 2**63 - 1}),
]
_Url = Annotated[str, matching(URL, "https, without query or fragment", length_max=URL_LENGTH_MAX)]
_Timestamp = Annotated[int, between(0, TIMESTAMP_MS_MAX, "Milliseconds since 1970; null or absent is now")]
_Data = Annotated[
    Raw,
    Meta(
        description="Any JSON value, of at most `max_event_data_bytes` "
        f"({EventLimits.data_bytes_max} unless set otherwise) and {EventLimits.depth_max} levels; "
        "passed on as it is. Null is the same as absent. A number must be in the range of a double, and have at most "
        f"{LENGTH_MAX} characters: send others as strings."
    ),
]


class TopicEvent(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An event as Routemaster's clients post it, on a topic that the path names."""

    type: Annotated[str, one_of(sorted(ROUTEMASTER_TYPES))]
    url: _Url
    timestamp: _Timestamp | None = None
    data: _Data | UnsetType = UNSET


class Offered(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An event as publishers offer it."""

    topic: TopicName
    type: Name
    url: _Url | None = None
    tenant: Annotated[GivenTenant, Meta(description=f"Absent: `{DEFAULT_TENANT}`; a number is taken as its text")] = (
        None
    )
    key: Annotated[Name, Meta(description="Events of one key stay in order")] | None = None
    id: Annotated[str, matching(EVENT_ID, "A repeat, by publisher and id, is dropped")] | None = None
    timestamp: _Timestamp | None = None
    data: _Data | UnsetType = UNSET
    traceparent: Annotated[str, matching(TRACEPARENT, "W3C Trace Context")] | None = None


_POSTED = msgspec.json.Decoder(TopicEvent)
_OFFERED = msgspec.json.Decoder(Offered)
_encode = msgspec.json.Encoder().encode


def encode(event: AcceptedEvent) -> bytes:
    """The bytes that are stored, journaled and delivered: one line of JSON."""
    return _encode(event)


def draft(event: AcceptedEvent, *, is_id_given: bool, index: int = 0, repeat_id: str = "") -> Draft:
    """An event ready to be published; its publisher gave the id, or the bus did, and then nobody repeats it.

    `repeat_id` is what a repeat is known by where that is not the id alone.
    """
    known_by = (repeat_id or event.id) if is_id_given else ""
    return Draft(event.kind, event.key, encode(event), event.id, known_by, index)


def parse_posted(body: bytes, *, topic: str, id_: str, now_ms: int, limits: EventLimits) -> AcceptedEvent:
    """An event as Routemaster's clients post it; raises BadRequest with what is allowed."""
    check_topic(topic)
    posted = schema.decode(_POSTED, body, what="an event")
    if posted.type not in ROUTEMASTER_TYPES:
        raise BadRequest(f"type is {_shown(posted.type)}; it must be one of create, update, delete, noop")
    return AcceptedEvent(
        topic=topic,
        type=posted.type,
        url=_checked_url(posted.url),
        t=_checked_timestamp(posted.timestamp, now_ms),
        data=_checked_data(posted.data, limits),
        id=id_,
    )


def check_size(item: bytes | Raw, limits: EventLimits) -> None:
    """Raise TooLarge when an event that is still encoded cannot be a valid one."""
    if len(item) > limits.event_bytes_max:
        raise TooLarge(
            f"an event of {len(item)} bytes; at most {limits.event_bytes_max} are allowed, and its data may have "
            f"{limits.data_bytes_max}"
        )


def parse_offered(item: bytes | Raw, limits: EventLimits) -> Offered:
    """One item of `POST /events`, its fields not yet checked; raises BadRequest or TooLarge."""
    check_size(item, limits)
    return schema.decode(_OFFERED, item, what="an event")


def accept(offered: Offered, *, id_: str, now_ms: int, limits: EventLimits) -> AcceptedEvent:
    """An event, if every field is as it may be; raises BadRequest or TooLarge. `id_` is for one that brings none."""
    kind = _checked_kind(offered.topic, offered.type, offered.tenant)
    if offered.id is not None and not EVENT_ID.fullmatch(offered.id):
        raise BadRequest(f"id is {_shown(offered.id)}; it must be 1 to {ID_LENGTH_MAX} printable ASCII characters")
    if offered.traceparent is not None and not TRACEPARENT.fullmatch(offered.traceparent):
        raise BadRequest(
            f"traceparent is {_shown(offered.traceparent)}; it must be a W3C traceparent, whose ids are not all zeros"
        )
    return AcceptedEvent(
        topic=kind.topic,
        type=kind.type,
        url=UNSET if offered.url is None else _checked_url(offered.url),
        t=_checked_timestamp(offered.timestamp, now_ms),
        data=_checked_data(offered.data, limits),
        id=offered.id or id_,
        tenant=kind.tenant,
        key=_checked_name("key", offered.key),
        traceparent=offered.traceparent or UNSET,
    )


# The same few come again and again; what is refused is not remembered.
@lru_cache(maxsize=8192)
def _checked_kind(topic: str, type_: str, tenant: str | int | None) -> EventKind:
    check_topic(topic)
    if not is_name(type_):
        raise BadRequest(f"type is {_shown(type_)}; it must match {NAME.pattern}")
    return EventKind(topic, type_, _checked_tenant(tenant))


def check_topic(name: str) -> None:
    """Raise BadRequest unless the name can be a topic's."""
    if len(name) > NAME_LENGTH_MAX or not _is_topic(name):
        raise BadRequest(f"the topic is {_shown(name)}; a name must match {TOPIC.pattern}")


def is_name(text: str) -> bool:
    """Whether this can name a type, a tenant or a key."""
    return len(text) <= NAME_LENGTH_MAX and _is_name(text)


# The same few names come again and again. Long ones are turned away before, so that little is remembered.
@lru_cache(maxsize=8192)
def _is_name(text: str) -> bool:
    return NAME.fullmatch(text) is not None


@lru_cache(maxsize=8192)
def _is_topic(text: str) -> bool:
    return TOPIC.fullmatch(text) is not None


def check_tenant(name: str) -> None:
    """Raise BadRequest unless the name can be a tenant's."""
    _checked_tenant(name)


def tenant_text(tenant: str | int | None) -> str | None:
    """A tenant as text; many publishers count theirs, and send the number as it is."""
    if not isinstance(tenant, int):
        return tenant
    if tenant.bit_length() > _TENANT_BITS_MAX:
        raise BadRequest(f"tenant is a number of too many digits; at most {NAME_LENGTH_MAX} are allowed")
    return str(tenant)


def check_key(name: str) -> None:
    """Raise BadRequest unless the name can be a key's."""
    _checked_name("key", name)


def _checked_tenant(tenant: str | int | None) -> str:
    name = _checked_name("tenant", tenant_text(tenant))
    if name in STEPS:
        raise BadRequest(f"tenant is {name!r}; it must match {NAME.pattern}, and be neither . nor ..")
    # The constant itself, not an equal string: the encoder leaves out what is identical to the default.
    return DEFAULT_TENANT if name in {"", DEFAULT_TENANT} else name


def _checked_name(field: str, value: str | None) -> str:
    if value is None:
        return ""
    if not is_name(value):
        raise BadRequest(f"{field} is {_shown(value)}; it must match {NAME.pattern}")
    return value


def _checked_url(url: str) -> str:
    if len(url) > URL_LENGTH_MAX or not (PLAIN_URL.fullmatch(url) or _is_url(url)):
        raise BadRequest(
            f"url is {_shown(url)}; it must be an https URL, without a query, of {URL_LENGTH_MAX} characters at most"
        )
    return url


def _is_url(url: str) -> bool:
    """Whether it is https without a query or fragment, and a receiver that parses it will find a host."""
    if not URL.fullmatch(url):
        return False
    try:
        return bool(urlsplit(url).hostname) and urlsplit(url).port != 0
    except ValueError:
        return False


def _checked_timestamp(timestamp: int | None, now_ms: int) -> int:
    if timestamp is None:
        return now_ms
    if not 0 <= timestamp <= TIMESTAMP_MS_MAX:
        raise BadRequest(f"timestamp is {timestamp}; it must be milliseconds since 1970, or null for now")
    return timestamp


def _checked_data(data: Raw | UnsetType, limits: EventLimits) -> Raw | UnsetType:
    if data is UNSET:
        return UNSET
    raw = bytes(data)
    size = len(raw)
    if raw == b"null":
        return UNSET
    if size > limits.data_bytes_max:
        raise TooLarge(f"data is {size} bytes; at most {limits.data_bytes_max} are allowed")
    # A level takes two brackets, so most events are too short to need a closer look.
    if size > 2 * limits.depth_max and _is_deeper(raw, limits.depth_max):
        raise BadRequest(f"data nests deeper than {limits.depth_max} levels")
    check_numbers(raw)
    # An event is one line in the journal; only white space between tokens can hold a line break.
    return Raw(msgspec.json.format(raw, indent=-1)) if _LINE_FEED in raw or _RETURN in raw else data


def _is_deeper(raw: bytes, depth_max: int) -> bool:
    """Whether a valid JSON text nests deeper than this; brackets inside strings do not count."""
    # It can only nest as deep as it has opening brackets.
    if raw.count(b"[") + raw.count(b"{") <= depth_max:
        return False
    return _nested(depth_max).fullmatch(raw) is None


@lru_cache(maxsize=8)
def _nested(depth: int) -> "re2._Regexp[bytes]":
    """Matches text that nests at most so deep, in one pass: a few milliseconds a megabyte, whatever is in it.

    Text that nests at most n deep is that of n - 1 between brackets, any number of times: a regular language.
    """
    pattern = _UNNESTED
    for _ in range(depth):
        pattern = _UNNESTED + rb"(?:[\[{]" + pattern + rb"[\]}]" + _UNNESTED + rb")*"
    options = re2.Options()
    options.max_mem = _NESTED_BYTES
    options.log_errors = False
    return re2.compile(rb"(?s)" + pattern, options)


def _shown(text: str) -> str:
    """What was seen, short enough for an error message."""
    return repr(text if len(text) <= 80 else f"{text[:77]}…")  # noqa: PLR2004 - one line of a terminal
