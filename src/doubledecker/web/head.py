"""What a request's head must have before the app sees it: the version, the host, and where the body ends.

A proxy in front of the bus may read an ambiguous head in another way than the bus does, and then one client's bytes
become another client's request. So a head that can be read in two ways is refused.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

Headers = Sequence[tuple[bytes, bytes]]
Fields = Mapping[bytes, bytes]

# Which of two counts is specified nowhere, and a proxy that checks one may pass both.
_SINGLE = (b"host", b"authorization", b"content-type", b"content-encoding", b"idempotency-key", b"last-event-id")
_VERSIONS = ("1.1", "1.0")
# RFC 3986's host and port, or nothing; whether the name exists is not our business.
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%\[\]:-]{0,300}")


@dataclass(frozen=True, slots=True)
class HeadRefusal:
    """An answer given before there is a request to hand to the app, as problem details (RFC 9457)."""

    title: str
    status: int
    detail: str
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def render(self, default_headers: Headers) -> bytes:
        problem = {"type": "about:blank", "title": self.title, "status": self.status, "detail": self.detail}
        body = json.dumps(problem).encode()
        headers = [
            *default_headers,
            (b"content-type", b"application/problem+json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *self.headers,
        ]
        lines = [b"%s: %s\r\n" % header for header in headers]
        return b"".join([STATUS_LINE[self.status], *lines, b"\r\n", body])


def refuse(headers: Headers, fields: Fields, version: str, *, is_upgrade: bool) -> HeadRefusal | None:
    """Why a head is refused, if it is; the fields are the last header of each name."""
    host = fields.get(b"host")
    if version == "1.1" and len(fields) == len(headers) and host is not None and _is_host(host):
        # So it is with nearly every request.
        if not is_upgrade and b"transfer-encoding" not in fields:
            return None
    elif why := _wrong_fields(headers, fields, version):
        return HeadRefusal("Bad request", 400, why)
    why = _wrong_framing(headers, fields, version, is_upgrade=is_upgrade)
    return HeadRefusal("Bad request", 400, why) if why else None


def body_bytes(fields: Fields) -> int:
    """The declared length of the body; 0 when there is none, and when it comes in chunks."""
    return int(fields.get(b"content-length", 0))


def _wrong_fields(headers: Headers, fields: Fields, version: str) -> str:
    if version not in _VERSIONS:
        return f"the request is HTTP/{version}; send HTTP/1.1"
    names = [name for name, _ in headers]
    for name in _SINGLE:
        if names.count(name) > 1:
            return f"the request has {names.count(name)} {name.decode().title()} headers; send one"
    host = fields.get(b"host")
    if host is None and version == "1.1":
        return "the request has no Host header; send one"
    if host is not None and not _is_host(host):
        return f"Host is {_shown(host)}; it must be a name or an address, with a port or without"
    return ""


# The same few come again and again. A long one that is refused may be remembered too: 256 heads' worth.
@lru_cache(maxsize=256)
def _is_host(value: bytes) -> bool:
    return _HOST.fullmatch(value) is not None


def _wrong_framing(headers: Headers, fields: Fields, version: str, *, is_upgrade: bool) -> str:
    is_coded = b"transfer-encoding" in fields
    if is_coded:
        coding = b", ".join(value for name, value in headers if name == b"transfer-encoding")
        if version != "1.1" or coding.strip().lower() != b"chunked":
            return f"Transfer-Encoding is {_shown(coding)} in HTTP/{version}; chunked in HTTP/1.1 is understood"
    if is_upgrade and (is_coded or body_bytes(fields)):
        # The parser takes what follows such a head for another protocol, and would read the body as a request.
        return "the request offers an upgrade and has a body; send it without Upgrade"
    return ""


def malformed(reason: str) -> HeadRefusal:
    """What is not HTTP at all."""
    return HeadRefusal("Bad request", 400, f"this is not a request in HTTP/1.1: {reason}")


def too_slow(seen_bytes: int, *, head_s_max: float) -> HeadRefusal:
    detail = f"{seen_bytes} bytes of a request head came, and no end of it; {head_s_max:g} s are allowed"
    return HeadRefusal("Request timeout", 408, detail)


def too_long(seen_bytes: int, *, head_bytes_max: int) -> HeadRefusal:
    detail = f"{seen_bytes} bytes came without the end of the headers; at most {head_bytes_max} are allowed"
    return HeadRefusal("Request header fields too large", 431, detail)


def too_finely_cut(*, head_bytes_max: int) -> HeadRefusal:
    detail = (
        f"the chunk sizes and trailers of the body have {head_bytes_max} bytes more than the body itself; "
        "send it in larger chunks"
    )
    return HeadRefusal("Bad request", 400, detail)


def too_many(seen: int, *, headers_max: int) -> HeadRefusal:
    detail = f"the request has {seen} headers; at most {headers_max} are allowed"
    return HeadRefusal("Request header fields too large", 431, detail)


def too_busy(seen: int, *, connections_max: int) -> HeadRefusal:
    # uvicorn's own limit would answer as plain text, and counts the connection that asks against itself.
    detail = f"{seen} connections are open; at most {connections_max} are served"
    return HeadRefusal("Service unavailable", 503, detail, ((b"retry-after", b"1"),))


def too_many_of_address(seen: int, *, most: int) -> HeadRefusal:
    detail = (
        f"{seen} connections are open from this address; at most {most} are served "
        "(DOUBLEDECKER_ADDRESS_CONNECTIONS_MAX); close some, or name the proxy in DOUBLEDECKER_TRUSTED_PROXIES"
    )
    return HeadRefusal("Too many", 429, detail, ((b"retry-after", b"1"),))


def _shown(value: bytes) -> str:
    return repr(value.decode("latin-1")[:80])
