"""Tokens: who a caller is. Secrets are shown once and kept as hashes; a public id stands for them everywhere else.

A secret can be replaced (rotated): the id stays, and with it all that the client owns. The former secret works until
the overlap ends, so that the programs that use it can be given the new one in their own time.
"""

import hashlib
import re
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from doubledecker.errors import BadRequest, Conflict, Forbidden, TooMany
from doubledecker.model import schema
from doubledecker.model import scopes as limits
from doubledecker.model.event import TIMESTAMP_MS_MAX
from doubledecker.model.portal import Portal
from doubledecker.model.schema import between, matching
from doubledecker.model.scopes import ADMIN, UNLIMITED, Scopes, ScopesWanted

TAKEN = "another client has this token already; choose another, or let one be made"
PATTERN = re.compile(r"[a-z0-9:_-]{1,64}")
REALM = "doubledecker"
ROOT_NAME = "root"
# A day is time for a rollout; a month is for what is changed by hand.
OVERLAP_S, OVERLAP_S_MAX = 86_400, 30 * 86_400
# Rotating again during an overlap keeps the earlier secrets too: the answer to a rotation may have been lost.
FORMER_MAX = 10
DESCRIPTION_MAX = 200
# Ten years: what is to last longer need not expire.
LIFETIME_S_MAX = 10 * 366 * 86_400


@dataclass(frozen=True)
class Caller:
    """Who sends a request: root, or the client with this token id, and the hash of the secret that it sent."""

    id: str
    name: str
    is_root: bool = False
    secret_hash: str = ""
    scopes: Scopes = UNLIMITED
    expires_at: int = 0
    # Set where a customer of the client asks, for one tenant.
    portal: Portal | None = None
    # Set in a session that changes nothing, whatever its token may.
    only_looks: bool = False

    @property
    def share(self) -> str:
        """The name under which its turns count: its client, or for a portal one tenant of its client."""
        return self.id if self.portal is None else f"{self.id}/{self.portal.tenant}"

    @property
    def is_admin(self) -> bool:
        """Whether it does what an operator does: root, and a client to whom root has given that."""
        return self.is_root or self.scopes.is_admin


ROOT = Caller(id=ROOT_NAME, name=ROOT_NAME, is_root=True)


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
    description: str = ""
    # When it ends, in milliseconds since 1970; 0 is never.
    expires_at: int = 0
    scopes: Scopes = UNLIMITED
    # Since when it is limited to the topics and tenants that it has now; what was before is not shown.
    limited_at: int = 0

    def secrets(self, now_ms: int) -> list[Secret]:
        """The secrets that work now."""
        return [Secret(self.hash, self.ha1), *(secret for secret in self.former if secret.until > now_ms)]

    @property
    def former_hashes(self) -> list[str]:
        """The hashes of secrets that were replaced, also of those that have ended."""
        return [secret.hash for secret in self.former]

    def accepts(self, secret_hash: str, now_ms: int) -> bool:
        """Whether this secret works now."""
        return any(secret.hash == secret_hash for secret in self.secrets(now_ms))

    def has_expired(self, now_ms: int) -> bool:
        return 0 < self.expires_at <= now_ms

    @property
    def former_until(self) -> int | None:
        """When the last of the former secrets ends, or ended."""
        return max((secret.until for secret in self.former), default=None)


TokenName = Annotated[str, matching(PATTERN)]


_Description = Annotated[str, Meta(description="What it is for", extra_json_schema={"maxLength": DESCRIPTION_MAX})]
_ExpiresAt = Annotated[int, between(0, TIMESTAMP_MS_MAX, "When it ends, in milliseconds since 1970; 0 is never")]
_ExpiresIn = Annotated[int, between(1, LIFETIME_S_MAX, "The same in seconds from now")]


class TokenWanted(msgspec.Struct, forbid_unknown_fields=True):
    """A token to make."""

    name: TokenName
    token: Annotated[str, matching(PATTERN, "The secret, to choose it oneself")] | None = None
    description: _Description = ""
    expires_at: _ExpiresAt | None = None
    expires_in_s: _ExpiresIn | None = None
    scopes: ScopesWanted | UnsetType | None = UNSET


class TokenChange(msgspec.Struct, forbid_unknown_fields=True):
    """What changes of a token; the rest stays. Scopes are replaced as a whole, and null is no limit."""

    description: _Description | UnsetType = UNSET
    expires_at: _ExpiresAt | UnsetType = UNSET
    expires_in_s: _ExpiresIn | UnsetType = UNSET
    scopes: ScopesWanted | UnsetType | None = UNSET


class Rotation(msgspec.Struct, forbid_unknown_fields=True):
    """How a secret is replaced."""

    token: Annotated[str, matching(PATTERN, "The new secret, to choose it oneself")] | None = None
    overlap_s: Annotated[int, between(0, OVERLAP_S_MAX, "How long former secrets work")] = OVERLAP_S


_WANTED = msgspec.json.Decoder(TokenWanted)
_CHANGE = msgspec.json.Decoder(TokenChange)
_ROTATION = msgspec.json.Decoder(Rotation)


def parse_request(body: bytes) -> TokenWanted:
    """A checked body of `POST /api_tokens`."""
    asked = schema.decode(_WANTED, body, what='a token, like {"name": …, "token": …?}')
    _check("name", asked.name)
    _check("token", asked.token)
    schema.check(asked)
    _check_description(asked.description)
    return asked


def parse_change(body: bytes) -> TokenChange:
    """A checked body of `PATCH /api_tokens/{name}`."""
    asked = schema.decode(_CHANGE, body, what='a change of a token, like {"description": …}')
    schema.check(asked)
    _check_description(asked.description)
    return asked


def changed(token: Token, asked: TokenChange, *, default: Scopes, now_ms: int) -> Token:
    """The token as it is after a change; raises BadRequest."""
    scopes = token.scopes if asked.scopes is UNSET else _scopes(asked.scopes, default)
    limited_at = token.limited_at if scopes.limits == token.scopes.limits else now_ms
    return msgspec.structs.replace(
        token,
        limited_at=limited_at if scopes.limits_events else 0,
        description=token.description if asked.description is UNSET else asked.description,
        expires_at=_expiry(asked.expires_at, asked.expires_in_s, token.expires_at, now_ms),
        scopes=scopes,
    )


def check_grant(caller: Caller, former: Token | None, wanted: Token | None) -> None:
    """Raise Forbidden where an admin would touch what is root's: tokens that have `admin`, or are to have it."""
    if caller.is_root:
        return
    if former is not None and former.scopes.is_admin:
        raise Forbidden(f"token {former.id!r} has the action {ADMIN}; only the root key may change or revoke it")
    if wanted is not None and wanted.scopes.is_admin:
        raise Forbidden(f"only the root key may give a token the action {ADMIN}")


def _scopes(asked: ScopesWanted | None, default: Scopes) -> Scopes:
    return UNLIMITED if asked is None else limits.checked(asked, default=default)


def _expiry(at: int | UnsetType | None, in_s: int | UnsetType | None, former: int, now_ms: int) -> int:
    is_at, is_in = isinstance(at, int), isinstance(in_s, int)
    if is_at and is_in:
        raise BadRequest("expires_at and expires_in_s are given; give one of them")
    if isinstance(in_s, int):
        return now_ms + in_s * 1000
    if not isinstance(at, int):
        return former
    if 0 < at <= now_ms:
        raise BadRequest(f"expires_at is {at}, which is past; to end a token now, revoke it: DELETE /api_tokens/{{id}}")
    return at


def _check_description(text: str | UnsetType) -> None:
    if isinstance(text, str) and len(text) > DESCRIPTION_MAX:
        raise BadRequest(f"description has {len(text)} characters; at most {DESCRIPTION_MAX} are allowed")


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


def name_in(token: str) -> str:
    """The name in a client's id."""
    return token.rpartition("-")[0] or token


def names(tokens: Sequence[str]) -> dict[str, str]:
    """The name of each client, or its whole id where two share a name; a queue with a callback keeps its own."""
    short = {token: token if token.startswith("@") else name_in(token) for token in tokens}
    shared = Counter(short.values())
    return {token: brief if shared[brief] == 1 else token for token, brief in short.items()}


def make(id_: str, name: str, secret: str, *, now_ms: int) -> Token:
    return Token(id=id_, name=name, hash=hash_secret(secret), ha1=ha1(name, secret), created_at=now_ms)


def make_as_asked(id_: str, asked: TokenWanted, secret: str, *, default: Scopes, now_ms: int) -> Token:
    """A new token; `default` is what it may do where nothing is asked for. Raises BadRequest."""
    return msgspec.structs.replace(
        make(id_, asked.name, secret, now_ms=now_ms),
        description=asked.description,
        expires_at=_expiry(asked.expires_at, asked.expires_in_s, 0, now_ms),
        scopes=default if asked.scopes is UNSET else _scopes(asked.scopes, default),
    )


def check_repeat(found: Token, wanted: Token, asked: TokenWanted) -> None:
    """Raise Conflict when a token that is there already, by its secret, is not what is asked for now."""
    differ = [
        field
        for field in ("name", "description", "expires_at", "scopes")
        if _is_asked(asked, field) and getattr(found, field) != getattr(wanted, field)
    ]
    if "name" in differ:
        raise Conflict(TAKEN)
    if differ:
        raise Conflict(
            f"there is this token already, with another {' and '.join(differ)}: PATCH /api_tokens/{found.id} changes it"
        )


def _is_asked(asked: TokenWanted, field: str) -> bool:
    if field == "expires_at":
        return asked.expires_at is not None or asked.expires_in_s is not None
    return getattr(asked, field) not in {"", UNSET} if field != "scopes" else asked.scopes is not UNSET


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
