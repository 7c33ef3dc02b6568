"""Routing: which of the queues that match get an event, and whose a secret is."""

import string
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubledecker.model import matching, reserved, routing
from doubledecker.model import token as tokens
from doubledecker.model.event import EventKind
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.reserved import publisher_for
from doubledecker.model.routing import Registry
from doubledecker.model.subscriber import Subscriber

OWNERS = st.sampled_from(["ann", "bob", "root", ""])
KIND = EventKind("page", "view", "red")


@given(st.lists(OWNERS, max_size=12), st.integers(0, 4), st.lists(st.sampled_from(["ann", "bob", "eve"]), min_size=1))
def test_no_client_gets_more_copies_of_anothers_event_than_allowed(owners: list[str], most: int, publishers: list[str]):
    registry = Registry(copies_max=most)
    registry.put_queues([RegisteredQueue(f"q{n}", owner, (".*",)) for n, owner in enumerate(owners)])
    for publisher in publishers:
        route = registry.route(KIND, publisher)

        counts = Counter(queue.owner for queue in route.queues)
        everyone = Counter(owners)
        for owner, count in everyone.items():
            is_exempt = owner in {"root", "", publisher} or most == 0
            assert counts[owner] == (count if is_exempt else min(count, most))
        assert sorted(queue.name for queue in (*route.queues, *route.skipped)) == sorted(registry.queues)
        assert not route.skipped or registry.is_skipping


@given(st.lists(OWNERS, max_size=8), st.integers(0, 3), st.lists(st.sampled_from(["ann", "bob", ""]), min_size=1))
def test_an_event_on_a_reserved_topic_goes_to_its_audience_and_to_root_alone(
    owners: list[str], most: int, concerned: list[str]
):
    registry = Registry(copies_max=most)
    registry.put_queues([RegisteredQueue(f"q{n}", owner, (".*",)) for n, owner in enumerate(owners)])
    for client in ("ann", "bob", "eve"):
        registry.put_subscriber(client, Subscriber(client, "https://a.example/", "u", topics=(reserved.RECEIVERS,)))
    for owner in concerned:
        route = registry.route(EventKind(reserved.RECEIVERS, "receiver.failing", "default"), publisher_for(owner))

        assert [each.token for each in route.receivers] == [each for each in ("ann", "bob", "eve") if each == owner]
        seen = {queue.owner for queue in (*route.queues, *route.skipped)}
        assert seen <= {owner, "root", ""}
        assert {queue.name for queue in route.queues} >= {
            f"q{n}" for n, each in enumerate(owners) if each in {"root", ""}
        }
        assert sum(queue.owner == owner and owner != "" for queue in route.queues) == (
            min(owners.count(owner), most or len(owners)) if owner else 0
        )


def test_a_secret_that_has_ended_may_be_another_clients():
    """Whatever changes first, and however often."""
    rotated = tokens.rotate(tokens.make("a-1", "a", "old", now_ms=0), "new", overlap_s=1, now_ms=0)
    other = tokens.make("b-2", "b", "old", now_ms=5_000)
    registry = Registry()
    for token in (rotated, other, rotated, other):
        registry.put_token(token.id, token)

    found = [registry.with_secret(tokens.hash_secret(secret), 5_000) for secret in ("old", "new", "wrong")]
    registry.put_token(rotated.id, None)

    assert found == [other, rotated, None]
    assert registry.with_secret(tokens.hash_secret("old"), 5_000) == other
    assert registry.with_secret(tokens.hash_secret("new"), 5_000) is None


def test_who_is_called_is_made_once_and_kept_as_queues_change():
    registry = Registry()
    registry.put_queues([RegisteredQueue(f"q{n}", "ann", (".*",), callback="https://a.example/") for n in range(3)])
    before = registry.pushed_to
    registry.put_queue("q1", None)
    registry.put_queue("q2", RegisteredQueue("q2", "ann", (".*",)))
    registry.put_queue("new", RegisteredQueue("new", "ann", (".*",), callback="https://b.example/"))
    after = registry.pushed_to

    assert list(before) == ["@q0", "@q1", "@q2"]
    assert sorted(after) == ["@new", "@q0"]
    assert after["@q0"] is before["@q0"]


def routed(registry: Registry, tenants: Iterable[str]) -> int:
    """Route an event of each tenant, and say how many names were kept at the most."""
    most = 0
    for tenant in tenants:
        registry.route(EventKind("page", "seen", tenant), "victim")
        most = max(most, registry.names_kept)
    return most


def test_what_is_kept_of_many_keys_that_match_the_same_queues_does_not_grow_with_them():
    registry = Registry(copies_max=4)
    registry.put_queues([RegisteredQueue(f"x{n}", "stranger", ("[0-9].*:.*",)) for n in range(1_000)])

    assert routed(registry, map(str, range(20_000))) == 2_000


def test_what_is_kept_of_keys_that_each_match_other_queues_is_bounded(monkeypatch: pytest.MonkeyPatch):
    for module in (matching, routing):
        monkeypatch.setattr(module, "NAMES_MAX", 10_000)
    registry = Registry(copies_max=4)
    letters = string.ascii_lowercase
    registry.put_queues(
        [RegisteredQueue(f"{c}{n}", "stranger", (f".*{c}.*:page:.*",)) for c in letters for n in range(20)]
    )
    tenants = ("".join(c for i, c in enumerate(letters) if n >> i & 1) + "9" for n in range(1, 20_000, 7))

    assert routed(registry, tenants) < 2 * (10_000 + len(letters) * 20)
