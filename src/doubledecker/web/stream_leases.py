"""How many streams a client has open, over all web processes: a lease in Redis for each, renewed while it is open."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from doubledecker.errors import BusAway
from doubledecker.model import quota
from doubledecker.model.quota import Quotas
from doubledecker.model.token import Caller
from doubledecker.model.uid import uid
from doubledecker.store import streams
from doubledecker.store.partitions import Partition

# A third of the lease, so that two renewals may be lost.
_RENEW_S = streams.LEASE_MS / 1000 / 3


@dataclass(frozen=True)
class StreamLease:
    """The place of one open stream among those of its client."""

    client: str
    stream: str


class StreamLeases:
    """Gives leases for streams, within the quota of their client; root needs none."""

    def __init__(self, home: Partition, quotas: Quotas) -> None:
        self._home = home
        self._quotas = quotas
        self._held: set[StreamLease] = set()

    async def take(self, caller: Caller) -> StreamLease | None:
        """A lease that ends by itself unless it is held; raises QuotaExceeded when the client has as many as it may."""
        if caller.is_root:
            return None
        lease, most = StreamLease(caller.id, uid()), self._quotas.client_streams_max
        if not await streams.enter(self._home, lease.client, lease.stream, most=most):
            quota.check_streams(self._quotas, most + 1)
        return lease

    @asynccontextmanager
    async def held(self, lease: StreamLease | None) -> AsyncIterator[None]:
        """Renew a lease while the block runs, and end it then."""
        if lease is None:
            yield
            return
        self._held.add(lease)
        try:
            yield
        finally:
            self._held.discard(lease)
            with suppress(BusAway):  # then it ends by itself
                await streams.leave(self._home, lease.client, lease.stream)

    async def run(self) -> None:
        """Renew for as long as the process lives."""
        while True:
            await asyncio.sleep(_RENEW_S)
            by_client: dict[str, list[str]] = defaultdict(list)
            for lease in self._held:
                by_client[lease.client].append(lease.stream)
            with suppress(BusAway):
                for client, held in by_client.items():
                    await streams.renew(self._home, client, held)
