"""The routes of queues: registering them, pulling and settling messages, ruling facets."""

import asyncio
from collections.abc import Iterable
from functools import partial

from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from doubledecker import clock
from doubledecker.bus.registry import LiveRegistry
from doubledecker.bus.snapshots import ROWS_MAX, SnapshotCache
from doubledecker.errors import Conflict
from doubledecker.model import queue as queueing
from doubledecker.model import quota, signing
from doubledecker.model.dial_guard import DialGuard
from doubledecker.model.event import check_tenant
from doubledecker.model.matching import check_pattern
from doubledecker.model.queue import FacetRule, RegisteredQueue
from doubledecker.model.token import Caller
from doubledecker.queues import view
from doubledecker.queues.ring import Patience, Rings
from doubledecker.store import facets, subscribers
from doubledecker.store.partitions import Partitions
from doubledecker.store.queues import LeasedMessage
from doubledecker.web import body as bodies
from doubledecker.web import queries, queue_bodies, queue_shapes, shapes
from doubledecker.web.body import BodyLimits
from doubledecker.web.paging import EncodedRows
from doubledecker.web.queue_shapes import EncodedQueue
from doubledecker.web.turns import ClientLocks, Turns

_FACETS_MAX = 100
# Queues that are looked at and encoded before others have their turn: a millisecond or two.
_TOGETHER = 50


class Queues:
    """Answers everything about queues; each is its owner's, and root's."""

    def __init__(
        self,
        partitions: Partitions,
        registry: LiveRegistry,
        rings: Rings,
        limits: BodyLimits,
        large_reads: ClientLocks,
        *,
        guard: DialGuard,
    ) -> None:
        self._partitions = partitions
        self._registry = registry
        self._rings = rings
        self._limits = limits
        self._large_reads = large_reads
        self._guard = guard
        self._turns = Turns()
        self._all = SnapshotCache(self._look_at_all)

    async def register(self, request: Request, caller: Caller) -> Response:
        """Register a queue: from the answer on, every matching event is put on it.

        A secret is made for whatever callback it may have, and shown if that is what is kept: others have theirs.
        """
        queue = queueing.parse(
            await self._body(request),
            name=request.path_params["name"],
            owner="" if caller.is_admin else caller.id,
            is_admin=caller.is_admin,
            guard=self._guard,
        )
        await self._check_patterns(queue, caller)
        offered = signing.make(clock.now_ms()) if queue.callback else None
        is_new = await self._registry.register_queue(structs.replace(queue, signing=offered), caller=caller)
        kept = await self._registry.queue(queue.name, caller=caller)
        secret = offered.secret if offered and offered == kept.signing else None
        return shapes.json(queue_shapes.made(kept, caller, secret), status=201 if is_new else 200)

    async def _check_patterns(self, queue: RegisteredQueue, caller: Caller) -> None:
        """Check those that the queue does not have already, one at a time: each takes a millisecond or more."""
        former = self._registry.snapshot.queues.get(queue.name)
        for pattern in queue.patterns:
            if former is None or pattern not in former.patterns:
                async with self._turns.taken(caller.id):
                    check_pattern(pattern)

    async def list_(self, request: Request, caller: Caller) -> Response:
        """A client's own queues, or all of them for root; whole, or a page when `limit` is given.

        Of many, from the snapshot that all who ask share.
        """
        await self._registry.refresh()
        known = self._registry.snapshot.queues
        own = [queue for queue in known.values() if caller.is_admin or queue.owner == caller.id]
        if len(own) > ROWS_MAX:
            seen = await self._all.get(rows=len(known))
            # By both: since it was made, a name may have become another client's.
            named = {queue.name: queue.owner for queue in own}
            rows = [row for row in seen if named.get(row.name) == row.owner]
        else:
            async with self._large_reads.of(caller.id):
                rows = await self._look_at(own)
        return EncodedRows([row.name for row in rows], [row.of(caller) for row in rows]).answer(request.query_params)

    async def _look_at_all(self) -> list[EncodedQueue]:
        return await self._look_at(self._registry.snapshot.queues.values())

    async def _look_at(self, queues: Iterable[RegisteredQueue]) -> list[EncodedQueue]:
        ordered = sorted(queues, key=lambda queue: queue.name)
        rows: list[EncodedQueue] = []
        for first in range(0, len(ordered), _TOGETHER):
            views = await view.look_all(self._partitions, ordered[first : first + _TOGETHER])
            rows += map(queue_shapes.encoded, views)
        return rows

    async def show(self, request: Request, caller: Caller) -> Response:
        """A queue, with those of its facets that have the most waiting."""
        queue = await self._queue(request, caller)
        most = queries.limit(request.query_params.get("facets"), name="facets", default=_FACETS_MAX)
        async with self._large_reads.of(caller.id):
            rows = await view.look_at_facets(self._partitions, queue, most=most)
        rows = [row for row in rows if caller.scopes.has_tenant(row.tenant)]
        now_ms = clock.now_ms()
        seen = await view.look(self._partitions, queue)
        condition = None
        if queue.callback:
            token = queue.receiver.token
            condition = (await subscribers.conditions(self._partitions, [token]))[token]
        return shapes.json(queue_shapes.shown(seen, rows, condition, caller, now_ms))

    async def delete(self, request: Request, caller: Caller) -> Response:
        """Forget a queue; one that holds messages only with `discard`."""
        queue = await self._queue(request, caller)
        seen = await view.look(self._partitions, queue)
        held = {"waiting": seen.waiting, "in flight": seen.in_flight, "delayed": seen.delayed, "dead": seen.dead}
        discard = request.query_params.get("discard") == "1"
        if any(held.values()) and not discard:
            counts = ", ".join(f"{count} {state}" for state, count in held.items())
            raise Conflict(f"queue {queue.name!r} holds messages ({counts}); ?discard=1 destroys them with it")
        await self._registry.delete_queue(queue, discard=discard)
        return Response(status_code=204)

    async def pull(self, request: Request, caller: Caller) -> Response:
        """Take messages under a lease, fairly over tenants."""
        queue = await self._queue(request, caller)
        asked = queue_bodies.pull(await self._body(request))
        if asked.wait_ms == 0:
            pull = await self._rings.pull(queue, most=asked.max, lease_ms=asked.lease_ms)
            return shapes.json(queue_shapes.pulled(pull))
        patience = Patience()
        leaving = asyncio.create_task(_end_when_gone(patience, request))
        try:
            pull = await self._rings.pull_waiting(
                queue,
                most=asked.max,
                wait_ms=asked.wait_ms,
                lease_ms=asked.lease_ms,
                patience=patience,
                look_again=partial(self._registry.queue_still, queue.name, caller=caller),
            )
        finally:
            leaving.cancel()
        if patience.is_over and pull.messages:
            # Nobody is there to get them: others need not wait for the lease to end, and nothing was tried.
            unseen = [LeasedMessage(message.id, message.attempt, is_spared=True) for message in pull.messages]
            await self._rings.nack(queue, unseen)
        return shapes.json(queue_shapes.pulled(pull))

    async def ack(self, request: Request, caller: Caller) -> Response:
        """End messages for good."""
        queue = await self._queue(request, caller)
        held = queue_bodies.settle(await self._body(request)).held
        ids = await self._rings.ack(queue, held)
        return shapes.json(queue_shapes.settled(held, ids))

    async def nack(self, request: Request, caller: Caller) -> Response:
        """Give messages back, now or after a delay."""
        queue = await self._queue(request, caller)
        asked = queue_bodies.settle(await self._body(request))
        held = asked.held
        ids = await self._rings.nack(queue, held, why=asked.why, is_rejected=asked.reject)
        return shapes.json(queue_shapes.settled(held, ids))

    async def extend(self, request: Request, caller: Caller) -> Response:
        """Hold messages longer."""
        queue = await self._queue(request, caller)
        asked = queue_bodies.settle(await self._body(request))
        held = asked.held
        until, ids = await self._rings.extend(queue, held, lease_ms=asked.lease_ms)
        return shapes.json(queue_shapes.settled(held, ids, until))

    async def show_facet(self, request: Request, caller: Caller) -> Response:
        """One tenant's line."""
        queue = await self._queue(request, caller)
        row = await view.look_at_facet(self._partitions, queue, _tenant(request, caller))
        return shapes.json(queue_shapes.facet(row, clock.now_ms()))

    async def change_facet(self, request: Request, caller: Caller) -> Response:
        """Change a tenant's weight, bounds or pause, from its next message on.

        In every partition, as a tenant may be in any.
        """
        queue = await self._queue(request, caller)
        tenant = _tenant(request, caller)
        former = await facets.rule(self._partitions.home, queue, tenant)
        rule = queueing.parse_rule(await self._body(request), former)
        if not caller.is_admin and former == FacetRule() != rule:
            quota.check_tenants(self._registry.quotas, await facets.count_rules(self._partitions.home, queue) + 1)
        # Home last: what it says is what the others have too.
        for partition in reversed(self._partitions.all):
            await facets.set_rule(partition, queue, tenant, rule)
        return shapes.json(queue_shapes.rule(rule))

    async def _queue(self, request: Request, caller: Caller) -> RegisteredQueue:
        return await self._registry.queue(request.path_params["name"], caller=caller)

    async def _body(self, request: Request) -> bytes:
        return await bodies.read(request.scope, request.receive, self._limits)


async def _end_when_gone(patience: Patience, request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    patience.end()


def _tenant(request: Request, caller: Caller) -> str:
    tenant: str = request.path_params["tenant"]
    check_tenant(tenant)
    caller.scopes.check_tenants([tenant], to="see")
    return tenant
