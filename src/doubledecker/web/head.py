"""What a request's head must say before the app sees it: the version, the host, and where the body ends.

A proxy in front of the bus may read an ambiguous head in another way than the bus does, and then one client's bytes
become another client's request. So a head that can be read in two ways is refused.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

Headers = Sequence[tuple[bytes, bytes]]

_VERSIONS = ("1.1", "1.0")
# RFC 3986's host and port, or nothing; whether the name exists is not our business.
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%\[\]:-]*")


@dataclass(frozen=True, slots=True)
class Refusal:
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


def refuse(headers: Headers, *, version: str, is_upgrade: bool) -> Refusal | None:
    """Why a head is refused, if it is."""
    names = [name for name, _ in headers]
    if version not in _VERSIONS:
        return _bad(f"the request is HTTP/{version}; send HTTP/1.1")
    hosts = names.count(b"host")
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return _bad(f"the request has {hosts} Host headers; send one")
    fields = dict(headers)
    if hosts and not _HOST.fullmatch(fields[b"host"]):
        return _bad(f"Host is {_shown(fields[b'host'])}; it must be a name or an address, with a port or without")
    if b"transfer-encoding" in fields:
        coding = b", ".join(value for name, value in headers if name == b"transfer-encoding")
        if version != "1.1" or coding.strip().lower() != b"chunked":
            return _bad(f"Transfer-Encoding is {_shown(coding)} in HTTP/{version}; chunked in HTTP/1.1 is understood")
    if is_upgrade and (b"transfer-encoding" in fields or body_bytes(headers)):
        # The parser takes what follows such a head for another protocol, and would read the body as a request.
        return _bad("the request offers an upgrade and has a body; send it without Upgrade")
    return None


def body_bytes(headers: Headers) -> int:
    """The declared length of the body; 0 when there is none, and when it comes in chunks."""
    return int(dict(headers).get(b"content-length", 0))


def malformed(reason: str) -> Refusal:
    """What is not HTTP at all."""
    return _bad(f"this is not a request in HTTP/1.1: {reason}")


def too_slow(seen_bytes: int, *, head_s_max: float) -> Refusal:
    detail = f"{seen_bytes} bytes of a request head came, and no end of it; {head_s_max:g} s are allowed"
    return Refusal("Request timeout", 408, detail)


def too_long(seen_bytes: int, *, head_bytes_max: int) -> Refusal:
    detail = f"{seen_bytes} bytes came without the end of the headers; at most {head_bytes_max} are allowed"
    return Refusal("Request header fields too large", 431, detail)


def too_many(seen: int, *, headers_max: int) -> Refusal:
    detail = f"the request has {seen} headers; at most {headers_max} are allowed"
    return Refusal("Request header fields too large", 431, detail)


def too_busy(seen: int, *, connections_max: int) -> Refusal:
    # uvicorn's own limit would answer as plain text, and counts the connection that asks against itself.
    detail = f"{seen} connections are open; at most {connections_max} are served"
    return Refusal("Service unavailable", 503, detail, ((b"retry-after", b"1"),))


def _bad(detail: str) -> Refusal:
    return Refusal("Bad request", 400, detail)


def _shown(value: bytes) -> str:
    return repr(value.decode("latin-1")[:80])
