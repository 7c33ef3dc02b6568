"""Conditions as people write them: parsed whole, or refused with what is allowed."""

import pytest

from doubledecker.errors import BadRequest
from doubledecker.model import condition


def sql(text: str) -> str:
    from doubledecker.lake.engine import DIALECT

    return condition.to_sql(condition.parse_where(text), DIALECT)


def test_a_condition_is_written_in_the_sql_of_an_engine():
    assert sql("type = 'create' AND bytes > 1000") == '(r."type" = \'create\') and (r."bytes" > 1000)'
    assert sql("not (key is null or tenant != 'it''s')") == "not ((r.\"key\" is null) or (r.\"tenant\" <> 'it''s'))"
    assert sql("id not in ('a', 'b')") == "not (r.\"id\" in ('a', 'b'))"
    assert sql("at >= '2026-11-15T11:00:00Z'") == 'r."at" >= make_timestamptz(1794740400000000)'
    assert sql("data.order.state = 'paid'") == 'json_extract_string(r."data", \'$."order"."state"\') = \'paid\''


def test_and_binds_closer_than_or():
    assert sql("line = 1 or line = 2 and line = 3") == sql("line = 1 or (line = 2 and line = 3)")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nonsense(", "names 'nonsense'; columns are partition"),
        ("key = (", "'\\(' at character 7 where a value"),
        ("key = 'a' key", "'key' at character 11 where AND, OR or the end"),
        ("key =", "nothing more where a value"),
        ("", "nothing more where a column"),
        ("1 = 1", "'1' at character 1 where a column"),
        ('key = "a"', "at character 6"),
        ("key = 'a'; drop table events", "';"),
        ("key in (select id from events)", "'select' at character 9 where a value"),
        ("bytes = 'many'", "bytes is a number"),
        ("key = 5", "key is text"),
        ("at > 5", "at is a moment"),
        ("at > 'yesterday'", "at is 'yesterday'; write it like 2026"),
        ("tenant.name = 'x'", "names 'tenant.name'"),
        ("bytes like '1%'", "where a text column and a 'pattern'"),
        ("key like 'a\\b'", "a backslash stands before"),
        ("data.x in (1, 'a')", "one kind at a time"),
        ("key not = 'a'", "where IN, BETWEEN or LIKE"),
        (f"bytes = {'9' * 40}", "a number of 40 characters"),
        ("(" * 40 + "line = 1" + ")" * 40, "nests deeper than 32"),
        ("not " * 40 + "line = 1", "nests deeper than 32"),
        ("key = 'a' or " * 1_000 + "key = 'a'", "it may have 4000"),
    ],
)
def test_what_is_no_condition_is_refused_with_what_is_allowed(text: str, told: str):
    with pytest.raises(BadRequest, match=told):
        condition.parse_where(text)


def test_conditions_know_the_columns_of_the_table():
    from doubledecker.lake import arrow, rows

    kinds = {"string": "text", "int32": "a number", "int64": "a number", "timestamp[us, tz=UTC]": "a moment"}

    assert {column.name: kinds[str(column.type)] for column in arrow.schema(rows.layout("events"))} == condition.COLUMNS
