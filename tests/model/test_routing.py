"""Routing: which of the queues that match get an event, and whose a secret is."""

import string
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from doubledecker.model import filter_syntax, matching, reserved, routing
from doubledecker.model import token as tokens
from doubledecker.model.event import AcceptedEvent, EventKind, encode
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.reserved import publisher_for
from doubledecker.model.routing import Registry, Route
from doubledecker.model.scopes import Scopes
from doubledecker.model.subscriber import Subscriber
from doubledecker.model.token import Token

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


def route_of(registry: Registry, number: int, *, tenant: str = "red", key: str = "", publisher: str = "shop") -> Route:
    """The route of an event with this total."""
    event = AcceptedEvent("page", "view", t=1, id=f"{number}", tenant=tenant, key=key, data=Raw(b"%d" % number))
    return registry.route_event(event.kind, publisher, key=key, message=encode(event))


def who(route: Route) -> list[str]:
    return [each.token for each in route.receivers] + [queue.name for queue in route.queues]


def test_events_that_the_same_receivers_want_share_a_route_and_their_tuples():
    registry = Registry()
    large = filter_syntax.parse({"data": [{"numeric": [">", 5]}]}).text
    for name, text in (("ann", large), ("bob", "")):
        subscriber = Subscriber(name, "https://a.example/", "u", topics=("page",), filter=text)
        registry.put_subscriber(name, subscriber)
    registry.put_queues([RegisteredQueue("all", "", (".*",)), RegisteredQueue("large", "", (".*",), filter=large)])
    small, other, much, others = (route_of(registry, n, tenant=t) for n, t in ((1, "a"), (2, "a"), (9, "a"), (8, "b")))

    assert (who(small), who(much)) == (["bob", "all"], ["ann", "bob", "all", "large"])
    assert small is other
    assert much.kind != others.kind
    assert much.receivers is others.receivers
    assert much.queues is others.queues
    assert all(route.filters is None for route in (small, much))


def test_a_receiver_that_wants_nothing_of_a_kind_costs_its_events_nothing():
    registry = Registry()
    queues = [
        RegisteredQueue(f"q{n}", "", (".*",), filter=filter_syntax.parse({"tenant": [f"t{n}"], "key": ["a"]}).text)
        for n in range(3)
    ]
    never = filter_syntax.parse({"tenant": [{"prefix": "x"}], "data": [{"exists": True}]}).text
    registry.put_queues([*queues, RegisteredQueue("never", "", (".*",), filter=never)])

    [filters] = [registry.route(EventKind("page", "view", "t1")).filters]
    assert filters is not None
    assert filters.of_queues is not None
    assert filters.of_queues.checked == ()
    assert who(route_of(registry, 1, tenant="t1", key="a")) == ["q1"]
    assert who(route_of(registry, 1, tenant="t1", key="b")) == []


def test_a_changed_filter_holds_from_the_next_event_on_and_a_former_one_never_again():
    registry = Registry()
    text = filter_syntax.parse({"key": ["a"]}).text
    registry.put_queue("q", RegisteredQueue("q", "", (".*",), filter=text))
    first = who(route_of(registry, 1, key="b"))
    registry.put_queue("q", RegisteredQueue("q", "", (".*",)))
    second = who(route_of(registry, 1, key="b"))
    registry.put_queues([RegisteredQueue("q", "", (".*",), filter=text)])
    third = who(route_of(registry, 1, key="b"))
    registry.put_queue("q", None)

    assert (first, second, third) == ([], ["q"], [])
    assert not registry.is_filtering


def test_a_subscription_for_one_tenant_gets_its_events_alone_and_leaves_no_filter_behind():
    registry = Registry()
    ids = ("shop-1/red/in", "shop-1/blue/in", "shop-1/in")
    for id_ in ids:
        registry.put_subscriber(id_, Subscriber(id_, "https://a.example/", "u", topics=("page",), owner="shop-1"))
    red = who(route_of(registry, 1, tenant="red"))
    other = who(route_of(registry, 1, tenant="green"))
    for id_ in ids:
        registry.put_subscriber(id_, None)

    assert (red, other) == (["shop-1/red/in", "shop-1/in"], ["shop-1/in"])
    assert not registry.is_filtering


@given(st.lists(st.sampled_from(["", "a", "b", "ab"]), max_size=6), st.sampled_from("abc"), st.integers(0, 3))
def test_who_wants_an_event_is_bounded_in_copies_as_without_filters(keys: list[str], key: str, most: int):
    registry = Registry(copies_max=most)
    texts = [filter_syntax.parse({"key": list(each)}).text if each else "" for each in keys]
    registry.put_queues([RegisteredQueue(f"q{n}", "ann", (".*",), filter=text) for n, text in enumerate(texts)])
    wanting = [f"q{n}" for n, each in enumerate(keys) if key in each or not each]
    others, own = route_of(registry, 1, key=key), route_of(registry, 1, key=key, publisher="ann")

    assert who(others) == (wanting[:most] if most else wanting)
    assert [queue.name for queue in others.skipped] == (wanting[most:] if most else [])
    assert who(own) == wanting


FILTERED = st.sampled_from(["", '{"key":["a"]}', '{"data":[{"numeric":[">",5]}]}', '{"tenant":["red"],"key":["b"]}'])
CHANGES = st.one_of(
    st.tuples(st.just("queue"), st.sampled_from("pqr"), st.one_of(st.none(), FILTERED)),
    st.tuples(st.just("subscriber"), st.sampled_from("xyz"), st.one_of(st.none(), FILTERED)),
    st.tuples(st.just("overfull"), st.sampled_from("xyz"), st.none()),
    st.tuples(st.just("all"), st.just(""), st.none()),
    st.tuples(st.just("bound"), st.just(""), st.none()),
)


@given(st.lists(CHANGES, max_size=12))
def test_whatever_changes_an_event_goes_where_a_registry_without_a_past_sends_it(changes: list[tuple]):
    registry = Registry()
    for what, name, text in changes:
        if what == "queue":
            registry.put_queue(name, None if text is None else RegisteredQueue(name, "ann", (".*",), filter=text))
        elif what == "subscriber":
            wanted = None if text is None else Subscriber(name, "https://a.example/", "u", ("page",), filter=text)
            registry.put_subscriber(name, wanted)
        elif what == "overfull":
            registry.put_overfull(frozenset({name}))
        elif what == "all":
            registry.put_queues(list(registry.queues.values()))
            registry.put_subscribers(list(registry.subscribers.values()))
        else:
            registry._indexed_names = registry._subset_names = matching.NAMES_MAX + 1
        fresh = Registry()
        fresh.put_queues(registry.queues.values())
        fresh.put_subscribers(registry.subscribers.values())
        fresh.put_overfull(registry.overfull)
        for number, tenant, key in ((1, "red", "a"), (9, "red", "b"), (9, "blue", "b"), (1, "blue", "")):
            found, wanted = (route_of(each, number, tenant=tenant, key=key) for each in (registry, fresh))
            assert sorted(who(found)) == sorted(who(wanted))
            for queue in registry.queues.values():
                is_wanted = not queue.filter or queue.name in who(found)
                assert (queue.name in who(found)) == is_wanted


def test_limits_are_the_same_whether_all_is_read_or_what_changed():
    limited = Token("ann-1", "ann", "hash", "ha1", scopes=Scopes(tenants=("acme",)))
    queue = RegisteredQueue("jobs", "ann-1", (".*",))
    whole, grown = Registry(), Registry()
    whole.put_tokens([limited])
    whole.put_queues([queue])
    grown.put_queue("jobs", queue)
    grown.put_token("ann-1", limited)

    for registry in (whole, grown):
        kinds = [EventKind("orders", "paid", tenant) for tenant in ("acme", "beta")]
        routes = [registry.route_event(kind, "bob-1", key="", message=b"{}") for kind in kinds]
        assert [[each.name for each in route.queues] for route in routes] == [["jobs"], []]
