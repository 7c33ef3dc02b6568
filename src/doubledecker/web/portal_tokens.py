"""The route that makes portal tokens: for one tenant's own subscriptions, by a client that may manage that tenant."""

from typing import Annotated

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from doubledecker import clock
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import Forbidden
from doubledecker.model import portal as portals
from doubledecker.model.event import Tenant, TopicName
from doubledecker.model.portal import Portal
from doubledecker.model.schema import Count, Shape
from doubledecker.model.token import Caller
from doubledecker.web import auditing, shapes
from doubledecker.web import body as bodies
from doubledecker.web.authentication import require_client
from doubledecker.web.body import BodyLimits


class PortalMade(Shape):
    """A portal token; it is kept nowhere."""

    token: Annotated[str, Meta(description="To be sent as any token: as Bearer, or as the user of Basic")]
    client: Annotated[str, Meta(description="The token id of the client that it acts for")]
    tenant: Tenant
    topics: Annotated[list[TopicName], Meta(description="null: all on which the client may publish")] | None
    expires_at: Annotated[Count, Meta(description="In milliseconds since 1970")]


class PortalTokenRoutes:
    """Makes portal tokens."""

    def __init__(self, registry: LiveRegistry, limits: BodyLimits, *, root_key: str) -> None:
        self._registry = registry
        self._limits = limits
        self._key = portals.key_from(root_key)

    async def create(self, request: Request, caller: Caller) -> Response:
        """Make a short-lived token for the subscriptions of one tenant of this client."""
        asked = portals.parse(await bodies.read(request.scope, request.receive, self._limits))
        require_client(caller)
        caller.scopes.check_tenants([asked.tenant], to="manage")
        caller.scopes.check_topics(asked.topics or [], to="manage")
        if not self._key:
            raise Forbidden(
                "a portal token is signed by a key made from the root key, and this bus has none; its operator can set "
                "DOUBLEDECKER_ROOT_KEY"
            )
        topics = None if asked.topics is None else tuple(dict.fromkeys(asked.topics))
        portal = Portal(caller.id, asked.tenant, self._end(caller, asked.expires_in_s), topics)
        auditing.learn(request, target=asked.tenant)
        token = portals.sign(portal, self._key, secret_hash=caller.secret_hash)
        shown = None if topics is None else list(topics)
        return shapes.json(PortalMade(token, caller.id, asked.tenant, shown, portal.expires_at), status=201)

    def _end(self, caller: Caller, in_s: int) -> int:
        """When it ends: with the secret that makes it, if that ends before."""
        now_ms = clock.now_ms()
        ends = [now_ms + in_s * 1000, caller.expires_at]
        token = self._registry.snapshot.tokens.get(caller.id)
        if token is not None:
            ends += [secret.until for secret in token.secrets(now_ms) if secret.hash == caller.secret_hash]
        return min(filter(None, ends))
