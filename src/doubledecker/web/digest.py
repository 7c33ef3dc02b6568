"""HTTP Digest (RFC 7616), the server's side: challenges, signed nonces and the check of an answer.

Only SHA-256 with qop=auth is spoken. A nonce is stateless: its time and some chance, signed, so that any
process with the key can distinguish its own from a forged one. What needs memory is left to the caller: after
`Verdict.OK` it marks (nonce, count) as used for `COUNTS_KEPT_MS`, and refuses what was already marked.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from doubledecker.model.token import REALM

NONCE_MS_MAX = 5 * 60_000  # long enough for a burst of calls, short enough that a stolen nonce soon dies
COUNTS_KEPT_MS = 2 * NONCE_MS_MAX  # a nonce from a peer whose clock is ahead lives up to twice as long
COUNT_MAX = 999  # bounds the caller's bitmap of used counts to 125 bytes a nonce, of which anyone gets any number
HEADER_CHARS_MAX = 4_096  # our request targets are under 1 KiB and the other fields take about 400 characters

_TIME_CHARS = 12  # hex milliseconds, enough until the year 10889
_CHANCE_BYTES = 8  # distinguishes the nonces of one millisecond
_MAC_CHARS = 32  # 128 bits of HMAC-SHA256: beyond guessing, and the nonce stays a short Redis key
_NONCE = re.compile(rf"[0-9a-f]{{{_TIME_CHARS + 2 * _CHANCE_BYTES + _MAC_CHARS}}}")

_SCHEME = re.compile(r"digest +", re.IGNORECASE)
# One list element: nothing, `name = token` or `name = "quoted"`. Possessive throughout: a match that fails
# does not go back over what it took, so no header takes more than linear time.
_ELEMENT = re.compile(
    r"""[ \t]*+(?:(?P<name>[!#$%&'*+\-.^_`|~0-9A-Za-z]++)[ \t]*+=[ \t]*+"""
    r"""(?:(?P<token>[!#$%&'*+\-.^_`|~0-9A-Za-z]++)|"(?P<quoted>(?:[^"\\]|\\.)*+)")[ \t]*+)?+(?:,|\Z)"""
)
_ESCAPED = re.compile(r"\\(.)")
_PRINTABLE = re.compile(r"[\t\x20-\x7e]*")
_COUNT = re.compile(r"[0-9a-fA-F]{8}")
_SHA256 = re.compile(r"[0-9a-f]{64}")

# Stands in when nobody has the user's name, so that an unknown user costs the same time as a wrong secret.
_NOBODY = secrets.token_hex(32)


class NonceState(Enum):
    """What a nonce turned out to be."""

    VALID = "valid"
    EXPIRED = "expired"
    FORGED = "forged"


class DigestVerdict(Enum):
    """What the answer to a challenge is worth; STALE means the right secret with a nonce that is used up."""

    OK = "ok"
    WRONG = "wrong"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A client's answer to our challenge, complete and well formed, but not yet checked."""

    user: str
    nonce: str
    uri: str
    cnonce: str
    nc: str
    response: str

    @property
    def count(self) -> int:
        """How many times the client says it has used this nonce; the caller refuses one it has seen."""
        return int(self.nc, 16)


@dataclass(frozen=True, slots=True)
class Checked:
    """The verdict, and which of the candidates the client proved to know."""

    verdict: DigestVerdict
    ha1: str | None = None


def challenge(nonce: str, *, stale: bool) -> str:
    """The value of WWW-Authenticate; `stale` asks for a repeat with this nonce and the same secret."""
    flag = "true" if stale else "false"
    return f'Digest realm="{REALM}", qop="auth", algorithm=SHA-256, nonce="{nonce}", stale={flag}'


def make_nonce(key: bytes, *, now_ms: int) -> str:
    """A fresh nonce that every process with the same key will know as its own."""
    body = f"{now_ms:0{_TIME_CHARS}x}{secrets.token_hex(_CHANCE_BYTES)}"
    return body + _mac(body, key=key)


def check_nonce(nonce: str, *, key: bytes, now_ms: int) -> NonceState:
    """Distinguish our own nonces from forged ones, and fresh from old; each nonce has exactly one spelling."""
    if not _NONCE.fullmatch(nonce):
        return NonceState.FORGED
    body, mac = nonce[:-_MAC_CHARS], nonce[-_MAC_CHARS:]
    if not hmac.compare_digest(mac, _mac(body, key=key)):
        return NonceState.FORGED
    # A nonce from the future is a peer's with a faster clock: good, within the same bound.
    age_ms = abs(now_ms - int(body[:_TIME_CHARS], 16))
    return NonceState.VALID if age_ms <= NONCE_MS_MAX else NonceState.EXPIRED


def parse(header: str) -> Credentials | None:
    """Read the value of Authorization; None for what is not a complete answer to our kind of challenge."""
    fields = _fields(header)
    if fields is None or not _is_ours(fields):
        return None
    credentials = Credentials(
        user=fields.get("username", ""),
        nonce=fields.get("nonce", ""),
        uri=fields.get("uri", ""),
        cnonce=fields.get("cnonce", ""),
        nc=fields.get("nc", ""),
        response=fields.get("response", ""),
    )
    return credentials if _is_well_formed(credentials) else None


def check(
    credentials: Credentials, *, method: str, uri: str, candidates: Sequence[str], key: bytes, now_ms: int
) -> Checked:
    """Judge an answer against the HA1s of everyone with the user's name; `uri` is the raw request target.

    Takes the same time for an unknown user (no candidates) as for a wrong secret. Says nothing about replays:
    see the top of this file.
    """
    known = _who_answered(credentials, method=method, candidates=candidates)
    state = check_nonce(credentials.nonce, key=key, now_ms=now_ms)
    if known is None or credentials.uri != uri or state is NonceState.FORGED:
        return Checked(DigestVerdict.WRONG)
    if state is NonceState.EXPIRED or credentials.count > COUNT_MAX:
        return Checked(DigestVerdict.STALE, known)
    return Checked(DigestVerdict.OK, known)


def _mac(body: str, *, key: bytes) -> str:
    return hmac.digest(key, body.encode(), "sha256").hex()[:_MAC_CHARS]


def _fields(header: str) -> dict[str, str] | None:
    if len(header) > HEADER_CHARS_MAX or not _PRINTABLE.fullmatch(header):
        return None
    scheme = _SCHEME.match(header)
    return _list(header, start=scheme.end()) if scheme else None


def _list(text: str, *, start: int) -> dict[str, str] | None:
    fields: dict[str, str] = {}
    while start < len(text):
        element = _ELEMENT.match(text, start)
        if element is None:
            return None
        start = element.end()
        if element["name"] is None:
            continue
        name = element["name"].lower()
        if name in fields:
            return None
        fields[name] = _value(element)
    return fields


def _value(element: re.Match[str]) -> str:
    token: str | None = element["token"]
    return token if token is not None else _ESCAPED.sub(r"\1", element["quoted"])


def _is_ours(fields: Mapping[str, str]) -> bool:
    # RFC 7616 reads an absent algorithm as MD5 and an absent qop as none: neither is offered.
    return (
        fields.get("realm") == REALM
        and fields.get("algorithm", "").lower() == "sha-256"
        and fields.get("qop", "").lower() == "auth"
        and fields.get("userhash", "false").lower() == "false"
    )


def _is_well_formed(credentials: Credentials) -> bool:
    return (
        all((credentials.user, credentials.nonce, credentials.uri, credentials.cnonce))
        and _SHA256.fullmatch(credentials.response) is not None
        and _COUNT.fullmatch(credentials.nc) is not None
        and credentials.count > 0
    )


def _who_answered(credentials: Credentials, *, method: str, candidates: Sequence[str]) -> str | None:
    known = None
    for candidate in candidates or (_NOBODY,):
        expected = _response(credentials, ha1=candidate, method=method)
        if hmac.compare_digest(expected, credentials.response):
            known = candidate
    return known


def _response(credentials: Credentials, *, ha1: str, method: str) -> str:
    ha2 = _sha256(f"{method}:{credentials.uri}")
    return _sha256(f"{ha1}:{credentials.nonce}:{credentials.nc}:{credentials.cnonce}:auth:{ha2}")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
