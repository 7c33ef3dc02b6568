"""The web process: the app under uvicorn, with its background tasks, from start to clean stop."""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import msgspec
import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from doubledecker import clock, log
from doubledecker.assembly import build
from doubledecker.assembly.build import BusParts
from doubledecker.assembly.launch import Launch, launch
from doubledecker.assembly.redis_guard import RedisGuard
from doubledecker.assembly.settings import Settings
from doubledecker.background import sleep_until
from doubledecker.bus.audit import AuditTrail
from doubledecker.bus.pipeline_jobs import PipelineJobs
from doubledecker.bus.presence import Presence
from doubledecker.bus.publish_rate import Pacer
from doubledecker.bus.receiver_states import ReceiverStates
from doubledecker.bus.resending import Resender
from doubledecker.dashboard import site
from doubledecker.dashboard.bus_view import BusView
from doubledecker.delivery.attempt import Dialer
from doubledecker.errors import BusAway
from doubledecker.model import callback, reserved
from doubledecker.model.dial_guard import DialGuard
from doubledecker.model.event import EventLimits
from doubledecker.model.routing import Registry
from doubledecker.model.scopes import NOTHING, UNLIMITED, Scopes
from doubledecker.store import registry
from doubledecker.store.processes import Family
from doubledecker.web import metrics, problem
from doubledecker.web.addresses import Addresses
from doubledecker.web.api import RouteGroups
from doubledecker.web.app import App
from doubledecker.web.attempt_log import AttemptLog
from doubledecker.web.attempts import AttemptRoutes
from doubledecker.web.audit import AuditRoutes
from doubledecker.web.auditing import Auditing
from doubledecker.web.authentication import Authenticator
from doubledecker.web.body import BodyLimits, BodyMemory
from doubledecker.web.dashboard import FORM_BYTES_MAX, Dashboard
from doubledecker.web.dead_letters import DeadLetterRoutes
from doubledecker.web.feed import Feed
from doubledecker.web.filters import FilterRoutes
from doubledecker.web.listening import BACKLOG
from doubledecker.web.metrics import WebFigures
from doubledecker.web.pace import ClientPace
from doubledecker.web.pipeline_jobs import PipelineJobRoutes
from doubledecker.web.portal_tokens import PortalTokenRoutes
from doubledecker.web.protocol import HEAD_BYTES_MAX, HEAD_S_MAX, UNREAD_S_MAX, guarded
from doubledecker.web.publishing import EVENTS_MAX, Publishing, PublishRules
from doubledecker.web.queue_contents import QueueContents
from doubledecker.web.queues import Queues
from doubledecker.web.receivers import ReceiverFinder, ReceiverRoutes
from doubledecker.web.resending import ResendRoutes
from doubledecker.web.routes import RouteRules, Routes
from doubledecker.web.sessions import Sessions
from doubledecker.web.stream import Streaming, StreamLeases, StreamRules
from doubledecker.web.subscriptions import SubscriptionRoutes
from doubledecker.web.tokens import TokenRoutes
from doubledecker.web.topics import TopicRoutes
from doubledecker.web.trials import Trials
from doubledecker.web.turns import ClientLocks
from doubledecker.web.watching import Viewers

# What the web process answers before it has reached Redis: it is alive, and everything else is 503.

_DETAIL = "the bus is starting and waits for Redis; its log says for which server"


async def starting_app(scope: Scope, receive: Receive, send: Send) -> None:
    """The application until the bus is open; the next request comes on a connection that has the real one."""
    if scope["path"] == "/livez":
        answer = Response(msgspec.json.encode({"status": "alive"}), media_type="application/json")
    else:
        answer = problem.plain(503, "Not ready", _DETAIL, [("Retry-After", "1")])
    answer.headers["Connection"] = "close"
    await answer(scope, receive, send)


# Requests under way get this long to finish when the process stops.
GRACE_S = 5
# Idle connections are kept for longer than clients' pools keep theirs, so that the client closes first.
_KEEP_ALIVE_S = 75
_DATE_S = 1.0  # it shows seconds
# Bodies that do not hold events are small: the largest is a list of a thousand messages. What is too much for a route
# is found only once it is decoded, so that its cost is bounded here.
SMALL_BYTES_MAX = 1_048_576

_log = log.get("web")


@dataclass(frozen=True)
class WebBounds:
    """Bounds of a web process that nobody turns; tests give smaller ones."""

    # How often a call tests whether a Redis that does not answer is back: a few a second cost nothing.
    redis_open_s: float = 0.25
    head_s_max: float = HEAD_S_MAX
    head_bytes_max: int = HEAD_BYTES_MAX
    event_depth_max: int = EventLimits.depth_max
    events_per_request_max: int = EVENTS_MAX
    stream: StreamRules = field(default_factory=StreamRules)


async def run(
    settings: Settings,
    listener: socket.socket,
    stop: asyncio.Event,
    launched: Launch | None = None,
    *,
    bounds: WebBounds | None = None,
) -> None:
    """Serve until `stop` is set; then answer what is under way. Until Redis is reached, only /livez is 200."""
    launched = launched or launch("web")
    bounds = bounds or WebBounds()
    server = _Server(settings, bounds)
    serving = asyncio.create_task(server.serve([listener]))
    serving.add_done_callback(lambda _: stop.set())
    try:
        await _serve_bus(settings, bounds, listener, server, stop, serving, launched)
    finally:
        server.end()
        await serving
    _log.info("web.stopped")


async def _serve_bus(
    settings: Settings,
    bounds: WebBounds,
    listener: socket.socket,
    server: "_Server",
    stop: asyncio.Event,
    serving: "asyncio.Task[None]",
    launched: Launch,
) -> None:
    guard = RedisGuard(open_s=bounds.redis_open_s)
    async with build.open_bus(settings, guard=guard, stop=stop, migrate=build.migrating(settings, stop)) as bus:
        _warn_of_public_uuids(bus.registry.snapshot)
        _warn_of_callbacks(bus.registry.snapshot, settings.dial_guard)
        bus.headroom.check()
        await _import_clients(settings, bus)
        feed = Feed(bus.partitions, listeners_max=settings.streams_max)
        leases = StreamLeases(bus.partitions.home, bus.registry.quotas)
        presence = _presence(bus, launched, feed, guard, server)
        async with build.open_dialer(settings) as dialer, presence.kept(), asyncio.TaskGroup() as tasks:
            endless = (bus.registry.follow(), bus.publisher.run(), bus.bell.run(), feed.run(), leases.run())
            background = [tasks.create_task(part) for part in endless]
            background.append(tasks.create_task(_log_queues_beyond_copies(bus)))
            background.append(tasks.create_task(_log_reserved_topics(bus)))
            app = make_app(settings, bounds, bus, feed, leases, presence, dialer)
            server.serve_with(app)
            host, port = listener.getsockname()[:2]
            _log.info("web.started", host=host, port=port)
            launched.ready()
            _log_limited_queues(bus)
            await stop.wait()
            bus.bell.stop()
            feed.stop()
            app.dashboard.stop()
            server.end()
            await serving
            await bus.publisher.finish()
            for task in background:
                task.cancel()


def _presence(bus: BusParts, launched: Launch, feed: Feed, guard: RedisGuard, server: "_Server") -> Presence:
    """The process as the metrics of all processes show it."""

    def figures() -> list[Family]:
        seen = WebFigures(
            streams=len(feed.listeners),
            connections=len(server.server_state.connections),
            address_connections=server.addresses.most_open,
            address_connections_max=server.addresses.most,
            requests=server.app.under_way if server.app else Counter(),
            quotas=bus.registry.quotas,
        )
        return metrics.of_web(guard.bounds, seen)

    return Presence(bus.partitions.home, launched.process, kind=launched.kind, figures=figures)


def _log_limited_queues(bus: BusParts) -> None:
    """Name the queues of version 0.1.0 that could refuse every client's events, and no longer can."""
    for queue in bus.registry.snapshot.queues.values():
        if queue.refuses and queue.refuse_clients is None and not queue.is_roots:
            _log.warning(
                "queue.refusal_limited",
                queue=queue.name,
                owner=queue.owner,
                detail="when full it refuses its owner's events only, others' do not enter it; "
                "root may name further clients with refuse_clients",
            )


async def _log_queues_beyond_copies(bus: BusParts) -> None:
    """Name the queues that version 0.1.0 gave every event, and that now are skipped: their owner has too many."""
    with contextlib.suppress(BusAway):  # no reason not to serve
        for queue in (await bus.registry.copies.queues_beyond()).values():
            _log.warning(
                "queue.copies_limited",
                queue=queue.name,
                owner=queue.owner,
                detail=f"{bus.registry.quotas.client_copies_max} queues of its owner before it get the same events, "
                "and it does not get those of other clients; raise client_copies_max, or share one queue",
            )


async def _log_reserved_topics(bus: BusParts) -> None:
    """Name the topics that clients of an older version own, and whose names are the bus's own now."""
    with contextlib.suppress(BusAway):  # no reason not to serve
        for topic in await registry.topics_like(bus.partitions.home, f"{reserved.PREFIX}*"):
            _log.warning(
                "topic.reserved",
                topic=topic,
                detail="its name is reserved: nobody can publish on it any more, and only its owner and root see what "
                "was published; have its publisher take another name, then delete it",
            )


async def _import_clients(settings: Settings, bus: BusParts) -> None:
    """Add the clients whose tokens the settings name, as Routemaster did."""
    added = await bus.registry.clients.import_secrets(
        settings.client_tokens, default=_default_scopes(settings), now_ms=clock.now_ms()
    )
    if added:
        _log.info("tokens.imported", clients=added)


def _warn_of_public_uuids(registry: Registry) -> None:
    """Name the receivers whose deliveries others can forge; version 0.1.0 gave them their public id as their uuid."""
    for receiver in registry.pushed_to.values():
        if not receiver.has_secret_uuid:
            _log.warning("subscriber.forgeable", subscriber=receiver.token)


def _warn_of_callbacks(registry: Registry, guard: DialGuard) -> None:
    """Name the receivers whose callbacks an earlier version took, and the dial guard refuses."""
    for receiver in registry.pushed_to.values():
        if why := callback.why_not(receiver.callback, guard):
            _log.warning("callback.refused", subscriber=receiver.token, callback=receiver.callback, why=why)


def make_app(
    settings: Settings,
    bounds: WebBounds,
    bus: BusParts,
    feed: Feed,
    leases: StreamLeases,
    presence: Presence,
    dialer: Dialer,
) -> App:
    """The application for these settings."""
    body = BodyLimits(settings.body_bytes_max, settings.body_s_max, BodyMemory(settings.bodies_bytes_max))
    event = EventLimits(settings.max_event_data_bytes, bounds.event_depth_max)
    rules = PublishRules(body, event, bounds.events_per_request_max, build.quotas(settings))
    streaming = Streaming(bus.partitions, bus.registry, feed, leases, bounds.stream)
    authenticator = Authenticator(bus.partitions, bus.registry, root_key=settings.root_key)
    return App(
        authenticator,
        _route_groups(settings, bus, rules, presence, streaming, Trials(bus.partitions, dialer)),
        _dashboard(settings, bus, authenticator, body),
        auditing=Auditing(AuditTrail(bus.partitions), bus.registry, proxies=settings.proxies),
        room=body.room,
        changes=ClientPace(bus.partitions, "changes", "made", "changes of subscribers and queues"),
        quotas=rules.quotas,
        metrics_public=settings.metrics_public,
    )


def _route_groups(
    settings: Settings, bus: BusParts, rules: PublishRules, presence: Presence, streaming: Streaming, trials: Trials
) -> RouteGroups:
    small = replace(rules.body, bytes_max=min(rules.body.bytes_max, SMALL_BYTES_MAX))
    large_reads, finder = ClientLocks(), ReceiverFinder(bus.registry)
    attempt_log = AttemptLog(bus.partitions, lake=settings.lake)
    pacer = Pacer(bus.partitions, bus.registry)
    resender = Resender(bus.partitions, bus.registry, bus.headroom, pacer)
    return RouteGroups(
        publishing=Publishing(bus.partitions, bus.publisher, pacer, rules),
        topics=TopicRoutes(bus.partitions, bus.registry, small),
        routes=Routes(bus.partitions, bus.registry, _route_rules(settings, small, bus), presence),
        subscriptions=SubscriptionRoutes(bus.partitions, bus.registry, finder, small, guard=settings.dial_guard),
        portals=PortalTokenRoutes(bus.registry, small, root_key=settings.root_key),
        tokens=TokenRoutes(bus.partitions, bus.registry, small, default=_default_scopes(settings)),
        queues=Queues(bus.partitions, bus.registry, bus.rings, small, large_reads, guard=settings.dial_guard),
        contents=QueueContents(bus.partitions, bus.registry, small, large_reads),
        letters=DeadLetterRoutes(finder, bus.partitions, bus.registry, small, large_reads, pacer),
        receivers=ReceiverRoutes(finder, ReceiverStates(bus.partitions), trials, small),
        attempts=AttemptRoutes(finder, bus.registry, attempt_log, large_reads),
        resending=ResendRoutes(finder, bus.partitions, attempt_log, large_reads, small, resender),
        streaming=streaming,
        filters=FilterRoutes(bus.partitions, small, rules.event),
        audit=AuditRoutes(bus.partitions, attempt_log, large_reads),
        jobs=PipelineJobRoutes(PipelineJobs(bus.partitions, bus.registry, rate=settings.replay_rate_per_s), small),
    )


def _default_scopes(settings: Settings) -> Scopes:
    """What a new token may do whose request does not say."""
    return NOTHING if settings.tokens_default == "none" else UNLIMITED


def _dashboard(settings: Settings, bus: BusParts, authenticator: Authenticator, body: BodyLimits) -> Dashboard:
    tries = ClientPace(bus.partitions, "signin", "tried to sign in", "times")
    attempt_log = AttemptLog(bus.partitions, lake=settings.lake)
    return Dashboard(
        site.pages(BusView(bus.partitions, bus.registry, bus.headroom.rules), attempt_log.ground),
        Sessions(bus.partitions, authenticator, tries, proxies=settings.proxies),
        Viewers(),
        replace(body, bytes_max=FORM_BYTES_MAX),
    )


def _route_rules(settings: Settings, body: BodyLimits, bus: BusParts) -> RouteRules:
    return RouteRules(
        body=body,
        scaling_threshold=settings.scaling_threshold,
        scaling_deadline_ms=settings.scaling_deadline_ms,
        memory=bus.headroom.rules,
        address_connections_max=settings.address_connections_max,
    )


def _config(settings: Settings, bounds: WebBounds, addresses: Addresses) -> uvicorn.Config:
    return uvicorn.Config(
        starting_app,
        http=guarded(
            head_s_max=bounds.head_s_max,
            head_bytes_max=bounds.head_bytes_max,
            connections_max=settings.connections_max,
            addresses=addresses,
            # A stream that is not read has a bound of its own, which comes first and says why it ends.
            unread_s_max=max(UNREAD_S_MAX, 2 * bounds.stream.stall_s),
        ),
        ws="none",
        lifespan="off",
        log_config=None,
        # What it warns of is what a client sent: that has a line of ours (web/protocol.py), with time and level.
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        backlog=BACKLOG,
    )


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the command owns the signals."""

    def __init__(self, settings: Settings, bounds: WebBounds) -> None:
        self.addresses = Addresses(settings.address_connections_max, settings.proxies)
        self.app: App | None = None
        self._is_ending = asyncio.Event()
        super().__init__(_config(settings, bounds, self.addresses))

    def serve_with(self, app: App) -> None:
        """Answer from now on with this; connections ask for the application when they are made."""
        self.app = app
        if not self.config.loaded:
            self.config.load()
        self.config.loaded_app = app

    def end(self) -> None:
        """Take no more requests, answer those under way, and end."""
        self.should_exit = True
        self._is_ending.set()

    async def main_loop(self) -> None:
        """Keep the Date header; uvicorn's own loop also looks ten times a second whether it is to end."""
        while not await self.on_tick(0):
            await sleep_until(self._is_ending, _DATE_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
