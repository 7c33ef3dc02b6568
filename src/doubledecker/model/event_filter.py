"""Event filters: which events a subscriber or a queue wants, by their fields and by what is in `data`. Pure.

The vocabulary is that of EventBridge's patterns. A filter is an object like the events that it fits: each field of it
holds for a field of the event, and all have to. A field has a list of literals and operators, of which one has to hold,
or an object of further fields; `$or` beside them is a list of objects, of which one has to. In an event, a list fits
when one of its elements does.

A filter is checked once a published event, so its cost is bounded: by its size, by the strings and lists that it
looks at, and because no operator ever goes back in a text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from msgspec import UNSET

from doubledecker.model.event import EventKind

# Elements of lists in one event's data that are looked at, in the order of the text.
ELEMENTS_MAX = 256

# What an event's kind decides.
_OF_KIND = frozenset({"tenant", "type", "topic"})
_SHOWN_MAX = 120

# A value in an event: what its JSON says, or UNSET where the field is absent.
Value = object
Test = Callable[[Value], bool]
# True and 1 are equal in Python, and not in JSON.
_BOOLEANS = {True: ("true",), False: ("false",)}
_NOTHING: dict[str, object] = {}


@dataclass(frozen=True, eq=False, slots=True)
class Leaf:
    """The list of a field: literals, and operators as tests on one value."""

    asked: Sequence[object]
    literals: frozenset[object]
    tests: tuple[Test, ...]
    steps: int
    fits_absent: bool = False
    fits_present: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether it has nothing but literals."""
        return not (self.tests or self.fits_absent or self.fits_present)

    def fits(self, value: Value) -> bool:
        if value is UNSET:
            return self.fits_absent
        return self.fits_present or self._fits_some(value)

    def _fits_some(self, value: Value) -> bool:
        if isinstance(value, list):
            return any(map(self._fits_some, value))
        if isinstance(value, dict):
            return False
        if self.literals and literal(value) in self.literals:
            return True
        # A loop, as a generator would take as long as the tests.
        for test in self.tests:  # noqa: SIM110
            if test(value):
                return True
        return False


@dataclass(frozen=True, eq=False, slots=True)
class Fields:
    """The object of a field: further fields, all of which have to hold, and lists of branches, one of each."""

    parts: "tuple[tuple[str, Leaf | Fields], ...]"
    choices: "tuple[tuple[Fields, ...], ...]" = ()

    def fits(self, value: Value) -> bool:
        if isinstance(value, list) and value:
            return any(map(self.fits, value))
        # What is no object has no fields.
        return self.fits_fields(value if isinstance(value, dict) else _NOTHING)

    def fits_fields(self, fields: "Mapping[str, Value] | EventFacts") -> bool:
        for name, part in self.parts:
            if not part.fits(fields.get(name, UNSET)):
                return False
        if not self.choices:
            return True
        return all(any(branch.fits_fields(fields) for branch in branches) for branches in self.choices)


@dataclass(frozen=True, slots=True)
class Anchor:
    """A field that has to have one of some values, by which a filter is looked up: its path from the top."""

    path: tuple[str, ...]
    literals: frozenset[object]


@dataclass(frozen=True, eq=False, slots=True)
class EventFilter:
    """A filter, compiled. `steps` is what it costs to check, besides the look-up of its anchor."""

    text: str
    root: Fields
    anchor: Anchor | None
    steps: int
    # Whether an event whose anchor fits does.
    is_anchor_alone: bool

    def fits(self, facts: "EventFacts") -> bool:
        """Whether an event fits."""
        return self.root.fits_fields(facts)

    def fits_kind(self, kind: EventKind) -> bool | None:
        """Whether all events of a kind fit, or none; None when their keys or data decide."""
        return _settled(self.root, EventFacts(kind, "", b"{}"))

    @property
    def asked(self) -> dict[str, Any]:
        """As it was asked for."""
        return cast("dict[str, Any]", msgspec.json.decode(self.text))


class EventFacts:
    """What a filter may look at of one event; `data` is decoded when the first filter asks, once."""

    __slots__ = ("_data", "_is_decoded", "_key", "_kind", "_message")

    def __init__(self, kind: EventKind, key: str, message: bytes) -> None:
        self._kind = kind
        self._key = key
        self._message = message
        self._is_decoded = False
        self._data: Value = UNSET

    def get(self, name: str, default: Value = UNSET) -> Value:
        """The value of a field."""
        if name == "data":
            return self.data
        if name == "key":
            return self._key or default
        return cast("str", getattr(self._kind, name))

    @property
    def data(self) -> Value:
        if not self._is_decoded:
            self._is_decoded = True
            self._data = _decoded(self._message)
        return self._data

    def values(self, path: Sequence[str]) -> list[object]:
        """The literals that are found at a path, in all elements of lists on the way."""
        found: list[object] = []
        _collect(self.get(path[0]), path[1:], found)
        return found


class _HasData(msgspec.Struct, gc=False):
    data: Any = UNSET


_MESSAGE = msgspec.json.Decoder(_HasData)


def _decoded(message: bytes) -> Value:
    try:
        data: Value = _MESSAGE.decode(message).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # It was checked when it was accepted; what nobody can read fits as if it were absent.
        return UNSET
    # A list has as many elements as brackets and commas at most.
    if message.count(b",") + message.count(b"[") > ELEMENTS_MAX:
        return _cut(data, [ELEMENTS_MAX])
    return data


def _cut(value: Value, left: list[int]) -> Value:
    """The same with its first elements alone, where lists have more than are looked at."""
    if isinstance(value, dict):
        return {name: _cut(each, left) for name, each in value.items()}
    if not isinstance(value, list):
        return value
    kept = []
    for each in value:
        if left[0] == 0:
            break
        left[0] -= 1
        kept.append(_cut(each, left))
    return kept


def _collect(value: Value, path: Sequence[str], found: list[object]) -> None:
    if isinstance(value, list):
        for each in value:
            _collect(each, path, found)
    elif isinstance(value, dict):
        if path:
            _collect(value.get(path[0], UNSET), path[1:], found)
    elif not path and value is not UNSET:
        found.append(literal(value))


def literal(value: Value) -> object:
    """A value as literals are compared: numbers by what they are worth, and no number is a boolean."""
    return _BOOLEANS[value] if isinstance(value, bool) else value


def _settled(node: Fields, facts: EventFacts) -> bool | None:
    """Whether a filter's node holds, by the kind of an event alone; None when that does not decide."""
    is_open = False
    for name, part in node.parts:
        if name not in _OF_KIND:
            is_open = True
        elif not part.fits(facts.get(name)):
            return False
    for branches in node.choices:
        found = {_settled(branch, facts) for branch in branches}
        if found == {False}:
            return False
        is_open = is_open or True not in found
    return None if is_open else True


def shown(value: object) -> str:
    """A value as JSON, short enough for a message."""
    text = "absent" if value is UNSET else msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 1]}…"


# Why an event does not fit.


def why_not(event_filter: EventFilter, facts: EventFacts) -> str:
    """The first thing of a filter that an event does not fit, with what is seen and wanted; empty if it fits."""
    return _why_fields(event_filter.root, facts, "")


def _why_fields(node: Fields, fields: "Mapping[str, Value] | EventFacts", path: str) -> str:
    for name, part in node.parts:
        why = _why(part, fields.get(name, UNSET), f"{path}{name}")
        if why:
            return why
    for branches in node.choices:
        whys = [_why_fields(branch, fields, path) for branch in branches]
        if all(whys):
            return f"none of the {len(whys)} branches of {path}$or fits: {'; or '.join(whys)}"
    return ""


def _why(part: "Leaf | Fields", value: Value, path: str) -> str:
    if part.fits(value):
        return ""
    if isinstance(part, Leaf):
        return f"{path} is {shown(value)}, wanted is {shown(part.asked)}"
    if isinstance(value, list) and value:
        return f"no element of {path} fits; the first: {_why(part, value[0], f'{path}[0]')}"
    return _why_fields(part, value if isinstance(value, dict) else _NOTHING, f"{path}.")
