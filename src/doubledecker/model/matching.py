"""Matching: which queues an event goes to, by their patterns on its routing key `tenant:topic:type`.

RE2 matches in time linear in the key, whatever the pattern. Patterns are compiled together in *shelves*, so that one
pass over the key tests a hundred of them; a change compiles one shelf anew. Answers are remembered by key; after a
change, a remembered answer is only tested against what changed since.
"""

from collections.abc import Iterable, Sequence

import re2

from doubledecker.errors import BadRequest

PATTERN_LENGTH_MAX = 512
# In instructions of the compiled pattern: `[a-z]{1,64}:page:.*` has about 150.
PROGRAM_MAX = 500
_SHELF_MAX = 100
# Room for the states of a whole shelf: one that ran out of it would miss matches without a word.
_SHELF_BYTES = 1 << 27
_KEYS_MAX = 100_000
# More changes than this since an answer, and it is made from the start.
_CHANGES_MAX = 50
_LOG_MAX = 10_000


def check_pattern(pattern: str) -> None:
    """Raise BadRequest unless the pattern compiles, and is of a reasonable size."""
    if not pattern:
        raise BadRequest("the pattern is empty, and matches no tenant:topic:type; write one like .*:page:.*")
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise BadRequest(f"a pattern of {len(pattern)} characters; at most {PATTERN_LENGTH_MAX} are allowed")
    try:
        size = re2.compile(pattern, _options(1 << 20)).programsize
    except re2.error as error:
        said = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        raise BadRequest(
            f"pattern {pattern!r} is not a regular expression as RE2 takes them: {said}; "
            "look-around and back-references are not possible"
        ) from error
    if size > PROGRAM_MAX:
        raise BadRequest(
            f"pattern {pattern!r} is too large: {size} steps, at most {PROGRAM_MAX}; repeat fewer times, or use `.*`"
        )


class Matcher:
    """Named patterns, and who matches what."""

    def __init__(self) -> None:
        self._patterns: dict[str, Sequence[str]] = {}
        self._shelves: list[_Shelf] = []
        self._shelf_of: dict[str, _Shelf] = {}
        self._answers: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._changed: list[str] = []

    def put(self, name: str, patterns: Sequence[str] | None) -> None:
        """Take over a name's patterns, or forget it."""
        if self._patterns.get(name) == patterns:
            return
        if len(self._changed) >= _LOG_MAX:
            self._changed.clear()
            self._answers.clear()
        self._changed.append(name)
        former = self._shelf_of.pop(name, None)
        if former is not None:
            former.remove(name)
        self._patterns.pop(name, None)
        if patterns is not None:
            self._patterns[name] = patterns
            self._shelf_of[name] = shelf = self._shelf_with_room(len(patterns))
            shelf.add(name, patterns)

    def put_all(self, named: dict[str, Sequence[str]]) -> None:
        """Take over all at once."""
        for name in [name for name in self._patterns if name not in named]:
            self.put(name, None)
        for name, patterns in named.items():
            self.put(name, patterns)

    def match(self, key: str) -> tuple[str, ...]:
        """The names with a pattern that matches the whole key, in order."""
        known = self._answers.get(key)
        now = len(self._changed)
        if known is not None and known[0] == now:
            return known[1]
        if known is not None and now - known[0] <= _CHANGES_MAX:
            names = self._retest(key, known[1], self._changed[known[0] :])
        else:
            names = {name for shelf in self._shelves for name in shelf.match(key)}
        answer = tuple(sorted(names))
        if len(self._answers) >= _KEYS_MAX:
            self._answers.clear()
        self._answers[key] = (now, answer)
        return answer

    def _retest(self, key: str, before: tuple[str, ...], changed: Iterable[str]) -> set[str]:
        names = set(before)
        for name in set(changed):
            names.discard(name)
            shelf = self._shelf_of.get(name)
            if shelf is not None and name in shelf.match(key):
                names.add(name)
        return names

    def _shelf_with_room(self, count: int) -> "_Shelf":
        for shelf in self._shelves:
            if shelf.size + count <= _SHELF_MAX:
                return shelf
        self._shelves.append(_Shelf())
        return self._shelves[-1]


class _Shelf:
    """Patterns that are matched together; compiled when first needed after a change."""

    def __init__(self) -> None:
        self._named: dict[str, Sequence[str]] = {}
        self._names: list[str] = []
        self._compiled: re2.Set | None = None
        self.size = 0

    def add(self, name: str, patterns: Sequence[str]) -> None:
        self._named[name] = patterns
        self.size += len(patterns)
        self._compiled = None

    def remove(self, name: str) -> None:
        self.size -= len(self._named.pop(name))
        self._compiled = None

    def match(self, key: str) -> set[str]:
        if not self._named:
            return set()
        if self._compiled is None:
            self._compiled = re2.Set.FullMatchSet(_options(_SHELF_BYTES))
            pairs = [(name, pattern) for name, patterns in self._named.items() for pattern in patterns]
            self._names = [name for name, _ in pairs]
            for _, pattern in pairs:
                self._compiled.Add(pattern)
            self._compiled.Compile()
        # Without any match it returns None, not an empty list.
        return {self._names[i] for i in self._compiled.Match(key) or ()}


def _options(bytes_max: int) -> re2.Options:
    options = re2.Options()
    options.max_mem = bytes_max
    options.log_errors = False
    options.never_capture = True
    return options
