"""Which patterns can match a routing key at all: refused ones cannot, whatever the key."""

import re

import pytest
import re2
from hypothesis import example, given, settings
from hypothesis import strategies as st

from doubledecker.model import pattern_check

NAME = st.from_regex(r"[A-Za-z0-9_.-]{1,6}", fullmatch=True)
TOPIC = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,5}", fullmatch=True)
KEYS = st.tuples(NAME, TOPIC, NAME).map(":".join)
ATOMS = ["a", "B", "_", ":", ".", "-", r"\.", r"\d", r"\W", "[a-z]", "[^:]", "[^a]", "[[:alpha:]]", r"\Qa:b\E", r"\x3a"]
ATOMS += ["^", "$", "(?i)", "(?i:A)", r"\pL", "é", "[a-é]", r"\b", "[]:]", "[a-]", r"[\w:]", "{", "a{,2}"]
ATOMS += ["(?P<n>a)", "[[:^digit:]]"]
# Short ones, so that patterns of a few parts match some.
SHORT = [f"{a}:{b}:{c}" for a in ("a", "B", "ab", "-.") for b in ("a", "B", "_a") for c in ("a", "7", "_", "aB", "a.b")]
PATTERNS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "{2}", "{0,2}", "{1,}", "{3,5}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "pattern",
    [
        *(".*", ".*:.*:.*", "acme:page:viewed", "acme:.*", ".*viewed", "[^:]+:page:(view|click)", "a|.*:b:.*"),
        *("^a:b:c$", r"\Aa:b:c\z", "(?i)A:B:C", "(?i:a):b:c", r"\Qa:b:c\E", r"a\x3ab\x{3A}c", r"a\072b:c"),
        *("[[:alpha:]]+:p:t", r"\w+:\w+:\w+", r"\pL+:a:b", "(?P<x>a):b:c", "(?<x>a):b:c", ".{5}", "(.:?){3}"),
        *("[a-z]{1,64}:page:.*", "(a:){2}b", "a:b:7", "7:b:c", "é?a:b:c", "(?i)\u017f:b:c", "(:?a){3}", ".*^a:b:c"),
    ],
)
def test_a_pattern_that_some_key_matches_can_match(pattern: str):
    assert pattern_check.can_match(pattern)


@pytest.mark.parametrize(
    ("pattern", "wider"),
    [
        ("email_event", ".*email_event.*"),
        ("page:viewed", ".*page:viewed.*"),
        ("email|sms", ".*(?:email|sms).*"),
        ("^email_event$", ".*email_event.*"),
        ("(?i)email", ".*(?i)email.*"),
        (".", ".*..*"),
        ("[a-z]+", ".*[a-z]+.*"),
        ("a:7:c", None),
        ("a:b:c:d", None),
        ("a::b", None),
        ("hello world", None),
        ("é:b:c", None),
        ("a:b:c$d", None),
        ("a^:b:c", None),
        ("[^\\x00-\\x{10FFFF}]", None),
        ("(:a){3}", None),
    ],
)
def test_a_pattern_that_no_key_matches_is_told_from_the_one_that_would(pattern: str, wider: str | None):
    assert not pattern_check.can_match(pattern)
    assert pattern_check.search_for(pattern) == wider


@given(PATTERNS)
@example("(?:(?:){1000}){1000}a")
@settings(max_examples=500)
def test_what_matches_some_key_is_never_said_to_match_none(pattern: str):
    try:
        compiled = re2.compile(pattern)
    except re2.error:
        return

    if any(compiled.fullmatch(key) for key in SHORT):
        assert pattern_check.can_match(pattern)


@given(KEYS)
def test_a_key_matches_itself(key: str):
    assert pattern_check.can_match(re.escape(key))
