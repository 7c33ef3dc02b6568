"""Who looks at a page: a session that began with a token, or with a one-time code.

The cookie holds a random id and nothing else; Redis has its hash. A session is bound to the secret that it began with:
it ends when that no longer works, and by itself after `SESSION_S`. A form proves that a page of this session had it by
a digest of the id, which no other site can know.
"""

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from doubledecker import clock
from doubledecker.errors import Forbidden, Refused
from doubledecker.model import portal as portals
from doubledecker.model.token import Caller
from doubledecker.store import sessions
from doubledecker.store.partitions import Partitions
from doubledecker.store.sessions import SESSION_S, SessionRecord
from doubledecker.web.authentication import Authenticator
from doubledecker.web.origins import Network, connected, is_in, network_of, whence
from doubledecker.web.pace import ClientPace

# Tries in a minute, and at once: of an address, behind which there may be many people, and of a token.
ADDRESS_TRIES_MAX = 30
TOKEN_TRIES_MAX = 10
_SESSION, _VISITOR = "doubledecker-session", "doubledecker-visitor"
_COOKIE_BYTES_MAX = 100
_FORM = b"form"


class SignInRefused(Refused):
    """A token or a code that does not sign in."""

    status = 401
    title = "Sign in"


class Sessions:
    """Begins, finds and ends sessions."""

    def __init__(
        self, partitions: Partitions, authenticator: Authenticator, tries: ClientPace, *, proxies: Sequence[Network]
    ) -> None:
        self._partitions = partitions
        self._authenticator = authenticator
        self._tries = tries
        self._proxies = proxies

    async def find(self, request: Request) -> Caller | None:
        """The caller whose session the request has, unless it has none or one that has ended."""
        session = _cookie(request, _SESSION)
        record = await sessions.find(self._partitions.home, session) if session else None
        if record is None:
            return None
        caller = self._authenticator.holder(record.token, lambda hash_: _is_bond(record.bond, session, hash_))
        return caller and replace(caller, only_looks=record.only_looks)

    async def sign_in(self, request: Request, secret: str, *, only_looks: bool = False) -> str:
        """Begin a session with this token; raises SignInRefused, or TooOften."""
        await self._pay(request)
        await self._tries.pay(f"token:{_digest(secret.encode(), b'try')[:16]}", minute_max=TOKEN_TRIES_MAX)
        caller = await self._authenticator.by_token(secret)
        if secret.encode().startswith(portals.PREFIX):
            raise SignInRefused("a portal token is for the API; pages are for the token of a client, or the root key")
        if caller is None:
            raise SignInRefused("no client has this token, and it is not the root key")
        return await self._begin(caller.id, caller.secret_hash, only_looks=only_looks)

    async def sign_in_by_code(self, request: Request, code: str) -> str:
        """Begin a session of root with a code that was not used before; raises SignInRefused, or TooOften."""
        await self._pay(request)
        root = self._authenticator.root
        if root is None or not await sessions.use_code(self._partitions.home, code):
            raise SignInRefused("this link was used, or is too old; sign in with a token")
        return await self._begin(root.id, root.secret_hash)

    async def end(self, request: Request) -> None:
        if session := _cookie(request, _SESSION):
            await sessions.end(self._partitions.home, session)

    def form_token(self, request: Request) -> str:
        """What the forms of a session's pages have to bring back."""
        return _form_token(_cookie(request, _SESSION))

    def check_form(self, request: Request, given: str, *, is_visitors: bool = False) -> None:
        """Raise Forbidden when a form is not of a page of this session; or of a visitor, of the page for signing in."""
        seed = _cookie(request, _VISITOR if is_visitors else _SESSION)
        if not seed or not hmac.compare_digest(given.encode(), _form_token(seed).encode()):
            raise Forbidden("the form is too old, or not from this page; load the page again")

    def remember(self, request: Request, answer: Response, session: str) -> None:
        """Give the browser the cookie of a session; it loses that of a visitor."""
        self._set(request, answer, _SESSION, session, max_age=SESSION_S)
        self._set(request, answer, _VISITOR, "", max_age=0)

    def forget(self, request: Request, answer: Response) -> None:
        self._set(request, answer, _SESSION, "", max_age=0)

    def welcome(self, request: Request, answer: Response, visitor: str) -> str:
        """Give the browser a cookie for the form for signing in; returns what that form has to bring back."""
        self._set(request, answer, _VISITOR, visitor, max_age=SESSION_S)
        return _form_token(visitor)

    async def _begin(self, token: str, secret_hash: str, *, only_looks: bool = False) -> str:
        session = new_id()
        bond = _digest(session.encode(), secret_hash.encode())
        await sessions.begin(self._partitions.home, session, SessionRecord(token, bond, clock.now_ms(), only_looks))
        return session

    async def _pay(self, request: Request) -> None:
        """Count a try of the address that is connected, or that a trusted proxy names: its own is everyone's."""
        address, _ = whence(request.scope, self._proxies)
        await self._tries.pay(f"address:{network_of(address) or 'none'}", minute_max=ADDRESS_TRIES_MAX)

    def _set(self, request: Request, answer: Response, name: str, value: str, *, max_age: int) -> None:
        answer.set_cookie(
            name, value, max_age=max_age, path="/", secure=self._is_secure(request), httponly=True, samesite="strict"
        )

    def _is_secure(self, request: Request) -> bool:
        """Whether the browser speaks HTTPS, as far as a proxy that we know says so."""
        is_claimed = request.headers.get("X-Forwarded-Proto") == "https"
        return request.url.scheme == "https" or (is_claimed and is_in(connected(request.scope), self._proxies))


def new_id() -> str:
    """What nobody can guess."""
    return secrets.token_urlsafe(24)


def _cookie(request: Request, name: str) -> str:
    value = request.cookies.get(name, "")
    return value if len(value) <= _COOKIE_BYTES_MAX else ""


def _form_token(seed: str) -> str:
    return _digest(seed.encode(), _FORM)


def _is_bond(bond: str, session: str, secret_hash: str) -> bool:
    return hmac.compare_digest(bond, _digest(session.encode(), secret_hash.encode()))


def _digest(key: bytes, of: bytes) -> str:
    return hmac.digest(key, of, "sha256").hex()
