"""Globs on topics: which subscribers a topic's events go to, whatever changed before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubledecker.errors import BadRequest
from doubledecker.model import replay, topic_glob
from doubledecker.model.event import EventKind
from doubledecker.model.reserved import PREFIX, publisher_for
from doubledecker.model.routing import Registry
from doubledecker.model.subscriber import Subscriber

LETTERS = "ab."
TOPICS = st.text("ab.", min_size=1, max_size=5).map("t".__add__)
WANTED = st.one_of(TOPICS, st.text(LETTERS + "*?", min_size=1, max_size=4), st.just("*"))
CHANGES = st.tuples(st.sampled_from("xyz"), st.none() | st.lists(WANTED, max_size=3))


def fits(glob: str, topic: str) -> bool:
    """What a glob means, in a few lines."""
    if not glob or not topic:
        return not glob.strip("*") and not topic
    if glob[0] == "*":
        return fits(glob[1:], topic) or fits(glob, topic[1:])
    return glob[0] in {"?", topic[0]} and fits(glob[1:], topic[1:])


def receivers(registry: Registry, topic: str, publisher: str = "shop") -> list[str]:
    return sorted(each.token for each in registry.route(EventKind(topic, "made", "red"), publisher).receivers)


@given(st.lists(CHANGES, min_size=1, max_size=8), st.lists(TOPICS, min_size=1, max_size=4), st.booleans())
def test_an_event_goes_once_to_all_who_name_or_match_its_topic(changes: list[tuple], topics: list[str], is_all: bool):
    registry, wanted = Registry(), {}
    for token, names in changes:
        wanted.pop(token, None)
        if names is not None:
            wanted[token] = tuple(names)
        registry.put_subscriber(token, None if names is None else Subscriber(token, "https://a/", "u", tuple(names)))
        if is_all:
            registry.put_subscribers(list(registry.subscribers.values()))
        for topic in topics:
            expected = [who for who, names in wanted.items() if any(fits(name, topic) for name in names)]
            assert receivers(registry, topic) == sorted(expected)
            assert all(topic_glob.cover(names, topic) == (who in expected) for who, names in wanted.items())


def test_a_reserved_topic_is_matched_by_a_glob_that_begins_as_it_does():
    registry = Registry()
    for token, name in (("ann", "*"), ("bob", f"{PREFIX}*"), ("cy", "d*")):
        registry.put_subscriber(token, Subscriber(token, "https://a/", "u", (name,)))

    found = [receivers(registry, f"{PREFIX}receivers", publisher_for(token)) for token in ("ann", "bob", "cy")]
    assert found == [[], ["bob"], []]


def test_topics_with_the_same_subscribers_share_them():
    """What gets the same is grouped by identity."""
    registry = Registry()
    registry.put_subscriber("ann", Subscriber("ann", "https://a/", "u", ("or*",)))
    first, second = (registry.route(EventKind(topic, "made", "red")).receivers for topic in ("orders", "orbits"))

    assert first is second


@pytest.mark.parametrize("text", ["", "7*", ".*", "a*:b", "a b*", "*" * 65, "a[bc]*", "-?"])
def test_what_can_match_no_topic_is_refused(text: str):
    with pytest.raises(BadRequest, match="a name, or a glob like orders"):
        topic_glob.check(text)


def test_a_glob_is_a_condition_of_the_command_that_replays_what_was_lost():
    command = replay.command("mail", ["my_orders.*", "users", "?"], from_ms=0)

    like = r"topic like 'my\_orders.%' or topic like '_' or topic in ('users')"
    assert command.endswith(f'--where "{like}"')
