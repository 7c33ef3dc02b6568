"""What types of bodies say of their fields, and the check of that."""

import re
from typing import Annotated

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from doubledecker.errors import BadRequest
from doubledecker.model import schema
from doubledecker.model.schema import between, matching, one_of


class Asked(msgspec.Struct):
    count: Annotated[int, between(1, 3)] = 1
    weight: Annotated[float, between(0.5, 2.0)] | UnsetType | None = UNSET
    tier: Annotated[str, one_of(["live", "bulk"])] | None = None
    tenant: Annotated[str | int | None, matching(re.compile("[a-z]+")), between(0, 9)] = None


@pytest.mark.parametrize(
    "asked",
    [Asked(), Asked(3, 2.0, "bulk"), Asked(1, None, None, "a"), Asked(weight=0.5)],
    ids=["absent", "largest", "null", "smallest"],
)
def test_what_is_within_bounds_or_null_or_absent_passes(asked: Asked):
    schema.check(asked)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Asked(0), "count is 0; it must be from 1 to 3"),
        (Asked(4), "count is 4; it must be from 1 to 3"),
        (Asked(weight=2.5), "weight is 2.5; it must be from 0.5 to 2.0"),
        (Asked(weight=float("nan")), "weight is nan; it must be from 0.5 to 2.0"),
        (Asked(tier="slow"), "tier is 'slow'; it must be live or bulk"),
        (Asked(tier="x" * 100), f"tier is '{'x' * 80}'; it must be live or bulk"),
    ],
)
def test_what_is_not_is_refused_with_what_was_seen_and_what_is_allowed(asked: Asked, why: str):
    with pytest.raises(BadRequest) as refused:
        schema.check(asked)

    assert refused.value.detail == why


def test_each_of_several_is_checked():
    schema.check_each([])
    with pytest.raises(BadRequest):
        schema.check_each([Asked(1), Asked(9)])


def test_nothing_is_checked_while_decoding_so_that_errors_are_ours():
    assert msgspec.json.decode(b'{"count":9,"tier":"slow"}', type=Asked) == Asked(9, tier="slow")


class Part(msgspec.Struct, forbid_unknown_fields=True):
    base_ms: int = 0


class Whole(msgspec.Struct, forbid_unknown_fields=True):
    topics: list[str]
    retry: Part | list[int] | None = None
    renamed: bool = msgspec.field(default=False, name="is_live")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "the body is empty; it must be a whole, as JSON"),
        (b" \n", "the body is empty; it must be a whole, as JSON"),
        (b"nonsense", "not a whole: JSON is malformed: invalid character (byte 4)"),
        (b"[]", "this is an array; a whole must be an object"),
        (b"{}", "a whole needs the field 'topics'"),
        (b'{"topic": "a"}', "a whole has no field 'topic'; its fields are topics, retry, is_live"),
        (b'{"topics": "a"}', "topics is a string; it must be an array"),
        (b'{"topics": ["a", 1]}', "topics[1] is a whole number; it must be a string"),
        (b'{"topics": [], "retry": {"cap": 1}}', "retry has no field 'cap'; its fields are base_ms"),
        (b'{"topics": [], "retry": [0.5]}', "retry[0] is a number; it must be a whole number"),
        (b'{"topics": [], "retry": true}', "retry is true or false; it must be an object or an array or null"),
    ],
)
def test_json_of_another_shape_is_refused_with_what_was_seen_and_what_is_allowed(body: bytes, why: str):
    with pytest.raises(BadRequest) as refused:
        schema.decode(msgspec.json.Decoder(Whole), body, what="a whole")

    assert refused.value.detail == why


def test_an_example_of_the_shape_is_shown_where_nothing_came():
    with pytest.raises(BadRequest) as empty:
        schema.decode(msgspec.json.Decoder(Whole), b"", what='a whole, like {"topics": []}')
    with pytest.raises(BadRequest) as missing:
        schema.decode(msgspec.json.Decoder(Whole), b"{}", what='a whole, like {"topics": []}')

    assert empty.value.detail == 'the body is empty; it must be a whole, like {"topics": []}, as JSON'
    assert missing.value.detail == "a whole needs the field 'topics'"
