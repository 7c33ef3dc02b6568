"""What a consumer has in hand: passed to the lease keeper when it comes in, and settled in bulk when it is handled.

Handlers finish one by one, but a call for each would cost more than most handlers do. So what is to be acked or given
back is gathered while the last call is under way, and goes out with the next. Until the bus has confirmed, a message
stays in hand, and its lease is extended; while the bus is away the calls are repeated.
"""

import asyncio
import itertools
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence

from doubledecker.client.backoff import Pauses
from doubledecker.client.errors import DELAY_S_MAX, BusAway, Refused
from doubledecker.client.lease_keeper import Heartbeat
from doubledecker.client.lease_keeper_process import WHY_UNBEGUN, Pair
from doubledecker.client.message import Back, Message, MessageSource, encodable

# What one call settles at most.
SETTLE_MAX = 1_000
# The bus keeps the reason with the dead letter, no longer than this.
_WHY_LENGTH_MAX = 200
# A pull that is under way brings messages within its wait; one that takes longer has lost its bus.
PULL_S_MAX = 3.0

_log = logging.getLogger("doubledecker.client")


class AckBuffer:
    """Messages from their pull to their end."""

    def __init__(self, source: MessageSource, heartbeat: Heartbeat) -> None:
        self._source = source
        self._heartbeat = heartbeat
        self._acks: list[Message] = []
        self._backs: dict[tuple[str, bool], list[Back]] = defaultdict(list)
        self._numbers = itertools.count(1)
        self._last_pull: asyncio.Task[None] | None = None
        self._work = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._waiting: dict[Pair, asyncio.Future[bool]] = {}
        self._unsettled = 0

    @property
    def unsettled(self) -> int:
        """How many messages wait for a call that settles them."""
        return self._unsettled

    def take(self, messages: Sequence[Message], now_s: float) -> None:
        """Messages came in hand."""
        for message in messages:
            message.arrived_s = now_s
            message.number = next(self._numbers)
            message.belong_to(self)
        self._heartbeat.add(messages)

    def begin(self, message: Message) -> None:
        """Its handler is called next: from here on it counts as attempted, whatever happens to this process."""
        message.is_begun = True
        self._heartbeat.begin(message.number)

    async def keep(self, messages: Sequence[Message], *, lease_ms: int | None) -> list[Message]:
        """Extend leases that may be over; returns what is ours. The bus is informed that the rest was not attempted."""
        try:
            lost = await self._source.extend(messages, lease_ms=lease_ms)
        except BusAway as error:
            _log.warning("pull.failed queue=%s error=%s", self._source.name, error)
            lost = {message.id for message in messages}
        if lost:
            _log.warning("leases.missed queue=%s messages=%s", self._source.name, " ".join(sorted(lost)))
        for message in messages:
            if message.id in lost:
                self.nack(message, delay_ms=0, why=WHY_UNBEGUN)
        return [message for message in messages if message.id not in lost]

    def stop_after(self, last_pull: "asyncio.Task[None]") -> None:
        """Give nothing back while our own last pull is under way: it would bring it here again."""
        self._last_pull = last_pull

    def ack(self, message: Message) -> None:
        """Have it acked with the next call."""
        message.is_settled = True
        self._acks.append(message)
        self._note()

    def nack(self, message: Message, *, delay_ms: int, why: str) -> None:
        """Have it given back with the next call; one that never began was not attempted."""
        # Within the bus's bounds: it would refuse the whole call, and with it what others give back.
        delay_ms = min(max(0, delay_ms), DELAY_S_MAX * 1000)
        reason = encodable(why)[:_WHY_LENGTH_MAX]
        message.is_settled = True
        self._backs[reason, False].append(Back(message.id, message.attempt, delay_ms, message.is_begun))
        self._note()

    def reject(self, message: Message, *, why: str) -> None:
        """Have it buried with the next call."""
        reason = encodable(why)[:_WHY_LENGTH_MAX]
        message.is_settled = True
        self._backs[reason, True].append(Back(message.id, message.attempt))
        self._note()

    async def settle_ack(self, message: Message) -> bool:
        if message.is_settled:
            return False
        self.ack(message)
        return await self._outcome(message)

    async def settle_nack(self, message: Message, *, delay_ms: int, why: str) -> bool:
        if message.is_settled:
            return False
        self.nack(message, delay_ms=delay_ms, why=why)
        return await self._outcome(message)

    async def settle_reject(self, message: Message, *, why: str) -> bool:
        if message.is_settled:
            return False
        self.reject(message, why=why)
        return await self._outcome(message)

    async def run(self) -> None:
        """Settle what is handed in, for ever."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._acks or self._backs:
                await self._settle_next()
            if not self._unsettled:
                self._empty.set()

    async def _settle_next(self) -> None:
        if self._acks:
            part, self._acks = self._acks[:SETTLE_MAX], self._acks[SETTLE_MAX:]
            await self._settle([(message.id, message.attempt) for message in part], lambda: self._source.ack(part))
        if self._backs and self._last_pull is not None:
            await asyncio.wait([self._last_pull], timeout=PULL_S_MAX)
        if self._backs:
            (why, is_rejected), backs = self._backs.popitem()
            for start in range(0, len(backs), SETTLE_MAX):
                await self._give_back(backs[start : start + SETTLE_MAX], why, is_rejected=is_rejected)

    async def settled(self) -> None:
        """Wait until everything that was handed in is settled."""
        await self._empty.wait()

    def _note(self) -> None:
        if not self._unsettled:
            self._work.set()
            self._empty.clear()
        self._unsettled += 1

    async def _outcome(self, message: Message) -> bool:
        outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[message.id, message.attempt] = outcome
        return await outcome

    async def _give_back(self, backs: Sequence[Back], why: str, *, is_rejected: bool) -> None:
        call = self._source.reject if is_rejected else self._source.nack
        unbegun = {back.id for back in backs if not back.attempted}
        await self._settle([(back.id, back.attempt) for back in backs], lambda: call(backs, why=why), unbegun)

    async def _settle(
        self, pairs: list[Pair], call: Callable[[], Awaitable[set[str]]], unbegun: Collection[str] = ()
    ) -> None:
        """Call until the bus answers; those who wait for one of these learn whether it was still ours."""
        pauses = Pauses()
        while True:
            try:
                lost = await call()
                break
            except BusAway as error:
                _log.warning("settling.delayed queue=%s messages=%d error=%s", self._source.name, len(pairs), error)
                await asyncio.sleep(pauses.next_s())
            except Refused as error:
                _log.warning("settling.refused queue=%s messages=%d error=%s", self._source.name, len(pairs), error)
                lost = {id_ for id_, _ in pairs}
                break
        if handled := lost.difference(unbegun):
            # They were handled, and will be again: by the time of the call their leases had ended.
            _log.warning("leases.lost queue=%s messages=%s", self._source.name, " ".join(sorted(handled)))
        self._heartbeat.remove(pairs)
        self._unsettled -= len(pairs)
        if self._waiting:
            for pair in pairs:
                outcome = self._waiting.pop(pair, None)
                if outcome is not None and not outcome.done():
                    outcome.set_result(pair[0] not in lost)
