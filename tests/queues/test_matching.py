"""Patterns on routing keys: the same answers as Python's `re` gives, after any changes, at any number."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubledecker.errors import BadRequest
from doubledecker.model.dial_guard import DialGuard
from doubledecker.model.matching import PATTERN_LENGTH_MAX, PatternMatcher, check_pattern
from doubledecker.model.queue import parse

PARTS = ("a", "b", "-", "page", ":", "[a-z]", r"\d", ".", ".*", "(a|b)", "x?", "[^:]+", r"\.", "(view|click)*")

some_pattern = st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map("".join)
some_key = st.lists(st.sampled_from(["a", "b", "page", "view", "7", ":", "-", ".", "x"]), max_size=8).map("".join)
some_name = st.sampled_from(["q1", "q2", "q3", "q4"])
some_owner = st.sampled_from(["ann", "bob"])
# With a large one, an owner has too many steps to share shelves with others.
LARGE = "[a-z]{0,60}:page:(.*|.*a){8}"
some_patterns = st.lists(some_pattern | st.just(LARGE), min_size=1, max_size=2)


@given(patterns=st.lists(some_pattern, min_size=1, max_size=4), key=some_key)
@settings(max_examples=200, deadline=None)
def test_a_pattern_matches_what_python_says_it_matches(patterns: list[str], key: str):
    matcher = PatternMatcher()
    for i, pattern in enumerate(patterns):
        matcher.put(f"q{i}", (pattern,))

    expected = tuple(f"q{i}" for i, pattern in enumerate(patterns) if re.fullmatch(pattern, key))
    assert matcher.match(key) == expected


@given(
    changes=st.lists(st.tuples(some_name, some_owner, st.none() | some_patterns), max_size=12),
    keys=st.lists(some_key, min_size=1, max_size=4),
)
@settings(max_examples=100, deadline=None)
def test_after_any_changes_the_answers_are_those_of_a_fresh_start(changes: list, keys: list[str]):
    """Remembered answers are only tested against what changed since; this must not show."""
    matcher, kept = PatternMatcher(), {}
    for name, owner, patterns in changes:
        kept.pop(name, None)
        if patterns is not None:
            kept[name] = tuple(patterns)
        matcher.put(name, kept.get(name), owner)
        for key in keys:
            expected = {n for n, each in kept.items() if any(re.fullmatch(pattern, key) for pattern in each)}
            assert set(matcher.match(key)) == expected


def test_an_answer_survives_more_changes_than_are_remembered():
    matcher = PatternMatcher()
    matcher.put("kept", ("a:.*",))
    assert matcher.match("a:page:view") == ("kept",)
    for number in range(10_100):
        matcher.put("other", (f"b{number % 7}:.*",))
        if number == 20:
            assert matcher.match("a:page:view") == ("kept",)

    assert matcher.match("a:page:view") == ("kept",)
    assert matcher.match(f"b{10_099 % 7}:page:view") == ("other",)


def test_several_patterns_of_one_queue_match_once():
    matcher = PatternMatcher()
    matcher.put("q", ("a:.*", ".*:page:.*", "a:page:view"))

    assert matcher.match("a:page:view") == ("q",)


def test_ten_thousand_patterns_are_matched_at_once_and_one_change_costs_little():
    matcher = PatternMatcher()
    matcher.put_all({f"q{n}": ("", (f"tenant-{n}:[a-z_]+:(view|click)",)) for n in range(10_000)})
    matcher.put("all", (".*",))
    assert matcher.match("tenant-77:page:view") == ("all", "q77")
    started = time.perf_counter()
    for n in range(50):
        matcher.put(f"q{n}", (f"other-{n}:.*",))
        assert matcher.match("tenant-77:page:view") == ("all", "q77")
        assert matcher.match(f"other-{n}:page:view") == ("all", f"q{n}")

    # Compiled and matched from the start each time, this takes minutes.
    assert time.perf_counter() - started < 20


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(a", "missing )"),
        ("[z-a]", "invalid character class range"),
        ("*", "no argument for repetition operator"),
        (r"(?=a)", "look-around"),
        (r"(a)\1", "back-references"),
        ("x" * (PATTERN_LENGTH_MAX + 1), f"at most {PATTERN_LENGTH_MAX}"),
        ("(.{1,50}){1,20}", "too large"),
        ("[a-z]{1000}", "too large"),
    ],
)
def test_a_bad_pattern_is_told_what_is_wrong_with_it(pattern: str, said: str):
    with pytest.raises(BadRequest) as refusal:
        check_pattern(pattern)

    assert said in refusal.value.detail
    assert repr(pattern) in refusal.value.detail or len(pattern) > PATTERN_LENGTH_MAX


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"pattern": []}', "from 1 to"),
        (b'{"pattern": ".*", "charge": "luck"}', "time or count"),
        (b'{"pattern": ".*", "overflow": "explode"}', "drop_oldest or refuse"),
        (b'{"pattern": ".*", "lease_ms": 1}', "from 100"),
        (b'{"pattern": ".*", "attempts_max": 0}', "from 1"),
        (b'{"pattern": ".*", "max_length": 0}', "from 1"),
        (b'{"pattern": ".*", "colour": 1}', "colour"),
        (b"[]", "a queue must be an object"),
        (b'{"pattern": ".*", "owner": "bob-1"}', "admin alone"),
    ],
)
def test_a_bad_queue_is_told_what_is_wrong_with_it(body: bytes, said: str):
    with pytest.raises(BadRequest) as refusal:
        parse(body, name="work", owner="ann-1", is_admin=False, guard=DialGuard())

    assert said in refusal.value.detail
