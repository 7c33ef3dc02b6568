"""The plan of a publish call: which queue gets which events, in which order, and which may be refused."""

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from doubledecker.model.event import EventKind
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.routing import Registry
from doubledecker.store.events import RoutedEvent, write_plan
from doubledecker.store.nodes import Nodes
from doubledecker.store.partitions import Partition

# Planning asks no server.
PARTITION = Partition(cast("Nodes", None), index=0, count=1, prefix="rm:")
QUEUES = [
    RegisteredQueue("all", "ann", (".*",)),
    RegisteredQueue("too", "ann", (".*",), overflow="refuse", max_length=9),
    RegisteredQueue("red", "ann", ("red:.*",)),
    RegisteredQueue("pages", "ann", (".*:page:.*", "blue:.*"), overflow="refuse", max_length=9),
]
KINDS = st.builds(
    EventKind, st.sampled_from(["page", "user"]), st.sampled_from(["create", "noop"]), st.sampled_from(["red", "blue"])
)


def planned(kinds: list[EventKind], publisher: str = "ann") -> dict:
    registry = Registry()
    registry.put_queues(QUEUES)
    return write_plan(PARTITION, [RoutedEvent(registry.route(kind), b"{}", publisher) for kind in kinds])


def matches(queue: str, kind: EventKind) -> bool:
    return {"red": kind.tenant == "red", "pages": kind.topic == "page" or kind.tenant == "blue"}.get(queue, True)


@given(st.lists(KINDS, max_size=12))
def test_every_queue_gets_what_matches_it_once_and_each_tenants_in_order(kinds):
    given_to = {}
    for queues, tenants, numbers in planned(kinds)["queues"]:
        lines = {tenant: at if isinstance(at, list) else [at] for tenant, at in zip(tenants, numbers, strict=True)}
        for name, *_ in queues:
            assert name not in given_to
            given_to[name] = lines

    for queue in QUEUES:
        expected: dict[str, list[int]] = {}
        for i, kind in enumerate(kinds, 1):
            if matches(queue.name, kind):
                expected.setdefault(kind.tenant, []).append(i)
        assert given_to.get(queue.name, {}) == expected


@given(st.lists(KINDS, max_size=12))
def test_what_may_be_refused_is_asked_of_every_queue_that_refuses_in_order_of_the_events(kinds):
    made = planned(kinds)
    names = [name for name, *_ in made["bounds"]]

    asked = [(i, tenant, {names[number - 1] for number in numbers}) for i, tenant, numbers, _ in made["bounded"]]

    assert asked == [
        (i, kind.tenant, {queue.name for queue in QUEUES if queue.refuses and matches(queue.name, kind)})
        for i, kind in enumerate(kinds, 1)
    ]


@given(st.lists(KINDS, max_size=4))
def test_a_queue_may_keep_out_the_events_of_others_than_its_owner_but_refuses_none(kinds):
    made = planned(kinds, publisher="bob")
    names = [name for name, *_ in made["bounds"]]

    asked = [(i, numbers, {names[at - 1] for at in skipping}) for i, _, numbers, skipping in made["bounded"]]

    assert asked == [
        (i, [], {queue.name for queue in QUEUES if queue.refuses and matches(queue.name, kind)})
        for i, kind in enumerate(kinds, 1)
    ]
