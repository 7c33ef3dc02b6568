"""Event filters: their meaning, against a reference of a few lines, and what is refused."""

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from doubledecker.errors import BadRequest
from doubledecker.model import filter_syntax
from doubledecker.model.event import AcceptedEvent, encode
from doubledecker.model.event_filter import ELEMENTS_MAX, EventFacts, why_not
from doubledecker.model.filter_index import FilterIndex

ABSENT = object()


# The reference: what a filter means, without a thought of what it costs.


def wants(asked, event):
    """Whether an event, as an object, fits what was asked for."""
    fields = [holds(part, event.get(name, ABSENT)) for name, part in asked.items() if name != "$or"]
    return all(fields) and ("$or" not in asked or any(wants(branch, event) for branch in asked["$or"]))


def holds(part, value):
    if isinstance(part, list):
        return any(fits(item, value) for item in part)
    if isinstance(value, list) and value:
        return any(holds(part, each) for each in value)
    return wants(part, value if isinstance(value, dict) else {})


def fits(item, value):
    if isinstance(item, dict) and "exists" in item:
        return item["exists"] == (value is not ABSENT)
    if isinstance(value, list):
        return any(fits(item, each) for each in value)
    return value is not ABSENT and not isinstance(value, dict) and fits_one(item, value)


def fits_one(item, value):
    if not isinstance(item, dict):
        return value == item and isinstance(value, bool) == isinstance(item, bool)
    [(operator, operand)] = item.items()
    if operator == "anything-but":
        if isinstance(operand, dict):
            [(name, inner)] = operand.items()
            return not any(fits_one({name: each}, value) for each in listed(inner))
        return not any(fits_one(each, value) for each in listed(operand))
    if operator == "numeric":
        signs = {"=": "__eq__", ">": "__gt__", ">=": "__ge__", "<": "__lt__", "<=": "__le__"}
        pairs = zip(operand[::2], operand[1::2], strict=True)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and all(getattr(float(value), signs[sign])(float(number)) for sign, number in pairs)
    if not isinstance(value, str):
        return False
    if isinstance(operand, dict):
        [operand] = operand.values()
        value, operand = value.casefold(), operand.casefold()
    return {
        "prefix": lambda: value.startswith(operand),
        "suffix": lambda: value.endswith(operand),
        "equals-ignore-case": lambda: value.casefold() == operand.casefold(),
        "wildcard": lambda: is_like(value, operand),
    }[operator]()


def is_like(text, pattern):
    """Whether a text fits a wildcard, letter by letter."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return is_like(text, pattern[1:]) or (text != "" and is_like(text[1:], pattern))
    at = 1 if pattern[0] == "\\" else 0
    return text[:1] == pattern[at] and is_like(text[1:], pattern[at + 1 :])


def listed(operand):
    return operand if isinstance(operand, list) else [operand]


# Few letters and few names, so that many events fit.
TEXTS = ["", "a", "A", "b", "ab", "aB", "ba", "abab", "a*"]
SCALARS = [*TEXTS, -1, 0, 1, 1.0, 2, 2.5, True, False, None]
NAMES = ["x", "y", "z"]
PATTERNS = ["*", "a*", "*b", "a*b", "*a*b*", "\\**", "a\\*", "ab", "", "**a", "a*a"]
RANGES = [["=", 1], ["<", 1], [">=", 1.0], [">", 0, "<", 2], [">=", 1, "<=", 1], [">", -1, "<=", 2.5]]


class Chooser:
    """Draws events and filters."""

    def __init__(self, draw):
        self._draw = draw

    def one(self, some):
        return self._draw(st.sampled_from(some))

    def some(self, make, least, most):
        return [make() for _ in range(self._draw(st.integers(least, most)))]

    def event(self):
        type_, key, tenant = self.one(["a", "ab"]), self.one(["", "a", "b", "A"]), self.one(["a", "b"])
        data = msgspec.Raw(msgspec.json.encode(self.value(3)))
        return AcceptedEvent(f"t_{type_}", type_, t=1, id="1", tenant=tenant, key=key, data=data)

    def value(self, depth):
        match self.one(["scalar", "list", "object", "object"]) if depth else "scalar":
            case "scalar":
                return self.one(SCALARS)
            case "list":
                return self.some(lambda: self.value(depth - 1), 0, 3)
        return {name: self.value(depth - 1) for name in self.some(lambda: self.one(NAMES), 0, 3)}

    def filter(self):
        return self.joined(self.top, 2)

    def top(self):
        fields = self.some(lambda: self.one(["tenant", "type", "key", "topic", "data", "data"]), 1, 2)
        return {name: self.part(2) if name == "data" else self.leaf() for name in fields}

    def inner(self, depth):
        return {name: self.part(depth) for name in self.some(lambda: self.one(NAMES), 1, 2)}

    def part(self, depth):
        if depth == 0 or self.one([True, False]):
            return self.leaf()
        return self.joined(lambda: self.inner(depth - 1), 1)

    def joined(self, make, depth):
        """Fields, branches, or both."""
        how = self.one(["fields", "fields", "both", "branches"]) if depth else "fields"
        branches = {} if how == "fields" else {"$or": self.some(lambda: self.joined(make, depth - 1), 1, 2)}
        return ({} if how == "branches" else make()) | branches

    def leaf(self):
        return self.some(self.item, 1, 3)

    def item(self):
        match self.one(["scalar", "scalar", "text", "not", "not text", "numeric", "exists"]):
            case "scalar":
                return self.one(SCALARS)
            case "text":
                return self.on_text(self.text())
            case "not":
                return {"anything-but": self.one([self.one(SCALARS), self.some(lambda: self.one(SCALARS), 1, 3)])}
            case "not text":
                name = self.one(["prefix", "suffix", "equals-ignore-case"])
                return {"anything-but": {name: self.one([self.one(TEXTS), self.some(lambda: self.one(TEXTS), 1, 2)])}}
            case "numeric":
                return {"numeric": self.one(RANGES)}
        return {"exists": self.one([True, False])}

    def text(self):
        return self.one(["prefix", "suffix", "equals-ignore-case", "wildcard"])

    def on_text(self, name):
        if name == "wildcard":
            return {name: self.one(PATTERNS)}
        text = self.one(TEXTS)
        is_folded = name != "equals-ignore-case" and self.one([True, False])
        return {name: {"equals-ignore-case": text} if is_folded else text}


@st.composite
def an_event(draw):
    return Chooser(draw).event()


@st.composite
def a_filter(draw):
    asked = Chooser(draw).filter()
    assume(sum(len(each) for each in branches_of(asked)) <= filter_syntax.BRANCHES_MAX)
    return asked


def branches_of(asked):
    """All lists of branches in a filter."""
    if isinstance(asked, dict):
        if "$or" in asked:
            yield asked["$or"]
        asked = list(asked.values())
    for each in asked if isinstance(asked, list) else []:
        yield from branches_of(each)


def as_object(event):
    fields = {"tenant": event.tenant, "type": event.type, "topic": event.topic}
    fields |= {"key": event.key} if event.key else {}
    return fields | {"data": msgspec.json.decode(event.data)}


def facts_of(event):
    return EventFacts(event.kind, event.key, encode(event))


@settings(max_examples=600, deadline=None)
@given(a_filter(), an_event())
def test_a_filter_means_what_the_reference_says_and_says_why_an_event_does_not_fit(asked, event):
    compiled = filter_syntax.parse(asked)

    assert compiled.fits(facts_of(event)) == wants(asked, as_object(event))
    assert bool(why_not(compiled, facts_of(event))) != wants(asked, as_object(event))
    assert compiled.fits_kind(event.kind) in {None, wants(asked, as_object(event))}
    assert filter_syntax.stored(compiled.text).asked == asked


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.none(), a_filter()), max_size=6), an_event())
def test_an_index_finds_who_wants_an_event(several, event):
    index = FilterIndex([None if asked is None else filter_syntax.parse(asked) for asked in several])

    found = index.of(event.kind)

    assert list(found.unfiltered) == [i for i, asked in enumerate(several) if asked is None]
    wanted = [i for i, asked in enumerate(several) if asked is not None and wants(asked, as_object(event))]
    assert list(found.select(facts_of(event))) == wanted


def test_equal_numbers_are_equal_however_written_and_no_boolean_is_a_number():
    assert fitting({"data": {"x": [1]}}, '{"x":1.0}', '{"x":1}', '{"x":true}', '{"x":"1"}') == [
        True,
        True,
        False,
        False,
    ]


def test_an_element_of_a_list_fits_as_a_whole():
    asked = {"data": {"items": {"sku": ["a"], "count": [{"numeric": [">", 5]}]}}}

    one, other = '{"items":[{"sku":"a","count":9}]}', '{"items":[{"sku":"a","count":1},{"sku":"b","count":9}]}'
    assert fitting(asked, one, other) == [True, False]


def test_what_nobody_can_decode_is_absent():
    assert fitting({"data": [{"exists": False}]}, '{"x":"\\ud800"}') == [True]


def test_so_many_elements_of_lists_are_looked_at_and_no_more():
    within, beyond = ["a"] * (ELEMENTS_MAX - 1) + ["b"], ["a"] * ELEMENTS_MAX + ["b"]
    texts = [msgspec.json.encode(each).decode() for each in (within, beyond, [[["a"]]] * 1000 + ["b"])]

    assert fitting({"data": ["b"]}, *texts) == [True, False, False]


def test_a_wildcard_takes_time_in_proportion_to_the_text():
    asked = filter_syntax.parse({"data": [{"wildcard": "*" + "a*" * 8 + "b*"}]})
    data = msgspec.Raw(b'"' + b"a" * 60_000 + b'"')

    # A matcher that goes back would not end.
    assert not asked.fits(facts_of(AcceptedEvent("t", "a", t=1, id="1", data=data)))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "filter is empty; name a field"),
        ({"topics": ["a"]}, 'the field "topics"; it may have tenant, type, key, topic, data and $or'),
        ({"key": "a"}, 'filter.key is "a"; it must be a list of literals and operators'),
        ({"key": {"x": ["a"]}}, "it must be a list of literals and operators"),
        ({"data": {"x": "a"}}, 'filter.data.x is "a"; it must be a list of literals and operators, or an object'),
        ({"data": {"x": []}}, "filter.data.x is an empty list"),
        ({"data": {"x": {}}}, "filter.data.x is empty"),
        ({"data": [["a"]]}, "filter.data[0] is a list"),
        ({"data": [{"like": "a"}]}, "one operator of prefix, suffix, equals-ignore-case, anything-but, numeric,"),
        ({"data": [{"prefix": "a", "suffix": "b"}]}, "an object with one operator"),
        ({"data": [{"prefix": 1}]}, "filter.data[0].prefix is 1; it must be a string"),
        ({"data": [{"prefix": {"wildcard": "a"}}]}, "one operator of equals-ignore-case"),
        ({"data": [{"exists": 1}]}, "filter.data[0].exists is 1; it must be true or false"),
        ({"data": [{"numeric": []}]}, "it must be one of =, >, >=, <, <= and a number"),
        ({"data": [{"numeric": ["<", 1, ">", 0]}]}, "a lower and an upper bound"),
        ({"data": [{"numeric": [">", True]}]}, "and a number"),
        ({"data": [{"numeric": [["="], 1]}]}, "and a number"),
        ({"data": [{"numeric": [">", 5, "<", 5]}]}, "which no number is"),
        ({"data": [{"anything-but": {"numeric": ["=", 1]}}]}, "one operator of prefix, suffix"),
        ({"data": [{"anything-but": [["a"]]}]}, "a literal, a list of literals or an operator"),
        ({"data": [{"wildcard": "a\\b"}]}, "a backslash must be followed by a star or a backslash"),
        ({"data": [{"wildcard": "a\\"}]}, "a backslash must be followed by a star or a backslash"),
        ({"data": [{"wildcard": "a*" * 11}]}, "at most 10 stars"),
        ({"$or": []}, "filter.$or is []; it must be a list of objects"),
        ({"$or": ["a"]}, 'filter.$or[0] is "a"; it must be an object'),
        ({"$or": [{"key": ["a"]}] * 21}, "more than 20 branches"),
        ({"key": ["a"] * 201}, "more than 200 literals and operators"),
        ({"key": [{"anything-but": ["a"] * 201}]}, "more than 200 literals and operators"),
        ({"key": ["a" * 5_000]}, "bytes of JSON; at most 4096"),
    ],
)
def test_a_filter_that_is_none_is_refused_with_what_is_allowed(asked, said):
    with pytest.raises(BadRequest) as refused:
        filter_syntax.parse(asked)

    assert said in refused.value.detail


@pytest.mark.parametrize(
    ("asked", "steps"),
    [
        ({"key": ["a"]}, 0),
        ({"key": ["a", "b", "c", "d", "e"]}, 0),
        ({"key": ["a", "b", "c", "d", "e", "f"]}, 1),
        ({"key": ["a"], "type": ["b"], "data": {"x": ["c"]}}, 2),
        ({"key": [{"prefix": "a"}]}, 1),
        ({"key": ["a", {"prefix": "a"}]}, 2),
        ({"data": {"x": [{"numeric": [">", 1, "<", 2]}, {"exists": False}]}}, 2),
        ({"data": {"x": [{"wildcard": "*a*"}]}}, 3),
        ({"data": {"x": [{"anything-but": {"prefix": ["a", "b"]}}]}}, 2),
        ({"$or": [{"key": ["a"]}, {"key": ["b"]}]}, 2),
    ],
)
def test_what_a_filter_costs_besides_a_look_up(asked, steps):
    assert filter_syntax.parse(asked).steps == steps


def test_a_filter_nests_only_so_deep():
    asked = ["a"]
    for _ in range(filter_syntax.DEPTH_MAX):
        asked = {"x": asked}

    with pytest.raises(BadRequest, match="nests deeper than 16 levels"):
        filter_syntax.parse({"data": asked})


def fitting(asked, *datas):
    """Which events with these data fit."""
    compiled = filter_syntax.parse(asked)
    some = [AcceptedEvent("t", "a", t=1, id="1", data=msgspec.Raw(data.encode())) for data in datas]
    return [compiled.fits(EventFacts(event.kind, event.key, encode(event))) for event in some]
