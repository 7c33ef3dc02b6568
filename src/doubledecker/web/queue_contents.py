"""The routes of what queues hold: a look at waiting messages and dead letters, bringing them back, destroying them."""

from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import NotFound
from doubledecker.model.event import check_tenant
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.token import Caller
from doubledecker.queues import view
from doubledecker.store import queue_contents
from doubledecker.store.partitions import Partitions
from doubledecker.web import body as bodies
from doubledecker.web import queue_bodies, queue_shapes, shapes
from doubledecker.web.body import BodyLimits
from doubledecker.web.queue_shapes import Counted, DeadLetters, Peeked, PeekedMessage
from doubledecker.web.turns import ClientLocks

# A list ends here, however many rows it may have: each may hold 64 KiB.
LIST_BYTES_MAX = 8_388_608


class Letters:
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
        most = queue_bodies.limit(request.query_params.get("limit"))
        rows: list[PeekedMessage] = []
        async with self._large_reads.of(caller.id):
            for partition in self._partitions.all:
                found = await queue_contents.peek(partition, queue, tenant, most=most, bytes_max=LIST_BYTES_MAX)
                rows += [PeekedMessage(id_, tenant, Raw(event)) for id_, event in found]
        return shapes.json(Peeked(rows[:most]))

    async def purge(self, request: Request, caller: Caller) -> Response:
        """Destroy waiting messages, or count them."""
        queue = await self._queue(request, caller)
        asked = queue_bodies.purge(await self._body(request))
        if asked.dry_run:
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
        return shapes.json(Counted(total, dry_run=False))

    async def list_dead(self, request: Request, caller: Caller) -> Response:
        """Dead letters, oldest first."""
        queue = await self._queue(request, caller)
        most = queue_bodies.limit(request.query_params.get("limit"))
        tenant = request.query_params.get("tenant")
        async with self._large_reads.of(caller.id):
            rows = await view.find_letters(self._partitions, queue, tenant=tenant, most=most, bytes_max=LIST_BYTES_MAX)
            count = await view.count_letters(self._partitions, queue, tenant=tenant)
        return shapes.json(DeadLetters(count, [queue_shapes.letter(row) for row in rows]))

    async def show_dead(self, request: Request, caller: Caller) -> Response:
        """One dead letter."""
        queue = await self._queue(request, caller)
        id_ = request.path_params["id"]
        for letter in await view.find_letters(self._partitions, queue, tenant=None, ids=[id_], most=1):
            return shapes.json(queue_shapes.letter(letter))
        raise NotFound(f"queue {queue.name!r} has no dead letter {id_[:80]!r}")

    async def redrive_dead(self, request: Request, caller: Caller) -> Response:
        """Bring dead letters back, or count them."""
        return await self._settle_dead(request, caller, is_redriven=True)

    async def purge_dead(self, request: Request, caller: Caller) -> Response:
        """Destroy dead letters, or count them."""
        return await self._settle_dead(request, caller, is_redriven=False)

    async def _settle_dead(self, request: Request, caller: Caller, *, is_redriven: bool) -> Response:
        queue = await self._queue(request, caller)
        asked = queue_bodies.choose(await self._body(request))
        async with self._large_reads.of(caller.id):
            found = await view.name_letters(self._partitions, queue, tenant=asked.tenant_text, ids=asked.ids)
        if asked.dry_run:
            return shapes.json(Counted(sum(len(part) for part in found.values()), dry_run=True))
        total = 0
        for partition, ids in found.items():
            total += await queue_contents.settle(partition, queue, ids, is_redriven=is_redriven)
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
