"""Events a second: a token bucket for each client, over all processes; who has to wait is told for how long."""

import asyncio

from conftest import Topology
from doubledecker.bus.exactly_once import ExactlyOnceWriter, PublishedRow
from doubledecker.bus.headroom import Headroom
from doubledecker.bus.memory_relief import MemoryRules
from doubledecker.bus.notify import Notifier, Notify
from doubledecker.bus.publish_rate import Pacer
from doubledecker.bus.registry import LiveRegistry
from doubledecker.model.event import EventKind
from doubledecker.model.queue import RegisteredQueue
from doubledecker.model.quota import Quotas
from doubledecker.model.token import Caller
from doubledecker.queues import view
from doubledecker.store import quotas
from doubledecker.store.partitions import Partitions
from harness import a_bus, an_event
from web.asking import ask


def a_pacer(partitions: Partitions, rate: int) -> Pacer:
    return Pacer(partitions, LiveRegistry(partitions, Quotas(client_events_per_s=rate)))


async def test_beyond_its_rate_a_client_waits_and_others_do_not(plain: Partitions):
    pacer = a_pacer(plain, 100)
    assert await pacer.wait_ms("ann", 6_000) == 0
    wait_ms = await pacer.wait_ms("ann", 10)

    assert 0 < wait_ms <= 59_001
    assert await pacer.wait_ms("bob", 10) == 0


async def test_what_is_paid_for_by_time_may_be_published(plain: Partitions):
    pacer = a_pacer(plain, 100)
    assert await pacer.wait_ms("ann", 6_000) == 0
    wait_ms = await pacer.wait_ms("ann", 1)
    assert 0 < wait_ms <= 59_001
    plain.home.shift_ms += wait_ms

    assert await pacer.wait_ms("ann", 1) == 0


async def test_all_processes_share_a_clients_bucket(plain: Partitions):
    one, other = a_pacer(plain, 100), a_pacer(plain, 100)
    assert await one.wait_ms("ann", 6_000) == 0

    assert await other.wait_ms("ann", 1) > 0


async def test_a_block_is_spent_without_asking_again(plain: Partitions):
    pacer = a_pacer(plain, 1000)
    answers = [await pacer.wait_ms("ann", 1) for _ in range(50)]
    kept = await plain.home.command("HGETALL", plain.home.key("pace:ann"))
    assert await pacer.wait_ms("ann", 1) == 0

    assert answers == [0] * 50
    assert kept != await plain.home.command("HGETALL", plain.home.key("pace:ann"))


async def test_it_is_known_how_many_events_a_client_took_in_the_last_second(plain: Partitions):
    pacer = a_pacer(plain, 100)
    seen = []
    for events in (7, 8, 0, 0):
        await to_the_next_second(plain)
        if events:
            assert await pacer.wait_ms("ann", events) == 0
        seen.append(await quotas.taken(plain.home, ["ann", "bob"]))

    assert seen == [[0, 0], [7, 0], [8, 0], [0, 0]]


async def to_the_next_second(partitions: Partitions) -> None:
    partitions.home.shift_ms += 1_000 - await partitions.home.time_ms() % 1_000


async def test_requests_at_the_same_time_share_a_block(plain: Partitions):
    pacer = a_pacer(plain, 1000)
    answers = await asyncio.gather(*(pacer.wait_ms("ann", 1) for _ in range(50)))

    assert answers == [0] * 50


async def test_who_waits_goes_on_when_its_time_has_come(plain: Partitions):
    pacer = a_pacer(plain, 1000)
    assert await pacer.wait_ms("ann", 1_300) == 0
    await pacer.wait("ann", 1)

    assert await plain.home.command("EXISTS", plain.home.key("pace:ann")) == 1


def a_task(plain: Partitions, live: LiveRegistry, client: str, pacer: Pacer) -> ExactlyOnceWriter:
    """The publisher of a Spark task that has published nothing yet."""
    headroom, notifier = Headroom(plain, MemoryRules()), Notifier(plain.home, Notify.NEVER)
    return ExactlyOnceWriter(plain.home, live, headroom, notifier, publisher=client, task="t", batch=0, pacer=pacer)


async def test_rows_of_a_spark_task_wait_for_their_turn_instead_of_failing(plain: Partitions):
    live = LiveRegistry(plain, Quotas(client_events_per_s=1000))
    ann = await live.clients.create("ann", "a-secret-of-ann", now_ms=1)
    pacer = Pacer(plain, live)
    assert await pacer.wait_ms(ann.id, 1_300) == 0
    publisher = a_task(plain, live, ann.id, pacer)
    await publisher.publish([PublishedRow(EventKind("pages", "view", "acme"), "", b"{}", b"m", "", 0)])

    assert (publisher.tally.published, publisher.tally.refused) == (1, {})


async def test_a_queue_that_is_registered_while_rows_wait_for_their_turn_gets_them(plain: Partitions):
    live = LiveRegistry(plain)
    ann = await live.clients.create("ann", "a-secret-of-ann", now_ms=1)
    late = RegisteredQueue("late", ann.id, (".*",))

    class RegisteringPacer(Pacer):
        async def wait(self, *_: object) -> None:
            await live.register_queue(late, caller=Caller(ann.id, ann.name))
            await live.refresh()

    publisher = a_task(plain, live, ann.id, RegisteringPacer(plain, live))
    event = b'{"topic":"pages","type":"view","id":"1"}'
    await publisher.publish([PublishedRow(EventKind("pages", "view", "acme"), "", event, b"m", "", 0)])

    assert publisher.tally.published == 1
    assert (await view.look(plain, late)).waiting == 1


async def test_zero_is_no_bound_and_leaves_no_trace(plain: Partitions):
    pacer = a_pacer(plain, 0)

    assert [await pacer.wait_ms("ann", 10_000) for _ in range(5)] == [0] * 5
    assert await plain.home.command("EXISTS", plain.home.key("pace:ann")) == 0


async def test_a_publisher_that_is_too_fast_gets_429_with_when_to_try_again(one: Topology):
    async with a_bus(one, workers=0, client_events_per_s=10) as bus:
        ann, bob = await bus.token("ann"), await bus.token("bob")
        await bus.publish(ann, [an_event(n) for n in range(600)])
        answers = [await ask(bus, "POST", "/events", ann, json=an_event(1), headers={"Idempotency-Key": "k"})]
        answers.append(
            await ask(bus, "POST", "/topics/widgets", ann, json={"type": "noop", "url": "https://a.example/"})
        )
        for answer in answers:
            assert answer.status == 429
            assert "at most 10 are allowed (DOUBLEDECKER_CLIENT_EVENTS_PER_S)" in answer.detail
            assert 1 <= int(answer.headers["Retry-After"]) <= 60
        await bus.publish(bob, [an_event(1, "others")])
        await asyncio.gather(*(bus.get("/topics") for _ in range(3)))
