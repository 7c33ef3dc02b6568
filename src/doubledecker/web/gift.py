"""The body of a request that makes another client the owner of something."""

from typing import Annotated

import msgspec
from msgspec import Meta

from doubledecker.model import schema


class Gift(msgspec.Struct, forbid_unknown_fields=True):
    """What makes another client the owner."""

    to: Annotated[str, Meta(description="The token id of the new owner")]


_GIFT = msgspec.json.Decoder(Gift)


def new_owner(body: bytes) -> str:
    """The token id of the client that becomes the owner."""
    return schema.decode(_GIFT, body, what='a gift, like {"to": the token id of the new owner}').to
