"""The headers of a request to a receiver: its credential, what it wants with each, the trace, and the signature.

By the signature, that of Standard Webhooks, a receiver verifies that a request is the bus's, unchanged, and of now.
Signed are the message's id, the time of the attempt and the body, by each secret in force: one, and several during a
rotation. The id is the same whenever the same events are sent again, and is never that of others.
"""

import asyncio
import base64
import hmac
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from doubledecker.model.event import TRACEPARENT
from doubledecker.model.signing import PREFIX, SigningKeys

# A longer body is digested beside the event loop: this one takes a quarter of a millisecond for each secret.
_LOOP_BYTES_MAX = 262_144


class _Traced(msgspec.Struct, gc=False):
    """What says which trace an event belongs to."""

    traceparent: str = ""


_TRACED = msgspec.json.Decoder(list[_Traced])


# As many as a busy process has receivers: they are made of text, and the same for every batch.
@lru_cache(maxsize=10_000)
def own(uuid: str, headers: tuple[tuple[str, str], ...], content_type: str) -> bytes:
    """What each request to a receiver has, as lines; an empty body has no content type."""
    credential = base64.b64encode(f"{uuid}:x".encode())
    media = {"Content-Type": content_type} if content_type else {}
    return b"Authorization: Basic %b\r\n%b" % (credential, lines({**media, **dict(headers)}))


def lines(headers: Mapping[str, str]) -> bytes:
    """Headers as lines; raises ValueError for one that would begin another line."""
    if not headers:
        return b""
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if text.count("\r") + text.count("\n") > 2 * len(headers):
        raise ValueError("a header holds a line break")
    return text.encode()


def traced(headers: Mapping[str, str], first: bytes, body: bytes) -> Mapping[str, str]:
    """Headers with the trace of the events, if all have the same; `first` begins with the first of them."""
    # Few events have one, and then the first has: only its line is looked at. Without an end it lacks a brace.
    if b'"traceparent"' not in first[: first.find(b"\n")]:
        return headers
    found = {each.traceparent for each in _TRACED.decode(body)}
    shared = found.pop() if len(found) == 1 else ""
    return {**headers, "traceparent": shared} if TRACEPARENT.fullmatch(shared) else headers


def traces(body: bytes) -> list[str]:
    """The traces of the events that have one."""
    if b'"traceparent"' not in body:
        return []
    return [each.traceparent for each in _TRACED.decode(body) if TRACEPARENT.fullmatch(each.traceparent)]


async def signature(keys: SigningKeys, *, message: str, body: bytes, now_ms: int) -> bytes:
    """The headers that sign a body, as lines."""
    now_s, secrets = now_ms // 1000, keys.secrets(now_ms)
    begin = f"{message}.{now_s}.".encode()
    if len(body) > _LOOP_BYTES_MAX:
        signed = await asyncio.to_thread(_signatures, secrets, begin, body)
    else:
        signed = _signatures(secrets, begin, body)
    return b"webhook-id: %b\r\nwebhook-timestamp: %d\r\nwebhook-signature: %b\r\n" % (message.encode(), now_s, signed)


def _signatures(secrets: Sequence[str], begin: bytes, body: bytes) -> bytes:
    found = []
    for secret in secrets:
        digest = _keyed(secret).copy()
        digest.update(begin)
        digest.update(body)
        found.append(b"v1," + base64.b64encode(digest.digest()))
    return b" ".join(found)


# As many as a busy process has receivers: a copy takes half as long as keying anew.
@lru_cache(maxsize=10_000)
def _keyed(secret: str) -> hmac.HMAC:
    return hmac.new(base64.b64decode(secret.removeprefix(PREFIX)), digestmod="sha256")
