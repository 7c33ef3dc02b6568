"""Who may use a bus: clients are added, found, given other secrets and forgotten."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from doubledecker.errors import Conflict, NotFound, TooMany
from doubledecker.model import token as tokens
from doubledecker.model.scopes import UNLIMITED, Scopes
from doubledecker.model.token import ROOT, Caller, Token, TokenChange, TokenWanted
from doubledecker.store import registry
from doubledecker.store.partitions import Partition

if TYPE_CHECKING:
    from doubledecker.bus.registry import LiveRegistry

# Changes at the same time are tried again with a newer copy of the registry, so many times at most.
_TRIES_MAX = 20
_MINUTE_MS = 60_000
_FLUSH_S = 10.0
# Tokens of one call: less than a millisecond of the server's time.
_CALL_MAX = 500


class Clients:
    """The tokens of a process's copy of the registry, and the changes that it makes to them."""

    def __init__(self, home: Partition, live: "LiveRegistry") -> None:
        self._home = home
        self._registry = live
        # One change at a time: two tokens may not have the same secret.
        self._lock = asyncio.Lock()

    async def create(self, name: str, secret: str, *, now_ms: int) -> Token:
        """Add a client that may do what any may; the same name and secret again is the same token."""
        return await self.add(TokenWanted(name), secret, now_ms=now_ms)

    async def add(
        self, asked: TokenWanted, secret: str, *, caller: Caller = ROOT, default: Scopes = UNLIMITED, now_ms: int
    ) -> Token:
        """Add a client by what is asked for; `default` is what it may do if that does not say. Raises Forbidden."""

        def wanted() -> Token:
            made = tokens.make_as_asked(self._unused_id(asked.name), asked, secret, default=default, now_ms=now_ms)
            tokens.check_grant(caller, None, made)
            found = self._registry.snapshot.with_secret(made.hash, now_ms)
            if found is not None:
                tokens.check_repeat(found, made, asked)
            return found or made

        return await self._save(wanted)

    async def import_secrets(self, secrets: Sequence[str], *, default: Scopes = UNLIMITED, now_ms: int) -> list[str]:
        """Add clients by the tokens that they have already; returns the ids of the new ones.

        Each is added once, ever: one that was revoked or rotated since does not come back at the next start.
        """
        added = []
        for secret in secrets:
            hashed = tokens.hash_secret(secret)
            if await registry.is_imported(self._home, hashed):
                continue
            await self._registry.refresh()
            if self._registry.snapshot.with_secret(hashed, now_ms) is None:
                wanted = TokenWanted(tokens.name_of(secret))
                added.append((await self.add(wanted, secret, default=default, now_ms=now_ms)).id)
            await registry.note_imported(self._home, hashed)
        return added

    async def find(self, id_or_secret: str, *, now_ms: int) -> Token:
        """A client's token, given its id or a secret that works."""
        await self._registry.refresh()
        token = self._find(id_or_secret, now_ms)
        if token is None:
            raise NotFound("no client has this token; GET /api_tokens lists their ids")
        return token

    async def change(self, id_: str, asked: TokenChange, *, caller: Caller, default: Scopes, now_ms: int) -> Token:
        """Change what a token may do, how long it lasts, and what is noted of it; raises Forbidden."""

        def wanted() -> Token:
            token = self._known(id_)
            changed = tokens.changed(token, asked, default=default, now_ms=now_ms)
            tokens.check_grant(caller, token, changed)
            self._check_bulk(changed)
            return changed

        return await self._save(wanted)

    async def rotate(self, id_: str, secret: str, *, overlap_s: int, caller: Caller = ROOT, now_ms: int) -> Token:
        """Replace a client's secret; the former one works until the overlap ends."""

        def wanted() -> Token:
            token = self._known(id_)
            tokens.check_grant(caller, token, token)
            other = self._registry.snapshot.with_secret(tokens.hash_secret(secret), now_ms)
            if other is not None and other.id != token.id:
                raise Conflict(tokens.TAKEN)
            return tokens.rotate(token, secret, overlap_s=overlap_s, now_ms=now_ms)

        return await self._save(wanted)

    async def revoke(self, id_or_secret: str, *, caller: Caller = ROOT, now_ms: int) -> None:
        """Forget a client, given its id or a secret that works; its subscriber ends with it.

        The token first, so that the client cannot subscribe again; what a process that dies leaves the sweep ends.
        """
        await self._registry.refresh()
        token = self._find(id_or_secret, now_ms)
        tokens.check_grant(caller, token, None)
        id_ = id_or_secret if token is None else token.id
        if token is not None and token.scopes.limits_events:
            # Without its token nothing would limit what is pushed from them.
            for queue in [each for each in self._registry.snapshot.queues.values() if each.owner == id_]:
                if queue.callback:
                    with suppress(NotFound):
                        await self._registry.delete_queue(queue, discard=True)
        await self._registry.spread(await registry.delete_token(self._home, id_))
        await self._registry.subscriptions.end_of(id_)

    async def _save(self, decide: Callable[[], Token]) -> Token:
        """Save what is decided by the copy of the registry, again with a newer copy if it was old."""
        async with self._lock:
            for _ in range(_TRIES_MAX):
                await self._registry.refresh()
                token = decide()
                if self._registry.snapshot.tokens.get(token.id) == token:
                    return token
                version = await registry.save_token(self._home, token, seen=self._registry.snapshot.version)
                if version == 0:
                    raise TooMany(f"there are {registry.TOKENS_MAX} tokens already; delete some first")
                if version > 0:
                    await self._registry.spread(version)
                    return token
        raise Conflict("the registry is being changed by others at the same time; try again")

    def _check_bulk(self, token: Token) -> None:
        """Raise Conflict where a token would be limited whose client gets whole topics from the lake."""
        for subscriber in self._registry.snapshot.subscribers.values():
            if subscriber.client == token.id and subscriber.is_bulk and token.scopes.limits_events:
                raise Conflict(
                    f"subscriber {subscriber.token!r} of this client has tier bulk, which takes whole topics; it "
                    "has to take another before its token can be limited to topics or tenants"
                )

    def _known(self, id_: str) -> Token:
        token = self._registry.snapshot.tokens.get(id_)
        if token is None:
            raise NotFound(f"no token with the id {id_!r}; it was revoked meanwhile")
        return token

    def _unused_id(self, name: str) -> str:
        id_ = tokens.make_id(name)
        while id_ in self._registry.snapshot.tokens:
            id_ = tokens.make_id(name)
        return id_

    def _find(self, id_or_secret: str, now_ms: int) -> Token | None:
        found = self._registry.snapshot.tokens.get(id_or_secret)
        return found or self._registry.snapshot.with_secret(tokens.hash_secret(id_or_secret), now_ms)


class TokenUses:
    """When tokens were last used: to the minute, and apart from the registry, whose version must not move by it.

    A process notes a token once a minute, and writes what it has noted in one call every ten seconds.
    """

    def __init__(self, home: Partition) -> None:
        self._home = home
        self._minutes: dict[str, int] = {}
        self._unwritten: dict[str, int] = {}
        self._flushed_at_s = float("-inf")

    def note(self, client: str, now_ms: int) -> None:
        minute = now_ms // _MINUTE_MS
        if self._minutes.get(client) != minute:
            if len(self._minutes) >= registry.TOKENS_MAX:
                self._minutes.clear()
            self._minutes[client] = minute
            self._unwritten[client] = minute * _MINUTE_MS

    async def flush(self) -> None:
        """Write what was noted, unless that was just done; raises BusAway, and loses those of the failed call."""
        now_s = asyncio.get_running_loop().time()
        if not self._unwritten or now_s - self._flushed_at_s < _FLUSH_S:
            return
        self._flushed_at_s = now_s
        noted, self._unwritten = self._unwritten, {}
        left = iter(noted.items())
        while some := dict(islice(left, _CALL_MAX)):
            await registry.note_uses(self._home, some)
