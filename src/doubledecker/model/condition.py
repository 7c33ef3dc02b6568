"""Conditions on events: as values, as the language of `--where`, in the SQL of an engine, and what a search asks."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from doubledecker.errors import BadRequest
from doubledecker.model import event, moment

# Conditions on events as values, and how they are written in the SQL of an engine.
#
# model/condition.py parses what people write. A condition has one meaning; a `Dialect` says how an engine writes what
# differs.

TEXT, NUMBER, MOMENT, JSON = "text", "a number", "a moment", "JSON"
# The columns of `events` and what they hold.
COLUMNS = {
    "partition": NUMBER,
    "entry": TEXT,
    "line": NUMBER,
    "at": MOMENT,
    "publisher": TEXT,
    "topic": TEXT,
    "type": TEXT,
    "id": TEXT,
    "tenant": TEXT,
    "key": TEXT,
    "timestamp": NUMBER,
    "url": TEXT,
    "data": TEXT,
    "traceparent": TEXT,
    "bytes": NUMBER,
    "replay": TEXT,
    "replay_of": TEXT,
    "cloudevent": TEXT,
}

Value = str | datetime


@dataclass(frozen=True)
class Column:
    """A column, or a value inside the JSON of `data`."""

    name: str
    kind: str
    path: tuple[str, ...] = ()


@dataclass(frozen=True)
class Literal:
    """A value; a number is kept as it was written."""

    value: Value
    kind: str


@dataclass(frozen=True)
class Comparison:
    """A column, what it is compared by, and with which values."""

    column: Column
    operator: str
    values: tuple[Literal, ...] = ()


@dataclass(frozen=True)
class Junction:
    """Conditions joined by `and` or `or`."""

    word: str
    parts: tuple["Condition", ...]


@dataclass(frozen=True)
class Negation:
    """What must not hold."""

    part: "Condition"


Condition = Comparison | Junction | Negation


@dataclass(frozen=True)
class Dialect:
    """How an engine writes what differs between engines."""

    name: Callable[[str], str]
    text: Callable[[str], str]
    moment: Callable[[datetime], str]
    json: Callable[[str, Sequence[str]], str]
    """The value at a path in a column's JSON, as text."""
    number: Callable[[str], str]
    """A text as a number; null when it is none."""
    contains: Callable[[str, str], str]
    """Whether a list has an element."""


def equal(column: str, value: str) -> Comparison:
    """A text column has this value."""
    return Comparison(Column(column, TEXT), "=", (Literal(value, TEXT),))


def one_of(column: str, values: Sequence[str]) -> Comparison:
    """A text column has one of these values."""
    return Comparison(Column(column, TEXT), "in", tuple(Literal(value, TEXT) for value in values))


def numbered(column: str, value: int) -> Comparison:
    """A column of numbers has this value."""
    return Comparison(Column(column, NUMBER), "=", (Literal(str(value), NUMBER),))


def compared(column: str, operator: str, at: datetime) -> Comparison:
    """A moment is before or after another."""
    return Comparison(Column(column, MOMENT), operator, (Literal(at, MOMENT),))


def contains(column: str, value: str) -> Comparison:
    """A list of texts has this one; conditions as people write them have no lists."""
    return Comparison(Column(column, TEXT), "contains", (Literal(value, TEXT),))


def to_sql(condition: Condition, dialect: Dialect) -> str:
    """The condition in an engine's SQL; its values are part of the text, quoted."""
    if isinstance(condition, Junction):
        return f" {condition.word} ".join(f"({to_sql(part, dialect)})" for part in condition.parts)
    if isinstance(condition, Negation):
        return f"not ({to_sql(condition.part, dialect)})"
    return _comparison_sql(condition, dialect)


def _comparison_sql(comparison: Comparison, dialect: Dialect) -> str:
    left = _column_sql(comparison, dialect)
    values = [_literal_sql(value, dialect) for value in comparison.values]
    if comparison.operator == "contains":
        return dialect.contains(left, values[0])
    if comparison.operator == "in":
        return f"{left} in ({', '.join(values)})"
    if comparison.operator == "between":
        return f"{left} between {values[0]} and {values[1]}"
    if comparison.operator == "like":
        return f"{left} like {values[0]} escape {dialect.text(chr(92))}"
    return " ".join([left, comparison.operator, *values])


def _column_sql(comparison: Comparison, dialect: Dialect) -> str:
    column = comparison.column
    name = dialect.name(column.name)
    if not column.path:
        return name
    value = dialect.json(name, column.path)
    return dialect.number(value) if any(each.kind == NUMBER for each in comparison.values) else value


def _literal_sql(literal: Literal, dialect: Dialect) -> str:
    if isinstance(literal.value, datetime):
        return dialect.moment(literal.value)
    return literal.value if literal.kind == NUMBER else dialect.text(literal.value)


# Parsing conditions on events: a small part of SQL with one meaning, whichever engine evaluates it.
#
#     condition   comparisons joined by AND, OR, NOT and parentheses
#     comparison  column = value | <> != < <= > >= | [NOT] IN (value, …) | [NOT] BETWEEN value AND value
#                 | [NOT] LIKE 'pattern' | IS [NOT] NULL
#     column      a column of the table `events`, or `data.name.name` for a value in the event's JSON
#     value       'text' (a quote is written twice), a number, or for `at` a moment like '2026-11-15T11:00:00Z'
#
# All is checked here, before any engine starts.

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


def parse_where(text: str) -> Condition:
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


@dataclass(frozen=True)
class SearchRequest:
    """Events accepted from `since` until before `until` that fit; None and empty mean any. The oldest `limit`."""

    since: datetime | None = None
    until: datetime | None = None
    topic: str = ""
    tenant: str = ""
    where: Condition | None = None
    limit: int = 100


def parse(
    *, start: str = "", end: str = "", topic: str = "", tenant: str = "", where: str = "", limit: int
) -> SearchRequest:
    """A checked search, from words as people write them; raises BadRequest with what is allowed."""
    since = moment.parse(start, field="from") if start else None
    until = moment.parse(end, field="to") if end else None
    if since is not None and until is not None and since >= until:
        raise BadRequest(f"from is {start!r} and not before to, {end!r}")
    if topic:
        event.check_topic(topic)
    if tenant:
        event.check_tenant(tenant)
    return SearchRequest(since, until, topic, tenant, parse_where(where) if where else None, limit)
