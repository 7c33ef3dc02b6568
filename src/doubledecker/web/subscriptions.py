"""The routes of subscriptions: subscribing, leaving, listing."""

from starlette.requests import Request
from starlette.responses import Response

from doubledecker import clock, log
from doubledecker.bus import overview
from doubledecker.bus.registry import LiveRegistry
from doubledecker.model import subscriber as subscribing
from doubledecker.model.dial_guard import DialGuard
from doubledecker.model.token import Caller
from doubledecker.store import pipeline
from doubledecker.store.partitions import Partitions
from doubledecker.web import body as bodies
from doubledecker.web import shapes
from doubledecker.web.authentication import require_client
from doubledecker.web.body import BodyLimits

_log = log.get("web")


class SubscriptionRoutes:
    """Answers for subscribers."""

    def __init__(self, partitions: Partitions, registry: LiveRegistry, limits: BodyLimits, *, guard: DialGuard) -> None:
        self._partitions = partitions
        self._registry = registry
        self._limits = limits
        self._guard = guard

    async def subscribe(self, request: Request, caller: Caller) -> Response:
        """Create or replace this client's subscriber."""
        require_client(caller)
        asked = subscribing.parse(await bodies.read(request.scope, request.receive, self._limits))
        await self._registry.subscriptions.check_room(caller.id, asked)
        asked = subscribing.checked(asked, guard=self._guard)
        subscriber = await self._registry.subscriptions.put(caller.id, asked)
        if subscriber.is_bulk:
            run = (await pipeline.read(self._partitions.home)).run
            if run is None or not run.is_alive(clock.now_ms()):
                _log.warning("subscriber.unserved", subscriber=subscriber.token)
        return Response(status_code=204)

    async def unsubscribe(self, _request: Request, caller: Caller) -> Response:
        """Forget this client's subscriber and what waits for it."""
        require_client(caller)
        await self._registry.subscriptions.delete(caller.id)
        return Response(status_code=204)

    async def leave_topic(self, request: Request, caller: Caller) -> Response:
        """End one subscription."""
        require_client(caller)
        await self._registry.subscriptions.leave_topic(caller.id, request.path_params["name"])
        return Response(status_code=204)

    async def list_subscribers(self, _request: Request, caller: Caller) -> Response:
        """A client's own subscriber, or all of them for root."""
        await self._registry.refresh()
        known = self._registry.snapshot.subscribers.values()
        seen = [subscriber for subscriber in known if caller.is_admin or subscriber.token == caller.id]
        now_ms = clock.now_ms()
        rows = await overview.look_at(self._partitions, seen)
        return shapes.json([shapes.subscriber(row, caller, now_ms) for row in rows])
