"""The routes of tokens: who may use the bus."""

from starlette.requests import Request
from starlette.responses import Response

from doubledecker import clock
from doubledecker.bus.registry import LiveRegistry
from doubledecker.model import token as tokens
from doubledecker.model.token import Caller
from doubledecker.web import body as bodies
from doubledecker.web import shapes
from doubledecker.web.authentication import require_root
from doubledecker.web.body import BodyLimits
from doubledecker.web.shapes import TokenMade, TokenRotated


class TokenRoutes:
    """Makes, lists, replaces and revokes tokens."""

    def __init__(self, registry: LiveRegistry, body: BodyLimits) -> None:
        self._registry = registry
        self._limits = body

    async def list_(self, _request: Request, caller: Caller) -> Response:
        """All client tokens, for root; never their secrets."""
        require_root(caller)
        await self._registry.refresh()
        rows = sorted(self._registry.snapshot.tokens.values(), key=lambda token: (token.name, token.id))
        if not rows:
            return Response(status_code=204)
        return shapes.json([shapes.token(row) for row in rows])

    async def create(self, request: Request, caller: Caller) -> Response:
        """Make a client token, as root."""
        require_root(caller)
        name, chosen = tokens.parse_request(await self._body(request))
        secret = chosen or tokens.make_secret(name)
        token = await self._registry.clients.create(name, secret, now_ms=clock.now_ms())
        return shapes.json(TokenMade(name, secret, token.id), status=201)

    async def delete(self, request: Request, caller: Caller) -> Response:
        """Revoke a token, as root; its subscriber ends with it. Also 204 when there was none."""
        require_root(caller)
        await self._registry.clients.revoke(request.path_params["name"], now_ms=clock.now_ms())
        return Response(status_code=204)

    async def rotate(self, request: Request, caller: Caller) -> Response:
        """Replace a token's secret, as root; its id stays, and all secrets work until the overlap ends."""
        require_root(caller)
        asked = tokens.parse_rotation(await self._body(request))
        now_ms = clock.now_ms()
        token = await self._registry.clients.find(request.path_params["name"], now_ms=now_ms)
        secret = asked.token or tokens.make_secret(token.name)
        token = await self._registry.clients.rotate(token.id, secret, overlap_s=asked.overlap_s, now_ms=now_ms)
        return shapes.json(TokenRotated(token.name, secret, token.id, token.former_until))

    async def _body(self, request: Request) -> bytes:
        return await bodies.read(request.scope, request.receive, self._limits)
