"""Tokens: who a caller is. Secrets are shown once and kept as hashes; a public id stands for them everywhere else.

A secret can be replaced (rotated): the id stays, and with it all that the client owns. The former secret works until
the overlap ends, so that the programs that use it can be given the new one in their own time.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Annotated

import msgspec

from doubledecker.errors import BadRequest, TooMany
from doubledecker.model import schema
from doubledecker.model.schema import between, matching

PATTERN = re.compile(r"[a-z0-9:_-]{1,64}")
REALM = "doubledecker"
ROOT_NAME = "root"
# A day is time for a rollout; a month is for what is changed by hand.
OVERLAP_S, OVERLAP_S_MAX = 86_400, 30 * 86_400
# Rotating again during an overlap keeps the earlier secrets too: the answer to a rotation may have been lost.
FORMER_MAX = 10


@dataclass(frozen=True)
class Caller:
    """Whoever sends a request: root, or the client with this token id, and the hash of the secret that it sent."""

    id: str
    name: str
    is_root: bool = False
    secret_hash: str = ""


class Secret(msgspec.Struct, frozen=True):
    """A secret as it is kept: hashed, and as Digest needs it; `until` is when a former one ends, 0 is never."""

    hash: str
    ha1: str
    until: int = 0


class Token(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of a client's token: its secret, hashed and as Digest needs it, and those before it."""

    id: str
    name: str
    hash: str
    ha1: str
    created_at: int = 0
    rotated_at: int = 0
    former: tuple[Secret, ...] = ()

    def secrets(self, now_ms: int) -> list[Secret]:
        """The secrets that work now."""
        return [Secret(self.hash, self.ha1), *(secret for secret in self.former if secret.until > now_ms)]

    @property
    def former_hashes(self) -> list[str]:
        """Of the secrets that were replaced, also of those that have ended."""
        return [secret.hash for secret in self.former]

    def accepts(self, secret_hash: str, now_ms: int) -> bool:
        """Whether this secret works now."""
        return any(secret.hash == secret_hash for secret in self.secrets(now_ms))

    @property
    def former_until(self) -> int | None:
        """When the last of the former secrets ends, or ended."""
        return max((secret.until for secret in self.former), default=None)


TokenName = Annotated[str, matching(PATTERN)]


class TokenWanted(msgspec.Struct, forbid_unknown_fields=True):
    """A token to make."""

    name: TokenName
    token: Annotated[str, matching(PATTERN, "The secret, to choose it oneself")] | None = None


class Rotation(msgspec.Struct, forbid_unknown_fields=True):
    """How a secret is replaced."""

    token: Annotated[str, matching(PATTERN, "The new secret, to choose it oneself")] | None = None
    overlap_s: Annotated[int, between(0, OVERLAP_S_MAX, "How long former secrets work")] = OVERLAP_S


_WANTED = msgspec.json.Decoder(TokenWanted)
_ROTATION = msgspec.json.Decoder(Rotation)


def parse_request(body: bytes) -> tuple[str, str | None]:
    """The name, and the secret if the caller chose one, of `POST /api_tokens`."""
    asked = schema.decode(_WANTED, body, what='a token, like {"name": …, "token": …?}')
    _check("name", asked.name)
    _check("token", asked.token)
    return asked.name, asked.token


def parse_rotation(body: bytes) -> Rotation:
    """A checked rotation; an empty body asks for the defaults."""
    asked = schema.decode(_ROTATION, body or b"{}", what='a rotation, like {"token": …?, "overlap_s": …?}')
    _check("token", asked.token)
    schema.check(asked)
    return asked


def _check(field: str, value: str | None) -> None:
    if value is not None and not PATTERN.fullmatch(value):
        raise BadRequest(f"{field} is {value[:80]!r}; it must match {PATTERN.pattern}")


def make_secret(name: str) -> str:
    """`<name>--<random>`, with at least 128 random bits, in the alphabet of tokens."""
    return f"{name[:30]}--{secrets.token_hex(16)}"


def name_of(secret: str) -> str:
    """The name in a secret that was made like ours and Routemaster's, `<name>--<random>`; else the whole."""
    return secret.partition("--")[0]


def make_id(name: str) -> str:
    """`<name>-<random>`; version 0.1.0 took the random part from the secret's hash."""
    return f"{name}-{secrets.token_hex(4)}"


def make(id_: str, name: str, secret: str, *, now_ms: int) -> Token:
    return Token(id=id_, name=name, hash=hash_secret(secret), ha1=ha1(name, secret), created_at=now_ms)


def rotate(token: Token, secret: str, *, overlap_s: int, now_ms: int) -> Token:
    """The token with another secret; after the overlap no other works, whenever it was replaced.

    With the secret that it has already, only the overlap is shortened. Raises TooMany beyond `FORMER_MAX`.
    """
    until = now_ms + overlap_s * 1000
    current = Secret(hash_secret(secret), ha1(token.name, secret))
    replaced = [msgspec.structs.replace(each, until=min(each.until or until, until)) for each in token.secrets(now_ms)]
    former = tuple(each for each in replaced if each.hash != current.hash and each.until > now_ms)
    if len(former) > FORMER_MAX:
        raise TooMany(f"{len(former)} former secrets would still work, at most {FORMER_MAX} may; shorten overlap_s")
    is_same = current.hash == token.hash
    return msgspec.structs.replace(
        token,
        hash=current.hash,
        ha1=current.ha1,
        rotated_at=token.rotated_at if is_same else now_ms,
        former=former,
    )


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def ha1(user: str, secret: str) -> str:
    """The A1 hash of RFC 7616 for our realm."""
    return hashlib.sha256(f"{user}:{REALM}:{secret}".encode()).hexdigest()
