"""Whether a pattern can match any routing key at all.

A routing key is `tenant:topic:type`. An automaton reads it from left to right; its states are how far it has come. A
pattern is read once, as RE2 reads it, and each part of it becomes a relation: from which state to which the texts that
it matches lead. Parts one after another are composed, alternatives are joined, repetitions are powers; so the answer
takes time linear in the pattern, whatever the pattern is.

What is not known here (Unicode classes, for one) may match: a pattern is only refused when it surely cannot.
"""

import re
import string
from collections.abc import Callable
from functools import lru_cache

# Before and inside the tenant, the topic and the type; and after the end, where nothing may follow.
_TENANT, _IN_TENANT, _TOPIC, _IN_TOPIC, _TYPE, _IN_TYPE, _ENDED = range(7)
_STATES = range(7)
_FIRST = frozenset(string.ascii_letters + "_")
_NAME = _FIRST | frozenset(string.digits + ".-")
_ALPHABET = _NAME | {":"}

# By state, the states that can be reached, as bits.
_Relation = tuple[int, ...]
_Chars = frozenset[str]

_NOTHING: _Relation = (0,) * len(_STATES)
_SAME: _Relation = tuple(1 << state for state in _STATES)
_AT_START: _Relation = (1 << _TENANT, *_NOTHING[1:])
_AT_END: _Relation = (*_NOTHING[:_IN_TYPE], 1 << _ENDED, 1 << _ENDED)

_CLASSES: dict[str, Callable[[str], bool]] = {
    "d": str.isdigit,
    "w": lambda char: char.isalnum() or char == "_",
    "s": lambda _: False,
}
_POSIX: dict[str, Callable[[str], bool]] = {
    "alnum": str.isalnum,
    "alpha": str.isalpha,
    "ascii": lambda _: True,
    "blank": lambda _: False,
    "cntrl": lambda _: False,
    "digit": str.isdigit,
    "graph": lambda _: True,
    "lower": str.islower,
    "print": lambda _: True,
    "punct": lambda char: not char.isalnum(),
    "space": lambda _: False,
    "upper": str.isupper,
    "word": _CLASSES["w"],
    "xdigit": lambda char: char in string.hexdigits,
}
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_SIGNS = ("*", "+", "?", "{")
_COUNTED = re.compile(r"\{(\d+)(,(\d*))?\}")
_OPENING = re.compile(r"\((?:\?(?:P?<\w+>|[imsU-]*(?P<end>[:)])))?")
_HEX = re.compile(r"\\x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]+)\})")
_OCTAL = re.compile(r"\\(0[0-7]{0,2}|[1-7][0-7]{2})")
_CASELESS = re.compile(r"\(\?[a-zA-Z]*i")


class _UnknownSyntaxError(Exception):
    """Something that RE2 may understand, and this file does not."""


def can_match(pattern: str) -> bool:
    """Whether some routing key may match the whole pattern, which RE2 takes."""
    try:
        relation = _Reader(pattern).read()
    except (_UnknownSyntaxError, RecursionError):
        return True
    return bool(relation[_TENANT] & (1 << _IN_TYPE | 1 << _ENDED))


def search_for(pattern: str) -> str | None:
    """A pattern for the keys that hold what this one matches somewhere; None when there are none either."""
    bare = pattern.removeprefix("^").removesuffix("$")
    texts = [f"(?:{text})" if "|" in text else text for text in (pattern, bare)]
    return next((wider for text in texts if can_match(wider := f".*{text}.*")), None)


class _Reader:
    """Reads a pattern, part by part."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        # Also what stands before the flag is then taken without case: more may match, never less.
        self._is_caseless = _CASELESS.search(pattern) is not None

    def read(self) -> _Relation:
        relation = self._alternatives()
        if self._at < len(self._text):
            raise _UnknownSyntaxError
        return relation

    def _alternatives(self) -> _Relation:
        relation = self._sequence()
        while self._take("|"):
            relation = _either(relation, self._sequence())
        return relation

    def _sequence(self) -> _Relation:
        relation = _SAME
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            relation = _then(relation, self._repeated())
        return relation

    def _repeated(self) -> _Relation:
        relation = self._atom()
        while (bounds := self._bounds()) is not None:
            self._take("?")
            relation = _repeat(relation, *bounds)
        return relation

    def _bounds(self) -> tuple[int, int | None] | None:
        """How often what came last is repeated, if a sign of that follows."""
        if self._text[self._at : self._at + 1] not in _SIGNS:
            return None
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        counted = _COUNTED.match(self._text, self._at)
        if counted is None:
            return None
        self._at = counted.end()
        least, is_range, most = int(counted[1]), counted[2], counted[3]
        return least, (int(most) if most else None) if is_range else least

    def _atom(self) -> _Relation:
        char = self._text[self._at]
        if char == "(":
            return self._group()
        if char == "[":
            return _step(self._set())
        if char == "\\":
            return self._escape()
        self._at += 1
        if char in "^$":
            return _AT_START if char == "^" else _AT_END
        return _step(_ALPHABET if char == "." else self._cased(char))

    def _group(self) -> _Relation:
        opening = _OPENING.match(self._text, self._at)
        if opening is None or (opening[0] == "(" and self._text[self._at + 1 : self._at + 2] == "?"):
            raise _UnknownSyntaxError
        self._at = opening.end()
        if opening["end"] == ")":
            return _SAME
        relation = self._alternatives()
        if not self._take(")"):
            raise _UnknownSyntaxError
        return relation

    def _escape(self) -> _Relation:
        if self._take("\\Q"):
            quoted, _, _ = self._text[self._at :].partition("\\E")
            self._at = min(len(self._text), self._at + len(quoted) + len("\\E"))
            relation = _SAME
            for char in quoted:
                relation = _then(relation, _step(self._cased(char)))
            return relation
        for sign, relation in (("\\A", _AT_START), ("\\z", _AT_END), ("\\b", _SAME), ("\\B", _SAME)):
            if self._take(sign):
                return relation
        if self._take("\\C"):
            return _step(_ALPHABET)
        chars = self._escaped()
        return _step(self._cased(chars) if isinstance(chars, str) else chars)

    def _escaped(self) -> str | _Chars:
        """What an escape stands for, inside of brackets or out: one character, or a class."""
        for form, base in ((_HEX, 16), (_OCTAL, 8)):
            found = form.match(self._text, self._at)
            if found is not None:
                self._at = found.end()
                return _character(int(next(group for group in found.groups() if group), base))
        char = self._text[self._at + 1 : self._at + 2]
        self._at += 2
        if char.lower() in _CLASSES:
            return _those(_CLASSES[char.lower()], is_negated=char.isupper())
        if char in _CONTROLS:
            return _CONTROLS[char]
        if not char or char.isalnum() or not char.isascii():
            raise _UnknownSyntaxError
        return char

    def _set(self) -> _Chars:
        """A class in brackets."""
        self._at += 1
        is_negated = self._take("^")
        chars: _Chars = frozenset()
        is_first = True
        while is_first or not self._take("]"):
            is_first = False
            chars |= self._set_item()
        return _ALPHABET - chars if is_negated else chars

    def _set_item(self) -> _Chars:
        if self._text.startswith("[:", self._at):
            name, end, _ = self._text[self._at + 2 :].partition(":]")
            if not end or name.removeprefix("^") not in _POSIX:
                raise _UnknownSyntaxError
            self._at += len(name) + len("[::]")
            return _those(_POSIX[name.removeprefix("^")], is_negated=name.startswith("^"))
        low = self._set_character()
        is_range = self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at)
        if not isinstance(low, str) or not is_range:
            return self._cased(low) if isinstance(low, str) else low
        self._at += 1
        high = self._set_character()
        if not isinstance(high, str):
            raise _UnknownSyntaxError
        among = frozenset(char for char in _ALPHABET if low <= char <= high)
        return among.union(*map(self._cased, among)) if low.isascii() and high.isascii() else self._wide(among)

    def _set_character(self) -> str | _Chars:
        if self._at >= len(self._text):
            raise _UnknownSyntaxError
        if self._text[self._at] == "\\":
            return self._escaped()
        self._at += 1
        return self._text[self._at - 1]

    def _cased(self, char: str) -> _Chars:
        """A character of the alphabet, in both cases if case does not matter."""
        if not char.isascii():
            return self._wide(frozenset())
        return _ALPHABET & ({char, char.swapcase()} if self._is_caseless else {char})

    def _wide(self, chars: _Chars) -> _Chars:
        """Characters beyond ASCII: without case some of them are letters of ours, too."""
        if self._is_caseless:
            raise _UnknownSyntaxError
        return chars

    def _take(self, text: str) -> bool:
        is_next = self._text.startswith(text, self._at)
        self._at += len(text) if is_next else 0
        return is_next


def _character(number: int) -> str:
    try:
        return chr(number)
    except (ValueError, OverflowError) as error:
        raise _UnknownSyntaxError from error


def _those(holds: Callable[[str], bool], *, is_negated: bool) -> _Chars:
    return frozenset(char for char in _ALPHABET if holds(char) != is_negated)


@lru_cache(maxsize=1024)
def _step(chars: _Chars) -> _Relation:
    """Where one of these characters leads."""
    has_name, has_first, has_colon = not chars.isdisjoint(_NAME), not chars.isdisjoint(_FIRST), ":" in chars
    return (
        has_name << _IN_TENANT,
        has_name << _IN_TENANT | has_colon << _TOPIC,
        has_first << _IN_TOPIC,
        has_name << _IN_TOPIC | has_colon << _TYPE,
        has_name << _IN_TYPE,
        has_name << _IN_TYPE,
        0,
    )


def _then(first: _Relation, second: _Relation) -> _Relation:
    if first is _SAME:
        return second
    found = []
    for reached in first:
        row = 0
        for state in _STATES if reached else ():
            if reached >> state & 1:
                row |= second[state]
        found.append(row)
    return tuple(found)


def _either(first: _Relation, second: _Relation) -> _Relation:
    return tuple(one | other for one, other in zip(first, second, strict=True))


def _repeat(relation: _Relation, least: int, most: int | None) -> _Relation:
    """So many times; without a bound as often as there are states, since by then every one is reached that can be."""
    more = len(_STATES) if most is None else most - least
    return _then(_power(relation, least), _power(_either(relation, _SAME), more))


def _power(relation: _Relation, exponent: int) -> _Relation:
    power = _SAME
    while exponent > 0:
        if exponent & 1:
            power = _then(power, relation)
        relation, exponent = _then(relation, relation), exponent >> 1
    return power
