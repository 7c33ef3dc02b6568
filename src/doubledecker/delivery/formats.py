"""What is posted to a receiver: events in the format that it has asked for, as it is when they are posted.

A Routemaster drain answers 400 to all events of a request if one of them has no `url`, and takes for known what has the
`url` of an event that was not older. So an event without one gets a URL of its own, always the same, which leads
nowhere: no name below `.invalid` has an address (RFC 6761).
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

import msgspec
from msgspec import UNSET

from doubledecker.model import cloud_event
from doubledecker.model.event import AcceptedEvent, encode
from doubledecker.model.subscriber import BINARY, ROUTEMASTER
from doubledecker.model.subscriber import JSON as AS_STORED

JSON, BATCH = "application/json", "application/cloudevents-batch+json"
NOWHERE = "https://doubledecker.invalid"
# More than so many bytes are formatted beside the event loop: these take some milliseconds.
_LOOP_BYTES_MAX = 262_144

_decode = msgspec.json.Decoder(AcceptedEvent).decode
_SOURCED = msgspec.json.Decoder(dict[str, bool | int | str])


@dataclass(frozen=True)
class FormattedRequest:
    """A body, its content type, which is empty for one without data, and headers that belong to it."""

    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


async def formatted(name: str, stored: bytes, parts: Sequence[bytes], *, have_urls: bool) -> FormattedRequest:
    """Events in this format; they are lines in `parts`, and in `stored` an array."""
    if name == AS_STORED or (name == ROUTEMASTER and have_urls):
        return FormattedRequest(stored)
    lines = b"\n".join(parts).split(b"\n")
    if len(stored) > _LOOP_BYTES_MAX:
        return await asyncio.to_thread(_formatted, name, lines)
    return _formatted(name, lines)


def _formatted(name: str, lines: Sequence[bytes]) -> FormattedRequest:
    if name == ROUTEMASTER:
        return FormattedRequest(b"[%b]" % b",".join(map(_with_url, lines)))
    # A batch of several was made before its receiver asked for one event a request.
    if name == BINARY and len(lines) == 1:
        binary = cloud_event.to_binary(_decode(lines[0]))
        return FormattedRequest(binary.body, binary.content_type, binary.headers)
    return FormattedRequest(b"[%b]" % b",".join([cloud_event.to_json(_decode(line)) for line in lines]), BATCH)


def _with_url(line: bytes) -> bytes:
    event = _decode(line)
    return line if event.url else encode(msgspec.structs.replace(event, url=_url_of(event)))


def _url_of(event: AcceptedEvent) -> str:
    """A URL that no other event has: an id is its topic's alone and, of a CloudEvent, its source's."""
    names = [event.topic, event.id]
    if event.cloudevent is not UNSET:
        source = str(_SOURCED.decode(event.cloudevent).get("source", ""))
        names.insert(1, hashlib.sha256(source.encode()).hexdigest()[:16])
    return "/".join([NOWHERE, *(quote(name, safe="") for name in names)])
