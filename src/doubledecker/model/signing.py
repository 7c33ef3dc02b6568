"""Signing secrets of receivers: made by the bus, shown once, and replaced with an overlap in which both sign.

A receiver verifies by them that a request is the bus's (delivery/headers.py). Unlike a client's token such a secret
is kept as it is, since one cannot sign with its hash: at home, with the registration of its receiver.
"""

import base64
import secrets
from typing import Annotated

import msgspec

from doubledecker.errors import TooMany
from doubledecker.model import schema
from doubledecker.model.schema import between
from doubledecker.model.token import OVERLAP_S, OVERLAP_S_MAX

# Standard Webhooks asks for 24 bytes at least.
_SECRET_BYTES, _SECRET_BYTES_MIN = 32, 24
PREFIX = "whsec_"
# Each secret that still signs costs every call a digest of its body. More than one, since the answer to a rotation may
# have been lost.
FORMER_MAX = 4


class FormerSecret(msgspec.Struct, frozen=True):
    """A secret that was replaced, and signs too until then."""

    secret: str
    until: int

    def __repr__(self) -> str:
        return f"<FormerSecret until {self.until}>"


class SigningKeys(msgspec.Struct, frozen=True, omit_defaults=True):
    """The secret of a receiver, since when it is that, and those before it."""

    secret: str
    rotated_at: int
    former: tuple[FormerSecret, ...] = ()

    def __repr__(self) -> str:
        return f"<SigningKeys of {self.rotated_at}>"

    def secrets(self, now_ms: int) -> list[str]:
        """Those that sign now, the current one first."""
        if not self.former:
            return [self.secret]
        return [self.secret, *(each.secret for each in self.former if each.until > now_ms)]

    @property
    def former_until(self) -> int | None:
        """When the last of the former secrets ends, or ended."""
        return max((each.until for each in self.former), default=None)


class SecretRotation(msgspec.Struct, forbid_unknown_fields=True):
    """How a signing secret is replaced."""

    overlap_s: Annotated[int, between(0, OVERLAP_S_MAX, "How long former secrets sign too")] = OVERLAP_S


_ROTATION = msgspec.json.Decoder(SecretRotation)
_STORED = msgspec.json.Decoder(SigningKeys)


def parse_rotation(body: bytes) -> SecretRotation:
    """A checked rotation; an empty body asks for the default."""
    asked = schema.decode(_ROTATION, body or b"{}", what='a rotation, like {"overlap_s": …?}')
    schema.check(asked)
    return asked


def make(now_ms: int) -> SigningKeys:
    """A secret that nobody can guess, for a receiver that has none."""
    return SigningKeys(PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode(), now_ms)


def is_secret(text: str) -> bool:
    """Whether it is a secret as Standard Webhooks has them."""
    try:
        found = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except ValueError:
        return False
    return text.startswith(PREFIX) and len(found) >= _SECRET_BYTES_MIN


def rotate(keys: SigningKeys | None, *, overlap_s: int, now_ms: int) -> SigningKeys:
    """A new secret; no former one signs for longer than the overlap. Raises TooMany beyond `FORMER_MAX`."""
    made = make(now_ms)
    if keys is None:
        return made
    until = now_ms + overlap_s * 1000
    kept = [
        FormerSecret(keys.secret, until),
        *(FormerSecret(each.secret, min(each.until, until)) for each in keys.former),
    ]
    former = tuple(each for each in kept if each.until > now_ms)
    if len(former) > FORMER_MAX:
        raise TooMany(f"{len(former)} former secrets would still sign, at most {FORMER_MAX} may; shorten overlap_s")
    return msgspec.structs.replace(made, former=former)


def encode(keys: SigningKeys | None) -> str:
    """As it is kept; empty for none."""
    return msgspec.json.encode(keys).decode() if keys else ""


def stored(record: str) -> SigningKeys | None:
    """Read keys from what is kept; empty for none."""
    return _STORED.decode(record) if record else None
