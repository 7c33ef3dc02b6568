"""Parsing conditions on events: a small part of SQL with one meaning, whichever engine evaluates it.

    condition   comparisons joined by AND, OR, NOT and parentheses
    comparison  column = value | <> != < <= > >= | [NOT] IN (value, …) | [NOT] BETWEEN value AND value
                | [NOT] LIKE 'pattern' | IS [NOT] NULL
    column      a column of the table `events`, or `data.name.name` for a value in the event's JSON
    value       'text' (a quote is written twice), a number, or for `at` a moment like '2026-11-15T11:00:00Z'

All is checked here, before any engine starts.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from doubledecker.errors import BadRequest
from doubledecker.model import moment
from doubledecker.model.condition import (
    COLUMNS,
    JSON,
    MOMENT,
    NUMBER,
    TEXT,
    Column,
    Comparison,
    Condition,
    Junction,
    Literal,
    Negation,
)

LENGTH_MAX = 4_000
# Deeper nesting is nothing that a person writes, and would only use up the stack.
_DEPTH_MAX = 32
_DIGITS_MAX = 30  # what a decimal holds in both engines
_WORDS = frozenset({"and", "or", "not", "in", "between", "like", "is", "null"})
_OPERATORS = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+(?:\.\d+)?)(?![\w.])"
    r"|(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_][\w-]*)*)|(?P<sign><=|>=|<>|!=|==|[=<>(),]))"
)
_PATTERN = re.compile(r"(?:[^\\]|\\[%_\\])*", re.DOTALL)
_HOW = (
    "write it like \"type = 'create' and bytes > 1000\": comparisons (=, <>, <, <=, >, >=, IN, BETWEEN, LIKE, IS NULL) "
    "of a column with a value, joined by AND, OR, NOT and parentheses; data.name is a value in the event's JSON"
)


def parse(text: str) -> Condition:
    """A checked condition; raises BadRequest with what was seen and what is allowed."""
    if len(text) > LENGTH_MAX:
        raise BadRequest(f"the condition has {len(text)} characters; it may have {LENGTH_MAX}")
    return _Parser(text).whole()


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int

    @property
    def word(self) -> str:
        """A keyword or sign, in small letters; a column of that name would be one too, but there is none."""
        return self.text.lower() if self.kind in {"name", "sign"} else ""


_END = "end"


class _Parser:
    """Reads a condition from left to right; a method for each kind of part."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._read())
        self._next = 0
        self._depth = 0

    def whole(self) -> Condition:
        found = self._any_of()
        if self._token.kind != _END:
            raise self._wrong("AND, OR or the end")
        return found

    def _read(self) -> "list[_Token]":
        tokens, at = [], 0
        text = self._text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if not found or not found.lastgroup:
                raise BadRequest(f"the condition has {text[at : at + 20].strip()!r} at character {at + 1}; {_HOW}")
            tokens.append(_Token(found.lastgroup, found[found.lastgroup], found.start(found.lastgroup)))
            at = found.end()
        return [*tokens, _Token(_END, "", len(text))]

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._token
        self._next += 1
        return token

    def _takes(self, *words: str) -> bool:
        """Whether these words come next; if so they are passed."""
        coming = [token.word for token in self._tokens[self._next : self._next + len(words)]]
        if coming != list(words):
            return False
        self._next += len(words)
        return True

    def _expect(self, word: str) -> None:
        if not self._takes(word):
            raise self._wrong(word.upper())

    def _wrong(self, expected: str) -> BadRequest:
        token = self._token
        seen = f"{token.text[:40]!r} at character {token.at + 1}" if token.kind != _END else "nothing more"
        return BadRequest(f"the condition has {seen} where {expected} is expected; {_HOW}")

    def _any_of(self) -> Condition:
        return self._joined("or", self._all_of)

    def _all_of(self) -> Condition:
        return self._joined("and", self._one)

    def _joined(self, word: str, part: Callable[[], Condition]) -> Condition:
        parts = [part()]
        while self._takes(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Junction(word, tuple(parts))

    def _one(self) -> Condition:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise BadRequest(f"the condition nests deeper than {_DEPTH_MAX}")
        if self._takes("not"):
            found: Condition = Negation(self._one())
        elif self._takes("("):
            found = self._any_of()
            self._expect(")")
        else:
            found = self._comparison()
        self._depth -= 1
        return found

    def _comparison(self) -> Condition:
        column = self._column()
        if self._takes("is", "not", "null"):
            return Comparison(column, "is not null")
        if self._takes("is", "null"):
            return Comparison(column, "is null")
        is_negated = self._takes("not")
        found = self._of_several(column)
        if found is None and is_negated:
            raise self._wrong("IN, BETWEEN or LIKE")
        if found is None:
            return self._of_one(column)
        return Negation(found) if is_negated else found

    def _of_several(self, column: Column) -> Comparison | None:
        if self._takes("in"):
            self._expect("(")
            values = [self._value(column)]
            while self._takes(","):
                values.append(self._value(column))
            self._expect(")")
            return Comparison(column, "in", self._alike(values))
        if self._takes("between"):
            low = self._value(column)
            self._expect("and")
            return Comparison(column, "between", self._alike([low, self._value(column)]))
        if self._takes("like"):
            return Comparison(column, "like", (self._pattern(column),))
        return None

    def _of_one(self, column: Column) -> Comparison:
        operator = _OPERATORS.get(self._token.word)
        if operator is None:
            raise self._wrong("a comparison, like = or IN,")
        self._take()
        return Comparison(column, operator, (self._value(column),))

    def _column(self) -> Column:
        token = self._token
        if token.kind != "name" or token.word in _WORDS:
            raise self._wrong("a column")
        name, *path = token.text.split(".")
        name = name.lower()
        if name not in COLUMNS or (path and name != "data"):
            raise BadRequest(
                f"the condition names {token.text[:80]!r}; columns are {', '.join(COLUMNS)}, and data.name"
            )
        self._take()
        return Column(name, JSON, tuple(path)) if path else Column(name, COLUMNS[name])

    def _value(self, column: Column) -> Literal:
        token = self._token
        if token.kind not in {"text", "number"}:
            raise self._wrong("a value, like 'text' or 12,")
        kind = TEXT if token.kind == "text" else NUMBER
        value = _unquoted(token.text) if kind == TEXT else token.text
        if column.kind == MOMENT and kind == TEXT:
            self._take()
            return Literal(moment.parse(value, field=column.name), MOMENT)
        if column.kind not in {kind, JSON}:
            raise BadRequest(
                f"the condition compares {column.name} with {token.text[:40]}; {column.name} is {column.kind}"
            )
        if kind == NUMBER and len(value) > _DIGITS_MAX:
            raise BadRequest(f"the condition has a number of {len(value)} characters; it may have {_DIGITS_MAX}")
        self._take()
        return Literal(value, kind)

    def _alike(self, values: Sequence[Literal]) -> tuple[Literal, ...]:
        if len({value.kind for value in values}) > 1:
            raise BadRequest("the condition has text and numbers in one list; compare with one kind at a time")
        return tuple(values)

    def _pattern(self, column: Column) -> Literal:
        if column.kind not in {TEXT, JSON} or self._token.kind != "text":
            raise self._wrong("a text column and a 'pattern'")
        pattern = _unquoted(self._take().text)
        if not _PATTERN.fullmatch(pattern):
            raise BadRequest(f"the pattern is {pattern[:80]!r}; a backslash stands before %, _ or another backslash")
        return Literal(pattern, TEXT)


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")
