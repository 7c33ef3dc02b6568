"""CloudEvents in requests of `POST /events`: which mode one is in, and how its events are read.

The content type names the structured modes, and the header `ce-specversion` the binary one, whose attributes are
headers and whose data is the body.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any
from urllib.parse import parse_qs

import msgspec
from msgspec import Meta, Raw
from starlette.types import Scope

from doubledecker.errors import BadRequest, UnknownMedia
from doubledecker.model import cloud_event
from doubledecker.model.cloud_event import OfferedCloudEvent
from doubledecker.model.event import EVENT_ID, GivenTenant, Name, TopicName
from doubledecker.model.schema import matching, one_of
from doubledecker.web import body as bodies

STRUCTURED, BATCH = b"application/cloudevents+json", b"application/cloudevents-batch+json"
_PREFIX = b"application/cloudevents"
_BINARY = b"ce-specversion"
_HEADER_PREFIX = cloud_event.HEADER_PREFIX.encode()


class CloudEventBody(msgspec.Struct):
    """A CloudEvent 1.0. Further attributes are extensions, and are kept: strings, whole numbers, true or false."""

    specversion: Annotated[str, one_of([cloud_event.SPECVERSION])]
    id: Annotated[str, matching(EVENT_ID, "A repeat, by publisher, source and id, is dropped")]
    source: Annotated[str, Meta(description="A URI reference")]
    type: Name
    topic: Annotated[TopicName, Meta(description="Absent: that of the query")] | None = None
    tenant: GivenTenant = None
    partitionkey: Annotated[Name, Meta(description="The key: events of one stay in order")] | None = None
    time: Annotated[str, Meta(description="By RFC 3339; absent or null is now")] | None = None
    subject: str | None = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    data: Any = None
    data_base64: str | None = None


class Mode(Enum):
    """How CloudEvents travel over HTTP."""

    STRUCTURED = "structured"
    BATCH = "batch"
    BINARY = "binary"


@dataclass(frozen=True)
class CloudEvents:
    """How to read the CloudEvents of a request; `topic` is for those that name none."""

    mode: Mode
    topic: str | None
    content_type: str
    headers: Sequence[tuple[bytes, bytes]] = ()

    def read(self, item: bytes | Raw) -> OfferedCloudEvent:
        """One of its events; raises BadRequest."""
        if self.mode is Mode.BINARY:
            return cloud_event.parse_binary(self.headers, self.content_type, bytes(item), topic=self.topic)
        return cloud_event.parse_structured(item, topic=self.topic)

    @property
    def beside_body(self) -> bytes:
        """What says something of the events beside the body: with another of these, the request is another."""
        lines = [b"%b: %b" % header for header in sorted(self.headers)]
        topic = (self.topic or "").encode()
        return b"\n".join([self.mode.value.encode(), topic, self.content_type.encode(), *lines, b"\n"])


def of_request(scope: Scope, content_type: bytes, kind: bytes) -> CloudEvents | None:
    """How its events are read, if they are CloudEvents; `kind` is the content type without parameters."""
    if kind.startswith(_PREFIX):
        if kind not in {STRUCTURED, BATCH}:
            raise UnknownMedia(
                f"the content type is {kind.decode('latin-1')[:80]!r}; send application/cloudevents+json, "
                "application/cloudevents-batch+json, or the binary mode, with ce- headers"
            )
        return CloudEvents(Mode.STRUCTURED if kind == STRUCTURED else Mode.BATCH, _topic(scope), "")
    if bodies.header(scope, _BINARY) is None:
        return None
    headers = [(name, value) for name, value in scope["headers"] if name.startswith(_HEADER_PREFIX)]
    return CloudEvents(Mode.BINARY, _topic(scope), content_type.decode("latin-1").strip(), headers)


def _topic(scope: Scope) -> str | None:
    try:
        topics = parse_qs(scope["query_string"].decode("ascii"), errors="strict").get("topic")
    except UnicodeDecodeError as error:
        raise BadRequest("the query is no UTF-8 in percent-encoding; ?topic= must be the name of a topic") from error
    return topics[-1] if topics else None
