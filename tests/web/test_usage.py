"""What is used of each quota, beside its bound."""

import re
from dataclasses import fields, replace

import pytest

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.bus import usage
from doubledecker.bus.registry import LiveRegistry
from doubledecker.model.quota import Quotas
from doubledecker.store import processes
from doubledecker.store.partitions import Partitions
from doubledecker.store.processes import Family, MetricSample, ProcessReport
from doubledecker.web import addresses
from harness import ROOT_KEY, TestBus, a_bus, an_event, basic
from web.asking import ask

# All quotas, and the bound of those who are not known yet.
BOUNDS = {field.name for field in fields(Quotas)} | {"address_connections_max"}
TOGETHER = {"pattern_steps_max", "filter_steps_max", "address_connections_max"}


async def metrics(bus: TestBus, secret: str = ROOT_KEY) -> dict[tuple[str, ...], float]:
    """What is shown of quotas: by the bound, and by client and bound."""
    text = (await ask(bus, "GET", "/metrics", secret)).body.decode()
    rows = re.findall(r'doubledecker_(?:client_)?quota_used{(?:client="(\w+)-\w+",)?quota="(\w+)"} (\S+)', text)
    rows += re.findall(r'doubledecker_quota_(max){quota="(\w+)"} (\S+)', text)
    return {(whose, bound): float(value) for whose, bound, value in rows}


async def test_every_bound_is_shown_with_what_is_used_of_it(topology: Topology):
    async with a_bus(topology, workers=0, client_topics_max=7, queue_tenants_max=0) as bus:
        ann = await bus.token("ann")
        await bus.publish(ann, [an_event(1)])
        shown = await metrics(bus)

    assert {bound for whose, bound in shown if whose == "max"} == BOUNDS
    assert {bound for whose, bound in shown if whose == "ann"} == BOUNDS - TOGETHER
    assert {bound for whose, bound in shown if whose == ""} == TOGETHER
    assert (shown["max", "client_topics_max"], shown["max", "queue_tenants_max"]) == (7, 0)
    assert (shown["ann", "client_topics_max"], shown["ann", "client_queues_max"]) == (1, 0)


async def test_copies_are_counted_on_the_last_events_and_tenants_in_the_largest_queue(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        for name, pattern in {"a": ".*:page:.*", "b": ".*:page:.*", "c": ".*:other:.*", "d": "t1:.*"}.items():
            await ask(bus, "PUT", f"/queues/{name}", ann, json={"pattern": pattern})
        await bus.publish(bob, [an_event(n, "page", tenant=f"t{n % 3}") for n in range(6)])
        shown = await metrics(bus)
        async with build.open_bus(bus.settings) as other:
            seen = await usage.look(other.partitions, other.registry, [], connections_max=9)

        # The one on `t1`, too, where the last event was of that tenant.
        assert shown["ann", "client_copies_max"] == 3
        assert shown["bob", "client_copies_max"] == 0
        assert 1 <= shown["ann", "queue_tenants_max"] <= 3
        assert topology.partitions > 1 or shown["ann", "queue_tenants_max"] == 3
        assert shown["", "pattern_steps_max"] == shown["ann", "client_pattern_steps_max"] > 0
        # Another process that has published nothing knows the last event of each topic.
        assert 2 <= seen.clients[0].counts["client_copies_max"] <= 3


async def test_requests_under_way_and_connections_of_an_address_are_those_of_the_process(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    # Tests come from loopback, which would not be counted.
    monkeypatch.setattr(addresses, "LOOPBACK", ())
    async with a_bus(one, workers=0, address_connections_max=40, client_requests_max=30) as bus:
        ann = await bus.token("ann")
        async with bus.http.get(f"{bus.url}/stream", headers=basic(ann)) as stream:
            assert await stream.content.readline()
            shown = await metrics(bus, ann)

    assert (shown["ann", "client_requests_max"], shown["max", "client_requests_max"]) == (2, 30)
    assert shown["", "address_connections_max"] == 2
    assert shown["max", "address_connections_max"] == 40


async def test_of_several_web_processes_the_one_with_the_most_is_shown(plain: Partitions):
    live = LiveRegistry(plain, Quotas(client_requests_max=100))
    token = await live.clients.create("ann", "secret-of-ann", now_ms=0)

    def report(requests: int, connections: int) -> ProcessReport:
        figures = {usage.CONNECTIONS: connections, usage.CONNECTIONS_BOUND: 20, usage.REQUESTS_BOUND: 50}
        families = [Family(name, "", "gauge", [MetricSample(name, {}, value)]) for name, value in figures.items()]
        by_client = MetricSample(usage.REQUESTS, {"client": token.id}, requests)
        return ProcessReport("web", "web", [*families, Family(usage.REQUESTS, "", "gauge", [by_client])])

    seen = await usage.look(plain, live, [report(3, 5), report(7, 1)], connections_max=40)
    alone = await usage.look(plain, live, [], connections_max=40)

    assert seen.clients[0].counts["client_requests_max"] == 7
    assert seen.together["address_connections_max"] == 5
    assert (seen.bounds["client_requests_max"], seen.bounds["address_connections_max"]) == (50, 20)
    assert (alone.bounds["client_requests_max"], alone.bounds["address_connections_max"]) == (100, 40)


async def test_bounds_are_those_of_the_web_processes_whatever_the_settings_of_who_looks(one: Topology):
    """As `doubledecker status` does, from a shell that has none of the settings."""
    async with a_bus(one, workers=0, client_topics_max=7, client_queues_max=0) as bus:
        ann = await bus.token("ann")
        await bus.publish(ann, [an_event(1)])
        async with build.open_bus(replace(bus.settings, client_topics_max=1_000, client_queues_max=1_000)) as other:
            reports = await processes.reports(other.partitions.home, silent_ms_max=15_000)
            seen = await usage.look(other.partitions, other.registry, reports, connections_max=9)

    assert (seen.bounds["client_topics_max"], seen.bounds["client_queues_max"]) == (7, 0)
