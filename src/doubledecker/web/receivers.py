"""The routes of one receiver: a client's default subscription, one by its name or its id, or a queue.

Each action is there four times: `/subscriber/<action>`, `/subscriptions/{name}/<action>`,
`/subscribers/{subscriber}/<action>` and `/queues/{name}/<action>`. `ReceiverFinder` finds out which is meant, and that
it is the caller's.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from doubledecker import clock
from doubledecker.bus.receiver_states import ReceiverStates
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import BadRequest, Conflict, Forbidden, NotFound
from doubledecker.model import signing
from doubledecker.model import subscriber as subscribing
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.subscriber import Subscriber
from doubledecker.model.token import Caller
from doubledecker.web import auditing, shapes
from doubledecker.web import body as bodies
from doubledecker.web.authentication import require_client
from doubledecker.web.body import BodyLimits
from doubledecker.web.shapes import SecretRotated
from doubledecker.web.trials import Trials

# Ids that an error lists.
_NAMED_MAX = 20


@dataclass(frozen=True)
class ChosenReceiver:
    """What a path names, which is the caller's to use: a subscriber, or a queue with or without a callback.

    `token` is what its batches, attempts and dead letters go by: a subscriber's id, or `@` and the queue's name.
    """

    token: str
    receiver: Subscriber | None
    queue: RegisteredQueue | None = None

    @property
    def pushed(self) -> Subscriber:
        """The receiver that is called; raises Conflict for a queue that is only pulled from."""
        if self.receiver is None:
            name = self.token.removeprefix("@")
            raise Conflict(f"queue {name!r} has no callback, so nothing is sent; PUT /queues/{name} can give it one")
        return self.receiver


class ReceiverFinder:
    """Finds the receiver that a path names. Another client's is not found, like one that does not exist."""

    def __init__(self, registry: LiveRegistry) -> None:
        self._registry = registry

    async def find_anew(self, request: Request, caller: Caller) -> ChosenReceiver:
        """The same as it is registered now, also if another process has just changed it."""
        await self._registry.refresh()
        return await self.find(request, caller)

    async def find(self, request: Request, caller: Caller) -> ChosenReceiver:
        """The receiver that a request is about; raises NotFound."""
        chosen = await self._find(request, caller)
        auditing.learn(request, target=chosen.token)
        return chosen

    async def _find(self, request: Request, caller: Caller) -> ChosenReceiver:
        prefix = request.scope["path"].split("/")[1]
        if prefix == "queues":
            return await self._queue(request.path_params["name"], caller)
        if prefix == "subscriptions":
            require_client(caller)
            return await self._subscription(request.path_params["name"], caller)
        if prefix == "subscriber":
            require_client(caller)
            return await self._subscriber(caller.id, caller)
        named = request.path_params["subscriber"]
        if caller.portal is not None:
            # By its id as it is listed, or by its name: nothing is said of others.
            return await self._subscription(named.removeprefix(f"{caller.share}/"), caller)
        return await self._subscriber(named, caller)

    async def _subscription(self, name: str, caller: Caller) -> ChosenReceiver:
        """A client's own by its name; through a portal one of its tenant."""
        tenant = caller.portal.tenant if caller.portal else ""
        found = await self._registry.subscriptions.find(caller.id, subscribing.name_for(tenant, name))
        check_covers(caller, found)
        return ChosenReceiver(found.token, found)

    async def _queue(self, name: str, caller: Caller) -> ChosenReceiver:
        try:
            queue = await self._registry.queue(name, caller=caller)
        except Forbidden:
            raise NotFound(f"no queue named {name[:80]!r}") from None
        return ChosenReceiver(queue.receiver.token, queue.receiver if queue.callback else None, queue)

    async def _subscriber(self, named: str, caller: Caller) -> ChosenReceiver:
        if named not in self._registry.snapshot.subscribers:
            await self._registry.refresh()
        found = self._named(named, caller)
        if not found:
            raise NotFound(f"no subscriber named {named[:80]!r}; GET /subscribers lists yours")
        if len(found) > 1:
            raise BadRequest(
                f"{len(found)} subscribers are named {named[:80]!r}; give an id: {', '.join(found[:_NAMED_MAX])}"
            )
        return ChosenReceiver(found[0], self._registry.snapshot.subscribers[found[0]])

    def _named(self, named: str, caller: Caller) -> list[str]:
        """The subscribers with this id or name that the caller may use; else its own that it calls so."""
        known = self._registry.snapshot
        own = known.subscription(caller.id, named)
        return self._usable(named, caller) or ([own.token] if own else [])

    def _usable(self, named: str, caller: Caller) -> list[str]:
        known = self._registry.snapshot
        return [each for each in known.subscribers_named(named) if caller.is_admin or known.owner_of(each) == caller.id]


def covers(caller: Caller, found: Subscriber) -> bool:
    """Whether a caller may see and change a subscription of its client: through a portal, of its topics alone."""
    return caller.portal is None or all(map(caller.scopes.has_topic, found.topics))


def check_covers(caller: Caller, found: Subscriber) -> None:
    """Raise Forbidden where a portal token is for fewer topics than a subscription has."""
    if not covers(caller, found):
        raise Forbidden(f"subscription {found.short_name!r} has topics that this portal token is not for")


class ReceiverRoutes:
    """Pauses, resumes, enables and tests receivers, and replaces their secrets."""

    def __init__(self, finder: ReceiverFinder, states: ReceiverStates, trials: Trials, limits: BodyLimits) -> None:
        self._finder = finder
        self._states = states
        self._trials = trials
        self._limits = limits

    async def pause(self, request: Request, caller: Caller) -> Response:
        """Send this receiver nothing, and keep all that waits for it, until it is resumed."""
        return await self._change(request, caller, self._states.pause)

    async def resume(self, request: Request, caller: Caller) -> Response:
        """End the pause of a receiver; what waited is sent."""
        return await self._change(request, caller, self._states.resume)

    async def enable(self, request: Request, caller: Caller) -> Response:
        """Send to a receiver again that answered 410."""
        return await self._change(request, caller, self._states.enable)

    async def rotate_secret(self, request: Request, caller: Caller) -> Response:
        """Give this receiver a new signing secret; former ones sign too until the overlap ends."""
        body = await bodies.read(request.scope, request.receive, self._limits)
        chosen = (await self._finder.find(request, caller)).pushed
        asked = signing.parse_rotation(body)
        keys = await self._states.rotate_secret(chosen.token, overlap_s=asked.overlap_s, now_ms=clock.now_ms())
        return shapes.json(SecretRotated(chosen.token, keys.secret, keys.rotated_at, keys.former_until))

    async def test(self, request: Request, caller: Caller) -> Response:
        """Send this receiver a test event now, and show what it answers."""
        chosen = (await self._finder.find_anew(request, caller)).pushed
        return shapes.json(await self._trials.send(chosen, caller=caller))

    async def _change(
        self, request: Request, caller: Caller, change: Callable[[str], Awaitable[Subscriber]]
    ) -> Response:
        chosen = (await self._finder.find(request, caller)).pushed
        return shapes.json(shapes.receiver_state(await change(chosen.token)))
