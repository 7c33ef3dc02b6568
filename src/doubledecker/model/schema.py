"""What the types of bodies and answers declare beside their shape, for the API's document: patterns, bounds, choices.

msgspec could check them while it decodes, but its errors do not name what was seen. So they are noted with the type
only: bounds and choices are checked by `check`, and what has an error of its own by the code beside the type.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, inspect

from doubledecker.errors import BadRequest

# JSON that a client sent: decoded here alone, so that whatever is wrong with it is a BadRequest everywhere.

_T = TypeVar("_T")

# What is wrong may be quoted in the error, such as a key of megabytes.
_SAID_LENGTH_MAX = 300
# What msgspec says of a text that ends too soon, and of one with half a surrogate pair.
_ENDS = re.compile("truncated|end of hex escape")
_PAIR_BYTES = len(rb"\ud83d\ude00")
# The first of two escapes that are one character, without the second.
_HALF_PAIR = re.compile(rb"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})(?!\\u)")


def decode(decoder: "msgspec.json.Decoder[_T]", body: bytes | Raw, *, what: str) -> _T:
    """The value; raises BadRequest, with `what` it should have been, for all that is not."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(_misfit(error, decoder.type, what)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        if not bytes(body).strip():
            raise BadRequest(f"the body is empty; it must be {what}, as JSON") from error
        if _ENDS.search(str(error)) and (half := _HALF_PAIR.search(bytes(body))):
            raise BadRequest(
                f"not {what}: a string has {half[1].decode()}, which is half of a surrogate pair; send both halves, or "
                "the character itself"
            ) from error
        raise BadRequest(f"not {what}: {error}") from error
    except UnicodeDecodeError as error:
        # Its position is counted from the start of a string; the client knows only the body.
        check_text(bytes(body))
        raise BadRequest(f"not {what}: {error}") from error


def is_truncated(error: Exception, text: bytes | memoryview) -> bool:
    """Whether a text could not be decoded because it ends too soon."""
    # A pair at its end may have been cut there.
    return bool(_ENDS.search(str(error))) and not _HALF_PAIR.search(text[: len(text) - _PAIR_BYTES])


# How msgspec's errors read: what is wrong, and where.
_MISFIT = re.compile(r"(?P<wrong>.*?)(?: - at `(?P<path>[^`]*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_EXPECTED = re.compile(r"Expected `(.*)`, got `(.*)`")
_KINDS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def _misfit(error: msgspec.ValidationError, type_: object, what: str) -> str:
    """Where JSON is not of the type, what was seen there, and what is allowed."""
    parts = _MISFIT.fullmatch(str(error))
    assert parts is not None
    steps = [step for step in (parts["path"] or "$").split(".") if step != "$"]
    where, wrong, thing = ".".join(steps).removeprefix("$"), parts["wrong"], what.partition(", like")[0]
    if unknown := _UNKNOWN.fullmatch(wrong):
        fields = ", ".join(_fields(type_, tuple(steps)))
        return f"{where or thing} has no field {unknown[1][:_SAID_LENGTH_MAX]!r}; its fields are {fields}"
    if missing := _MISSING.fullmatch(wrong):
        return f"{where or thing} needs the field {missing[1]!r}"
    if expected := _EXPECTED.fullmatch(wrong):
        allowed = " or ".join(_KINDS.get(kind, kind) for kind in expected[1].split(" | "))
        return (
            f"{where or 'this'} is {_KINDS.get(expected[2], expected[2])}; {'it' if where else thing} must be {allowed}"
        )
    return f"not {what}: {str(error)[:_SAID_LENGTH_MAX]}"


@cache
def _fields(type_: object, steps: tuple[str, ...]) -> list[str]:
    """The fields of the struct of which there is one at a path below a type, as far as they are known."""
    found = [inspect.type_info(type_)]
    for step in steps:
        name = step.partition("[")[0]
        inner = [each for one in _structs(found) for each in one.fields if each.encode_name == name]
        found = [each.type for each in inner]
    return [field.encode_name for one in _structs(found) for field in one.fields]


def _structs(types: Sequence[inspect.Type]) -> list[inspect.StructType]:
    """Those of some types that are structs, or hold them in a union or a list."""
    found: list[inspect.StructType] = []
    for each in types:
        if isinstance(each, inspect.StructType):
            found.append(each)
        elif isinstance(each, inspect.UnionType):
            found += _structs(each.types)
        elif isinstance(each, inspect.Metadata):
            found += _structs([each.type])
        elif isinstance(each, inspect.ListType | inspect.VarTupleType):
            found += _structs([each.item_type])
    return found


def check_text(body: bytes) -> None:
    """Raise BadRequest unless the bytes are UTF-8; the only look at what is passed on unread."""
    if body.isascii():
        return
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8: byte {error.start} is {body[error.start]:#04x}") from error


Count = Annotated[int, Meta(ge=0)]
DryRun = Annotated[bool, Meta(description="Only count")]
# What is noted with a union, such as the bounds of a tenant that may be a number, is not for `check`.
_SIMPLE = inspect.IntType | inspect.FloatType | inspect.StrType


class Shape(Struct, forbid_unknown_fields=True, gc=False):
    """An answer in JSON, or a part of one; it has no other fields."""


def matching(pattern: re.Pattern[str], description: str | None = None, *, length_max: int | None = None) -> Meta:
    """A string that fits the whole of a pattern."""
    length = {} if length_max is None else {"maxLength": length_max}
    return Meta(description=description, extra_json_schema={"pattern": f"^{pattern.pattern}$", **length})


def between(least: float, most: float, description: str | None = None) -> Meta:
    """A number within bounds."""
    return Meta(description=description, extra_json_schema={"minimum": least, "maximum": most})


def one_of(choices: Sequence[str], description: str | None = None) -> Meta:
    """One of a few strings."""
    return Meta(description=description, extra_json_schema={"enum": list(choices)})


def up_to(most: int, description: str | None = None) -> Meta:
    """A list of at most so many items."""
    return Meta(description=description, extra_json_schema={"maxItems": most})


def check(asked: Struct) -> None:
    """Raise BadRequest for the first field that is out of its bounds, or not among its choices."""
    check_each((asked,))


def check_each(asked: Sequence[Struct]) -> None:
    """The same for several of one type."""
    if not asked:
        return
    bounds, choices = _rules(type(asked[0]))
    for each in asked:
        for name, least, most in bounds:
            value = getattr(each, name)
            # Written so that NaN fails too.
            if value is not None and value is not UNSET and not least <= value <= most:
                raise BadRequest(f"{name} is {value}; it must be from {least} to {most}")
        for name, allowed in choices:
            value = getattr(each, name)
            if value is not None and value is not UNSET and value not in allowed:
                raise BadRequest(f"{name} is {value[:80]!r}; it must be {' or '.join(allowed)}")


@cache
def _rules(struct: type[Struct]) -> tuple[list[tuple[str, float, float]], list[tuple[str, list[str]]]]:
    """The bounds and the choices of a struct's fields."""
    found = inspect.type_info(struct)
    assert isinstance(found, inspect.StructType)
    noted = [(field.name, note) for field in found.fields for note in _notes(field.type)]
    bounds = [(name, note["minimum"], note["maximum"]) for name, note in noted if "minimum" in note]
    return bounds, [(name, note["enum"]) for name, note in noted if "enum" in note]


def _notes(type_: inspect.Type) -> Iterator[dict[str, Any]]:
    """What is noted with a type, or with each of those that a field may have."""
    if isinstance(type_, inspect.UnionType):
        for each in type_.types:
            yield from _notes(each)
    elif isinstance(type_, inspect.Metadata) and isinstance(type_.type, _SIMPLE):
        yield type_.extra_json_schema or {}
