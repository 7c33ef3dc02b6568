"""Delivering batches: slots take jobs from the ring of receivers, attempt them, and settle them.

1. For each partition there is a *loop*. It has one call to Redis under way at most (`store/deliveries.py`): what slots
   have done meanwhile is settled by the next, which gives those that are free their next jobs.
2. A job runs in a task of its own. When it ends, its settlement waits in its loop, and its slot is free.
3. With nothing to take, a loop sleeps until the next deadline by its own timer, or until the bell rings.

A free slot goes to the loop that has waited for one longest. A large batch is read and posted when there is room for it
(worker/room.py). When a reply from Redis is lost, the same is sent again: a
settlement that had counted is not counted twice, and a slot that had got a job gets the same one.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import TypeVar

from msgspec import structs

from doubledecker import log
from doubledecker.bus.registry import LiveRegistry
from doubledecker.delivery import parts
from doubledecker.delivery.deliver import Attempted, Deliverer, DeliveryLoad
from doubledecker.delivery.verdict import ALONE_ATTEMPTS_MAX
from doubledecker.errors import BusAway, OutOfDescriptors
from doubledecker.model.batch_part import LETTERS_MAX
from doubledecker.model.outcome import Outcome, OutcomeKind
from doubledecker.model.settlement import CUT, FIRST, GONE, RETURNED, Settlement
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import deliveries
from doubledecker.store.deliveries import DeliveryJob, Settled, Turn
from doubledecker.store.partitions import Partition, Partitions
from doubledecker.worker.journal_growth import JournalGrowth
from doubledecker.worker.room import Room

# After an absence of Redis, or an error that nobody foresaw: soon enough to heal, slow enough not to spin.
_PAUSE_S = 0.2
# While we stop: one lost reply must not lose the log line of a settlement that counted.
_LAST_TRIES = 3
_ERROR_DELAY_MS, _ERROR_DELAY_MS_MAX = 5_000, 60_000
# Slots offered in one call: enough to keep busy, few enough that an idle call costs next to nothing.
_OFFER_MAX = 16
# Small batches that end within this time are settled together, so many at most, while others are under way: a call
# costs Redis as much as two of them. Large ones are settled by halves: Redis works for one, receivers for the other.
_GATHER_S = 0.001
_GATHER_MAX = 16
_LARGE_BYTES = 16_384
# A job that is given back for a while: its receiver is called for no other meanwhile.
_LATER = Settlement("returned", is_counted=False, pause_ms=100)
# Failing receivers together hold no more of a worker's slots than this share.
PROBE_SHARE = 0.3

_log = log.get("worker")

T = TypeVar("T")

# A settlement, and what is logged of it once it has counted.
_Done = tuple[Settled, Attempted | None]


class _State(Enum):
    """What a loop does about slots."""

    # It found fewer jobs than it had slots: until its deadline, or until the bell rings.
    ASLEEP = auto()
    # There may be something to take: it offers free slots or, without one, passes the bell on and waits.
    LOOKING = auto()
    # There is more to take than it had slots: until one is free.
    WAITING = auto()


@dataclass(eq=False)
class _Loop:
    """Serves a partition: one call to it after the other."""

    partition: Partition
    state: _State = _State.ASLEEP
    # When one that is asleep looks again, by the clock of asyncio; at first, at once.
    deadline_s: float = 0.0
    # Set when there is something to do.
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    # What slots have done: they are free once that is settled.
    settled: list[_Done] = field(default_factory=list)
    # Until when the first of it waits for others to end.
    gathering: asyncio.TimerHandle | None = None
    # Slots that it was given after it had waited for them.
    slots: list[str] = field(default_factory=list)
    running: int = 0
    # It looked, and more failing receivers may have been due than it had probes for.
    lacks_probes: bool = False

    @property
    def is_to_settle(self) -> bool:
        """Whether what has ended waits for nothing else to end."""
        ended = len(self.settled)
        if self.running == 0 or ended >= _GATHER_MAX or self.gathering is None:
            return True
        return ended >= self.running and sum([each.job.size_bytes for each, _ in self.settled]) >= _LARGE_BYTES

    def look(self) -> None:
        self.state = _State.LOOKING
        self.wanted.set()

    def gather(self, done: _Done) -> None:
        """Settle with the next call: now if nothing else is under way, else with what ends in the next moment."""
        self.settled.append(done)
        if len(self.settled) == 1:
            self.gathering = asyncio.get_running_loop().call_later(_GATHER_S, self._end_gathering)
        if self.is_to_settle:
            self.wanted.set()

    def take_settled(self) -> list[_Done]:
        """What the next call settles."""
        taken, self.settled = self.settled[: deliveries.SETTLED_MAX], self.settled[deliveries.SETTLED_MAX :]
        if self.gathering is not None:
            self.gathering.cancel()
            self.gathering = None
        if self.settled:
            self.wanted.set()
        return taken

    def _end_gathering(self) -> None:
        self.gathering = None
        self.wanted.set()


class Deliveries:
    """Keeps a process's slots busy with what its partitions have to deliver."""

    def __init__(
        self,
        partitions: Partitions,
        registry: LiveRegistry,
        deliverer: Deliverer,
        *,
        slots: Sequence[str],
        process: str,
        sleep_s_max: float,
        growth: JournalGrowth,
    ) -> None:
        self._registry = registry
        self._deliverer = deliverer
        self._process = process
        self._sleep_s_max = sleep_s_max
        self._growth = growth
        self._loops = [_Loop(partition) for partition in partitions.all]
        self._free = list(slots)
        self._waiting: deque[_Loop] = deque()
        self._probes_left = max(1, int(len(slots) * PROBE_SHARE))
        self._room = Room()
        self._running: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    def wake(self, partition: Partition) -> None:
        """There may be something to take."""
        self._loops[partition.index].look()

    async def run(self) -> None:
        """Deliver until asked to stop, then until everything is settled."""
        async with asyncio.TaskGroup() as tasks:
            for loop in self._loops:
                tasks.create_task(self._serve(loop))

    async def stop(self, *, patience_s: float) -> None:
        """Take nothing more; let what runs finish, and give back what does not in time."""
        self._is_stopping = True
        if self._running:
            await asyncio.wait(self._running, timeout=patience_s)
        late = list(self._running)
        for task in late:
            task.cancel()
        # Loops end when nothing runs any more: woken before, one of them would sleep on.
        await asyncio.gather(*late, return_exceptions=True)
        for loop in self._loops:
            loop.wanted.set()

    async def _serve(self, loop: _Loop) -> None:
        while not self._is_stopping or self._running or loop.settled:
            await self._sleep(loop)
            # Jobs may have been started since something ended: then that waits for these.
            if loop.state is _State.ASLEEP and not loop.slots and not loop.is_to_settle:
                continue
            settled = loop.take_settled()
            freed = [each.job.slot for each, _ in settled]
            slots = [] if self._is_stopping else self._slots_for(loop, freed)
            if settled or slots or loop.state is _State.LOOKING:
                # Before the call: a bell that rings meanwhile means something that the call may not have seen.
                loop.state = _State.ASLEEP
                await self._turn(loop, settled, slots, freed)
        # It waits no more, and passes on the bells that rang meanwhile.
        await self._turn(loop, [], [], [])

    async def _turn(self, loop: _Loop, settled: list[_Done], slots: list[str], freed: list[str]) -> None:
        """Settle, and have slots take the next jobs; those in `freed` only become free."""
        probes = min(self._probes_left, len(slots))
        self._probes_left -= probes
        done = [each for each, _ in settled]
        ask = partial(deliveries.turn, loop.partition, done, slots, process=self._process, probes_max=probes)
        turn = await self._insist(loop, ask)
        if turn is None:
            return
        given = {job.slot for job in turn.jobs}
        for slot in (*freed, *(slot for slot in slots if slot not in given)):
            self._release(slot)
        self._note(loop, turn, len(slots), probes)
        await self._insist(loop, partial(self._registry.catch_up, turn.version))
        for job in turn.jobs:
            if self._is_stopping:
                loop.gather((Settled(job, RETURNED), None))
            else:
                self._start(loop, job)
        # Logged last: the receivers of the next jobs need not wait for it.
        for (_, attempted), result in zip(settled, turn.results, strict=True):
            if attempted is not None and result.is_ours:
                self._deliverer.conclude(attempted, before=result.failures_before, after=result.failures)

    async def _insist(self, loop: _Loop, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Ask until Redis answers; a few times more when we stop. None if it does not: what slots hold is scrubbed."""
        tries_left = _LAST_TRIES
        while tries_left > 0:
            try:
                return await ask()
            except BusAway as error:
                _log.warning("jobs.unreachable", partition=loop.partition.index, error=str(error))
            tries_left -= self._is_stopping
            await asyncio.sleep(_PAUSE_S)
        return None

    def _note(self, loop: _Loop, turn: Turn, offered: int, probes: int) -> None:
        """Whether the loop would take more slots, how long it sleeps, and whether it would make more probes."""
        made = sum(job.is_probe for job in turn.jobs)
        if offered:
            wait_s = self._sleep_s_max if turn.wait_ms is None else min(self._sleep_s_max, turn.wait_ms / 1000)
            loop.deadline_s = asyncio.get_running_loop().time() + wait_s
            loop.lacks_probes = made == probes < offered
        if len(turn.jobs) == offered and loop.state is _State.ASLEEP:
            loop.state = _State.WAITING
            loop.wanted.set()
        self._spare(probes - made)

    def _spare(self, probes: int) -> None:
        """Failing receivers may hold so many slots more: loops that had too few probes look again."""
        self._probes_left += probes
        for loop in self._loops:
            if loop.lacks_probes and self._probes_left > 0:
                loop.lacks_probes = False
                loop.look()

    def _slots_for(self, loop: _Loop, freed: list[str]) -> list[str]:
        """Slots to offer: those it was given, those it has just freed unless others wait, and free ones if it looks.

        A call that is due anyway offers one free slot too: else one that fills all the slots it names needs
        another to find that there is no more. More would cost the server a tenth of the call; if all fill, it looks.
        """
        slots, loop.slots = loop.slots, []
        # Settling frees permits too, so what it frees asks again at once.
        if not any(other is not loop for other in self._waiting):
            while freed and len(slots) < _OFFER_MAX:
                slots.append(freed.pop())
        is_awake = loop.state is not _State.ASLEEP
        most = _OFFER_MAX if is_awake else min(_OFFER_MAX, len(slots) + 1)
        while (slots or is_awake) and self._free and len(slots) < most:
            slots.append(self._free.pop())
        if slots and loop in self._waiting:
            self._waiting.remove(loop)
        if not slots and is_awake and loop not in self._waiting:
            self._waiting.append(loop)
        return slots

    def _release(self, slot: str) -> None:
        """A slot is free: the loop that has waited longest gets it."""
        if self._waiting:
            loop = self._waiting.popleft()
            loop.slots.append(slot)
            loop.wanted.set()
        else:
            self._free.append(slot)

    def _start(self, loop: _Loop, job: DeliveryJob) -> None:
        loop.running += 1
        task = asyncio.create_task(self._run(loop, job))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, loop: _Loop, job: DeliveryJob) -> None:
        """Run one job; whatever happens, it is settled."""
        done: _Done = (Settled(job, RETURNED), None)
        try:
            receiver = self._registry.snapshot.subscribers.get(job.token)
            if receiver is None or job.size_bytes <= deliveries.LARGE_BYTES:
                done = await self._do(loop, job)
            elif self._room.has_turn(owner := receiver.client or job.token):
                async with self._room.taken(owner, job.size_bytes):
                    job = await self._read(loop, job)
                    done = await self._do(loop, job)
            else:
                # Another large one of its owner waits already: others have the slot.
                done = (Settled(job, _LATER), None)
        except (BusAway, OutOfDescriptors):
            # Home is away, or nobody can be called: the job goes back to the front of its line after a while, so that
            # no other overtakes it.
            await asyncio.sleep(_PAUSE_S)
        except asyncio.CancelledError:
            done = (Settled(job, CUT), None)
            raise
        except Exception as error:  # noqa: BLE001 - the edge of a job: nothing in it may end the process
            _log.exception("job.failed", job="batch", args=job.held)
            done = (self._after_error(loop, job, type(error).__name__), None)
        finally:
            loop.running -= 1
            self._spare(int(job.is_probe))
            loop.gather(done)

    async def _read(self, loop: _Loop, job: DeliveryJob) -> DeliveryJob:
        """Read a batch that came without its events."""
        return (await deliveries.read(loop.partition, [job]))[0] if job.unread_bytes else job

    async def _do(self, loop: _Loop, job: DeliveryJob) -> _Done:
        """What is settled of a job, and the attempt if there was one; its receiver is called as it is known now."""
        receiver = self._registry.snapshot.subscribers.get(job.token)
        if job.batch is None:
            return Settled(job, GONE), None
        if receiver is None:
            return Settled(job, await self._look_for(job.token)), None
        if receiver.halt:
            # It was paused while its batch waited for room.
            return Settled(job, _LATER), None
        if job.lanes and (division := parts.division(job.batch.chunks, job.lanes)) is not None:
            # What is left of it is the next job.
            size_max = receiver.max_events, receiver.max_bytes
            return Settled(job, RETURNED, division=division, size_max=size_max), None
        attempted = await self._deliverer.attempt(_load(loop.partition, job, receiver))
        settled = _settled(job, attempted)
        await self._growth.add(len(settled.attempt))
        return settled, attempted

    def _after_error(self, loop: _Loop, job: DeliveryJob, error: str) -> Settled:
        """Settle a job after an unexpected error: it is left alone for a while.

        That counts as an attempt, so a settlement that cannot be made gives way to that of a later one. A batch that
        meets a second error is split, until the event that causes it stands alone; it has as many attempts as one that
        its receiver refuses, and is then a dead letter.
        """
        receiver, batch = self._registry.snapshot.subscribers.get(job.token), job.batch
        attempts = batch.attempts if batch else 0
        later = _later(attempts, is_ordered=receiver is not None and receiver.ordered)
        if receiver is None or batch is None or job.unread_bytes:
            return Settled(job, later)
        if batch.events > 1 and attempts > 0:
            halves = parts.halves(batch.chunks, batch.events, attempts=attempts)
            return Settled(job, Settlement("cut", is_split=True), halves=halves)
        if batch.events > 1 or attempts + 1 < ALONE_ATTEMPTS_MAX:
            return Settled(job, later)
        what = Settlement("cut", dead="attempts")
        outcome = Outcome(OutcomeKind.BROKEN, 0, detail=f"the bus could not make an attempt: {error}")
        return _given_up(Settled(job, what), _load(loop.partition, job, receiver), what, outcome, batch.chunks)

    async def _look_for(self, token: str) -> Settlement:
        """Settle a job whose receiver this process does not know: it may be new, or gone.

        It may also be one that left and came back meanwhile. Its job is then of the time before, and is not for it; so
        it goes back, and is taken again only if its batch is still there.
        """
        await self._registry.refresh()
        return RETURNED if token in self._registry.snapshot.subscribers else GONE

    async def _sleep(self, loop: _Loop) -> None:
        """Until there is something to do, which for a loop that is asleep may be just to look again."""
        if not loop.wanted.is_set():
            try:
                async with asyncio.timeout_at(loop.deadline_s if loop.state is _State.ASLEEP else None):
                    await loop.wanted.wait()
            except TimeoutError:
                loop.state = _State.LOOKING
        loop.wanted.clear()


def _later(attempts: int, *, is_ordered: bool) -> Settlement:
    """Try a batch again that met an error; an ordered receiver waits for it, as its lane may not be known."""
    delay_ms = min(_ERROR_DELAY_MS << min(attempts, 10), _ERROR_DELAY_MS_MAX)
    return Settlement("cut", pause_ms=delay_ms) if is_ordered else Settlement("cut", retry_ms=delay_ms)


def _settled(job: DeliveryJob, attempted: Attempted) -> Settled:
    """What a slot has done, with the settlement of a batch that was not taken as a whole."""
    batch, load, what = job.batch, attempted.load, attempted.settlement
    assert batch is not None, "looked at before"
    settled = Settled(job, what, attempted.entry, attempted.counts, attempted.why, load.receiver.anew_since)
    if attempted.failed and not what.is_split:
        rest = parts.remainder(batch.chunks, attempted.failed)
        if not what.dead:
            return structs.replace(settled, remainder=rest, lane=_lane(load, what, rest.text.encode()))
        if rest.events <= LETTERS_MAX:
            return _given_up(settled, load, what, attempted.outcome, [rest.text.encode()])
        if rest.events < load.events:
            return structs.replace(settled, remainder=rest)
    if what.is_split or (what.dead and load.events > LETTERS_MAX):
        # Halves of what is given up have had its attempts.
        halves = parts.halves(batch.chunks, load.events, attempts=batch.attempts if what.dead else 0)
        return structs.replace(settled, halves=halves)
    if what.dead:
        return _given_up(settled, load, what, attempted.outcome, batch.chunks)
    lane = _lane(load, what, batch.chunks[0])
    return structs.replace(settled, lane=lane) if lane else settled


def _lane(load: DeliveryLoad, what: Settlement, line: bytes) -> str:
    """The lane that an event holds while it is put aside; of an ordered receiver only single ones are."""
    return parts.lane(line) if load.receiver.ordered and what.retry_ms != FIRST else ""


def _given_up(
    settled: Settled, load: DeliveryLoad, what: Settlement, outcome: Outcome, chunks: Sequence[bytes]
) -> Settled:
    receiver = load.receiver
    letters = parts.letters(
        [line for chunk in chunks for line in chunk.split(b"\n")],
        outcome,
        reason=what.dead,
        attempts=load.attempts + 1,
        accepted_at=load.accepted_at,
        batch=load.batch,
        partition=load.partition,
    )
    is_blocked = receiver.ordered and receiver.on_dead == "block"
    blocked = [parts.lane(letter.event) for letter in letters] if is_blocked else ()
    return structs.replace(settled, letters=letters, blocked=blocked)


def _load(partition: Partition, job: DeliveryJob, receiver: Subscriber) -> DeliveryLoad:
    batch = job.batch
    assert batch is not None, "looked at before"
    return DeliveryLoad(
        receiver=receiver,
        batch=batch.bid,
        parts=batch.chunks,
        events=batch.events,
        attempts=batch.attempts,
        failures=job.failures,
        accepted_at=batch.created_at,
        partition=partition.index,
    )
