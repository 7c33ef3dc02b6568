"""Reading a request's body: bounded in bytes and in time."""

import asyncio
from dataclasses import dataclass

from starlette.types import Receive, Scope

from doubledecker.errors import BadRequest, RequestTimedOut, TooLarge


@dataclass(frozen=True)
class BodyLimits:
    """How large a body may be, and how long it may take."""

    bytes_max: int
    s_max: float


async def read(scope: Scope, receive: Receive, limits: BodyLimits) -> bytes:
    """The whole body; raises TooLarge or RequestTimedOut before more is kept than allowed."""
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limits.bytes_max:
        raise TooLarge(f"the body is {int(declared)} bytes; at most {limits.bytes_max} are allowed")
    try:
        async with asyncio.timeout(limits.s_max):
            return await _collect(receive, limits.bytes_max)
    except TimeoutError:
        raise RequestTimedOut(f"the body did not come within {limits.s_max} s") from None


def header(scope: Scope, name: bytes) -> bytes | None:
    """A header's value; names are lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


async def _collect(receive: Receive, bytes_max: int) -> bytes:
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
        _check_size(len(body), bytes_max)
        return body
    parts: list[bytes] = []
    size = 0
    while message["type"] == "http.request":
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        _check_size(size, bytes_max)
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()
    raise BadRequest("the client went away in the middle of the body")


def _check_size(seen: int, bytes_max: int) -> None:
    if seen > bytes_max:
        raise TooLarge(f"{seen} bytes of the body have come; at most {bytes_max} are allowed")
