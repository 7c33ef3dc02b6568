"""Which copies into queues a publish call makes at once, and which it leaves for later (store/fanouts.py).

A call may not hold the server for long, and a publisher may not wait for the queues of others. So these are made later:

1. the copies of a wide event, which has more receivers than one call may write to;
2. those into an event's own queues, where these are many: the publisher's and root's;
3. those into others' queues, where a publisher's part of a call has many of them.

Queues that may refuse an event are always written to at once, as the publisher has to be informed; how many of these a
client has is bounded (`client_refusing_queues_max`).

What is left for later waits in a line: each publisher has one for own queues, one for others', and one for batches. No
copy into a queue overtakes another, so a call that makes some at once names the lines in which nothing may wait.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from typing import Generic, TypeVar

from doubledecker.model.queue import RegisteredQueue
from doubledecker.store.fanouts import Copies

# Own queues of an event that are written to at once. Each takes the server some 15 µs, or 5 µs an event among many.
OWN_MAX = 16
# Copies into others' queues that are made at once: two of each event, with which a publish takes less than twice as
# long, and always so many.
OTHERS_EACH, OTHERS_MIN = 2, 16

T = TypeVar("T")

# A tenant and numbers of its events, in order.
Line = tuple[str, list[int]]
# Queues, and the events that each of them gets.
Part = tuple[tuple[RegisteredQueue, ...], list[Line]]
# Queues that get exactly the same events, with these by tenant.
Fed = tuple[tuple[RegisteredQueue, ...], dict[str, list[int]]]


@dataclass
class Division:
    """Copies made at once, the lines in which nothing may wait for that, and by line what is left for later."""

    prompt: list[Part] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    later: dict[str, list[Copies]] = field(default_factory=dict)

    def make(self, line: str, parts: Sequence[Part]) -> None:
        """Make copies at once, unless some wait in the line."""
        self.prompt += parts
        self.lines += [line] if parts else []

    def leave(self, line: str, parts: Sequence[Part]) -> None:
        """Leave copies for later."""
        feeds = [Copies(_names(queues), tuple(lines), tuple(lines.values())) for queues, lines in feeds_of(parts)]
        if feeds:
            self.later[line] = [*self.later.get(line, ()), *feeds]


def divide(
    narrow: Mapping[str, Sequence[Part]], wide: Mapping[str, Sequence[Part]], behind: Container[str]
) -> Division:
    """Divide the copies of each publisher; `wide` events' are left for later, and those for the lines `behind` are."""
    division = Division()
    for publisher in narrow.keys() | wide.keys():
        own, others = _split(narrow.get(publisher, ()), publisher)
        wide_own, wide_others = _split(wide.get(publisher, ()), publisher)
        line = own_line(publisher)
        if wide_own or line in behind or any(len(queues) > OWN_MAX for queues, _ in own):
            refusing, rest = _apart([*own, *wide_own], publisher)
            division.prompt += refusing
            division.leave(line, rest)
        else:
            division.make(line, own)
        line = others_line(publisher)
        if wide_others or line in behind or _are_many(others):
            division.leave(line, [*others, *wide_others])
        else:
            division.make(line, others)
    return division


def prompt_copies(queues: Sequence[RegisteredQueue], publisher: str) -> int:
    """How many copies of an event into these queues are made at once, at most; but for those that always are."""
    own, others = _split([(tuple(queues), [])], publisher)
    count = sum(len(mine) for mine, _ in own)
    if count > OWN_MAX:
        count = refusing_copies(queues, publisher)
    return count + min(OTHERS_EACH, sum(len(theirs) for theirs, _ in others))


def refusing_copies(queues: Sequence[RegisteredQueue], publisher: str) -> int:
    """How many of these queues may refuse an event: of a wide one, the only copies that are made at once."""
    return sum(queue.may_refuse(publisher) for queue in queues)


def own_line(publisher: str) -> str:
    """The line of copies of a publisher's events into its own queues and root's."""
    return f"own:{publisher}"


def others_line(publisher: str) -> str:
    """The line of copies of a publisher's events into others' queues."""
    return f"others:{publisher}"


def batches_line(publisher: str) -> str:
    """The line of copies of a publisher's wide events into batches, which narrow ones do not wait for."""
    return f"batches:{publisher}"


def feeds_of(parts: Iterable[Part]) -> list[Fed]:
    """Queues that get exactly the same events, with those events; every queue once."""
    numbered = list(parts)
    if len(numbered) == 1:
        [(queues, lines)] = numbered
        return [(queues, _joined([lines]))]
    feeds: dict[str, tuple[RegisteredQueue, list[int]]] = {}
    for number, (queues, _) in enumerate(numbered):
        for queue in queues:
            feeds.setdefault(queue.name, (queue, []))[1].append(number)
    fed: dict[tuple[int, ...], list[RegisteredQueue]] = defaultdict(list)
    for queue, numbers in feeds.values():
        fed[tuple(numbers)].append(queue)
    return [(tuple(queues), _joined(numbered[number][1] for number in numbers)) for numbers, queues in fed.items()]


def _joined(parts: Iterable[list[Line]]) -> dict[str, list[int]]:
    lines: dict[str, list[int]] = defaultdict(list)
    for tenant, at in chain.from_iterable(parts):
        lines[tenant] += at
    for at in lines.values():
        at.sort()
    return lines


@dataclass(frozen=True)
class _Sorted:
    """Some queues, sorted out for a publisher: own and others', and those that may refuse its events and the rest."""

    own: tuple[RegisteredQueue, ...]
    others: tuple[RegisteredQueue, ...]
    refusing: tuple[RegisteredQueue, ...]
    rest: tuple[RegisteredQueue, ...]


class _ByIdentity(Generic[T]):
    """What was found out of queues, by the identity of their tuple: all routes of one registry share it.

    Looking at a thousand queues takes longer than all else of a publish. A tuple is kept with what was found, so that
    no other gets its identity.
    """

    _QUEUES_MAX = 100_000

    def __init__(self, find: Callable[[tuple[RegisteredQueue, ...], str], T]) -> None:
        self._find = find
        self._found: dict[tuple[int, str], tuple[tuple[RegisteredQueue, ...], T]] = {}
        self._count = 0

    def __call__(self, queues: tuple[RegisteredQueue, ...], publisher: str = "") -> T:
        kept = self._found.get((id(queues), publisher))
        if kept is None:
            if self._count > self._QUEUES_MAX:
                self._found.clear()
                self._count = 0
            self._count += len(queues)
            kept = self._found[id(queues), publisher] = queues, self._find(queues, publisher)
        return kept[1]


def _sort_out(queues: tuple[RegisteredQueue, ...], publisher: str) -> _Sorted:
    may_refuse = [queue.may_refuse(publisher) for queue in queues]
    is_own = [
        queue.owner == publisher or queue.is_roots or refuses for queue, refuses in zip(queues, may_refuse, strict=True)
    ]

    def those(chosen: list[bool], *, are: bool) -> tuple[RegisteredQueue, ...]:
        """The same tuple where it is all of them, so that its parts are found by identity too."""
        if all(each == are for each in chosen):
            return queues
        return tuple(compress(queues, (each == are for each in chosen)))

    return _Sorted(
        own=those(is_own, are=True),
        others=those(is_own, are=False),
        refusing=those(may_refuse, are=True),
        rest=those(may_refuse, are=False),
    )


_sorted_out = _ByIdentity(_sort_out)
_names = _ByIdentity(lambda queues, _publisher: tuple(f"@{queue.name}" for queue in queues))


def _split(parts: Sequence[Part], publisher: str) -> tuple[list[Part], list[Part]]:
    """The same, into own queues and into others'."""
    found = [(_sorted_out(queues, publisher), lines) for queues, lines in parts]
    own = [(each.own, lines) for each, lines in found if each.own]
    return own, [(each.others, lines) for each, lines in found if each.others]


def _apart(parts: Sequence[Part], publisher: str) -> tuple[list[Part], list[Part]]:
    """The same, into queues that may refuse a publisher's events, and into the rest."""
    found = [(_sorted_out(queues, publisher), lines) for queues, lines in parts]
    refusing = [(each.refusing, lines) for each, lines in found if each.refusing]
    return refusing, [(each.rest, lines) for each, lines in found if each.rest]


def _are_many(parts: Sequence[Part]) -> bool:
    """Whether these copies would make a publish take too long."""
    numbers = [sum(len(at) for _, at in lines) for _, lines in parts]
    copies = sum(len(queues) * count for (queues, _), count in zip(parts, numbers, strict=True))
    return copies > max(OTHERS_MIN, OTHERS_EACH * sum(numbers))
