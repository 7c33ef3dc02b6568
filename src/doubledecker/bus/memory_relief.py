"""Relief: what is freed, in which order, when a server is short of memory. Decided here; worker/autodrop.py does it.

Memory is short when less than a reserve of the limit is left. Then, until it is not:

1. journals are cut that no archive reads; what an archive has confirmed is cut at any time;
2. journals are cut that the archive has yet to read, and the gap is recorded; not events if `journal_full` is `refuse`;
3. queues that drop their oldest do so if nobody has acked a message of theirs for some minutes, and so do subscribers'
   dead letters;
4. autodrop: the oldest batches of receivers that have been failing for some minutes are deleted;
5. the other queues that drop their oldest do so.

Where several could give, the largest do, down to a common level. Nothing else is dropped: nothing that waits for a
receiver that is served, is paused or has not been tried, nor in a queue that refuses. When nothing is left to free,
publishing is refused at the limit.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from doubledecker.store import journal

# Journals together may take so much of the memory that the limit and the reserve leave to the bus.
JOURNAL_SHARE = 0.5
# For one client so much of that memory, of all servers together, may wait.
CLIENT_SHARE = 0.5
# Batches this close in age are equally old: one call can then delete many of one receiver.
SAME_AGE_MS = 1_000


@dataclass(frozen=True)
class MemoryRules:
    """The settings of memory; 0 leaves the limit to the server's `maxmemory`."""

    bytes_max: int = 0
    reserve_bytes: int = 0
    journal_bytes_max: int = 2**53
    journal_refuses: bool = False
    stalled_ms: int = 300_000
    look_ms: int = 1_000

    def limit_of(self, server_bytes_max: int) -> int:
        """How much a server may use: the lesser of the setting and its own `maxmemory`; 0 when there is neither."""
        return min((limit for limit in (self.bytes_max, server_bytes_max) if limit > 0), default=0)

    def bound_of(self, limit: int) -> int:
        """Above this memory is short."""
        return limit - self.reserve_bytes

    def journals_max(self, limit: int) -> int:
        if limit == 0:
            return self.journal_bytes_max
        return min(self.journal_bytes_max, max(0, int(self.bound_of(limit) * JOURNAL_SHARE)))

    def client_bytes_max(self, limits: Sequence[int], asked: int) -> int:
        """How much may wait for one client: the lesser of what is asked and a share of the memory; 0 is no bound."""
        if asked == 0 or 0 in limits:
            return asked
        return max(1, min(asked, int(sum(map(self.bound_of, limits)) * CLIENT_SHARE)))


@dataclass(frozen=True)
class Journal:
    """One journal of a partition, and whether an archive reads it."""

    partition: int
    name: journal.Name
    bytes: int
    is_archived: bool


@dataclass(frozen=True)
class DroppingQueue:
    """A queue that drops its oldest, in one partition, and whether a message of it was acked lately.

    A subscriber's dead letters count as one; nobody acks these. `receiver` is a queue's, `@` and its name, or a token.
    """

    partition: int
    receiver: str
    bytes: int
    is_served: bool


@dataclass(frozen=True)
class StalledReceiver:
    """A subscriber that has been failing for long, and since when its oldest batch waits in one partition."""

    partition: int
    token: str
    oldest_at: int


@dataclass(frozen=True)
class Freeable:
    journals: tuple[Journal, ...] = ()
    queues: tuple[DroppingQueue, ...] = ()
    stalled: tuple[StalledReceiver, ...] = ()


@dataclass(frozen=True)
class CutJournal:
    """Cut a journal until it holds no more than this; forced, also what the archive has yet to read."""

    journal: Journal
    keep_bytes: int
    is_forced: bool


@dataclass(frozen=True)
class DropMessages:
    """Drop the oldest messages of a queue, so many bytes."""

    queue: DroppingQueue
    bytes: int


@dataclass(frozen=True)
class DropBatches:
    """Delete the oldest batches of a receiver, until so many bytes are gone; none that were made later than this."""

    receiver: StalledReceiver
    bytes: int
    created_max: int | None


Action = CutJournal | DropMessages | DropBatches


def decide(freeable: Freeable, excess_bytes: int, *, journal_refuses: bool = False) -> Action | None:
    """What to free next; None when memory is not short, or nothing is left that may be freed."""
    if excess_bytes <= 0:
        return None
    unread = [each for each in freeable.journals if not each.is_archived]
    # Attempts and settlements have happened: they cannot be refused.
    behind = [
        each for each in freeable.journals if each.is_archived and not (journal_refuses and each.name == "events")
    ]
    unserved = [each for each in freeable.queues if not each.is_served]
    served = [each for each in freeable.queues if each.is_served]
    return (
        _cut(unread, excess_bytes, is_forced=False)
        or _cut(behind, excess_bytes, is_forced=True)
        or _drop_messages(unserved, excess_bytes)
        or _drop_batches(freeable.stalled, excess_bytes)
        or _drop_messages(served, excess_bytes)
    )


def without(freeable: Freeable, action: Action) -> Freeable:
    """What else could be freed: the source of an action that was carried out has no more to give."""
    match action:
        case CutJournal(journal):
            return replace(freeable, journals=tuple(each for each in freeable.journals if each != journal))
        case DropMessages(queue):
            return replace(freeable, queues=tuple(each for each in freeable.queues if each != queue))
        case DropBatches(receiver):
            return replace(freeable, stalled=tuple(each for each in freeable.stalled if each != receiver))


def level(sizes: Collection[int], total: int) -> int:
    """The most that each may keep so that all together keep `total`: small ones keep all, large ones are cut."""
    rest = max(0, total)
    for at, size in enumerate(sorted(sizes)):
        share = rest // (len(sizes) - at)
        if size > share:
            return share
        rest -= size
    return max(sizes, default=0)


def journal_bounds(sizes: Sequence[int], total: int) -> list[int]:
    """How large each journal of a server may become: into the room that is left, else down to the level."""
    room = total - sum(sizes)
    cut = level(sizes, total)
    return [size + room if room >= 0 else cut for size in sizes]


def _cut(journals: Sequence[Journal], excess_bytes: int, *, is_forced: bool) -> CutJournal | None:
    largest = max(journals, key=lambda each: each.bytes, default=None)
    if largest is None or largest.bytes <= 0:
        return None
    sizes = [each.bytes for each in journals]
    return CutJournal(largest, level(sizes, sum(sizes) - excess_bytes), is_forced)


def _drop_messages(queues: Sequence[DroppingQueue], excess_bytes: int) -> DropMessages | None:
    largest = max(queues, key=lambda each: each.bytes, default=None)
    if largest is None or largest.bytes <= 0:
        return None
    sizes = [each.bytes for each in queues]
    return DropMessages(largest, largest.bytes - level(sizes, sum(sizes) - excess_bytes))


def _drop_batches(stalled: Sequence[StalledReceiver], excess_bytes: int) -> DropBatches | None:
    ordered = sorted(stalled, key=lambda each: each.oldest_at)
    if not ordered:
        return None
    created_max = ordered[1].oldest_at + SAME_AGE_MS if len(ordered) > 1 else None
    return DropBatches(ordered[0], excess_bytes, created_max)
