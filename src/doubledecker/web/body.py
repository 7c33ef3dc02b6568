"""Reading a request's body: bounded in bytes and in time, each alone and all together."""

import asyncio
from collections import Counter
from dataclasses import dataclass

from starlette.types import Receive, Scope

from doubledecker.errors import BadRequest, Overloaded, RequestTimedOut, TooLarge, TooManyAtOnce, UnknownMedia
from doubledecker.web.protocol import BODY

# So much of each body is not counted: small requests are served however many large ones there are. The number of
# connections bounds it.
UNCOUNTED_BYTES = 65_536
# Of all that is counted, one client may have half, so that no client alone keeps the others' large requests out.
_CLIENT_SHARE = 0.5
# The name under which the app finds, in a scope, whose body it is.
CLIENT = "doubledecker.client"
# Where a request is recorded in the audit trail: the name under which its body is left for that.
BODY_KEPT = "doubledecker.audited_body"
_HELD = "doubledecker.body_bytes"


class BodyMemory:
    """The memory for bodies that are being received or worked on."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._client_bytes_max = int(bytes_max * _CLIENT_SHARE)
        self._by_client: Counter[str] = Counter()

    @property
    def held_bytes(self) -> int:
        return self._by_client.total()

    def hold(self, scope: Scope, size: int) -> None:
        """Count a body that has grown to this size; raises TooManyAtOnce or Overloaded when there is no room for it."""
        client, before = scope.get(CLIENT, ""), scope.get(_HELD, 0)
        held = self._by_client[client] - before + size
        if held > self._client_bytes_max:
            raise TooManyAtOnce(
                f"the bodies of your requests hold {held} bytes at once; at most {self._client_bytes_max} are allowed; "
                "send fewer large requests at a time"
            )
        if self.held_bytes - before + size > self._bytes_max:
            raise Overloaded(f"bodies of {self._bytes_max} bytes are being received; there is no room for more")
        self._by_client[client] = held
        scope[_HELD] = size

    def release(self, scope: Scope) -> None:
        """Forget a request's body; safe to repeat."""
        size = scope.pop(_HELD, 0)
        if size:
            client = scope.get(CLIENT, "")
            self._by_client[client] -= size
            if not self._by_client[client]:
                del self._by_client[client]


@dataclass(frozen=True)
class BodyLimits:
    """How large a body may be, how long it may take, and the room for all of them."""

    bytes_max: int
    s_max: float
    room: BodyMemory


async def read(scope: Scope, receive: Receive, limits: BodyLimits) -> bytes:
    """The whole body; raises TooLarge or RequestTimedOut before more is kept than allowed.

    The app releases its room once the request is answered.
    """
    _check_head(scope, limits)
    body: bytes | None = scope["extensions"][BODY]["call"]()
    if body is not None:
        # So it is with most; no timer is needed.
        _check_size(scope, len(body), limits)
    else:
        try:
            async with asyncio.timeout(limits.s_max):
                body = await _collect(scope, receive, limits)
        except TimeoutError:
            raise RequestTimedOut(f"the body did not come within {limits.s_max} s") from None
    if BODY_KEPT in scope:
        scope[BODY_KEPT] = body
    return body


def header(scope: Scope, name: bytes) -> bytes | None:
    """A header's value; names are lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def check_encoding(scope: Scope) -> None:
    """Raise UnknownMedia when the body is declared as encoded, whether or not anyone will read it."""
    value = header(scope, b"content-encoding")
    if value is not None and value.strip().lower() not in (b"", b"identity"):
        seen = value.decode("latin-1")[:80]
        raise UnknownMedia(f"Content-Encoding is {seen!r}; send the body as it is", accepted="identity")


def _check_head(scope: Scope, limits: BodyLimits) -> None:
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > limits.bytes_max:
            raise TooLarge(f"the body is {int(value)} bytes; at most {limits.bytes_max} are allowed")


async def _collect(scope: Scope, receive: Receive, limits: BodyLimits) -> bytes:
    parts: list[bytes] = []
    size = 0
    message = await receive()
    while message["type"] == "http.request":
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        _check_size(scope, size, limits)
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()
    raise BadRequest("the client went away in the middle of the body")


def _check_size(scope: Scope, seen: int, limits: BodyLimits) -> None:
    if seen > limits.bytes_max:
        raise TooLarge(f"{seen} bytes of the body have come; at most {limits.bytes_max} are allowed")
    if seen > UNCOUNTED_BYTES:
        limits.room.hold(scope, seen)
