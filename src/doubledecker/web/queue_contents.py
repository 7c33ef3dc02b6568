"""The routes of what waits in queues: a look at messages, and destroying them."""

import msgspec
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from doubledecker.bus.registry import LiveRegistry
from doubledecker.model.event import check_tenant
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.reserved import is_within
from doubledecker.model.token import Caller
from doubledecker.queues import view
from doubledecker.store import queue_contents
from doubledecker.store.partitions import Partitions
from doubledecker.web import auditing, queries, queue_bodies, shapes
from doubledecker.web import body as bodies
from doubledecker.web.body import BodyLimits
from doubledecker.web.queue_shapes import Counted, Peeked, PeekedMessage
from doubledecker.web.turns import ClientLocks

# A list ends here, however many rows it may have: each may hold 64 KiB.
LIST_BYTES_MAX = 8_388_608


class _OnTopic(msgspec.Struct, gc=False):
    topic: str


_TOPIC = msgspec.json.Decoder(_OnTopic)


class QueueContents:
    """Answers what is asked about the contents of queues; counts come before anything is destroyed."""

    def __init__(
        self, partitions: Partitions, registry: LiveRegistry, limits: BodyLimits, large_reads: ClientLocks
    ) -> None:
        self._partitions = partitions
        self._registry = registry
        self._limits = limits
        self._large_reads = large_reads

    async def peek(self, request: Request, caller: Caller) -> Response:
        """Look at a tenant's next messages without taking them."""
        queue = await self._queue(request, caller)
        tenant = request.query_params.get("tenant", "default")
        check_tenant(tenant)
        caller.scopes.check_tenants([tenant], to="see")
        most = queries.limit(request.query_params.get("limit"))
        rows: list[PeekedMessage] = []
        async with self._large_reads.of(caller.id):
            for partition in self._partitions.all:
                found = await queue_contents.peek(partition, queue, tenant, most=most, bytes_max=LIST_BYTES_MAX)
                rows += [
                    PeekedMessage(id_, tenant, Raw(event))
                    for id_, event in found
                    if is_within(caller.scopes, _TOPIC.decode(event).topic, tenant)
                ]
        return shapes.json(Peeked(rows[:most]))

    async def purge(self, request: Request, caller: Caller) -> Response:
        """Destroy waiting messages, or count them."""
        queue = await self._queue(request, caller)
        asked = queue_bodies.purge(await self._body(request))
        if asked.dry_run:
            auditing.learn(request, is_change=False)
            return shapes.json(Counted(await self._count_waiting(queue, asked.tenant_text), dry_run=True))
        total = 0
        for partition in self._partitions.all:
            named = (
                await queue_contents.tenants(partition, queue.name)
                if asked.tenant_text is None
                else [asked.tenant_text]
            )
            for tenant in named:
                total += await queue_contents.purge(partition, queue, tenant)
        auditing.learn(request, count=total, detail="" if asked.tenant_text is None else f"tenant {asked.tenant_text}")
        return shapes.json(Counted(total, dry_run=False))

    async def _count_waiting(self, queue: RegisteredQueue, tenant: str | None) -> int:
        if tenant is not None:
            waiting = (await view.look_at_facet(self._partitions, queue, tenant)).waiting
            return waiting + sum([await queue_contents.delayed(each, queue, tenant) for each in self._partitions.all])
        seen = await view.look(self._partitions, queue)
        return seen.waiting + seen.delayed

    async def _queue(self, request: Request, caller: Caller) -> RegisteredQueue:
        return await self._registry.queue(request.path_params["name"], caller=caller)

    async def _body(self, request: Request) -> bytes:
        return await bodies.read(request.scope, request.receive, self._limits)
