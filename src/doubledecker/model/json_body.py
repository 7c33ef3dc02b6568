"""JSON that a client sent: decoded here alone, so that whatever is wrong with it is a BadRequest everywhere."""

from typing import TypeVar

import msgspec
from msgspec import Raw

from doubledecker.errors import BadRequest

_T = TypeVar("_T")

# What is wrong may be quoted in the error, such as a key of megabytes.
_SAID_LENGTH_MAX = 300


def decode(decoder: "msgspec.json.Decoder[_T]", body: bytes | Raw, *, what: str) -> _T:
    """The value; raises BadRequest, with `what` it should have been, for all that is not."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"not {what}: {str(error)[:_SAID_LENGTH_MAX]}") from error
    except UnicodeDecodeError as error:
        # Its position is counted from the start of a string; the client knows only the body.
        check_text(bytes(body))
        raise BadRequest(f"not {what}: {error}") from error


def check_text(body: bytes) -> None:
    """Raise BadRequest unless the bytes are UTF-8; the only look at what is passed on unread."""
    if body.isascii():
        return
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8: byte {error.start} is {body[error.start]:#04x}") from error
