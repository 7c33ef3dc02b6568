"""Conditions on events as values, and how they are written in the SQL of an engine.

model/where.py parses what people write. A condition has one meaning; a `Dialect` says how an engine writes what
differs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

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
