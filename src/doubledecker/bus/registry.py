"""A process's live copy of the registry, and the changes that a process makes to it.

The copy is refreshed when a publish finds it old, after each change made here, and twice a second besides, so that a
revoked token is refused everywhere within a second.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from doubledecker import clock, log
from doubledecker.bus.clients import Clients, TokenUses
from doubledecker.bus.pattern_search import Searcher
from doubledecker.bus.queue_copies import QueueCopies
from doubledecker.bus.skips import Skips
from doubledecker.bus.subscriptions import Subscriptions
from doubledecker.bus.topics import Topics
from doubledecker.errors import BadRequest, BusAway, Conflict, NotFound, TooMany, Unauthenticated
from doubledecker.model import queue as queueing
from doubledecker.model import quota
from doubledecker.model.event import EventKind
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.quota import Quotas
from doubledecker.model.routing import Registry
from doubledecker.model.subscriber import Subscriber
from doubledecker.model.token import ROOT_NAME, Caller
from doubledecker.store import (
    backlogs,
    dead_letters,
    facets,
    notices,
    queue_contents,
    queues,
    receivers,
    registry,
)
from doubledecker.store.events import PublishReply, RoutedEvent
from doubledecker.store.partitions import Partition, Partitions

FOLLOW_S = 0.5
# Concurrent changes of one thing are tried again with a newer copy of the registry, so many times at most.
_TRIES_MAX = 20

_log = log.get("registry")


class LiveRegistry:
    """The snapshot that routing reads, kept fresh."""

    def __init__(self, partitions: Partitions, quotas: Quotas | None = None) -> None:
        self._partitions = partitions
        self.quotas = quotas or Quotas()
        self._lock = asyncio.Lock()
        # One registration at a time: a quota is checked against what there is.
        self._registering = asyncio.Lock()
        self._searcher = Searcher()
        self.snapshot = Registry(copies_max=self.quotas.client_copies_max)
        self.copies = QueueCopies(partitions, self.snapshot, self._searcher, self.quotas)
        # Clients for whom too many bytes wait, how many, and the bound, as this process last read.
        self.overfull: dict[str, int] = {}
        self.backlog_bytes_max = 0
        self._backlogs_at_s = float("-inf")
        self.skips = Skips(partitions.home)
        self.token_uses = TokenUses(partitions.home)
        self.clients = Clients(partitions.home, self)
        self.topics = Topics(partitions, self)
        self.subscriptions = Subscriptions(partitions, self)

    async def refresh(self) -> None:
        """Read what changed since the last time."""
        async with self._lock:
            await registry.refresh(self._partitions.home, self.snapshot)

    async def catch_up(self, version: int) -> None:
        """Read what changed up to a version at least; many who ask at once are served by one read."""
        if self.snapshot.version < version:
            async with self._lock:
                if self.snapshot.version < version:
                    await registry.refresh(self._partitions.home, self.snapshot)

    async def follow(self) -> None:
        """Refresh for as long as the process lives; an absent server only delays it."""
        while True:
            try:
                await self.refresh()
                await self.look_at_backlogs()
                await self.skips.flush()
                await self.token_uses.flush()
            except BusAway as error:
                _log.warning("registry.unreachable", error=str(error))
            await asyncio.sleep(FOLLOW_S)

    async def look_at_backlogs(self) -> None:
        """Read for which clients too many bytes wait, unless that was just done."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._backlogs_at_s < FOLLOW_S / 2:
            return
        self._backlogs_at_s = now_s
        self.backlog_bytes_max, self.overfull = await backlogs.overfull(self._partitions.home, self.backlog_bytes_max)
        self.snapshot.put_overfull(frozenset(self.overfull))

    @property
    def bounds(self) -> Quotas:
        """The quotas as they hold now: the bytes that may wait depend on how much memory there is."""
        most = self.backlog_bytes_max or self.quotas.client_waiting_bytes_max
        return replace(self.quotas, client_waiting_bytes_max=most)

    def check_backlog(self, client: str) -> None:
        """Raise QuotaExceeded when too many bytes wait for a client."""
        if client in self.overfull:
            raise quota.too_many_bytes(self.overfull[client], self.backlog_bytes_max)

    async def learn(self, kinds: Iterable[EventKind]) -> None:
        """Match new kinds with the patterns of all queues and remember the answers, so that `route` need not match."""
        await self._searcher.learn(self.snapshot, kinds)

    def note_skipped(self, routed: Sequence[RoutedEvent], reply: PublishReply) -> None:
        """Count the queues that written events did not enter; what follows the registry writes the counts."""
        if self.snapshot.is_skipping:
            self.skips.note(routed, reply)

    def close(self) -> None:
        """End what runs beside the event loop."""
        self._searcher.close()

    def is_known(self, caller: Caller, *, now_ms: int) -> bool:
        """Whether a caller who was identified before would be again.

        Its token may be gone or have expired, its secret may be replaced.
        """
        token = self.snapshot.tokens.get(caller.id)
        if caller.is_root or token is None:
            return caller.is_root
        return not token.has_expired(now_ms) and (not caller.secret_hash or token.accepts(caller.secret_hash, now_ms))

    async def destroy_letters(self, partition: Partition, receiver: str) -> bool:
        """Destroy the dead letters of a receiver in a partition if it is gone; returns whether it is.

        Where the registry changes all the time, it may fail; the sweep tries again.
        """
        for _ in range(_TRIES_MAX):
            if self.snapshot.is_receiver(receiver):
                return False
            if await dead_letters.destroy(partition, receiver, version=self.snapshot.version):
                return True
            await self.refresh()
        return False

    async def register_queue(self, queue: RegisteredQueue, *, caller: Caller) -> bool:
        """Create or replace a queue; returns whether it is new. Root may name its owner, or leave it as it was."""
        async with self._registering:
            return await self._register_queue(queue, caller)

    async def queue(self, name: str, *, caller: Caller) -> RegisteredQueue:
        """A queue that the caller may use; one that this process does not know may be new."""
        if name not in self.snapshot.queues:
            await self.refresh()
        return self._queue(name, caller)

    def queue_still(self, name: str, *, caller: Caller) -> RegisteredQueue:
        """A queue as it is now, for one who has been waiting; raises what a new request of theirs would get."""
        if not self.is_known(caller, now_ms=clock.now_ms()):
            raise Unauthenticated("this token was revoked or replaced, or expired, during the wait")
        return self._queue(name, caller)

    async def delete_queue(self, queue: RegisteredQueue, *, discard: bool) -> None:
        """Forget a queue, and destroy what it holds; what a process that dies leaves the sweep destroys.

        Raises NotFound when it is gone, and leaves one that has its name meanwhile alone. Raises Conflict when it holds
        messages that are not to be discarded.
        """
        version = await registry.delete_queue(self._partitions.home, queue, discard=discard)
        if version == 0:
            raise NotFound(f"queue {queue.name!r} was deleted or given to another meanwhile")
        if version > 0:
            await self.spread(version)
        if version < 0 or not (discard or await self._is_empty(queue)):
            await self._keep(queue, is_gone=version > 0)
        await self._spread_permits(f"@{queue.name}")
        for partition in self._partitions.all:
            await self.destroy_queue(partition, queue.name)

    async def _is_empty(self, queue: RegisteredQueue) -> bool:
        """Whether a queue that is deleted holds nothing in any partition; nothing is put on it any more."""
        looks = [facets.look(partition, [queue]) for partition in self._partitions.all]
        return not any(part.length or part.dead for [part] in await asyncio.gather(*looks))

    async def _keep(self, queue: RegisteredQueue, *, is_gone: bool) -> None:
        """Refuse to delete a queue for what came in since somebody looked.

        In partitions other than home the last look comes when nothing is put on it any more, so it is registered again.
        """
        if is_gone:
            anew = msgspec.structs.replace(queue, since=0, anew_since=0)
            version = await registry.save_queue(self._partitions.home, anew, former=None)
            if version <= 0:
                raise NotFound(f"queue {queue.name!r} was deleted, and its name taken, meanwhile")
            await self.spread(version)
            await self.spread_change(anew.receiver, None)
        raise Conflict(f"queue {queue.name!r} holds messages that came in just now; ?discard=1 destroys them with it")

    async def destroy_queue(self, partition: Partition, name: str) -> bool:
        """Destroy what a queue that is gone holds in a partition, unless one has taken its name; returns whether it is.

        Where the registry changes all the time, it may fail; the sweep tries again.
        """
        for _ in range(_TRIES_MAX):
            if name in self.snapshot.queues:
                return False
            if await queue_contents.destroy(partition, name, version=self.snapshot.version):
                return True
            await self.refresh()
        return False

    async def spread(self, version: int) -> None:
        """Make a change felt in every partition and in this process; version 0 means that nothing changed."""
        if version > 0:
            await registry.copy_version(self._partitions, version)
            await self.refresh()

    async def _register_queue(self, queue: RegisteredQueue, caller: Caller) -> bool:
        named = queue.owner if caller.is_admin else ""
        client = "" if queue.owner == ROOT_NAME else queue.owner
        for _ in range(_TRIES_MAX):
            await self.refresh()
            if not caller.is_root:
                self.check_known(caller.id)
            self._check_clients("owner", [client] if named and client else [])
            self._check_clients("refuse_clients", queue.refuse_clients or ())
            former = self.snapshot.queues.get(queue.name)
            if former is not None:
                queueing.check_owner(former, caller)
                if caller.is_admin and not named:
                    queue = msgspec.structs.replace(queue, owner=former.owner)
            wanted = queueing.succeeding(queue, former)
            if wanted == former:
                return False
            if not caller.is_admin:
                await self._check_queue(wanted, former)
            if not await self._clear_name(wanted, former):
                continue
            version = await registry.save_queue(self._partitions.home, wanted, former=former, client=client)
            if version < 0:
                raise TooMany(f"there are {registry.QUEUES_MAX} queues already; delete some first")
            if version > 0:
                await self._hand_over(wanted, former, version)
                await self.spread(version)
                await self.spread_change(wanted.receiver, former.receiver if former else None)
                return former is None
        raise Conflict(f"queue {queue.name!r} is being changed by others at the same time; try again")

    async def _check_queue(self, wanted: RegisteredQueue, former: RegisteredQueue | None) -> None:
        """Raise QuotaExceeded when a client may not have this queue."""
        if former is None:
            self.check_backlog(wanted.owner)
        globs = self.snapshot.globs.matcher
        quota.check_queue(
            self.quotas,
            wanted,
            self.snapshot.queues,
            self.snapshot.filters_of_clients(),
            glob_steps=globs.steps(wanted.owner),
            glob_steps_total=globs.steps_total,
        )
        if former is None or former.patterns != wanted.patterns or former.filter:
            await self.copies.check(wanted)

    async def _clear_name(self, queue: RegisteredQueue, former: RegisteredQueue | None) -> bool:
        """Destroy what a former owner of a queue's name left to nobody; returns False when it was taken meanwhile.

        The process that deleted the queue may have died before. What a queue holds goes with it to another client.
        """
        if former is not None and queueing.is_same_owner(queue, former):
            return True
        for partition in self._partitions.all:
            if former is None and not await self.destroy_queue(partition, queue.name):
                return False
            await notices.forget(partition, queue.receiver.token)
        return True

    async def _hand_over(self, queue: RegisteredQueue, former: RegisteredQueue | None, version: int) -> None:
        """Have each partition know a queue's new owner, before there is anything in it that is not the former one's."""
        if former is None or not queueing.is_same_owner(queue, former):
            for partition in self._partitions.all:
                await queues.hand(partition, queue, version=version)

    def check_known(self, client: str) -> None:
        if client not in self.snapshot.tokens:
            raise Unauthenticated("the token was revoked")

    def _check_clients(self, field: str, ids: Sequence[str]) -> None:
        for id_ in ids:
            if id_ not in self.snapshot.tokens:
                raise BadRequest(f"{field} is {id_[:80]!r}; no client has that id, GET /api_tokens lists them")

    def _queue(self, name: str, caller: Caller) -> RegisteredQueue:
        queue = self.snapshot.queues.get(name)
        if queue is None:
            raise NotFound(f"no queue named {name[:80]!r}")
        queueing.check_owner(queue, caller)
        return queue

    async def spread_change(self, receiver: Subscriber, former: Subscriber | None) -> None:
        """Spread the permits of a receiver that has or had a callback; one without has no permits."""
        if receiver.callback or (former and former.callback):
            await self._spread_permits(receiver.token)

    async def _spread_permits(self, token: str) -> None:
        """Write to all partitions how many permits a receiver has by the registry as it is now."""
        for partition in self._partitions.all:
            for _ in range(_TRIES_MAX):
                receiver, version = self.snapshot.receiver(token), self.snapshot.version
                if await receivers.save(partition, token, receiver, version=version):
                    break
                await self.refresh()
