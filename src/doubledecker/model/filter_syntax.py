"""How event filters are written: their parsing, with what is allowed, and their compiling. Pure."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from doubledecker.errors import BadRequest
from doubledecker.model.event_filter import Anchor, EventFilter, Fields, Leaf, Test, Value, literal, shown

# EventBridge allows 2048 characters.
BYTES_MAX = 4_096
DEPTH_MAX = 16
# Literals and operators of a filter, in lists of operators too.
VALUES_MAX = 200
BRANCHES_MAX = 20
# Stars of one wildcard; each is a search through the text.
STARS_MAX = 10
FIELDS = ("tenant", "type", "key", "topic", "data")
_OR = "$or"

FilterWanted = Annotated[
    dict[str, Any],
    Meta(
        description="Which events, by `tenant`, `type`, `key`, `topic` and `data`: each field has a list of literals "
        "and operators as in EventBridge's patterns, or an object of further fields; null is no filter",
    ),
]


# Literals by which a filter is looked up, that count a step after as many free ones: an index is made of them.
_A_STEP = 5


def parse(asked: Mapping[str, object]) -> EventFilter:
    """A checked filter; raises BadRequest with what was seen and what is allowed."""
    text = msgspec.json.encode(asked)
    if len(text) > BYTES_MAX:
        raise BadRequest(f"filter is {len(text)} bytes of JSON; at most {BYTES_MAX} are allowed")
    return _compiled(text.decode(), asked)


def stored(text: str) -> EventFilter | None:
    """Read a filter from what is kept; empty for none."""
    return _compiled(text, msgspec.json.decode(text)) if text else None


def _compiled(text: str, asked: Mapping[str, object]) -> EventFilter:
    return _of(text, _Parser().fields(asked, "filter", depth=1, is_top=True))


def within(
    limits: Sequence[tuple[str, Leaf]], event_filter: EventFilter | None, *, former: EventFilter | None
) -> EventFilter:
    """A filter that fits what another one does, or everything, and what these fields fit too; the former if it does."""
    text = f"{[(name, leaf.asked) for name, leaf in limits]} {event_filter.text if event_filter else ''}"
    if former is not None and former.text == text:
        return former
    root = Fields(()) if event_filter is None else event_filter.root
    return _of(text, Fields((*limits, *root.parts), root.choices))


def _of(text: str, root: Fields) -> EventFilter:
    leaves = list(_leaves(root))
    exact = [Anchor(path, leaf.literals) for path, leaf in _required(root, ()) if leaf.is_exact]
    anchor = min(exact, key=_worth, default=None)
    steps = sum(leaf.steps for leaf in leaves) - (0 if anchor is None else 1 - (len(anchor.literals) - 1) // _A_STEP)
    return EventFilter(text, root, anchor, steps, anchor is not None and len(leaves) == 1)


# Which field distinguishes events best, for all that is known.
_RANKS = {"key": 0, "tenant": 1, "data": 2, "type": 3, "topic": 4}


def _worth(anchor: Anchor) -> tuple[int, int]:
    return _RANKS[anchor.path[0]], len(anchor.literals)


def _leaves(node: Fields) -> Iterator[Leaf]:
    for _, part in node.parts:
        if isinstance(part, Leaf):
            yield part
        else:
            yield from _leaves(part)
    for branches in node.choices:
        for branch in branches:
            yield from _leaves(branch)


def _required(node: Fields, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    """The leaves that have to hold whatever else does."""
    for name, part in node.parts:
        if isinstance(part, Leaf):
            yield (*path, name), part
        else:
            yield from _required(part, (*path, name))


class _Parser:
    """Checks and compiles one filter, and counts what is in it."""

    def __init__(self) -> None:
        self._values = 0
        self._branches = 0

    def fields(self, asked: object, path: str, *, depth: int, is_top: bool = False) -> Fields:
        if depth > DEPTH_MAX:
            raise BadRequest(f"{path} nests deeper than {DEPTH_MAX} levels")
        if not isinstance(asked, Mapping):
            raise BadRequest(f"{path} is {shown(asked)}; it must be an object of fields")
        if not asked:
            raise BadRequest(f"{path} is empty; name a field that has to fit, or set the filter to null for all events")
        parts = []
        for name, wanted in asked.items():
            if name == _OR:
                continue
            if is_top and name not in FIELDS:
                raise BadRequest(f"{path} has the field {shown(name)}; it may have {', '.join(FIELDS)} and {_OR}")
            parts.append((name, self._part(name, wanted, path, depth=depth, is_top=is_top)))
        choices = (self._choice(asked[_OR], path, depth=depth, is_top=is_top),) if _OR in asked else ()
        return Fields(tuple(parts), choices)

    def _part(self, name: str, wanted: object, path: str, *, depth: int, is_top: bool) -> Leaf | Fields:
        at = f"{path}.{name}"
        if isinstance(wanted, list):
            return self._leaf(wanted, at)
        if isinstance(wanted, Mapping) and not (is_top and name != "data"):
            return self.fields(wanted, at, depth=depth + 1)
        what = "a list of literals and operators"
        more = "" if is_top and name != "data" else ", or an object of further fields"
        raise BadRequest(f"{at} is {shown(wanted)}; it must be {what}{more}")

    def _choice(self, asked: object, path: str, *, depth: int, is_top: bool) -> tuple[Fields, ...]:
        at = f"{path}.{_OR}"
        if not isinstance(asked, list) or not asked:
            raise BadRequest(f"{at} is {shown(asked)}; it must be a list of objects, of which one has to fit")
        self._branches += len(asked)
        if self._branches > BRANCHES_MAX:
            raise BadRequest(f"filter has more than {BRANCHES_MAX} branches of {_OR}; write some as lists of values")
        return tuple(self.fields(each, f"{at}[{i}]", depth=depth + 1, is_top=is_top) for i, each in enumerate(asked))

    def _leaf(self, asked: Sequence[object], path: str) -> Leaf:
        if not asked:
            raise BadRequest(f"{path} is an empty list, which nothing fits; give it literals or operators")
        literals, tests, presence, steps = set[object](), [], set[bool](), 0
        for i, each in enumerate(asked):
            at = f"{path}[{i}]"
            if isinstance(each, list):
                raise BadRequest(f"{at} is a list; it must be a literal or an operator")
            if not isinstance(each, Mapping):
                self._count(1)
                literals.add(literal(each))
                continue
            name, operand = _operator(each, at)
            if name == "exists":
                self._count(1)
                presence.add(_boolean(operand, at))
                steps += 1
            else:
                test, cost = _OPERATORS[name](self, operand, f"{at}.{name}")
                tests.append(test)
                steps += cost
        steps += 1 if literals else 0
        return Leaf(asked, frozenset(literals), tuple(tests), steps, False in presence, True in presence)

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > VALUES_MAX:
            raise BadRequest(f"filter has more than {VALUES_MAX} literals and operators; let it be simpler")

    def _text(self, operand: object, path: str) -> str:
        self._count(1)
        if not isinstance(operand, str):
            raise BadRequest(f"{path} is {shown(operand)}; it must be a string")
        return operand

    def prefix(self, operand: object, path: str) -> tuple[Test, int]:
        if isinstance(operand, Mapping):
            size, folded = self._folded(operand, path)
            return lambda value: isinstance(value, str) and value[:size].casefold() == folded, 1
        start = self._text(operand, path)
        return lambda value: isinstance(value, str) and value.startswith(start), 1

    def suffix(self, operand: object, path: str) -> tuple[Test, int]:
        if isinstance(operand, Mapping):
            size, folded = self._folded(operand, path)
            return lambda value: isinstance(value, str) and value[max(0, len(value) - size) :].casefold() == folded, 1
        end = self._text(operand, path)
        return lambda value: isinstance(value, str) and value.endswith(end), 1

    def same_letters(self, operand: object, path: str) -> tuple[Test, int]:
        text = self._text(operand, path).casefold()
        # Folding never makes a text shorter, so that a long one need not be folded.
        return lambda value: isinstance(value, str) and len(value) <= len(text) and value.casefold() == text, 1

    def wildcard(self, operand: object, path: str) -> tuple[Test, int]:
        text = self._text(operand, path)
        pieces = _pieces(text, path)
        if len(pieces) > STARS_MAX + 1:
            raise BadRequest(f"{path} is {shown(text)}; at most {STARS_MAX} stars are allowed")
        return lambda value: isinstance(value, str) and _fits_pieces(value, pieces), len(pieces)

    def numeric(self, operand: object, path: str) -> tuple[Test, int]:
        self._count(1)
        bounds = _bounds(operand, path)
        (compare, number), (compare_too, other) = (*bounds, *bounds)[:2]

        def test(value: Value) -> bool:
            # A boolean is an int, but its type is not.
            if type(value) is not int and type(value) is not float:
                return False
            return compare(value, number) and compare_too(value, other)

        return test, 1

    def anything_but(self, operand: object, path: str) -> tuple[Test, int]:
        if isinstance(operand, Mapping):
            name, inner = _operator(operand, path, allowed=_NEGATED)
            wanted = inner if isinstance(inner, list) and inner else [inner]
            found = [_OPERATORS[name](self, each, f"{path}.{name}") for each in wanted]
            tests = [test for test, _ in found]
            return lambda value: not any(test(value) for test in tests), sum(cost for _, cost in found)
        wanted = operand if isinstance(operand, list) and operand else [operand]
        for each in wanted:
            if isinstance(each, list | Mapping):
                raise BadRequest(f"{path} is {shown(operand)}; it must be a literal, a list of literals or an operator")
        self._count(len(wanted))
        literals = frozenset(map(literal, wanted))
        return lambda value: literal(value) not in literals, 1

    def _folded(self, operand: Mapping[str, object], path: str) -> tuple[int, str]:
        """How long a text is, and the text in one case."""
        name, inner = _operator(operand, path, allowed=("equals-ignore-case",))
        text = self._text(inner, f"{path}.{name}")
        return len(text), text.casefold()


_OPERATORS: dict[str, Callable[[_Parser, object, str], tuple[Test, int]]] = {
    "prefix": _Parser.prefix,
    "suffix": _Parser.suffix,
    "equals-ignore-case": _Parser.same_letters,
    "anything-but": _Parser.anything_but,
    "numeric": _Parser.numeric,
    "wildcard": _Parser.wildcard,
}
_ALLOWED = (*_OPERATORS, "exists")
_NEGATED = ("prefix", "suffix", "equals-ignore-case", "wildcard")
_COMPARED: dict[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def _operator(asked: Mapping[str, object], path: str, allowed: Sequence[str] = _ALLOWED) -> tuple[str, object]:
    if len(asked) != 1 or next(iter(asked)) not in allowed:
        raise BadRequest(f"{path} is {shown(asked)}; it must be an object with one operator of {', '.join(allowed)}")
    return next(iter(asked.items()))


def _boolean(operand: object, path: str) -> bool:
    if not isinstance(operand, bool):
        raise BadRequest(f"{path}.exists is {shown(operand)}; it must be true or false")
    return operand


def _bounds(operand: object, path: str) -> list[tuple[Callable[[float, float], bool], float]]:
    """Comparisons with numbers: one of them, or a lower and an upper bound."""
    form = 'one of =, >, >=, <, <= and a number, or a lower and an upper bound, as in [">", 0, "<=", 5]'
    wrong = BadRequest(f"{path} is {shown(operand)}; it must be {form}")
    if not isinstance(operand, list) or len(operand) not in {2, 4}:
        raise wrong
    signs, numbers = operand[::2], operand[1::2]
    if not all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers):
        raise wrong
    if not all(isinstance(sign, str) and sign in _COMPARED for sign in signs):
        raise wrong
    if len(signs) > 1:
        if signs[0] not in {">", ">="} or signs[1] not in {"<", "<="}:
            raise wrong
        is_one = numbers[0] == numbers[1] and signs == [">=", "<="]
        if numbers[0] >= numbers[1] and not is_one:
            raise BadRequest(f"{path} is {shown(operand)}, which no number is; the first must be less than the second")
    return [(_COMPARED[sign], number) for sign, number in zip(signs, numbers, strict=True)]


def _pieces(text: str, path: str) -> list[str]:
    """The text between the stars of a wildcard; a backslash makes a star or a backslash a plain character."""
    pieces, at = [""], 0
    while at < len(text):
        letter = text[at]
        if letter == "\\":
            at += 1
            letter = text[at : at + 1]
            if letter not in {"*", "\\"}:
                raise BadRequest(f"{path} is {shown(text)}; a backslash must be followed by a star or a backslash")
            pieces[-1] += letter
        elif letter == "*":
            pieces.append("")
        else:
            pieces[-1] += letter
        at += 1
    return pieces


def _fits_pieces(text: str, pieces: Sequence[str]) -> bool:
    """Whether a text has these pieces in order, the first at its start and the last at its end.

    The first place of each piece is the best one for those that follow, so that it never goes back.
    """
    first, *middle = pieces
    if not middle:
        return text == first
    last = middle.pop()
    if not text.startswith(first):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return at <= end and text.endswith(last)
