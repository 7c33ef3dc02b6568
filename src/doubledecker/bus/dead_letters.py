"""Dead letters of a receiver over all partitions: listed, counted, redriven and purged, a bounded piece at a time.

A receiver is a subscriber or a queue; all that differs is where a redriven event goes. One of a subscriber goes into a
new batch, for it alone; one of a queue to its old place in its tenant's line.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from doubledecker.bus.publish_rate import Pacer
from doubledecker.bus.registry import LiveRegistry
from doubledecker.errors import BusAway, NotFound
from doubledecker.model.dead_letter import DeadLetter, LetterFilter, LetterPlace
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.routing import Registry
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import dead_letters
from doubledecker.store.dead_letters import LETTER_BYTES_MIN, DroppedLetters
from doubledecker.store.partitions import Partition, Partitions

Action = Literal["redrive", "purge"]
# What a receiver's letters may take: of 64 KiB each, some four thousand.
BYTES_MAX = 268_435_456
# Letters that one request redrives or purges: some tens of milliseconds, or seconds where each has 64 KiB.
SETTLED_MAX = 10_000
# Letters that are named to Redis at once: so many another may have taken meanwhile.
_PAGE = 500
# Letters that are read at once: each may have 70 KiB.
_READ = 100
# The registry would have to change this often while one piece is redriven.
_TRIES_MAX = 20
# Letters of one partition that are dropped before another may have older ones, and calls for one receiver at a time.
_DROPPED_TOGETHER, _DROP_CALLS_MAX = 200, 100


@dataclass(frozen=True)
class LetterBounds:
    """How many letters a receiver may have, and what they may take; beyond either the oldest go."""

    letters_max: int = 100_000
    bytes_max: int = BYTES_MAX


@dataclass(frozen=True)
class LetterOwner:
    """The owner of letters: a queue, or a subscriber."""

    receiver: Subscriber
    queue: RegisteredQueue | None = None

    @property
    def token(self) -> str:
        return self.receiver.token

    @property
    def client(self) -> str:
        """The client that has the receiver, empty for root."""
        return self.receiver.client

    @classmethod
    def find(cls, known: Registry, token: str, *, client: str) -> "LetterOwner | None":
        """A client's receiver as the registry has it; None when it is gone, or another client's has its name."""
        queue = known.queues.get(token[1:]) if token.startswith("@") else None
        receiver = queue.receiver if queue else known.subscribers.get(token)
        return cls(receiver, queue) if receiver and receiver.client == client else None

    async def settle(
        self, partition: Partition, action: Action, ids: Sequence[str], *, version: int, job: str
    ) -> dead_letters.LettersTaken:
        """Redrive or purge letters by their ids, until the registry is not of this version any more."""
        if action == "purge":
            return await dead_letters.purge(partition, self.token, ids, version=version, job=job)
        if self.queue is not None:
            return await dead_letters.revive(partition, self.queue, ids, version=version, job=job)
        return await dead_letters.redrive(partition, self.receiver, ids, version=version, job=job)


@dataclass(frozen=True)
class LetterPage:
    """The oldest letters, and where the next page begins; None when there are no more."""

    letters: Sequence[DeadLetter]
    after: LetterPlace | None


async def count(partitions: Partitions, owner: LetterOwner, chosen: LetterFilter) -> int:
    """How many letters a filter means."""
    counts = await asyncio.gather(*(dead_letters.count(each, owner.token, chosen) for each in partitions.all))
    return sum(counts)


async def page(
    partitions: Partitions,
    owner: LetterOwner,
    chosen: LetterFilter,
    *,
    most: int,
    bytes_max: int,
    after: LetterPlace | None = None,
) -> LetterPage:
    """The oldest letters that a filter means, beyond a place; the page ends early after so many bytes.

    A place stays where it is when letters go or come, so that pages miss none that stays.
    """
    places: list[tuple[LetterPlace, str]] = []
    for partition in partitions.all:
        beyond = after.before(partition.index) if after else 0
        found = await dead_letters.choose(partition, owner.token, chosen, most=most + 1, after=beyond)
        places += [(LetterPlace(each.stamp, partition.index), each.id) for each in found]
    places.sort()
    letters: list[DeadLetter] = []
    size = 0
    for first in range(0, min(most, len(places)), _READ):
        some = places[first : min(most, first + _READ)]
        # Some may have gone meanwhile.
        there = {letter.id: letter for letter in await find(partitions, owner, [id_ for _, id_ in some])}
        for at, (_, id_) in enumerate(some, first):
            letter = there.get(id_)
            size += len(letter.event) + len(letter.answer) if letter else 0
            if size > bytes_max and letters:
                return LetterPage(letters, places[at - 1][0])
            letters += [letter] if letter else []
    return LetterPage(letters, places[most - 1][0] if len(places) > most else None)


async def find(partitions: Partitions, owner: LetterOwner, ids: Sequence[str]) -> list[DeadLetter]:
    """Those of the letters with these ids that are there."""
    found: list[DeadLetter] = []
    for partition, some in _by_partition(partitions, ids).items():
        found += await dead_letters.read(partition, owner.token, some)
    return found


async def meant(partitions: Partitions, owner: LetterOwner, ids: Sequence[str], chosen: LetterFilter) -> list[str]:
    """Those of the ids whose letters are there, and are meant by a filter; holds some of the letters at a time."""
    found: list[str] = []
    for first in range(0, len(ids), _READ):
        letters = await find(partitions, owner, ids[first : first + _READ])
        found += [letter.id for letter in letters if chosen.means(letter)]
    # An id that was given twice is one letter.
    return list(dict.fromkeys(found))


async def admit(pacer: Pacer, owner: LetterOwner, action: Action, letters: int) -> None:
    """Raise QuotaExceeded, with when to try again, unless the owner may have so many letters redriven now.

    They count as events that it publishes. Letters of its queues are among the bytes that wait for it already.
    """
    if action == "purge" or not owner.client or letters == 0:
        return
    await (pacer.admit if owner.queue is None else pacer.pace)(owner.client, letters)


async def settle_named(
    partitions: Partitions, live: LiveRegistry, owner: LetterOwner, action: Action, ids: Sequence[str]
) -> int:
    """Redrive or purge letters by their ids; returns how many were there. Raises NotFound when the receiver goes."""
    named = _by_partition(partitions, ids)
    return sum([await _settle(partition, live, owner, action, some) for partition, some in named.items()])


async def settle(
    partitions: Partitions,
    live: LiveRegistry,
    owner: LetterOwner,
    action: Action,
    chosen: LetterFilter,
    *,
    most: int,
    until_ms: int,
    job: str = "",
) -> int:
    """Redrive or purge the oldest letters that a filter means and that died until then; returns how many.

    Those that die of it again come later, and are left. Raises NotFound when the receiver goes.
    """
    done = 0
    for partition in partitions.all:
        while done < most:
            upto = (until_ms + 1) * 1_000 - 1
            size = min(most - done, _PAGE)
            found = await dead_letters.choose(partition, owner.token, chosen, most=size, upto=upto)
            done += await _settle(partition, live, owner, action, [each.id for each in found], job=job)
            if len(found) < size:
                break
    return done


async def _settle(
    partition: Partition, live: LiveRegistry, owner: LetterOwner, action: Action, ids: Sequence[str], *, job: str = ""
) -> int:
    done = 0
    for _ in range(_TRIES_MAX):
        # What is redriven for one that is gone would wait for ever; another may have its name, and these letters.
        now = LetterOwner.find(live.snapshot, owner.token, client=owner.client)
        if now is None:
            raise NotFound(f"{owner.token!r} was deleted meanwhile, and its dead letters with it")
        taken = await now.settle(partition, action, ids, version=live.snapshot.version, job=job)
        ids, done = ids[taken.through :], done + taken.letters
        if not ids:
            return done
        await live.refresh()
    why = "the registry changes faster than letters can be taken; ask again"
    raise BusAway(why, detail=why)


async def drop_beyond(partitions: Partitions, known: Registry, bounds: LetterBounds) -> dict[str, DroppedLetters]:
    """Drop the oldest letters of receivers that have more than they may; returns what each lost.

    Over several partitions those of the one with the oldest go first, some at a time.
    """
    taken = [await dead_letters.sizes(partition) for partition in partitions.all]
    total: Counter[str] = sum(map(Counter, taken), Counter())
    large = [
        name for name, size in total.items() if size > min(bounds.bytes_max, bounds.letters_max * LETTER_BYTES_MIN)
    ]
    counts = [await dead_letters.counts(partition, large) for partition in partitions.all if large]
    found = {}
    for receiver in large:
        letters = sum(part[receiver] for part in counts) - bounds.letters_max
        size = total[receiver] - bounds.bytes_max
        found[receiver] = await _drop(partitions, receiver, letters, size, owner=_owner(known, receiver))
    return {receiver: lost for receiver, lost in found.items() if lost.letters}


def _owner(known: Registry, receiver: str) -> str:
    """As attempts name it: not where it is the receiver's own id."""
    return known.owner_of(receiver).removeprefix(receiver)


async def _drop(partitions: Partitions, receiver: str, letters: int, size: int, *, owner: str) -> DroppedLetters:
    """Drop at least so many letters, and so many bytes of them."""
    lost = DroppedLetters(0, 0)
    for _ in range(_DROP_CALLS_MAX):
        if lost.letters >= letters and lost.bytes >= size:
            break
        oldest = [await dead_letters.oldest(partition, receiver) for partition in partitions.all]
        partition = min(zip(oldest, partitions.all, strict=True), key=lambda pair: pair[0] or math.inf)[1]
        # Either bound may be the one that is passed.
        more = letters - lost.letters if lost.letters < letters else _DROPPED_TOGETHER
        enough = size - lost.bytes if lost.letters >= letters else 2**53
        gone = await dead_letters.drop_oldest(
            partition, receiver, owner=owner, letters_max=min(more, _DROPPED_TOGETHER), bytes_enough=enough
        )
        lost = DroppedLetters(lost.letters + gone.letters, lost.bytes + gone.bytes)
        if gone.letters == 0:
            break
    return lost


async def latest_ms(partitions: Partitions) -> int:
    """The time by the server whose clock is ahead of the others: no letter has died after it."""
    return max(await asyncio.gather(*(partition.time_ms() for partition in partitions.all)))


def _by_partition(partitions: Partitions, ids: Sequence[str]) -> dict[Partition, list[str]]:
    """Ids are anyone's text; those that name no partition are no letter's."""
    known = {str(partition.index): partition for partition in partitions.all}
    found: dict[Partition, list[str]] = {}
    for id_ in dict.fromkeys(ids):
        partition = known.get(id_.partition("-")[0])
        if partition is not None:
            found.setdefault(partition, []).append(id_)
    return found
