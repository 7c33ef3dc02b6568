"""Patterns of listeners against a model, and against Redis itself: both read them alike."""

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from doubledecker.errors import BadRequest
from doubledecker.model import glob
from doubledecker.model.glob import Glob
from doubledecker.store.embedded import EmbeddedServer

# Few letters, so that patterns often match.
LETTERS = "ab.-"
names = st.text(LETTERS, min_size=1, max_size=6)
keys = st.builds("{}:{}:{}".format, names, names, names)
patterns = st.text(LETTERS + ":*?", min_size=1, max_size=14)


def model(pattern: str, text: str) -> bool:
    """Row by row: which prefixes of the text each prefix of the pattern matches."""
    reached = {0}
    for letter in pattern:
        if letter == "*":
            reached = set(range(min(reached, default=len(text) + 1), len(text) + 1))
        else:
            reached = {i + 1 for i in reached if i < len(text) and letter in ("?", text[i])}
    return len(text) in reached


@given(patterns, keys)
@settings(max_examples=1000, deadline=None)
def test_a_pattern_matches_what_the_model_says(pattern: str, key: str):
    assert Glob(pattern).matches(key) == model(pattern, key)


@given(patterns, keys)
@settings(max_examples=1000, deadline=None)
def test_a_pattern_that_is_refused_as_impossible_matches_nothing(pattern: str, key: str):
    try:
        glob.parse(pattern)
    except BadRequest:
        assert not model(pattern, key)


@given(names, names, names, st.data())
def test_a_pattern_made_from_a_key_is_taken_and_matches_it(tenant: str, topic: str, type_: str, data: st.DataObject):
    key = f"{tenant}:{topic}:{type_}"
    cuts = sorted(data.draw(st.sets(st.integers(0, len(key)), min_size=2, max_size=2)))
    pattern = key[: cuts[0]] + "*" + key[cuts[1] :].replace("a", "?")

    assert glob.parse(pattern).matches(key)


def test_redis_reads_patterns_alike(server: EmbeddedServer):
    with redis.from_url(server.url, db=1, decode_responses=True) as client:

        @given(patterns, st.lists(keys, min_size=1, max_size=20, unique=True))
        @settings(max_examples=200, deadline=None)
        def compare(pattern: str, some: list[str]) -> None:
            client.flushdb()
            client.mset(dict.fromkeys(some, ""))
            assert {key for key in some if Glob(pattern).matches(key)} == set(client.keys(pattern))

        compare()
        client.flushdb()


@pytest.mark.timeout(20)  # by trying all ways it would take years
@pytest.mark.parametrize("pattern", ["*a" * 100 + "*", "*?" * 100, "*a" * 128])
def test_no_pattern_takes_for_ever(pattern: str):
    key = f"{'a' * 64}:{'a' * 64}:{'a' * 63}b"

    assert Glob(pattern).matches(key) == (pattern.count("a") <= key.count("a") and pattern[-1] != "a")
