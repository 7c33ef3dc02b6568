"""Notifications: an owner learns that a receiver fails and has recovered, nobody else does, and none is lost."""

from collections.abc import Sequence
from typing import Any

import pytest

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.bus import notices as bus_notices
from doubledecker.bus.notices import NoticeWriter
from doubledecker.model.reserved import RECEIVERS
from doubledecker.model.settlement import DELIVERED
from doubledecker.store import dead_letters, notices, registry
from doubledecker.store.deliveries import Settled
from doubledecker.store.partitions import Partition
from harness import ROOT_KEY, TestBus, a_bus, an_event
from letters import a_letter, keep
from receiver import Receiver
from store.test_deliveries import FAILED, a_receiver, publish, take
from streams import a_stream
from web.asking import ask, journal
from worker.test_deliver import _until

FAILING, RECOVERED = "receiver.failing", "receiver.recovered"


async def a_queue(bus: TestBus, name: str, secret: str, **fields: object) -> None:
    answer = await ask(bus, "PUT", f"/queues/{name}", secret, json={"pattern": ".*", **fields})
    assert answer.status == 201, answer.body


async def pulled(bus: TestBus, name: str, secret: str) -> list[dict[str, Any]]:
    answer = await ask(bus, "POST", f"/queues/{name}/pull", secret, json={"max": 100})
    return [message["event"] for message in answer.json["messages"]]


async def published(bus: TestBus) -> list[dict[str, Any]]:
    """All notifications, in order."""
    return [event for event in await journal(bus) if event.get("topic") == RECEIVERS]


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


async def test_an_owner_and_root_are_notified_of_a_receiver_that_fails_and_recovers_and_others_are_not(
    topology: Topology,
):
    """Whatever they subscribe to, match or listen to, from now on or from the past."""
    async with (
        a_bus(topology) as bus,
        Receiver() as anns,
        Receiver() as bobs,
        Receiver(plan=lambda n: 500 if n == 1 else 200) as hook,
    ):
        ann, bob = await bus.token("ann"), await bus.token("bob")
        await bus.subscribe(ann, anns.url, RECEIVERS, timeout=0)
        await bus.subscribe(bob, bobs.url, RECEIVERS, "widgets", timeout=0)
        for name, secret in (("anns", ann), ("bobs", bob), ("roots", ROOT_KEY)):
            await a_queue(bus, name, secret)
        await a_queue(bus, "hook", ann, pattern=".*:widgets:.*", callback=hook.url, timeout=0)
        async with a_stream(bus.url, ann) as live, a_stream(bus.url, bob) as bobs_live:
            await bus.publish(bob, [an_event()])
            await anns.until_events(2, within_s=20)
            await bus.publish(bob, [an_event(1)])
            await bobs.until_events(2)

            assert [event["topic"] for event in await live.events(4)] == ["widgets", RECEIVERS, RECEIVERS, "widgets"]
            assert [event["topic"] for event in await bobs_live.events(2)] == ["widgets"] * 2
        async with a_stream(bus.url, ROOT_KEY, **{"from": "earliest"}) as past:
            assert [event["topic"] for event in await past.events(4)].count(RECEIVERS) == 2
        async with a_stream(bus.url, bob, **{"from": "earliest"}) as past:
            assert [event["topic"] for event in await past.events(2)] == ["widgets"] * 2

        assert types(anns.events) == [FAILING, RECOVERED]
        data = [event["data"] for event in anns.events]
        assert [(each["receiver"], each["host"], each["failures"]) for each in data] == [("@hook", "127.0.0.1", 1)] * 2
        assert [each["owner"].rpartition("-")[0] for each in data] == ["ann"] * 2
        assert (data[0]["reason"], data[0]["status"]) == ("refused", 500)
        assert "callback" not in data[0]
        assert types([e for e in await pulled(bus, "anns", ann) if e["topic"] == RECEIVERS]) == [FAILING, RECOVERED]
        assert types([e for e in await pulled(bus, "roots", ROOT_KEY) if e["topic"] == RECEIVERS]) == [
            FAILING,
            RECOVERED,
        ]
        assert {event["topic"] for event in await pulled(bus, "bobs", bob)} == {"widgets"}
        assert {event["topic"] for event in bobs.events} == {"widgets"}
        assert [each["name"] for each in await bus.get("/topics")] == ["widgets"]


async def test_a_receiver_that_only_notifications_reach_is_never_notified_of(one: Topology):
    """Else each notification that it does not take would make another."""
    async with (
        a_bus(one) as bus,
        Receiver(plan=lambda _: 500) as hook,
        Receiver(plan=lambda n: 500 if n % 2 else 200) as bad,
    ):
        ann = await bus.token("ann")
        await bus.subscribe(ann, hook.url, "widgets", timeout=0)
        await a_queue(bus, "watch", ann, pattern=f".*:{RECEIVERS}:.*", callback=bad.url, timeout=0)
        await bus.publish(ann, [an_event()])
        await bad.until_events(1, within_s=20)
        # Written later, so published later.
        zed = await bus.token("zed")
        await bus.subscribe(zed, hook.url, "gadgets", timeout=0)
        await bus.publish(zed, [an_event(topic="gadgets")])
        found = await _until(lambda: published(bus), lambda seen: "zed-" in str(seen))

        assert [event["data"]["receiver"][:4] for event in found] == ["ann-", "zed-"]
        assert bad.attempts == 2


async def test_a_receiver_that_flaps_is_notified_of_once_a_minute(one: Topology):
    async with a_bus(one, workers=0) as bus:
        home = bus.partitions.home
        for _ in range(5):
            await _flap(home, "s-1")
        quick = await notices.read(home, count=100)
        home.shift_ms += 60_000
        await home.command("PEXPIRE", home.key("notices:open:s-1"), 0)  # Redis's own clock has not moved
        await _flap(home, "s-1")

        assert [each.type for each in quick] == [FAILING, RECOVERED]
        assert [each.type for each in await notices.read(home, count=100)] == [FAILING, RECOVERED] * 2


async def test_an_owner_is_notified_once_of_a_receiver_that_is_disabled(topology: Topology):
    """Each partition takes it out of its ring, and one event is published."""
    async with a_bus(topology) as bus, Receiver() as seen, Receiver(plan=lambda _: 410) as gone:
        ann = await bus.token("ann")
        await bus.subscribe(ann, seen.url, RECEIVERS, timeout=0)
        await a_queue(bus, "hook", ann, pattern=".*:widgets:.*", callback=gone.url, timeout=0)
        await bus.publish(ann, [an_event(tenant=f"t{n}") for n in range(6)])
        await seen.until(lambda: "receiver.disabled" in types(seen.events), within_s=20)
        parts = bus.partitions.all
        await _until(lambda: waiting(parts), lambda left: left == 0)

        [event] = [each for each in await published(bus) if each["type"] == "receiver.disabled"]
        assert (event["data"]["receiver"], event["data"]["reason"], event["data"]["status"]) == ("@hook", "gone", 410)


async def test_a_notice_whose_writer_died_is_published_by_the_next_and_not_twice(topology: Topology):
    """The writer dies after a settlement that counted, then between publishing and forgetting."""
    async with a_bus(topology, workers=0) as bus:
        ann = await bus.token("ann")
        await bus.subscribe(ann, "https://a.example/secret/path", "widgets", RECEIVERS)
        [listed] = await bus.get("/subscribers", ann)
        home = bus.partitions.home
        await _flap(home, listed["subscriber"])
        kept = await home.command("DUMP", home.key("notices"))
        async with build.open_bus(bus.settings) as parts:
            writer = NoticeWriter(parts.partitions, parts.registry)
            await writer.run()
            await home.command("RESTORE", home.key("notices"), 0, kept, "REPLACE")
            await writer.run()

        found = await published(bus)
        assert types(found) == [FAILING, RECOVERED]
        assert found[0]["data"]["host"] == "a.example"
        assert "secret" not in str(found)
        assert await notices.read(home, count=10) == []


async def test_a_notice_of_a_receiver_that_is_gone_is_forgotten(one: Topology):
    async with a_bus(one, workers=0) as bus, build.open_bus(bus.settings) as parts:
        home = bus.partitions.home
        await _flap(home, "gone-12345678")
        before = await notices.read(home, count=10)
        await NoticeWriter(parts.partitions, parts.registry).run()

        assert len(before) == 2
        assert await notices.read(home, count=10) == []
        assert await published(bus) == []


async def test_the_first_dead_letter_since_there_was_none_is_notified_of_once_a_minute(one: Topology):
    async with a_bus(one, workers=0) as bus, build.open_bus(bus.settings) as parts:
        ann = await bus.token("ann")
        await a_queue(bus, "jobs", ann)
        home, writer = bus.partitions.home, NoticeWriter(parts.partitions, parts.registry)
        # Of a notification that came to nothing there is none.
        await keep(home, [a_letter(0, topic=RECEIVERS)], "@jobs")
        version = await registry.version(home)
        await dead_letters.purge(home, "@jobs", [a_letter(0).id], version=version)
        for n in (1, 2):
            await keep(home, [a_letter(n, reason="rejected", status=422)], "@jobs")
        await dead_letters.purge(home, "@jobs", [a_letter(n).id for n in (1, 2)], version=version)
        await keep(home, [a_letter(3)], "@jobs")
        await writer.run()

        [event] = await published(bus)
        data = event["data"]
        assert event["type"] == "receiver.dead_letter"
        assert (data["receiver"], data["reason"], data["status"]) == ("@jobs", "rejected", 422)
        assert [each["topic"] for each in await pulled(bus, "jobs", ann)] == [RECEIVERS]


async def test_owners_take_turns_when_many_notices_wait(one: Topology):
    """One client's thousands were all published before another's first."""
    async with a_bus(one, workers=0) as bus, build.open_bus(bus.settings) as parts:
        home, writer = bus.partitions.home, NoticeWriter(parts.partitions, parts.registry)
        ann, bob = await _a_receiver(bus, "ann"), await _a_receiver(bus, "bob")
        for n in range(150):
            await _write(home, ann, failures=n + 1)
        for n in range(2):
            await _write(home, bob, failures=n + 1)
        await writer.run()

        first = [(each["data"]["receiver"], each["data"]["failures"]) for each in await published(bus)]
        assert [failures for receiver, failures in first if receiver == bob] == [1, 2]
        assert [failures for receiver, failures in first if receiver == ann] == list(range(1, 49))
        for _ in range(3):
            await writer.run()
        assert len(await published(bus)) == 152
        assert await notices.read(home, count=10) == []


async def test_an_owner_with_too_many_notices_loses_its_own_oldest(one: Topology, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bus_notices, "_OWNER_MAX", 60)
    monkeypatch.setattr(notices, "_PAGE", 40)
    async with a_bus(one, workers=0) as bus, build.open_bus(bus.settings) as parts:
        home, writer = bus.partitions.home, NoticeWriter(parts.partitions, parts.registry)
        ann, bob = await _a_receiver(bus, "ann"), await _a_receiver(bus, "bob")
        await _write(home, bob, failures=1)
        for n in range(119):
            await _write(home, ann, failures=n + 1)
        for _ in range(2):
            await writer.run()

        found = [(each["data"]["receiver"], each["data"]["failures"]) for each in await published(bus)]
        assert sorted(found) == sorted([(bob, 1), *((ann, n) for n in range(60, 120))])


async def _a_receiver(bus: TestBus, name: str) -> str:
    """A client's subscriber, by its id."""
    secret = await bus.token(name)
    await bus.subscribe(secret, "https://a.example", "widgets")
    [listed] = await bus.get("/subscribers", secret)
    return str(listed["subscriber"])


async def _write(home: Partition, receiver: str, *, failures: int) -> None:
    """A notice as scripts write it."""
    fields = {"type": FAILING, "receiver": receiver, "why": "refused 500", "failures": failures, "since": 1}
    await home.command("XADD", home.key("notices"), "*", *[word for pair in fields.items() for word in pair])


async def _flap(home: Partition, token: str) -> None:
    """A receiver takes nothing, and then everything."""
    receiver = a_receiver(token)
    # Nobody changes the registry meanwhile, so the receiver is as it was called.
    version = await registry.version(home)
    await publish(home, receiver, version=version)
    [job] = (await take(home, "s", probes_max=1)).jobs
    await take(home, settled=[Settled(job, FAILED, why="refused 500", anew_since=version)])
    home.shift_ms += 10
    turn = await take(home, "s", probes_max=1)
    await take(home, settled=[Settled(job, DELIVERED, anew_since=version) for job in turn.jobs])


async def waiting(partitions: Sequence[Partition]) -> int:
    """Notices that are yet to be published, in all partitions."""
    return sum([len(await notices.read(partition, count=100)) for partition in partitions])
