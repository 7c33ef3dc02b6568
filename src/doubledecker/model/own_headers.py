"""Headers that a receiver wants with each request: which it may have, as they are kept and as they are asked for."""

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from doubledecker.errors import BadRequest
from doubledecker.model.schema import matching

HEADERS_MAX = 20
# Names and values together; servers take 8 KiB of headers at least, and ours are among them.
HEADERS_BYTES_MAX = 4_096
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?|")
# Those that the bus sends itself, and those that say how a message or a connection is to be read.
_TAKEN = frozenset(
    {
        *("accept", "accept-encoding", "authorization", "connection", "expect", "host", "http2-settings"),
        *("keep-alive", "te", "trailer", "traceparent", "tracestate", "transfer-encoding", "upgrade", "user-agent"),
    }
)
_TAKEN_PREFIXES = ("ce-", "content-", "doubledecker-", "proxy-", "webhook-")

OwnHeaders = Annotated[
    dict[Annotated[str, matching(_NAME)], Annotated[str, matching(_VALUE)]],
    msgspec.Meta(
        description=f"Sent with each request: at most {HEADERS_MAX}, of {HEADERS_BYTES_MAX} bytes; {{}} ends them",
        extra_json_schema={"maxProperties": HEADERS_MAX},
    ),
]


def checked(asked: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The headers as they are kept; raises BadRequest, which names a header and never shows a value."""
    if len(asked) > HEADERS_MAX:
        raise BadRequest(f"headers has {len(asked)}; at most {HEADERS_MAX} are allowed")
    seen: set[str] = set()
    for name, value in asked.items():
        _check(name, value, seen)
        seen.add(name.lower().replace("_", "-"))
    size = sum(len(name) + len(value) for name, value in asked.items())
    if size > HEADERS_BYTES_MAX:
        raise BadRequest(f"headers has {size} bytes of names and values; at most {HEADERS_BYTES_MAX} are allowed")
    return tuple(asked.items())


def _check(name: str, value: str, seen: set[str]) -> None:
    if not _NAME.fullmatch(name):
        raise BadRequest(f"headers has the name {name[:80]!r}; one must match {_NAME.pattern}")
    # As CGI does, and WSGI with it: there `webhook_id` would stand for `webhook-id`.
    lowered = name.lower().replace("_", "-")
    if lowered in _TAKEN or lowered.startswith(_TAKEN_PREFIXES):
        raise BadRequest(
            f"headers has {name!r}, which the bus sets itself, or which says how a message is read; choose another name"
        )
    if lowered in seen:
        raise BadRequest(f"headers has {name!r} twice, but for the case of letters, or - and _")
    if not _VALUE.fullmatch(value):
        raise BadRequest(
            f"headers has a value for {name!r} that no header can have; it must be printable ASCII, without blanks at "
            "its ends"
        )


_STORED = msgspec.json.Decoder(tuple[tuple[str, str], ...])


def encode(headers: tuple[tuple[str, str], ...]) -> str:
    """As it is kept; empty for none."""
    return msgspec.json.encode(headers).decode() if headers else ""


def stored(record: str) -> tuple[tuple[str, str], ...]:
    """Read headers from what is kept."""
    return _STORED.decode(record) if record else ()
