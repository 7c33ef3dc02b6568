"""The watch: what a queue with a callback holds is pushed, in batches, fairly, and nothing is lost on the way."""

import asyncio
from collections import Counter

import msgspec

from conftest import Topology
from doubledecker.model.queue import RegisteredQueue
from doubledecker.store import journal, receivers
from doubledecker.store.machine import free_port
from doubledecker.store.partitions import Partitions
from harness import ROOT_KEY, TestBus, a_bus, an_event, basic
from receiver import Receiver
from watching import a_queue, counters, forget, look, register, until_empty, watching


async def test_what_a_queue_holds_is_pushed_and_acked(topology: Topology):
    async with a_bus(topology, workers=0) as bus, Receiver() as receiver:
        queue = a_queue(receiver.url, uuid="secret")
        await register(bus.settings, queue)
        ids = await bus.publish(await bus.token("shop"), [an_event(n, tenant=f"t{n % 5}") for n in range(50)])
        async with watching(bus.settings):
            await receiver.until_events(50)
            await until_empty(bus.partitions, queue)

        assert sorted(receiver.ids) == sorted(ids)
        assert {(batch.uuid, batch.content_type) for batch in receiver.batches} == {("secret", "application/json")}
        assert list(receiver.events[0]) == ["topic", "type", "url", "t", "id", "tenant"]


async def test_a_noisy_tenant_does_not_hold_up_the_quiet_ones(topology: Topology):
    """One has 400 messages waiting before twenty others have two each: those are served in the first two rounds."""
    async with a_bus(topology, workers=0) as bus, Receiver() as receiver:
        queue = a_queue(receiver.url, max_events=10, concurrency=1, timeout_ms=0)
        await register(bus.settings, queue)
        shop = await bus.token("shop")
        await bus.publish(shop, [an_event(n, tenant="noisy") for n in range(400)])
        for n in range(2):
            await bus.publish(shop, [an_event(n, tenant=f"quiet-{i}") for i in range(20)])
        async with watching(bus.settings):
            await receiver.until_events(440)

        places = [i for i, event in enumerate(receiver.events) if event["tenant"] != "noisy"]
        # 42 is the ideal; the rings of several partitions turn together only about.
        assert len(places) == 40
        assert places[-1] < (42 if topology.partitions == 1 else 80)


async def test_a_process_makes_so_many_calls_at_a_time_over_all_queues(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver(delay_s=0.02) as receiver:
        for n in range(6):
            await register(bus.settings, a_queue(receiver.url, f"hooks{n}", max_events=1, timeout_ms=0))
        await bus.publish(await bus.token("shop"), [an_event(n) for n in range(20)])
        async with watching(bus.settings, worker_threads=5):
            await receiver.until_events(120)

        assert receiver.in_flight_max == 5


async def test_a_queue_that_waits_for_more_leaves_its_slot_to_others(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver() as patient, Receiver() as receiver:
        await register(bus.settings, a_queue(patient.url, "patient", timeout_ms=60_000))
        await register(bus.settings, a_queue(receiver.url, "other", ".*:gadgets:.*"))
        shop = await bus.token("shop")
        async with watching(bus.settings, worker_threads=1):
            await bus.publish(shop, [an_event()])
            async with asyncio.timeout(10):
                while (await look(bus.partitions, a_queue(patient.url, "patient"))).in_flight == 0:
                    await asyncio.sleep(0.02)
            await bus.publish(shop, [an_event(n, "gadgets") for n in range(3)])
            await receiver.until_events(3)


async def test_failing_receivers_of_queues_leave_slots_to_the_others(one: Topology):
    """Of ten slots those that hang, once known to fail, hold three; each was called once before it was known."""
    async with a_bus(one, workers=0) as bus, Receiver(plan=lambda _: "hang") as stuck, Receiver() as receiver:
        for n in range(10):
            await register(bus.settings, a_queue(stuck.url, f"stuck{n}", concurrency=1))
        shop = await bus.token("shop")
        await bus.publish(shop, [an_event(n) for n in range(4)])
        async with watching(bus.settings, worker_threads=10, delivery_timeout_s=0.2):
            await stuck.until_attempts(10)
            await until_failing(bus.partitions, [f"@stuck{n}" for n in range(10)])
        stuck.in_flight_max = 0
        async with watching(bus.settings, worker_threads=10, delivery_timeout_s=3.0):
            await stuck.until(lambda: stuck.in_flight == 3)
            await register(bus.settings, a_queue(receiver.url, "good", ".*:gadgets:.*"))
            await bus.publish(shop, [an_event(n, "gadgets") for n in range(20)])
            await receiver.until_events(20, within_s=2.5)

        assert stuck.in_flight_max == 3


async def until_failing(partitions: Partitions, tokens: list[str]) -> None:
    async with asyncio.timeout(10):
        while not all(state.failures for state in (await receivers.states(partitions.home, tokens)).values()):
            await asyncio.sleep(0.02)


async def test_a_batch_closes_by_count_by_bytes_and_by_deadline(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver() as counted, Receiver() as sized, Receiver() as timed:
        await register(bus.settings, a_queue(counted.url, "counted", max_events=7, timeout_ms=60_000, concurrency=1))
        await register(bus.settings, a_queue(sized.url, "sized", max_bytes=2_000, timeout_ms=60_000, concurrency=1))
        await register(bus.settings, a_queue(timed.url, "timed", max_events=1_000, timeout_ms=300))
        shop = await bus.token("shop")
        began = asyncio.get_running_loop().time()
        async with watching(bus.settings):
            for n in range(20):
                await bus.publish(shop, [an_event(n, data="x" * 500)])
            await asyncio.gather(counted.until_events(14), sized.until_events(18), timed.until_events(20))

        assert [len(batch.events) for batch in counted.batches] == [7, 7]
        assert {len(batch.events) for batch in sized.batches} == {3}
        assert len(timed.batches) <= 2
        assert timed.batches[0].at - began >= 0.25


async def test_events_that_the_receiver_names_come_again_alone(one: Topology):
    refused: set[str] = set()

    def answer(events: list[dict[str, object]]) -> object:
        named = [str(event["id"]) for event in events if event["url"] == "https://example.org/3"]
        first = [id_ for id_ in named if id_ not in refused]
        refused.update(named)
        return {"failed": first}

    async with a_bus(one, workers=0) as bus, Receiver(answer=answer) as receiver:
        queue = a_queue(receiver.url)
        await register(bus.settings, queue)
        ids = await bus.publish(await bus.token("shop"), [an_event(n) for n in range(6)])
        async with watching(bus.settings):
            await receiver.until_events(7)
            await until_empty(bus.partitions, queue)

        assert receiver.attempted == [ids, [ids[3]]]


async def test_an_event_that_is_named_too_often_goes_to_the_dead_letters(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver(answer=lambda _: {"failed": ["bad"]}) as receiver:
        queue = a_queue(receiver.url, attempts_max=3)
        await register(bus.settings, queue)
        await bus.publish(await bus.token("shop"), [an_event(1, id="bad"), an_event(2, id="good")])
        async with watching(bus.settings):
            view = await until_empty(bus.partitions, queue)

        counted = await counters(bus.partitions)
        assert view.dead == 1
        assert receiver.attempted == [["bad", "good"], ["bad"], ["bad"]]
        assert (counted[_count("events", "delivered")], counted[_count("events", "refused")]) == (1, 3)


async def test_an_ordered_queue_pushes_a_key_in_order_over_retries_and_a_dead_letter(one: Topology):
    named: Counter[str] = Counter()

    def answer(events: list[dict[str, object]]) -> object:
        """The first of a key is good at its second attempt, the third never."""
        bad = [str(event["id"]) for event in events if str(event["id"])[1] == "2"]
        bad += [id_ for event in events if (id_ := str(event["id"]))[1] == "0" and not named[id_]]
        named.update(bad)
        return {"failed": bad}

    async with a_bus(one, workers=0) as bus, Receiver(answer=answer) as receiver:
        queue = a_queue(receiver.url, attempts_max=3, ordered=True)
        await register(bus.settings, queue)
        await bus.publish(
            await bus.token("shop"), [an_event(n, key=key, id=f"{key}{n}") for n in range(5) for key in "abc"]
        )
        async with watching(bus.settings), watching(bus.settings):
            view = await until_empty(bus.partitions, queue)

        assert view.dead == 3
        for key in "abc":
            arrived = [id_ for id_ in receiver.ids if id_[0] == key]
            assert arrived == [f"{key}{n}" for n in (0, 0, 1, 2, 2, 2, 3, 4)]


async def test_a_receiver_that_is_down_costs_no_attempts_and_gets_everything_when_it_is_back(topology: Topology):
    port = free_port()
    async with a_bus(topology, workers=0) as bus:
        queue = a_queue(f"http://127.0.0.1:{port}/callback", max_events=10, attempts_max=2, concurrency=2)
        await register(bus.settings, queue)
        ids = await bus.publish(await bus.token("shop"), [an_event(n, tenant=f"t{n % 7}") for n in range(100)])
        async with watching(bus.settings):
            async with asyncio.timeout(10):
                while (await counters(bus.partitions)).get(_count("batches", "unreachable"), 0) < 8:
                    await asyncio.sleep(0.02)
            during = await look(bus.partitions, queue)
            async with Receiver(port=port) as receiver:
                await receiver.until_events(100)
                view = await until_empty(bus.partitions, queue)
        counted = await counters(bus.partitions)

        assert sorted(receiver.ids) == sorted(ids)
        assert (during.dead, view.dead) == (0, 0)
        assert during.in_flight <= 1
        # At most two full batches met the closed door; every later try was one message.
        tries = counted[_count("batches", "unreachable")]
        assert counted[_count("events", "unreachable")] <= 2 * 10 + (tries - 1)


async def test_a_failing_receiver_is_tried_with_one_message_at_a_time(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver(plan=lambda n: 500 if n <= 6 else 200) as receiver:
        queue = a_queue(receiver.url, max_events=10, concurrency=1, timeout_ms=0)
        await register(bus.settings, queue)
        await bus.publish(await bus.token("shop"), [an_event(n, tenant=f"t{n % 7}") for n in range(100)])
        async with watching(bus.settings):
            await receiver.until_events(100)
            view = await until_empty(bus.partitions, queue)

        sizes = [len(ids) for ids in receiver.attempted]
        assert sizes[:7] == [10, 1, 1, 1, 1, 1, 1]
        assert sizes[7] <= 2
        assert max(sizes[8:]) == 10
        assert view.dead == 0


async def test_a_message_that_the_receiver_cannot_digest_ends_alone_among_the_dead_letters(one: Topology):
    receiver = Receiver()
    receiver.plan = lambda _: 500 if "poison" in receiver.attempted[-1] else 200
    async with a_bus(one, workers=0) as bus, receiver:
        queue = a_queue(receiver.url, max_events=10, concurrency=2, attempts_max=2)
        await register(bus.settings, queue)
        events = [an_event(n, tenant=f"t{n % 5}", id="poison" if n == 13 else f"fine-{n}") for n in range(60)]
        await bus.publish(await bus.token("shop"), events)
        async with watching(bus.settings, backoff_base_ms=5, backoff_cap_ms=50):
            view = await until_empty(bus.partitions, queue, within_s=30)

        assert len(set(receiver.ids)) == 59
        assert view.dead == 1


async def test_the_receiver_names_its_own_delay(one: Topology):
    headers = {"Retry-After": "1"}
    async with a_bus(one, workers=0) as bus, Receiver(plan=lambda n: 503 if n == 1 else 200, headers=headers) as slow:
        await register(bus.settings, a_queue(slow.url, attempts_max=1))
        await bus.publish(await bus.token("shop"), [an_event()])
        async with watching(bus.settings):
            await slow.until_attempts(1)
            began = asyncio.get_running_loop().time()
            await slow.until_events(1)

        assert slow.batches[0].at - began >= 0.9


async def test_calls_to_a_receiver_are_counted_over_all_watches(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver(delay_s=0.05) as receiver:
        queue = a_queue(receiver.url, max_events=1, concurrency=3, timeout_ms=0)
        await register(bus.settings, queue)
        await bus.publish(await bus.token("shop"), [an_event(n) for n in range(60)])
        async with watching(bus.settings, 3):
            await receiver.until_events(60)
            await until_empty(bus.partitions, queue)

        assert receiver.in_flight_max == 3
        assert len(receiver.ids) == 60


async def test_a_call_that_outlasts_the_lease_is_made_once(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver(delay_s=1.5) as receiver:
        queue = a_queue(receiver.url)
        await register(bus.settings, queue)
        await bus.publish(await bus.token("shop"), [an_event()])
        async with watching(bus.settings, 2, watch_lease_s=0.5):
            await receiver.until_events(1)
            await until_empty(bus.partitions, queue)

        assert receiver.attempts == 1


async def test_a_queue_that_moves_is_served_at_its_new_address(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver(plan=lambda _: 500) as former, Receiver() as latter:
        await register(bus.settings, a_queue(former.url))
        shop = await bus.token("shop")
        first = await bus.publish(shop, [an_event(1)])
        async with watching(bus.settings, backoff_base_ms=60_000, backoff_cap_ms=60_000):
            await former.until_attempts(1)
            await register(bus.settings, a_queue(latter.url))
            second = await bus.publish(shop, [an_event(2)])
            await latter.until_events(1)
            attempts = former.attempts

        # The first waits out its own delay, which it was given before the move: up to a minute, but chance decides.
        assert latter.ids in (second, first + second)
        assert attempts == 1
        assert former.attempted == [first]


async def test_a_queue_without_a_callback_any_more_keeps_what_it_holds(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver() as receiver:
        await register(bus.settings, a_queue(receiver.url))
        shop = await bus.token("shop")
        async with watching(bus.settings):
            await bus.publish(shop, [an_event(1)])
            await receiver.until_events(1)
            plain = a_queue("")
            await register(bus.settings, plain)
            await asyncio.sleep(1.0)  # longer than it takes a watch to learn of it
            await bus.publish(shop, [an_event(2)])
            await asyncio.sleep(0.3)

            assert receiver.attempts == 1
            assert (await look(bus.partitions, plain)).length == 1


async def test_a_deleted_queue_is_left_alone_and_one_of_its_name_is_served_again(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver(delay_s=0.3) as receiver:
        await register(bus.settings, a_queue(receiver.url))
        shop = await bus.token("shop")
        async with watching(bus.settings):
            await bus.publish(shop, [an_event(1)])
            await receiver.until_attempts(1)
            await forget(bus.settings, "hooks")
            await receiver.until_events(1)
            queue = a_queue(receiver.url)
            await register(bus.settings, queue)
            second = await bus.publish(shop, [an_event(2)])
            await receiver.until(lambda: second[0] in receiver.ids)
            await until_empty(bus.partitions, queue)


async def test_a_clean_stop_gives_back_what_was_not_sent_and_no_attempt_is_spent(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver() as receiver:
        queue = a_queue(receiver.url, timeout_ms=3_600_000, attempts_max=1)
        await register(bus.settings, queue)
        ids = await bus.publish(await bus.token("shop"), [an_event(n) for n in range(3)])
        async with watching(bus.settings), asyncio.timeout(5):
            while (await look(bus.partitions, queue)).in_flight < 3:
                await asyncio.sleep(0.01)
        between = await look(bus.partitions, queue)
        await register(bus.settings, a_queue(receiver.url, timeout_ms=0, attempts_max=1))
        async with watching(bus.settings):
            await receiver.until_events(3)

        assert (between.length, between.in_flight, between.dead) == (3, 0, 0)
        assert receiver.attempted == [ids]


async def test_a_stop_that_cannot_wait_gives_back_what_is_on_its_way(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver(plan=lambda _: "hang") as hanging:
        queue = a_queue(hanging.url)
        await register(bus.settings, queue)
        await bus.publish(await bus.token("shop"), [an_event()])
        async with watching(bus.settings, shutdown_s=0.1):
            await hanging.until_attempts(1)
        view = await look(bus.partitions, queue)

        assert (view.length, view.in_flight) == (1, 0)
        assert await _calls(bus.partitions, queue) == 0


async def test_a_worker_pushes_queues_too_and_attempts_are_journaled_counted_and_shown(topology: Topology):
    async with a_bus(topology) as bus, Receiver(plan=lambda n: 500 if n == 1 else 200) as receiver:
        queue = a_queue(receiver.url, max_events=50, concurrency=1)
        await register(bus.settings, queue)
        ids = await bus.publish(await bus.token("shop"), [an_event(n) for n in range(5)])
        await receiver.until_events(5)
        await until_empty(bus.partitions, queue)
        metrics = await _until_health(bus, receiver)
        entries = await journal.read(bus.partitions.keeper("@hooks"), "attempts")
        attempts = [
            msgspec.json.decode(text, type=journal.AttemptRecord) for entry in entries for _, text in entry.fields
        ]

        assert [(each.subscriber, each.attempt, each.outcome, each.status) for each in attempts[:2]] == [
            ("@hooks", 1, "refused", 500),
            ("@hooks", 2, "delivered", 200),
        ]
        assert set(attempts[0].events) == set(ids)
        assert 'doubledecker_delivery_events_total{outcome="delivered",subscriber="@hooks"} 5.0' in metrics
        assert 'doubledecker_delivery_events_total{outcome="refused",subscriber="@hooks"} 5.0' in metrics
        assert "doubledecker_watch_processes 1.0" in metrics
        assert await _calls(bus.partitions, queue) == 0


async def _until_health(bus: TestBus, receiver: Receiver) -> str:
    """Metrics once they show what one failure and the successes after it leave of 100; it is written a moment later."""
    points = min(100, 98 + receiver.attempts - 1)
    line = f'doubledecker_subscriber_health_points{{subscriber="@hooks"}} {points}.0'
    async with asyncio.timeout(5):
        while True:
            async with bus.http.get(f"{bus.url}/metrics", headers=basic(ROOT_KEY)) as response:
                metrics = await response.text()
            if line in metrics.splitlines() and 'outcome="refused",subscriber="@hooks"' in metrics:
                return metrics
            await asyncio.sleep(0.05)


async def test_workers_and_watches_share_a_queue_and_its_permits(topology: Topology):
    async with a_bus(topology, workers=2) as bus, Receiver(delay_s=0.01) as receiver:
        queue = a_queue(receiver.url, max_events=1, concurrency=3, timeout_ms=0)
        await register(bus.settings, queue)
        async with watching(bus.settings, 2):
            events = [an_event(n, tenant=f"t{n % 5}") for n in range(120)]
            ids = await bus.publish(await bus.token("shop"), events)
            await receiver.until_events(120, within_s=30)
            await until_empty(bus.partitions, queue)

        assert sorted(receiver.ids) == sorted(ids)
        assert receiver.in_flight_max == 3


async def test_a_queue_that_is_made_anew_counts_the_calls_to_the_one_before(one: Topology):
    """Its permits were forgotten with the queue, and one that came back later was one too many for ever."""
    async with a_bus(one, workers=0) as bus, Receiver(plan=lambda n: "hang" if n == 1 else 200) as receiver:
        receiver.delay_s = 0.01
        queue = a_queue(receiver.url, max_events=1, concurrency=1, timeout_ms=0)
        await register(bus.settings, queue)
        shop = await bus.token("shop")
        async with watching(bus.settings):
            await bus.publish(shop, [an_event(0)])
            await receiver.until_attempts(1)
            await forget(bus.settings, queue.name)
            await register(bus.settings, queue)
            receiver._released.set()
            await bus.publish(shop, [an_event(n) for n in range(40)])
            await receiver.until_events(40, within_s=20)

        assert receiver.in_flight_max == 1
        assert await _calls(bus.partitions, queue) == 0


async def test_a_late_answer_of_a_queue_s_former_address_does_not_hold_up_the_present_one(one: Topology):
    later = {"Retry-After": "3600"}
    async with (
        a_bus(one, workers=0) as bus,
        Receiver(plan=lambda _: "late", headers=later) as former,
        Receiver() as present,
    ):
        publisher = await bus.token("publisher")
        queue = a_queue(former.url, max_events=1, concurrency=1, timeout_ms=0)
        await register(bus.settings, queue)
        async with watching(bus.settings):
            await bus.publish(publisher, [an_event(1)])
            await former.until_attempts(1)
            await register(bus.settings, msgspec.structs.replace(queue, callback=present.url))
            former.release()
            [last] = await bus.publish(publisher, [an_event(2)])

            await present.until(lambda: last in present.ids)


async def _calls(partitions: Partitions, queue: RegisteredQueue) -> int:
    """How many permits of the queue's receiver are taken."""
    token = queue.receiver.token
    return (await receivers.states(partitions.keeper(token), [token]))[token].calls


async def test_a_watch_outlives_what_nobody_foresaw(one: Topology):
    """A message that is no JSON cannot be in a queue; with one there, its part of the watch fails and begins anew."""
    async with a_bus(one, workers=0) as bus, Receiver() as receiver:
        queue = a_queue(receiver.url, max_events=1, concurrency=1, attempts_max=1)
        await register(bus.settings, queue)
        ids = await bus.publish(await bus.token("shop"), [an_event(1), an_event(2)])
        await bus.partitions.home.command("HSET", bus.partitions.home.key("queue:data:hooks"), "0-1", "no JSON")
        async with watching(bus.settings, watch_lease_s=0.5):
            await receiver.until_events(1)
            view = await until_empty(bus.partitions, queue)

        assert receiver.ids == [ids[1]]
        assert view.dead == 1


def _count(what: str, outcome: str) -> str:
    return f"delivery.{what}:subscriber=@hooks,outcome={outcome}"
