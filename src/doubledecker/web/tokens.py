"""The routes of tokens: who may use the bus."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from doubledecker import clock
from doubledecker.bus.registry import LiveRegistry
from doubledecker.model import token as tokens
from doubledecker.model.scopes import Scopes
from doubledecker.model.token import Caller
from doubledecker.store import registry
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.web import auditing, shapes
from doubledecker.web import body as bodies
from doubledecker.web.body import BodyLimits
from doubledecker.web.paging import EncodedRows
from doubledecker.web.shapes import TokenMade, TokenRotated


class TokenRoutes:
    """Makes, lists, replaces and revokes tokens."""

    def __init__(self, partitions: Partitions, live: LiveRegistry, body: BodyLimits, *, default: Scopes) -> None:
        self._partitions = partitions
        self._registry = live
        self._default = default
        self._limits = body

    async def list_(self, request: Request, _caller: Caller) -> Response:
        """All client tokens, or a page of them when `limit` is given; never their secrets."""
        await self._registry.refresh()
        rows = sorted(self._registry.snapshot.tokens.values(), key=lambda token: token.id)
        if not rows:
            return Response(status_code=204)
        used = await registry.last_uses(self._home, [row.id for row in rows])
        listed = [msgspec.json.encode(shapes.token(row, used.get(row.id))) for row in rows]
        return EncodedRows([row.id for row in rows], listed).answer(request.query_params)

    async def create(self, request: Request, caller: Caller) -> Response:
        """Make a client token, as an admin."""
        asked = tokens.parse_request(await self._body(request))
        secret = asked.token or tokens.make_secret(asked.name)
        token = await self._registry.clients.add(
            asked, secret, caller=caller, default=self._default, now_ms=clock.now_ms()
        )
        auditing.learn(request, target=token.id)
        return shapes.json(TokenMade(token.name, secret, token.id), status=201)

    async def change(self, request: Request, caller: Caller) -> Response:
        """Change what a token may do, how long it lasts, or what is noted of it; in force within a second."""
        asked = tokens.parse_change(await self._body(request))
        now_ms = clock.now_ms()
        token = await self._registry.clients.find(request.path_params["name"], now_ms=now_ms)
        token = await self._registry.clients.change(
            token.id, asked, caller=caller, default=self._default, now_ms=now_ms
        )
        return shapes.json(shapes.token(token, (await registry.last_uses(self._home, [token.id])).get(token.id)))

    async def delete(self, request: Request, caller: Caller) -> Response:
        """Revoke a token, as an admin; its subscriber ends with it. Also 204 when there was none."""
        await self._registry.clients.revoke(request.path_params["name"], caller=caller, now_ms=clock.now_ms())
        return Response(status_code=204)

    async def rotate(self, request: Request, caller: Caller) -> Response:
        """Replace a token's secret, as an admin; its id stays, and all secrets work until the overlap ends."""
        asked = tokens.parse_rotation(await self._body(request))
        now_ms = clock.now_ms()
        token = await self._registry.clients.find(request.path_params["name"], now_ms=now_ms)
        secret = asked.token or tokens.make_secret(token.name)
        token = await self._registry.clients.rotate(
            token.id, secret, overlap_s=asked.overlap_s, caller=caller, now_ms=now_ms
        )
        return shapes.json(TokenRotated(token.name, secret, token.id, token.former_until))

    @property
    def _home(self) -> Partition:
        return self._partitions.home

    async def _body(self, request: Request) -> bytes:
        return await bodies.read(request.scope, request.receive, self._limits)
