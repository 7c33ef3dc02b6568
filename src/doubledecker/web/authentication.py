"""Who sends a request: Basic, Digest or Bearer, against the live registry.

Basic and Bearer answers are remembered by the header's bytes for as long as the registry does not change, so a busy
client costs one look-up a request. Unknown and wrong tokens take the same path: a look-up by hash.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from doubledecker import clock
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import Forbidden, Unauthenticated
from doubledecker.model import moment
from doubledecker.model import portal as portals
from doubledecker.model import token as tokens
from doubledecker.model.token import ROOT, ROOT_NAME, Caller, Token
from doubledecker.store import quotas
from doubledecker.store.partitions import Partitions
from doubledecker.web import digest

# A token made a moment ago by another process may be missing here; but guesses must not make us ask Redis each time.
_REFRESH_S = 0.1
# One client can write its token in endless ways, as a password that is not looked at follows it. A few of them, and
# short ones, are remembered for each client, so that none takes the others' place.
_REMEMBERED_MAX = 4
_REMEMBERED_BYTES_MAX = 512
_HOW = "send it as the user of Basic, as Bearer, or answer the Digest challenge"
_WRONG, _MISSING = f"unknown token; {_HOW}", f"this needs a token; {_HOW}"
_NOT_SIGNED = (
    "this portal token is not one of this bus, or it has ended: the secret that made it was replaced, or its client is "
    "gone; ask for another where you got it"
)
_NOT_MANAGED = "this portal token has ended: the token of its client may not manage its tenant any more"


class Authenticator:
    """Turns an Authorization header into a caller."""

    def __init__(self, partitions: Partitions, registry: LiveRegistry, *, root_key: str) -> None:
        self._partitions = partitions
        self._registry = registry
        self._root_hash = tokens.hash_secret(root_key) if root_key else ""
        self._root_ha1 = tokens.ha1(ROOT_NAME, root_key) if root_key else ""
        # Derived from what all web processes share, so that each accepts the others' nonces.
        self._nonce_key = hmac.digest(root_key.encode() or tokens.make_secret("").encode(), b"nonce", "sha256")
        self._portal_key = portals.key_from(root_key)
        self._cache: dict[bytes, Caller] = {}
        self._cache_version = -1
        self._remembered: Counter[str] = Counter()
        self._refreshed_at = 0.0

    async def identify(self, header: bytes | None, *, method: str, target: str) -> Caller:
        """The caller; raises Unauthenticated."""
        self._forget_if_changed()
        caller = self._cache.get(header) if header else None
        caller = caller or await self._identify(header or b"", method, target)
        if 0 < caller.expires_at <= clock.now_ms():
            ended = moment.to_text(moment.from_ms(caller.expires_at))
            raise Unauthenticated(f"this token expired at {ended}; an operator can change that, or make another")
        if not caller.is_root and caller.portal is None:
            self._registry.token_uses.note(caller.id, clock.now_ms())
        return caller

    async def by_token(self, secret: str) -> Caller | None:
        """The caller with this token or root key, and the hash of its secret; None for an unknown secret."""
        hashed = tokens.hash_secret(secret)
        await self._registry.refresh()
        if self.root is not None and hmac.compare_digest(hashed, self._root_hash):
            return self.root
        token = self._registry.snapshot.with_secret(hashed, clock.now_ms())
        return None if token is None else _unless_expired(_caller(token, hashed))

    @property
    def root(self) -> Caller | None:
        """Root with the hash of its key, if there is one."""
        return replace(ROOT, secret_hash=self._root_hash) if self._root_hash else None

    def holder(self, id_: str, is_of: Callable[[str], bool]) -> Caller | None:
        """The caller with this id, and a secret that works now and whose hash `is_of` accepts."""
        if id_ == ROOT_NAME:
            return self.root if self.root is not None and is_of(self._root_hash) else None
        token = self._registry.snapshot.tokens.get(id_)
        for secret in () if token is None else token.secrets(clock.now_ms()):
            if token is not None and is_of(secret.hash):
                return _unless_expired(_caller(token, secret.hash))
        return None

    def challenges(self, *, stale: bool = False) -> list[tuple[str, str]]:
        """The headers of a 401."""
        nonce = digest.make_nonce(self._nonce_key, now_ms=clock.now_ms())
        schemes = (digest.challenge(nonce, stale=stale), f'Basic realm="{tokens.REALM}", charset="UTF-8"', "Bearer")
        return [("WWW-Authenticate", scheme) for scheme in schemes]

    async def _identify(self, header: bytes, method: str, target: str) -> Caller:
        scheme, _, rest = header.partition(b" ")
        if scheme.lower() == b"digest":
            return await self._by_digest(header.decode("latin-1"), method, target)
        secrets = _secrets(scheme.lower(), rest.strip())
        if not secrets:
            raise Unauthenticated(_WRONG if header else _MISSING)
        hashes = [hashlib.sha256(secret).hexdigest() for secret in secrets]
        caller = self._by_secret(header, hashes)
        # After the root key, which may be any text.
        if caller is None and secrets[0].startswith(portals.PREFIX):
            return await self._by_portal(secrets[0])
        if caller is None and await self._refreshed():
            caller = self._by_secret(header, hashes)
        if caller is None:
            raise Unauthenticated(_WRONG)
        return caller

    def _by_secret(self, header: bytes, hashes: Sequence[str]) -> Caller | None:
        """The client with one of these secrets, as known here; remembered unless the secret is a former one."""
        if any(hmac.compare_digest(hashed, self._root_hash) for hashed in hashes):
            self._remember(header, ROOT)
            return ROOT
        for hashed in hashes:
            token = self._registry.snapshot.with_secret(hashed, clock.now_ms())
            if token is not None:
                caller = _caller(token, hashed)
                # A former secret ends by time, which the cache does not look at.
                if hashed == token.hash:
                    self._remember(header, caller)
                return caller
        return None

    async def _by_portal(self, secret: bytes) -> Caller:
        """The caller of a portal token; it is not remembered, as a client can make any number of them."""
        signed = portals.read(secret) if self._portal_key else None
        if signed is None:
            raise Unauthenticated(_NOT_SIGNED)
        if not self._is_signed(signed) and not (await self._refreshed() and self._is_signed(signed)):
            raise Unauthenticated(_NOT_SIGNED)
        portal = signed.portal
        token = self._registry.snapshot.tokens[portal.client]
        if not portals.may_manage(token.scopes, portal.tenant):
            raise Unauthenticated(_NOT_MANAGED)
        return Caller(
            token.id,
            f"{token.name} (portal of {portal.tenant})",
            scopes=portal.within(token.scopes),
            expires_at=min(filter(None, (portal.expires_at, token.expires_at))),
            portal=portal,
        )

    def _is_signed(self, signed: portals.SignedPortal) -> bool:
        token = self._registry.snapshot.tokens.get(signed.portal.client)
        hashes = [secret.hash for secret in token.secrets(clock.now_ms())] if token else []
        return signed.is_signed(self._portal_key, hashes)

    async def _by_digest(self, header: str, method: str, target: str) -> Caller:
        credentials = digest.parse(header)
        if credentials is None:
            raise Unauthenticated("the Digest answer is malformed; SHA-256 with qop=auth is spoken here")
        caller = self._proven(credentials, method, target)
        if caller is None and await self._refreshed():
            caller = self._proven(credentials, method, target)
        if caller is None:
            raise Unauthenticated(_WRONG)
        is_new = await quotas.use_nonce(
            self._partitions.home, nonce=credentials.nonce, count=credentials.count, lifetime_ms=digest.COUNTS_KEPT_MS
        )
        if not is_new:
            raise Unauthenticated("this nonce count was used before")
        return caller

    def _proven(self, credentials: digest.Credentials, method: str, target: str) -> Caller | None:
        """The caller that has answered the challenge, by this process's copy of the registry."""
        callers = self._candidates(credentials.user)
        checked = digest.check(
            credentials,
            method=method,
            uri=target,
            candidates=list(callers),
            key=self._nonce_key,
            now_ms=clock.now_ms(),
        )
        if checked.verdict is digest.DigestVerdict.STALE:
            raise Unauthenticated("the nonce is too old; answer the new one", stale=True)
        return callers[checked.ha1] if checked.verdict is digest.DigestVerdict.OK and checked.ha1 is not None else None

    def _candidates(self, user: str) -> dict[str, Caller]:
        """The possible callers by what Digest proves; a name may be shared, and a token may have former secrets."""
        found = {
            secret.ha1: _caller(token, secret.hash)
            for token in self._registry.snapshot.with_name(user)
            for secret in token.secrets(clock.now_ms())
        }
        if user == ROOT_NAME and self._root_ha1:
            found[self._root_ha1] = ROOT
        return found

    def _remember(self, header: bytes, caller: Caller) -> None:
        if len(header) <= _REMEMBERED_BYTES_MAX and self._remembered[caller.id] < _REMEMBERED_MAX:
            self._remembered[caller.id] += 1
            self._cache[header] = caller

    def _forget_if_changed(self) -> None:
        """Forget the callers of all headers when the registry has changed."""
        if self._cache_version != self._registry.snapshot.version:
            self._cache.clear()
            self._remembered.clear()
            self._cache_version = self._registry.snapshot.version

    async def _refreshed(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now - self._refreshed_at < _REFRESH_S:
            return False
        self._refreshed_at = now
        await self._registry.refresh()
        self._forget_if_changed()
        return True


def require_client(caller: Caller) -> None:
    if caller.is_root:
        raise Forbidden("this is for client tokens; make one with POST /api_tokens")


def _caller(token: Token, secret_hash: str) -> Caller:
    return Caller(token.id, token.name, secret_hash=secret_hash, scopes=token.scopes, expires_at=token.expires_at)


def _unless_expired(caller: Caller) -> Caller | None:
    return None if 0 < caller.expires_at <= clock.now_ms() else caller


def _secrets(scheme: bytes, rest: bytes) -> list[bytes]:
    """What may be the secret: for Basic it ends at the first colon, or at the last, since a token may hold some."""
    if scheme == b"bearer":
        return [rest] if rest else []
    if scheme != b"basic":
        return []
    try:
        pair = base64.b64decode(rest, validate=True)
    except binascii.Error:
        return []
    return [secret for secret in (pair.partition(b":")[0], pair.rpartition(b":")[0]) if secret]
