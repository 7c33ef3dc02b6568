"""Receive, the second of Watch, Receive, Deliver: takes messages from one queue, fairly, and makes batches of them.

1. Wait until the queue has something to serve.
2. Wait for a slot of this process, then ask for a permit to call the receiver. Without both nothing is pulled: what
   has to wait waits in the queue, where each tenant keeps its turn, where others may take it, and where no attempt is
   spent on it.
3. Pull into a buffer, until it holds `max` messages or `max_bytes`, or until `timeout` has passed since the first.
   Others may have the slot while there is nothing to pull. While its client has enough in hand (worker/room.py) a
   batch is a single message.
4. Hand the batch, the slot and the permit to Deliver, and begin again.

A receiver that failed is tried with a single message; the size doubles with every success. So an outage costs few
attempts.

Everything in hand, buffered or on its way, is under a short lease that the process renews (`beat`).
"""

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec

from doubledecker import log
from doubledecker.background import sleep_until
from doubledecker.bus.registry import LiveRegistry
from doubledecker.delivery.permits import Permits
from doubledecker.errors import BusAway, OutOfDescriptors
from doubledecker.model.queue import RegisteredQueue
from doubledecker.queues.ring import Bell, Rings
from doubledecker.store import receivers
from doubledecker.store.queues import LeasedMessage, QueueMessage
from doubledecker.store.receivers import Answer, Permit
from doubledecker.worker.push import Pusher, Slot

# The longest sleep without a look: another process's lease may have ended without a notification.
_SLEEP_S_MAX = 2.0
# A failing receiver is looked at when its next probe is due, or after this time: another process may have reached it.
_FAILING_S_MAX = 10.0
# How often a permit is asked for that another process has; one of our own that becomes free is noticed at once.
_PERMIT_S = 0.05
# What was pulled already is kept in hand while the receiver's rate has it wait, but for no longer than this.
_PACED_MS_MAX = 1_000
# Messages that trickle in are taken a few at a time rather than one by one.
_GAP_S = 0.005
_PAUSE_S = 0.5

_log = log.get("watch")


class Receive:
    """Serves one queue with a callback, as it was registered; a queue that changes gets another Receive."""

    def __init__(
        self, queue: RegisteredQueue, registry: LiveRegistry, rings: Rings, bell: Bell, pusher: Pusher
    ) -> None:
        self._registered = queue
        # A batch is one call, whose time no tenant's message owns: what is pushed is charged by count.
        self._queue = msgspec.structs.replace(queue, charge="count")
        self._registry = registry
        self._rings = rings
        self._bell = bell
        self._pusher = pusher
        self._keeper = pusher.keeper(queue)
        self._lease_ms = pusher.lease_ms
        self._size_max = queue.max_events
        self._in_hand: dict[str, QueueMessage] = {}
        self._client = queue.receiver.client or queue.receiver.token
        self._held_bytes = 0
        self._carried: list[QueueMessage] = []
        self._permits = Permits(queue.receiver.token, lease_ms=pusher.lease_ms)
        self._news = asyncio.Event()
        self._is_servable = False
        self._is_stopping = False
        self._is_over = False
        self._has_failed = False
        # As of the last permit or attempt.
        self._is_failing = False

    async def run(self) -> None:
        """Serve until asked to stop; then finish the calls under way, and give the rest back."""
        try:
            with self._bell.waiting(self._queue.name, self._news):
                await self._serve()
        finally:
            self._hold(-self._held_bytes)
            self._is_over = True

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as calls:
            while not self._is_stopping:
                self._news.clear()
                try:
                    wait_s = await self._turn(calls)
                except BusAway as error:
                    _log.warning("queue.unreachable", queue=self._queue.name, error=str(error))
                    wait_s = _PAUSE_S
                await sleep_until(self._news, wait_s)
            await self._release_carried()

    def stop(self) -> None:
        self._is_stopping = True
        self._news.set()

    async def beat(self) -> None:
        """Keep what is in hand, and the permits, for another lease; forget what was lost meanwhile."""
        held = list(self._in_hand.values())
        _, kept = await self._rings.extend(self._queue, [_held(each) for each in held], lease_ms=self._lease_ms)
        ours = set(kept)
        self._let_go([message for message in held if message.id not in ours])
        await self._permits.renew()

    async def give_up(self) -> None:
        """Give back all that is in hand, after `run` was cut short."""
        await self._rings.nack(self._queue, [_held(each) for each in self._in_hand.values()], why="the watch stopped")
        await self._permits.give_all_back()

    async def _turn(self, calls: asyncio.TaskGroup) -> float:
        """Fill a batch and send it on its way, if there is something and it may go; returns how long to sleep."""
        if not self._carried and not self._is_servable:
            look = await self._rings.pull(self._queue, most=0)
            if look.wait_ms != 0:
                return _SLEEP_S_MAX if look.wait_ms is None else min(_SLEEP_S_MAX, look.wait_ms / 1000)
        self._is_servable = False
        slot = self._pusher.slots.slot(is_failing=self._is_failing)
        is_handed_on = False
        try:
            await slot.take()
            permit = await self._take_permit()
            if permit.answer is not Answer.GO:
                return await self._stand_back(permit)
            is_wrong_slot = permit.failures > 0 and not self._is_failing
            self._is_failing = permit.failures > 0
            if self._is_failing:
                self._size_max = 1
            self._has_failed = False
            messages = [] if is_wrong_slot else await self._fill(self._size_max, slot)
            if messages and not self._is_closed:
                calls.create_task(self._call(permit, messages, slot))
                is_handed_on = True
                return 0.0
            await self._release(messages)
            await self._permits.settle(self._keeper, permit)
            return 0.0
        finally:
            if not is_handed_on:
                slot.free()

    async def _take_permit(self) -> Permit:
        if self._registry.snapshot.queues.get(self._queue.name) != self._registered:
            # Watch is about to stop us: nobody may be called where the queue was before.
            return Permit(Answer.FAILING, "", wait_ms=round(_PAUSE_S * 1000))
        # Refused if there was a change that this process does not know of.
        version = self._registry.snapshot.version
        return await self._permits.take(
            self._keeper,
            limit=self._queue.concurrency,
            every_ms=receivers.every_ms(self._queue.receiver, self._keeper),
            anew_since=self._queue.anew_since,
            version=version,
        )

    async def _stand_back(self, permit: Permit) -> float:
        if permit.answer is Answer.FULL:
            # Our own calls report when they end; others' have to be polled.
            is_ours = self._permits.count >= self._queue.concurrency
            return _SLEEP_S_MAX if is_ours else min(_PERMIT_S, permit.wait_ms / 1000)
        if permit.answer is Answer.PACED and permit.wait_ms <= _PACED_MS_MAX:
            return permit.wait_ms / 1000
        self._is_failing = self._is_failing or permit.answer is Answer.FAILING
        await self._release_carried()
        if permit.answer is Answer.PAUSED:
            # Watch is about to stop us, as the registry has another record of the queue.
            return _FAILING_S_MAX
        if permit.answer is Answer.STALE:
            await self._registry.refresh()
            return 0.0
        return min(_FAILING_S_MAX, permit.wait_ms / 1000)

    async def _fill(self, size_max: int, slot: Slot) -> list[QueueMessage]:
        """Pull until the batch is full or due; what was pulled beyond it is carried over to the next."""
        loop = asyncio.get_running_loop()
        buffer = Buffer(count_max=size_max, bytes_max=self._queue.max_bytes, attempts_max=self._queue.attempts_max)
        self._carried = buffer.add(self._carried)
        closes_at = loop.time() + self._queue.timeout_ms / 1000
        while not buffer.is_full and not self._is_closed:
            self._news.clear()
            wait_s = await self._pull_into(buffer)
            if not buffer.messages or self._has_enough:
                break
            if not self._is_servable:
                left_s = closes_at - loop.time()
                if left_s <= 0:
                    break
                slot.free()
                await sleep_until(self._news, min(left_s, wait_s))
                await asyncio.sleep(min(_GAP_S, max(0.0, closes_at - loop.time())))
        await slot.take()
        # Those whose lease ended while they waited here are someone else's by now.
        return [message for message in buffer.messages if self._in_hand.get(message.id) is message]

    async def _pull_into(self, buffer: "Buffer") -> float:
        """Returns how long until there may be more; `_is_servable` says that there is more right now."""
        try:
            most = 1 if self._has_enough else buffer.room
            pull = await self._rings.pull(self._queue, most=most, lease_ms=self._lease_ms)
        except BusAway:
            self._is_servable = False
            return _PAUSE_S
        self._take_in_hand(pull.messages)
        self._carried += buffer.add(pull.messages)
        self._is_servable = bool(pull.messages) and pull.wait_ms == 0
        return _SLEEP_S_MAX if pull.wait_ms is None else pull.wait_ms / 1000

    async def _call(self, permit: Permit, messages: list[QueueMessage], slot: Slot) -> None:
        try:
            is_delivered = await self._pusher.push(self._queue, messages, permit)
        except OutOfDescriptors:
            # Nobody was called. For a while neither are others, as the slot is kept.
            await self._release(messages)
            with contextlib.suppress(BusAway):  # then its lease ends by itself
                await self._permits.settle(self._keeper, permit)
            await asyncio.sleep(_PAUSE_S)
        else:
            if is_delivered:
                self._size_max = min(self._queue.max_events, self._size_max * 2)
            else:
                self._size_max = 1
                self._has_failed = True
            self._permits.forget(permit)
            self._let_go(messages)
        finally:
            slot.free()
            self._news.set()

    @property
    def _is_closed(self) -> bool:
        """Whether a batch that is being filled must not be sent: we stop, or the one before it just failed."""
        return self._is_stopping or self._has_failed

    async def _release(self, messages: list[QueueMessage]) -> None:
        """Give back what was never sent; it keeps its place in line, and no attempt is spent."""
        held = [LeasedMessage(message.id, message.attempt, is_spared=True) for message in messages]
        with contextlib.suppress(BusAway):  # then their leases end by themselves
            await self._rings.nack(self._queue, held, why="never sent")
        self._let_go(messages)

    async def _release_carried(self) -> None:
        carried, self._carried = self._carried, []
        await self._release(carried)

    @property
    def _has_enough(self) -> bool:
        """Whether so much is in hand that this batch is to stay small."""
        return self._pusher.held.is_enough(self._client)

    def _take_in_hand(self, messages: Sequence[QueueMessage]) -> None:
        for message in messages:
            # One whose lease has ended may come again while it is in hand.
            former = self._in_hand.get(message.id)
            self._hold(len(message.event) - (len(former.event) if former else 0))
            self._in_hand[message.id] = message

    def _let_go(self, messages: list[QueueMessage]) -> None:
        for message in messages:
            if self._in_hand.get(message.id) is message:
                del self._in_hand[message.id]
                self._hold(-len(message.event))

    def _hold(self, size: int) -> None:
        """Count what is in hand for its client, until this has ended."""
        if not self._is_over:
            self._held_bytes += size
            self._pusher.held.add(self._client, size)


def _held(message: QueueMessage) -> LeasedMessage:
    return LeasedMessage(message.id, message.attempt)


class Buffer:
    """Messages that go together, until one more would be too many or too large; a single one may have any size.

    A message that was tried before goes with fewer others: each attempt quarters the number, and at its last attempt it
    is alone. So no message dies for a neighbour's fault, and after an outage retries are not all calls of one.
    """

    def __init__(self, *, count_max: int, bytes_max: int, attempts_max: int) -> None:
        self.messages: list[QueueMessage] = []
        self.is_full = False
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._attempts_max = attempts_max
        self._share_max = count_max
        self._bytes = 0

    def add(self, messages: Sequence[QueueMessage]) -> list[QueueMessage]:
        """Take messages in their order; returns those from the first on that found no room."""
        for i, message in enumerate(messages):
            count, size = len(self.messages) + 1, self._bytes + len(message.event)
            share_max = min(self._share_max, self._company(message.tries))
            if self.is_full or (self.messages and (count > share_max or size > self._bytes_max)):
                self.is_full = True
                return list(messages[i:])
            self.messages.append(message)
            self._bytes, self._share_max = size, share_max
            self.is_full = count >= share_max or size >= self._bytes_max
        return []

    @property
    def room(self) -> int:
        """How many more are likely to fit, if they are like those that are here; at least one."""
        left = self._share_max - len(self.messages)
        if not self.messages:
            return left
        mean = max(1, self._bytes // len(self.messages))
        return max(1, min(left, (self._bytes_max - self._bytes) // mean))

    def _company(self, tries: int) -> int:
        """How many a message may go with, itself included."""
        if 1 < tries >= self._attempts_max:
            return 1
        return max(1, self._count_max >> 2 * (tries - 1))
