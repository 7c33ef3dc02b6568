"""Matching: which queues an event goes to, by their patterns on its routing key `tenant:topic:type`.

RE2 matches in time linear in the key and in the size of the compiled pattern, its steps. Patterns are compiled together
in *shelves*, so that one pass over the key tests many of them; a change compiles one shelf anew. A pattern that needs
many states makes every match of its shelf costly, so a client with many steps has shelves of its own, and the others
share shelves that are bounded in steps: what one client registers slows down one shelf. The same pattern of several
queues of a client is compiled and counted once.

Answers are remembered by key; after a change, a remembered answer is only tested against what changed since. What has
to be matched can be had as a search, in pieces of one key on one shelf, so that the caller decides where it is run.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

import re2

from doubledecker.errors import BadRequest
from doubledecker.model import pattern_check

# A cache that new keys cannot empty: what was used again is kept apart from what was seen once.

K = TypeVar("K")
V = TypeVar("V")


class ScanResistantCache(Generic[K, V]):
    """Values by key, bounded in number; None is not a value.

    A key enters among the `new`, which are forgotten all at once when they are too many. Used again, it moves to the
    `young`; when these are too many they become the `old`, and an old key that is used becomes young again. So a
    stream of keys that are used once only pushes out keys of its own sort.
    """

    def __init__(self, *, new_max: int, kept_max: int) -> None:
        self._new_max = new_max
        self._young_max = max(1, kept_max // 2)
        self._new: dict[K, V] = {}
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """The value of a key, which counts as a use of it."""
        value = self._young.get(key)
        return value if value is not None else self._promote(key)

    def put(self, key: K, value: V) -> None:
        """Take over a value; a key that is known stays where it is."""
        for kept in (self._young, self._old):
            if key in kept:
                kept[key] = value
                return
        if len(self._new) >= self._new_max:
            self._new.clear()
        self._new[key] = value

    def recent(self, most: int) -> list[K]:
        """Some of the keys that were put or used last."""
        return [key for kept in (self._young, self._new) for key in islice(reversed(kept), most // 2)]

    def clear(self) -> None:
        """Forget everything."""
        for kept in (self._new, self._young, self._old):
            kept.clear()

    def __len__(self) -> int:
        return len(self._new) + len(self._young) + len(self._old)

    def _promote(self, key: K) -> V | None:
        value = self._old.pop(key, None)
        if value is None:
            value = self._new.pop(key, None)
        if value is not None:
            if len(self._young) >= self._young_max:
                self._old, self._young = self._young, {}
            self._young[key] = value
        return value


PATTERN_LENGTH_MAX = 512
# In instructions of the compiled pattern: `[a-z]{1,64}:page:.*` has about 150.
PROGRAM_MAX = 500
# RE2 compiles for up to forty milliseconds before it finds a pattern too large for a megabyte. This is room for twice
# the steps that are allowed; what RE2 says when it is not enough begins so.
_CHECKED_BYTES = 1 << 17
_TOO_LARGE = "pattern too large"
# Measured: at most 3 ns for each step and character, so 1.2 ms for a key of 194 characters.
SHELF_STEPS = 2_000
# A client with fewer steps shares shelves.
SHARED_STEPS = 200
# Room for some hundred states of the largest shelf; with more there is nothing to win.
_SHELF_BYTES = 1 << 21
# A hundred thousand tenants that publish in turn are all remembered, and half of those kept; some 60 MB at the most.
_KEYS_NEW_MAX, _KEYS_KEPT_MAX = 120_000, 240_000
# Names that remembered answers hold together, those of one more search aside: some 10 MB, or 60 MB when every key
# matches another combination of costly patterns. Beyond it all answers are forgotten.
NAMES_MAX = 1_000_000
# Names that the results of one set hold together.
_KNOWN_NAMES_MAX = 20_000
# More changes than this since an answer, and it is made from the start.
_CHANGES_MAX = 50
_LOG_MAX = 10_000
# Matches every key. A set that runs out of memory says that nothing matches, not even this.
_ANYTHING = "(?s).*"


def check_pattern(pattern: str) -> None:
    """Raise BadRequest unless the pattern compiles, and is of a reasonable size."""
    if not pattern:
        raise BadRequest("the pattern is empty, and matches no tenant:topic:type; write one like .*:page:.*")
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise BadRequest(f"a pattern of {len(pattern)} characters; at most {PATTERN_LENGTH_MAX} are allowed")
    try:
        size = int(re2.compile(pattern, _options(_CHECKED_BYTES)).programsize)
    except re2.error as error:
        reason = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        if reason.startswith(_TOO_LARGE):
            raise _too_large(pattern, "over a thousand") from error
        raise BadRequest(
            f"pattern {pattern!r} is not a regular expression as RE2 takes them: {reason}; "
            "look-around and back-references are not possible"
        ) from error
    if size > PROGRAM_MAX:
        raise _too_large(pattern, str(size))
    if not pattern_check.can_match(pattern):
        wider = pattern_check.search_for(pattern)
        remedy = f"{wider!r} matches those that contain it" if wider else "write one like '.*:page:.*'"
        raise BadRequest(f"pattern {pattern!r} matches no tenant:topic:type, as it has to match the whole; {remedy}")


def _too_large(pattern: str, steps: str) -> BadRequest:
    return BadRequest(
        f"pattern {pattern!r} is too large: {steps} steps, at most {PROGRAM_MAX}; repeat fewer times, or use `.*`"
    )


@functools.lru_cache(maxsize=20_000)
def steps_of(pattern: str) -> int:
    """The size of a pattern when compiled; raises re2.error when it does not compile."""
    return int(re2.compile(pattern, _options(1 << 20)).programsize)


@dataclass
class Lookup:
    """A key that is being matched: the shelves to test it on, and what was found on each of them so far."""

    key: str
    sets: tuple["NamedSet", ...]
    found: list[frozenset[str]]

    def add(self, names: frozenset[str]) -> None:
        """Take over the names that one set has found."""
        if names:
            self.found.append(names)


@dataclass(frozen=True)
class Search:
    """What has to be matched for some keys; run every piece, in any thread, then give it back to the matcher."""

    lookups: tuple[Lookup, ...]
    # How many changes the matcher had seen, and how often it had forgotten them.
    seen: tuple[int, int]

    def pieces(self) -> Iterator[tuple[Lookup, "NamedSet"]]:
        """Each key with each set of patterns that it has to be tested on."""
        return ((lookup, patterns) for lookup in self.lookups for patterns in lookup.sets)


class PatternSet:
    """Patterns that are matched together, compiled when first needed."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)
        self._compiled: re2.Set | None = None
        # What a match takes, as the caller has measured it.
        self.took_s = 0.0

    def match(self, key: str) -> list[int]:
        """Which of the patterns match the whole key."""
        if self._compiled is None:
            self._compiled = self._compile()
        found = self._compiled.Match(key) or ()
        if len(self._patterns) not in found:
            # Out of memory: one by one RE2 has a slower way that needs little.
            matched = (re2.compile(pattern, _options(1 << 20)).fullmatch(key) for pattern in self._patterns)
            return [i for i, match in enumerate(matched) if match]
        return [i for i in found if i < len(self._patterns)]

    def _compile(self) -> re2.Set:
        compiled = re2.Set.FullMatchSet(_options(_SHELF_BYTES))
        for pattern in self._patterns:
            compiled.Add(pattern)
        compiled.Add(_ANYTHING)
        compiled.Compile()
        return compiled


@dataclass(frozen=True, eq=False)
class NamedSet:
    """A set of patterns with the names that have each; it never changes, so a search ends as it began."""

    patterns: PatternSet
    names: tuple[tuple[str, ...], ...]
    # By the patterns that match: a thousand queues may share one, and most keys match the same ones.
    _known: dict[tuple[int, ...], frozenset[str]] = field(default_factory=dict)

    def match(self, key: str) -> frozenset[str]:
        """The names with a pattern that matches the whole key."""
        which = tuple(self.patterns.match(key))
        names = self._known.get(which)
        if names is None:
            names = frozenset(name for i in which for name in self.names[i])
            if len(self._known) * len(names) < _KNOWN_NAMES_MAX:
                self._known[which] = names
        return names


@dataclass(eq=False)
class _Shelf:
    """Names by their owner and pattern; `home` is the owner whose they all are, or None if it is shared."""

    home: str | None
    names: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    steps: int = 0
    _patterns: PatternSet | None = None
    _set: NamedSet | None = None

    def add(self, owner: str, pattern: str, names: Iterable[str]) -> None:
        if (owner, pattern) not in self.names:
            self.names[owner, pattern] = set()
            self.steps += steps_of(pattern)
            self._patterns = None
        self.names[owner, pattern].update(names)
        self._set = None

    def discard(self, owner: str, pattern: str, name: str) -> bool:
        """Take a name off; returns whether it was the last that had this pattern."""
        names = self.names[owner, pattern]
        names.discard(name)
        self._set = None
        if not names:
            self.remove(owner, pattern)
        return not names

    def remove(self, owner: str, pattern: str) -> set[str]:
        """Take a pattern off, and return the names that had it."""
        self.steps -= steps_of(pattern)
        self._patterns = self._set = None
        return self.names.pop((owner, pattern))

    @property
    def set(self) -> NamedSet:
        """What is on it now."""
        if self._patterns is None:
            self._patterns = PatternSet([pattern for _, pattern in self.names])
        if self._set is None:
            self._set = NamedSet(self._patterns, tuple(map(tuple, self.names.values())))
        return self._set


class _Combinations:
    """Names in order, each combination once: keys that match the same share them."""

    def __init__(self) -> None:
        self._by_parts: dict[tuple[frozenset[str], ...], tuple[str, ...]] = {}
        self.names = 0

    def of(self, parts: Sequence[frozenset[str]]) -> tuple[str, ...]:
        """All names of these sets; a set's hash is made once, so this is quick where the combination is known."""
        known = self._by_parts.get(key := tuple(parts))
        if known is None:
            known = self._by_parts[key] = tuple(sorted(set().union(*parts)))
            self.names += len(known)
        return known

    def clear(self) -> None:
        self._by_parts.clear()
        self.names = 0


class PatternMatcher:
    """Named patterns, and who matches what."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[str, Sequence[str]]] = {}
        # By owner: its patterns, each with the shelf that it is on.
        self._placed: dict[str, dict[str, _Shelf]] = defaultdict(dict)
        self._steps: Counter[str] = Counter()
        self._shelves: dict[str | None, list[_Shelf]] = defaultdict(list)
        self._answers: ScanResistantCache[str, tuple[int, tuple[str, ...]]] = ScanResistantCache(
            new_max=_KEYS_NEW_MAX, kept_max=_KEYS_KEPT_MAX
        )
        self._combinations = _Combinations()
        self._changed: list[str] = []
        self._forgotten = 0

    def put(self, name: str, patterns: Sequence[str] | None, owner: str = "") -> None:
        """Take over a name's patterns and owner, or forget it."""
        wanted = None if patterns is None else (owner, patterns)
        former = self._named.pop(name, None)
        if wanted is not None:
            self._named[name] = wanted
        if former == wanted:
            return
        self._note_change(name)
        if former is not None:
            self._remove(name, *former)
        if wanted is not None:
            self._add(name, *wanted)

    def put_all(self, named: dict[str, tuple[str, Sequence[str]]]) -> None:
        """Take over all at once: owner and patterns by name."""
        for name in [name for name in self._named if name not in named]:
            self.put(name, None)
        for name, (owner, patterns) in named.items():
            self.put(name, patterns, owner)

    def steps(self, owner: str) -> int:
        """How large an owner's patterns are together; the same pattern counts once."""
        return self._steps.get(owner, 0)

    @property
    def steps_total(self) -> int:
        """How large all patterns are together."""
        return self._steps.total()

    def match(self, key: str) -> tuple[str, ...]:
        """The names with a pattern that matches the whole key, in order."""
        known = self._answers.get(key)
        if known is not None and known[0] == len(self._changed):
            return known[1]
        search = self.search([key])
        for lookup, patterns in search.pieces():
            lookup.add(patterns.match(lookup.key))
        self.take(search)
        return self._combinations.of(search.lookups[0].found)

    @property
    def names_kept(self) -> int:
        """How many names all remembered answers hold together."""
        return self._combinations.names

    def knows(self, key: str) -> bool:
        """Whether the answer is remembered, and nothing has changed since."""
        known = self._answers.get(key)
        return known is not None and known[0] == len(self._changed)

    def search(self, keys: Iterable[str]) -> Search:
        """What it takes to know who matches these keys."""
        return Search(tuple(map(self._lookup, keys)), (len(self._changed), self._forgotten))

    def take(self, search: Search) -> None:
        """Remember what a search has found; what changed meanwhile is tested when the key comes again."""
        changes, forgotten = search.seen
        if self._combinations.names > NAMES_MAX:
            self._answers.clear()
            self._combinations.clear()
        if forgotten == self._forgotten:
            for lookup in search.lookups:
                self._answers.put(lookup.key, (changes, self._combinations.of(lookup.found)))

    def _lookup(self, key: str) -> Lookup:
        known = self._answers.get(key)
        if known is None or len(self._changed) - known[0] > _CHANGES_MAX:
            return Lookup(key, tuple(shelf.set for shelves in self._shelves.values() for shelf in shelves), [])
        changed = set(self._changed[known[0] :])
        placed = (self._placed[owner][pattern] for owner, patterns in self._still(changed) for pattern in patterns)
        shelves = {id(shelf): shelf for shelf in placed}
        lookup = Lookup(key, tuple(shelf.set for shelf in shelves.values()), [])
        lookup.add(frozenset(known[1]) - changed)
        return lookup

    def _still(self, names: Iterable[str]) -> Iterator[tuple[str, Sequence[str]]]:
        return (self._named[name] for name in names if name in self._named)

    def _note_change(self, name: str) -> None:
        if len(self._changed) >= _LOG_MAX:
            self._changed.clear()
            self._answers.clear()
            self._combinations.clear()
            self._forgotten += 1
        self._changed.append(name)

    def _add(self, name: str, owner: str, patterns: Sequence[str]) -> None:
        placed = self._placed[owner]
        home = self._home_of(owner)
        self._steps[owner] += sum(steps_of(pattern) for pattern in set(patterns) if pattern not in placed)
        for pattern in patterns:
            if pattern in placed:
                placed[pattern].add(owner, pattern, [name])
            else:
                self._place(owner, pattern, [name])
        self._move(owner, home)

    def _remove(self, name: str, owner: str, patterns: Sequence[str]) -> None:
        home = self._home_of(owner)
        for pattern in set(patterns):
            shelf = self._placed[owner][pattern]
            if shelf.discard(owner, pattern, name):
                del self._placed[owner][pattern]
                self._steps[owner] -= steps_of(pattern)
                self._drop_if_empty(shelf)
        self._move(owner, home)

    def _move(self, owner: str, former: str | None) -> None:
        """Give an owner shelves of its own once it has many steps, or let it share again."""
        if self._home_of(owner) == former:
            return
        for pattern, shelf in list(self._placed[owner].items()):
            if shelf.home == former:
                names = shelf.remove(owner, pattern)
                self._drop_if_empty(shelf)
                self._place(owner, pattern, names)

    def _home_of(self, owner: str) -> str | None:
        return owner if self._steps[owner] > SHARED_STEPS else None

    def _place(self, owner: str, pattern: str, names: Iterable[str]) -> None:
        shelf = self._shelf_with_room(self._home_of(owner), steps_of(pattern))
        shelf.add(owner, pattern, names)
        self._placed[owner][pattern] = shelf

    def _shelf_with_room(self, home: str | None, steps: int) -> _Shelf:
        for shelf in reversed(self._shelves[home]):
            if shelf.steps + steps <= SHELF_STEPS:
                return shelf
        self._shelves[home].append(_Shelf(home))
        return self._shelves[home][-1]

    def _drop_if_empty(self, shelf: _Shelf) -> None:
        if not shelf.names:
            self._shelves[shelf.home].remove(shelf)


def _options(bytes_max: int) -> re2.Options:
    options = re2.Options()
    options.max_mem = bytes_max
    options.log_errors = False
    options.never_capture = True
    return options
