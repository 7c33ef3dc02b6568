"""Tokens: who a caller is. Secrets are shown once and kept as hashes; a public id stands for them everywhere else."""

import hashlib
import re
import secrets
from dataclasses import dataclass

import msgspec

from doubledecker.errors import BadRequest

PATTERN = re.compile(r"[a-z0-9:_-]{1,64}")
REALM = "doubledecker"
ROOT_NAME = "root"


@dataclass(frozen=True)
class Caller:
    """Whoever sends a request: root, or the client with this token id."""

    id: str
    name: str
    is_root: bool = False


class Token(msgspec.Struct, frozen=True):
    """What is kept of a client's token; `ha1` is what Digest needs in place of the secret."""

    id: str
    name: str
    hash: str
    ha1: str
    created_at: int = 0


def parse_request(body: bytes) -> tuple[str, str | None]:
    """The name, and the secret if the caller chose one, of `POST /api_tokens`."""
    try:
        asked = msgspec.json.decode(body, type=_Asked)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f'expected {{"name": …, "token": …?}}: {error}') from error
    for field, value in (("name", asked.name), ("token", asked.token)):
        if value is not None and not PATTERN.fullmatch(value):
            raise BadRequest(f"{field} is {value[:80]!r}; it must match {PATTERN.pattern}")
    return asked.name, asked.token


def make_secret(name: str) -> str:
    """`<name>--<random>`, with at least 128 random bits, in the alphabet of tokens."""
    return f"{name[:30]}--{secrets.token_hex(16)}"


def make(name: str, secret: str, *, now_ms: int) -> Token:
    hashed = hash_secret(secret)
    return Token(id=f"{name}-{hashed[:8]}", name=name, hash=hashed, ha1=ha1(name, secret), created_at=now_ms)


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def ha1(user: str, secret: str) -> str:
    """The A1 hash of RFC 7616 for our realm."""
    return hashlib.sha256(f"{user}:{REALM}:{secret}".encode()).hexdigest()


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    token: str | None = None
