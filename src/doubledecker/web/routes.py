"""The other routes: health, metrics. Each is a short function from a request to an answer."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from doubledecker import __version__, clock, log
from doubledecker.bus import overview, usage
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.bus.overview import ALIVE_MS
from doubledecker.bus.presence import Presence
from doubledecker.bus.registry import LiveRegistry
from doubledecker.bus.snapshots import SnapshotCache
from doubledecker.errors import BusAway, Forbidden
from doubledecker.model.token import Caller
from doubledecker.queues import view as queue_view
from doubledecker.store import jobs
from doubledecker.store.partitions import Partitions
from doubledecker.store.processes import ProcessReport
from doubledecker.web import body as bodies
from doubledecker.web import metrics, problem, shapes
from doubledecker.web.body import BodyLimits
from doubledecker.web.metrics import BusFigures
from doubledecker.web.shapes import Alive, Ready, Status, VersionAnswer

# How long `/pulse/scaling` holds its answer when there is too much work: the signal that autoscalers read.
_SCALING_S = 1.0

_log = log.get("web")


@dataclass(frozen=True)
class RouteRules:
    """What these routes need to know of the settings."""

    body: BodyLimits
    scaling_threshold: int
    scaling_deadline_ms: int
    memory: MemoryRules
    address_connections_max: int


class Routes:
    """Answers what has no file of its own."""

    def __init__(
        self,
        partitions: Partitions,
        registry: LiveRegistry,
        rules: RouteRules,
        presence: Presence,
    ) -> None:
        self._partitions = partitions
        self._registry = registry
        self._rules = rules
        self._presence = presence
        self._metrics = SnapshotCache(self._render_metrics)

    async def pulse(self, _request: Request, _caller: Caller) -> Response:
        """204 when Redis answers."""
        await self._ping()
        return Response(status_code=204)

    async def pulse_scaling(self, _request: Request, _caller: Caller) -> Response:
        """204, a second late when there is too much work."""
        until = clock.now_ms() + self._rules.scaling_deadline_ms
        due = await asyncio.gather(*(jobs.due(partition, now_ms=until) for partition in self._partitions.all))
        if sum(due) >= self._rules.scaling_threshold:
            await asyncio.sleep(_SCALING_S)
        return Response(status_code=204)

    async def health(self, _request: Request, _caller: Caller) -> Response:
        """The process runs."""
        return shapes.json(Status("ok", __version__))

    async def livez(self, _request: Request, _caller: Caller) -> Response:
        """The process runs."""
        return shapes.json(Alive("alive"))

    async def readyz(self, _request: Request, _caller: Caller) -> Response:
        """Redis answers and a worker is alive; else 503 with `checks`.

        It says also when memory is short. A full memory is no reason for 503: a balancer would turn consumers away,
        and they are who frees it.
        """
        checks = {"redis": "ok", "worker": "ok"}
        memory = "unknown"
        try:
            await self._ping()
            alive = (jobs.alive(partition, silent_ms_max=ALIVE_MS) for partition in self._partitions.all)
            if not all(await asyncio.gather(*alive)):
                checks["worker"] = "no worker has been alive in the last 15 s; start one with `doubledecker worker`"
            state = overview.worst(await overview.look_at_memory(self._partitions, self._rules.memory))
            memory = f"{state}: {overview.MEMORY_MEANS[state]}".removesuffix(": ")
        except BusAway as error:
            checks = {"redis": error.detail, "worker": "unknown"}
        if set(checks.values()) == {"ok"}:
            return shapes.json(Ready("ready", checks, memory))
        wrong = "; ".join(f"{name}: {state}" for name, state in checks.items() if state != "ok")
        return problem.plain(503, "Not ready", wrong, [("Retry-After", "1")], checks=checks, memory=memory)

    async def version(self, _request: Request, _caller: Caller) -> Response:
        """Which version runs."""
        return shapes.json(VersionAnswer("doubledecker", __version__))

    async def metrics(self, _request: Request, caller: Caller) -> Response:
        """Metrics for Prometheus; without a token only where `metrics_public` is set.

        While Redis is away they are of this process alone. They are of all clients and tenants, so a token that is
        limited to some gets none.
        """
        if caller.scopes.limits_events:
            raise Forbidden("metrics are of all topics and tenants, and this token is limited to some")
        snapshot = self._registry.snapshot
        rows = len(snapshot.queues) + len(snapshot.subscribers) + len(snapshot.tokens) + len(snapshot.rights)
        return Response(await self._metrics.get(rows=rows), media_type="text/plain; version=0.0.4")

    async def _render_metrics(self) -> bytes:
        bus = None
        reports = [self._presence.report()]
        with contextlib.suppress(BusAway):
            reports += await self._presence.others(silent_ms_max=ALIVE_MS)
            bus = await self._look_at_bus(reports)
        # In a thread: thousands of queues are some hundred thousand lines.
        return await asyncio.to_thread(metrics.render, bus, reports)

    async def _look_at_bus(self, reports: Sequence[ProcessReport]) -> BusFigures:
        await self._registry.refresh()
        snapshot, rules = self._registry.snapshot, self._rules
        return BusFigures(
            queues=await queue_view.look_all(self._partitions, list(snapshot.queues.values())),
            usage=await usage.look(
                self._partitions, self._registry, reports, connections_max=rules.address_connections_max
            ),
            view=await overview.look(self._partitions, snapshot.pushed_to, now_ms=clock.now_ms(), rules=rules.memory),
        )

    async def _ping(self) -> None:
        await asyncio.gather(*(partition.command("PING") for partition in self._partitions.all))

    async def _body(self, request: Request) -> bytes:
        return await bodies.read(request.scope, request.receive, self._rules.body)
