"""What one client may have: each bound is refused by name, holds for one client alone, and not for root."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from itertools import islice

from conftest import Topology
from doubledecker.assembly import build
from doubledecker.model.event import EventKind
from doubledecker.store import quotas
from doubledecker.store.partitions import Partitions
from harness import ROOT_KEY, TestBus, a_bus, an_event, basic
from web.asking import Answer, another_web, ask


async def put(bus: TestBus, secret: str, name: str, *patterns: str) -> Answer:
    return await ask(bus, "PUT", f"/queues/{name}", secret, json={"pattern": list(patterns)})


def assert_refused(answer: Answer, bound: str, most: int) -> None:
    """A 429 that names the bound, its value, its setting and what to do."""
    assert answer.status == 429, answer.body
    assert answer.json["title"] == "Quota exceeded"
    assert f"at most {most} are allowed (DOUBLEDECKER_{bound.upper()});" in answer.detail


class TestQueues:
    async def test_a_client_has_so_many_queues(self, one: Topology):
        async with a_bus(one, workers=0, client_queues_max=2) as bus:
            ann, bob = await bus.token("ann"), await bus.token("bob")
            answers = [await put(bus, ann, f"q{n}", "a:.*") for n in range(3)]

            assert [answer.status for answer in answers[:2]] == [201, 201]
            assert_refused(answers[2], "client_queues_max", 2)
            # A queue that there is may still be changed, and others have their own quota.
            assert (await put(bus, ann, "q1", "b:.*")).status == 200
            assert (await put(bus, bob, "q3", "a:.*")).status == 201
            assert [(await put(bus, ROOT_KEY, f"r{n}", "a:.*")).status for n in range(3)] == [201] * 3
            await ask(bus, "DELETE", "/queues/q0", ann)
            assert (await put(bus, ann, "q2", "a:.*")).status == 201

    async def test_a_clients_patterns_have_so_many_steps(self, one: Topology):
        async with a_bus(one, workers=0, client_pattern_steps_max=60) as bus:
            ann = await bus.token("ann")
            assert (await put(bus, ann, "q1", ".*:page:.*", ".*")).status == 201
            # The same pattern is compiled once.
            assert (await put(bus, ann, "q2", ".*:page:.*")).status == 201
            refused = await put(bus, ann, "q3", ".*:user:.*")

            assert_refused(refused, "client_pattern_steps_max", 60)
            assert "fewer repetitions" in refused.detail
            assert (await put(bus, ann, "q1", ".*:user:.*")).status == 200

    async def test_all_clients_patterns_have_so_many_steps_together(self, one: Topology):
        async with a_bus(one, workers=0, pattern_steps_max=60) as bus:
            ann, bob = await bus.token("ann"), await bus.token("bob")
            assert (await put(bus, ann, "q1", ".*:page:.*", ".*")).status == 201
            assert_refused(await put(bus, bob, "q2", ".*:page:.*"), "pattern_steps_max", 60)
            # What there is may be put again, as services do at each start.
            assert (await put(bus, ann, "q1", ".*:page:.*", ".*")).status == 200

    async def test_zero_is_no_bound(self, one: Topology):
        async with a_bus(one, workers=0, client_queues_max=0, client_pattern_steps_max=0, pattern_steps_max=0) as bus:
            ann = await bus.token("ann")

            assert (await put(bus, ann, "q1", ".*:page:.*")).status == 201

    async def test_a_client_has_so_many_queues_that_refuse(self, one: Topology):
        async with a_bus(one, workers=0, client_refusing_queues_max=2) as bus:
            ann, refusing = await bus.token("ann"), {"pattern": "a:.*", "overflow": "refuse"}

            async def put_refusing(secret: str, name: str, **fields: object) -> Answer:
                return await ask(bus, "PUT", f"/queues/{name}", secret, json={**refusing, **fields})

            assert [(await put_refusing(ann, f"q{n}")).status for n in range(2)] == [201, 201]
            assert_refused(await put_refusing(ann, "q2"), "client_refusing_queues_max", 2)
            # One that drops its oldest is none of them, and may not become one; one that is may be changed.
            assert (await put_refusing(ann, "q2", overflow="drop_oldest")).status == 201
            assert_refused(await put_refusing(ann, "q2"), "client_refusing_queues_max", 2)
            assert (await put_refusing(ann, "q1", max_length=5)).status == 200
            assert (await put_refusing(await bus.token("bob"), "q3")).status == 201
            assert [(await put_refusing(ROOT_KEY, f"r{n}")).status for n in range(3)] == [201] * 3

    async def test_an_event_is_on_so_many_queues_of_one_client(self, one: Topology):
        async with a_bus(one, workers=0, client_copies_max=2) as bus:
            ann, bob = await bus.token("ann"), await bus.token("bob")
            assert [(await put(bus, ann, f"all{n}", ".*")).status for n in range(2)] == [201, 201]
            assert_refused(await put(bus, ann, "all2", "[^:]*:.*"), "client_copies_max", 2)
            # What the others match is no concern of it, nor are queues that get other events.
            assert (await put(bus, bob, "all3", ".*")).status == 201
            assert (await put(bus, ann, "all1", ".*")).status == 200

    async def test_events_of_late_tell_which_queues_would_get_the_same(self, one: Topology):
        async with a_bus(one, workers=0, client_copies_max=2) as bus:
            ann, bob = await bus.token("ann"), await bus.token("bob")
            assert [(await put(bus, ann, f"page{n}", f".*:page:view|{n}:.*")).status for n in range(2)] == [201, 201]
            assert (await put(bus, ann, "user", ".*:user:.*")).status == 201
            await bus.publish(bob, [{"topic": "page", "type": "view"}])

            assert_refused(await put(bus, ann, "page2", ".*:page:.*"), "client_copies_max", 2)

    async def test_so_many_tenants_of_a_queue_have_rules(self, one: Topology):
        async with a_bus(one, workers=0, queue_tenants_max=2) as bus:
            ann = await bus.token("ann")
            await put(bus, ann, "jobs", ".*")

            async def rule(tenant: str, weight: float = 2, secret: str = ann) -> Answer:
                return await ask(bus, "PATCH", f"/queues/jobs/facets/{tenant}", secret, json={"weight": weight})

            assert [(await rule(tenant)).status for tenant in ("a", "b", "a")] == [200, 200, 200]
            assert_refused(await rule("c"), "queue_tenants_max", 2)
            assert (await rule("c", secret=ROOT_KEY)).status == 200
            await rule("a", weight=1)
            await rule("b", weight=1)
            assert (await rule("d")).status == 200


class TestTopics:
    async def test_a_client_owns_so_many_topics(self, topology: Topology):
        async with a_bus(topology, workers=0, client_topics_max=2) as bus:
            ann, bob = await bus.token("ann"), await bus.token("bob")
            await bus.publish(ann, [an_event(1, "one"), an_event(2, "two")])
            mixed = await ask(bus, "POST", "/events", ann, json=[an_event(3, "one"), an_event(4, "three")])
            single = await ask(bus, "POST", "/events", ann, json=an_event(5, "three"))
            whole = await ask(bus, "POST", "/events?all=1", ann, json=[an_event(6, "one"), an_event(7, "four")])
            posted = await ask(bus, "POST", "/topics/five", ann, json={"type": "noop", "url": "https://example.org/1"})

            assert (mixed.status, len(mixed.json["ids"])) == (202, 1)
            assert "DOUBLEDECKER_CLIENT_TOPICS_MAX" in mixed.json["refused"][0]["why"]
            for answer in (single, posted):
                assert_refused(answer, "client_topics_max", 2)
            assert whole.status == 429
            assert await topics(bus) == {"one": 2, "two": 1}
            await bus.publish(bob, [an_event(8, "three")])

    async def test_a_topic_that_is_deleted_or_given_away_makes_room(self, one: Topology):
        async with a_bus(one, workers=0, client_topics_max=2) as bus:
            ann, bob = await bus.token("ann"), await bus.token("bob")
            await bus.publish(ann, [an_event(1, "one"), an_event(2, "two")])
            await ask(bus, "DELETE", "/topics/one", ann)
            await bus.publish(ann, [an_event(3, "three")])
            to = next(token["token"] for token in await bus.get("/api_tokens") if token["name"] == "bob")
            assert (await ask(bus, "POST", "/topics/two/give", json={"to": to})).status < 300
            await bus.publish(ann, [an_event(4, "four")])
            await bus.publish(bob, [an_event(5, "two"), an_event(6, "five")])

            assert (await ask(bus, "POST", "/events", ann, json=an_event(7, "six"))).status == 429
            assert (await ask(bus, "POST", "/events", bob, json=an_event(8, "six"))).status == 429

    async def test_topics_of_version_0_1_0_count(self, one: Topology):
        async with a_bus(one, workers=0) as bus:
            ann = await bus.token("ann")
            await bus.publish(ann, [an_event(1, "one"), an_event(2, "two")])
            home = bus.partitions.home
            await home.command("DEL", *await home.command("KEYS", home.key("owned:*")))
            await home.command("HDEL", home.key("registry"), "owned")
            from_before = await home.command("KEYS", home.key("owned:*"))
            async with build.open_bus(bus.settings):
                owned = [await home.command("SMEMBERS", key) for key in await home.command("KEYS", home.key("owned:*"))]

            assert from_before == []
            assert [set(names) for names in owned] == [{b"one", b"two"}]

    async def test_many_requests_at_once_claim_no_more_than_allowed(self, one: Topology):
        async with a_bus(one, workers=0, client_topics_max=3) as bus:
            ann = await bus.token("ann")
            names = [f"topic_{'abcdefghij'[n]}" for n in range(10)]
            answers = await asyncio.gather(
                *(ask(bus, "POST", "/events", ann, json=an_event(1, name)) for name in names)
            )

            assert sorted(answer.status for answer in answers) == [202] * 3 + [429] * 7


async def topics(bus: TestBus) -> dict[str, int]:
    return {row["name"]: row["events"] for row in await bus.get("/topics")}


async def test_a_client_subscribes_to_so_many_topics(one: Topology):
    async with a_bus(one, workers=0, client_subscriptions_max=2) as bus:
        ann = await bus.token("ann")

        async def subscribe(*names: str) -> Answer:
            body = {"topics": list(names), "callback": "http://127.0.0.1:9/"}
            return await ask(bus, "POST", "/subscription", ann, json=body)

        assert (await subscribe("one", "two")).status == 204
        assert_refused(await subscribe("one", "two", "three"), "client_subscriptions_max", 2)
        assert (await subscribe("three")).status == 204
        assert (await subscribe("one", "two", "one")).status == 204
        # So many are not checked one by one.
        assert_refused(await subscribe("no topic", "two", "three"), "client_subscriptions_max", 2)


async def test_a_client_has_so_many_streams_open(one: Topology):
    async with a_bus(one, workers=0, client_streams_max=1) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        url = f"{bus.url}/stream"
        async with bus.http.get(url, headers=basic(ann)) as first:
            assert await first.content.readline()
            assert_refused(await ask(bus, "GET", "/stream", ann), "client_streams_max", 1)
            async with (
                bus.http.get(url, headers=basic(bob)) as other,
                bus.http.get(url, headers=basic(ROOT_KEY)) as root,
            ):
                assert (other.status, root.status) == (200, 200)


async def test_a_client_has_so_many_requests_under_way(one: Topology):
    async with a_bus(one, workers=0, client_requests_max=2) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        await ask(bus, "PUT", "/queues/idle", ann, json={"pattern": "none:none:none"})
        url = f"{bus.url}/stream"
        async with bus.http.get(url, headers=basic(ann)) as first:
            assert await first.content.readline()
            async with bus.http.get(url, headers=basic(ann)) as second:
                assert await second.content.readline()
                refused = await ask(bus, "POST", "/queues/idle/pull", ann, json={"max": 1, "wait_ms": 20_000})
                others = [(await ask(bus, "GET", "/topics", secret)).status for secret in (bob, ROOT_KEY)]

                assert_refused(refused, "client_requests_max", 2)
                assert refused.headers["Retry-After"] == "1"
                assert others == [200, 200]
        async with asyncio.timeout(10):
            while (await ask(bus, "GET", "/topics", ann)).status != 200:
                await asyncio.sleep(0.02)
        # Those that were answered, refused or not, count no longer.
        assert [(await ask(bus, "GET", "/queues/none", ann)).status for _ in range(5)] == [404] * 5


async def test_a_bound_of_subscriptions_that_was_raised_lets_a_client_have_them(one: Topology):
    async with a_bus(one, workers=0, client_subscriptions_max=9_000) as bus:
        ann = await bus.token("ann")
        topics = [f"t{n}" for n in range(10_001)]

        async def subscribe(count: int) -> Answer:
            body = {"topics": topics[:count], "callback": "http://127.0.0.1:9/"}
            return await ask(bus, "POST", "/subscription", ann, json=body)

        assert [(await subscribe(9_000)).status for _ in range(2)] == [204, 204]
        assert len((await bus.get("/subscribers", ann))[0]["topics"]) == 9_000
        assert_refused(await subscribe(9_001), "client_subscriptions_max", 9_000)
        assert (await subscribe(10_001)).status == 400


async def test_the_streams_of_a_client_are_counted_over_all_web_processes(one: Topology):
    async with a_bus(one, workers=0, client_streams_max=1) as bus, another_web(bus) as other:
        ann = await bus.token("ann")
        async with bus.http.get(f"{bus.url}/stream", headers=basic(ann)) as first:
            assert await first.content.readline()
            async with bus.http.get(f"{other}/stream", headers=basic(ann)) as second:
                refused = await second.json(content_type=None)
            metrics = (await ask(bus, "GET", "/metrics")).body.decode()
        async with asyncio.timeout(10):
            while True:
                async with bus.http.get(f"{other}/stream", headers=basic(ann)) as again:
                    if again.status == 200:
                        break

    assert second.status == 429
    assert "at most 1 are allowed (DOUBLEDECKER_CLIENT_STREAMS_MAX)" in refused["detail"]
    assert re.search(r'doubledecker_client_quota_used{client="ann-\w+",quota="client_streams_max"} 1.0', metrics)


async def test_streams_of_a_process_that_died_are_counted_until_their_lease_ends(partitions: Partitions):
    home = partitions.home
    entered = [await quotas.enter(home, "ann", f"stream-{n}", most=2) for n in range(3)]
    home.shift_ms = quotas.LEASE_MS - 1_000
    await quotas.renew(home, "ann", ["stream-0"])
    home.shift_ms = quotas.LEASE_MS + 1_000

    assert entered == [True, True, False]
    assert await quotas.counts(home, ["ann", "bob"]) == {"ann": 1, "bob": 0}
    assert await quotas.enter(home, "ann", "stream-3", most=2)


async def test_a_client_has_so_many_idempotency_keys_within_some_minutes(one: Topology):
    async with a_bus(one, workers=0, client_idempotency_keys_max=2) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")

        async def publish(secret: str, key: str, topic: str) -> Answer:
            return await ask(bus, "POST", "/events", secret, json=an_event(1, topic), headers={"Idempotency-Key": key})

        assert [(await publish(ann, key, "one")).status for key in ("k1", "k2", "k1")] == [202] * 3
        assert_refused(await publish(ann, "k3", "one"), "client_idempotency_keys_max", 2)
        assert (await publish(bob, "k3", "two")).status == 202
        # Once they are older, the oldest makes room.
        home = bus.partitions.home
        [ages] = await home.command("KEYS", home.key("ages:ann*"))
        await home.command("ZADD", ages, "XX", 1, "k1")
        assert (await publish(ann, "k3", "one")).status == 202


async def test_use_is_shown_beside_the_bounds(one: Topology):
    async with a_bus(one, workers=0, client_topics_max=7) as bus:
        ann = await bus.token("ann")
        await bus.publish(ann, [an_event(1, "one"), an_event(2, "two")])
        await put(bus, ann, "q", ".*")
        text = (await ask(bus, "GET", "/metrics")).body.decode()
        [id_] = [token["token"] for token in await bus.get("/api_tokens")]

        assert f'doubledecker_client_quota_used{{client="{id_}",quota="client_topics_max"}} 2.0' in text
        assert f'doubledecker_client_quota_used{{client="{id_}",quota="client_queues_max"}} 1.0' in text
        assert f'doubledecker_client_quota_used{{client="{id_}",quota="client_pattern_steps_max"}} 12.0' in text
        assert 'doubledecker_quota_max{quota="client_topics_max"} 7.0' in text


class TestCopies:
    """Of one event a client gets so many copies, also when nobody could tell at registration."""

    async def test_events_of_unforeseen_kinds_enter_so_many_queues_of_one_client(self, topology: Topology):
        async with a_bus(topology, workers=0, client_copies_max=2) as bus:
            ann, bob = await bus.token("ann"), await bus.token("bob")
            # The keys on which they overlap were never seen, so each may be registered.
            answers = [await put(bus, ann, f"sly{n}", ".*:(secret|other" + "x" * n + "):.*") for n in range(4)]
            await put(bus, bob, "bobs", ".*:secret:.*")
            await put(bus, ROOT_KEY, "roots", ".*")
            await bus.publish(bob, [an_event(n, "secret", tenant=f"t{n}") for n in range(6)])
            await bus.publish(bob, [an_event(7, "otherx")])

            assert [answer.status for answer in answers] == [201] * 4
            assert [await waiting(bus, f"sly{n}") for n in range(4)] == [6, 7, 0, 0]
            assert [await waiting(bus, name) for name in ("bobs", "roots")] == [6, 7]

    async def test_the_queues_left_out_count_what_they_missed(self, topology: Topology):
        async with a_bus(topology, workers=0, client_copies_max=1) as bus:
            ann, bob = await bus.token("ann"), await bus.token("bob")
            for name in ("first", "second", "third"):
                await put(bus, ann, name, f".*:page:.*|{name}:.*")
            events = [an_event(n, "page", id=f"event-{n}") for n in range(3)]
            await bus.publish(bob, events)
            # A repeat is published nowhere, so nobody missed it.
            await bus.publish(bob, [*events, an_event(4, "page", tenant="first")])
            await until(lambda: skipped(bus, "second", 4))
            metrics = (await ask(bus, "GET", "/metrics")).body.decode()

            assert await skipped(bus, "third", 4)
            assert await skipped(bus, "first", 0)
            assert 'doubledecker_queue_skipped_total{queue="second"} 4.0' in metrics

    async def test_a_clients_own_events_enter_all_of_its_queues(self, one: Topology):
        async with a_bus(one, workers=0, client_copies_max=1) as bus:
            ann, bob = await bus.token("ann"), await bus.token("bob")
            await bus.publish(ann, [an_event(1, "page")])
            answers = [await put(bus, ann, f"q{n}", f".*:page:.*|{n}:.*") for n in range(3)]
            await bus.publish(ann, [an_event(2, "page")])
            # Its topic becomes another's, and with that its events are another's.
            to = next(token["token"] for token in await bus.get("/api_tokens") if token["name"] == "bob")
            await ask(bus, "POST", "/topics/page/give", json={"to": to})
            await bus.publish(bob, [an_event(3, "page")])

            assert [answer.status for answer in answers] == [201] * 3
            assert [await waiting(bus, f"q{n}") for n in range(3)] == [2, 1, 1]

    async def test_a_bound_of_zero_is_none(self, one: Topology):
        async with a_bus(one, workers=0, client_copies_max=0) as bus:
            ann = await bus.token("ann")
            for n in range(12):
                await put(bus, ann, f"q{n}", ".*")
            await bus.publish(ann, [an_event(1)])

            assert [await waiting(bus, f"q{n}") for n in range(12)] == [1] * 12


async def waiting(bus: TestBus, queue: str) -> int:
    return int((await bus.get(f"/queues/{queue}"))["waiting"])


async def skipped(bus: TestBus, queue: str, count: int) -> bool:
    return (await bus.get(f"/queues/{queue}"))["counters"]["skipped"] == count


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await is_so():
            await asyncio.sleep(0.02)


class TestTenants:
    """A queue knows so many tenants, whatever events come."""

    async def test_events_of_further_tenants_do_not_enter_a_strangers_queue(self, topology: Topology):
        async with a_bus(topology, workers=0, queue_tenants_max=2) as bus:
            ann, bob = await bus.token("ann"), await bus.token("bob")
            await put(bus, ann, "jobs", ".*")
            await put(bus, ROOT_KEY, "roots", ".*")
            # A tenant is whole in one partition, and the bound holds in each.
            tenants = tenants_of_one_partition(bus, 4)
            await bus.publish(bob, [an_event(n, tenant=tenant) for n, tenant in enumerate(tenants)])
            await bus.publish(bob, [an_event(n, tenant=tenant) for n, tenant in enumerate(tenants)])
            seen = await bus.get("/queues/jobs")

            assert {facet["tenant"]: facet["waiting"] for facet in seen["facets"]} == dict.fromkeys(tenants[:2], 2)
            assert seen["counters"]["skipped"] == 4
            assert await waiting(bus, "roots") == 8

    async def test_its_owners_events_of_further_tenants_are_refused_by_name(self, one: Topology):
        async with a_bus(one, workers=0, queue_tenants_max=2) as bus:
            ann = await bus.token("ann")
            await put(bus, ann, "jobs", ".*")
            tenants = [an_event(n, tenant=f"t{n}") for n in range(3)]
            mixed = await ask(bus, "POST", "/events", ann, json=tenants)
            single = await ask(bus, "POST", "/events", ann, json=tenants[2])
            whole = await ask(bus, "POST", "/events?all=1", ann, json=tenants)

            assert (mixed.status, len(mixed.json["ids"])) == (202, 2)
            [refusal] = mixed.json["refused"]
            assert refusal["index"] == 2
            for why in (refusal["why"], single.detail, whole.json["refused"][0]["why"]):
                assert "at most 2 are allowed (DOUBLEDECKER_QUEUE_TENANTS_MAX)" in why
            assert (single.status, whole.status) == (429, 429)
            assert await waiting(bus, "jobs") == 2

    async def test_tenants_that_have_nothing_left_make_room_also_while_nobody_pulls(self, one: Topology):
        async with a_bus(one, workers=0, queue_tenants_max=2) as bus:
            ann = await bus.token("ann")
            await put(bus, ann, "jobs", ".*")
            await bus.publish(ann, [an_event(n, tenant=f"t{n}") for n in range(2)])
            pulled = await ask(bus, "POST", "/queues/jobs/pull", ann, json={"max": 2})
            messages = [{"id": each["id"], "attempt": each["attempt"]} for each in pulled.json["messages"]]
            await ask(bus, "POST", "/queues/jobs/ack", ann, json={"messages": messages})
            await bus.publish(ann, [an_event(n, tenant=f"t{n}") for n in range(1, 4, 2)])
            refused = await ask(bus, "POST", "/events", ann, json=an_event(5, tenant="t5"))

            assert len(messages) == 2
            assert await waiting(bus, "jobs") == 2
            assert refused.status == 429


def tenants_of_one_partition(bus: TestBus, count: int) -> list[str]:
    tenants = (f"t{n}" for n in range(1_000))
    home, of = bus.partitions.home, bus.partitions.of
    return list(islice((tenant for tenant in tenants if of(EventKind("widgets", "update", tenant)) is home), count))
