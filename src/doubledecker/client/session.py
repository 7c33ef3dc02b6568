"""A consumer at work: lease keeper, ack buffer and prefetch together, from start to clean end."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

from doubledecker.client.ack_buffer import PULL_S_MAX, AckBuffer
from doubledecker.client.backoff import Backoff, Pauses, check_seconds
from doubledecker.client.errors import BusAway, NotABus
from doubledecker.client.lease_keeper import Heartbeat
from doubledecker.client.lease_keeper_process import WHY_UNBEGUN
from doubledecker.client.message import MessageSource, Terms
from doubledecker.client.prefetch import Prefetch

# What is settled last may have to wait for a bus that is just restarting; beyond that the leases end by themselves.
_SETTLE_S_MAX = 5.0
_BACKOFF = Backoff()
# As the bus has them; it would refuse the first pull only.
_LEASE_MS_MIN, _LEASE_MS_MAX = 100, 12 * 3_600_000

_log = logging.getLogger("doubledecker.client")


@dataclass(frozen=True)
class Rules:
    """How messages are worked on; a lease of None is the queue's own."""

    concurrency: int = 10
    lease_ms: int | None = None
    work_s_max: float = 3_600.0
    grace_s: float = 10.0
    backoff: Backoff = _BACKOFF

    def __post_init__(self) -> None:
        if not _is_whole(self.concurrency) or self.concurrency < 1:
            raise ValueError(f"concurrency is {self.concurrency!r}; it must be a whole number, and the least is 1")
        lease_ms = self.lease_ms
        if lease_ms is not None and (not _is_whole(lease_ms) or not _LEASE_MS_MIN <= lease_ms <= _LEASE_MS_MAX):
            bounds = f"from {_LEASE_MS_MIN} to {_LEASE_MS_MAX}, or None for the queue's own"
            raise ValueError(f"lease_ms is {lease_ms!r}; it must be a whole number {bounds}")
        check_seconds("work_s_max", self.work_s_max)
        check_seconds("grace_s", self.grace_s)
        if not isinstance(self.backoff, Backoff):
            raise ValueError(f"backoff is {self.backoff!r}; it must be a Backoff, like Backoff(base_s=1, cap_s=300)")  # noqa: TRY004 - all options alike


@dataclass(frozen=True)
class ConsumerSession:
    """What a running consumer works with; `pulling` ends when no more messages come."""

    prefetch: Prefetch
    ack_buffer: AckBuffer
    pulling: "asyncio.Task[None]"
    settling: "asyncio.Task[None]"

    @property
    def is_over(self) -> bool:
        """Whether no more messages come, or none can be settled."""
        return self.pulling.done() or self.settling.done()

    def stop(self) -> None:
        """Pull no more; what is given back waits for the pull under way to end."""
        self.prefetch.stop()
        self.ack_buffer.stop_after(self.pulling)

    async def until_over(self, *others: "asyncio.Task[bool]") -> None:
        """Wait until it is over, or one of the other things has happened."""
        await asyncio.wait([self.pulling, self.settling, *others], return_when=asyncio.FIRST_COMPLETED)

    def check(self) -> None:
        """Raise what ended it, if something did."""
        for task in (self.pulling, self.settling):
            if task.done() and not task.cancelled():
                task.result()


@contextlib.asynccontextmanager
async def open_session(source: MessageSource, rules: Rules, terms: Terms) -> AsyncIterator[ConsumerSession]:
    """Pull and settle while the block runs. Then what was not started is given back, and the rest settled."""
    lease_ms = rules.lease_ms or terms.lease_ms
    heartbeat = Heartbeat(source.pulse(), lease_ms=lease_ms, work_s_max=rules.work_s_max)
    await heartbeat.start()
    ack_buffer = AckBuffer(source, heartbeat)
    prefetch = Prefetch(
        source,
        ack_buffer,
        concurrency=rules.concurrency,
        lease_ms=rules.lease_ms,
        lease_s=lease_ms / 1000,
        # When the whole machine fails, the leases of what it had pulled ahead end, and that counts as an attempt.
        is_ahead=terms.attempts_max > 1,
    )
    # No TaskGroup: `messages()` is a generator, and may be closed by another task than the one that began it.
    settling = asyncio.create_task(ack_buffer.run())
    pulling = asyncio.create_task(prefetch.run())
    held = ConsumerSession(prefetch, ack_buffer, pulling, settling)
    try:
        yield held
    finally:
        held.stop()
        try:
            await asyncio.wait([pulling], timeout=PULL_S_MAX)
            for message in prefetch.ready:
                ack_buffer.nack(message, delay_ms=0, why=WHY_UNBEGUN)
            # After a second Ctrl-C nobody settles any more; the heartbeat gives back what is left.
            settled = asyncio.create_task(ack_buffer.settled())
            await asyncio.wait([settled, settling], timeout=_SETTLE_S_MAX, return_when=asyncio.FIRST_COMPLETED)
            settled.cancel()
        finally:
            pulling.cancel()
            settling.cancel()
            await heartbeat.close()
            await asyncio.gather(pulling, settling, return_exceptions=True)


async def asked(source: MessageSource) -> Terms:
    """Ask the bus about the queue, until it answers; raises what it refuses, and NotABus when it is none."""
    pauses = Pauses()
    is_said = False
    while True:
        try:
            terms = await source.terms()
        except NotABus:
            raise
        except BusAway as error:
            if not is_said:
                _log.warning("bus.away queue=%s error=%s", source.name, error)
                is_said = True
            await asyncio.sleep(pauses.next_s())
        else:
            if is_said:
                _log.warning("bus.back queue=%s", source.name)
            return terms


def _is_whole(seen: object) -> bool:
    return isinstance(seen, int) and not isinstance(seen, bool)
