"""Pulls and acks that share a call: who gets what, how many calls there are, and what becomes of those who go away."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

from doubledecker.errors import BusAway
from doubledecker.model.queue import RegisteredQueue
from doubledecker.queues import view
from doubledecker.queues.call_batching import Pull
from doubledecker.queues.ring import Patience, Rings
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.store.partitions import Partitions
from doubledecker.store.queues import LeasedMessage, QueueMessage
from harness import within
from queues.pulling import a_queue, drain, held, pass_time, push, quiet_rings, rings_with_bell, shares_of

# No lease of these tests ends by itself in this time.
SOON_S = 10


def counted_queue(name: str = "work") -> RegisteredQueue:
    return a_queue(name, charge="count")


async def calls(partitions: Partitions) -> int:
    """How many scripts all servers together have run."""
    found = 0
    for [info] in await partitions.home.everywhere([["INFO", "commandstats"]]):
        fields = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
        found += int(fields.get("cmdstat_evalsha", "calls=0").split("calls=")[1].split(",")[0])
    return found


async def in_hand_and_waiting(partitions: Partitions, queue: RegisteredQueue) -> tuple[int, int]:
    seen = await view.look(partitions, queue)
    return seen.in_flight, seen.waiting


def singles(rings: Rings, queue: RegisteredQueue, count: int) -> list["asyncio.Task[Pull]"]:
    return [asyncio.create_task(rings.pull(queue, most=1)) for _ in range(count)]


async def under_way() -> None:
    """Until calls that were just asked for have been sent, and no answer has been read."""
    for _ in range(2):
        await asyncio.sleep(0)


def of(pulls: list[Pull]) -> list[QueueMessage]:
    return [message for pull in pulls for message in pull.messages]


def by_tenant(messages: list[QueueMessage]) -> Iterator[list[int]]:
    for tenant in shares_of(messages):
        yield [int(message.id.split("-")[1]) for message in messages if message.tenant == tenant]


async def test_shared_pulls_get_different_messages_in_order_and_none_is_lost(partitions: Partitions):
    queue, rings = counted_queue(), quiet_rings(partitions)
    await push(partitions, queue, [f"t{n % 7}" for n in range(100)])
    pulls = await asyncio.gather(*singles(rings, queue, 60))

    assert [len(pull.messages) for pull in pulls] == [1] * 60
    assert len({message.id for message in of(pulls)}) == 60
    assert all(numbers == sorted(numbers) for numbers in by_tenant(of(pulls)))
    assert await in_hand_and_waiting(partitions, queue) == (60, 40)
    assert len(await drain(rings, queue)) == 40
    acked = await asyncio.gather(*(rings.ack(queue, held(pull.messages)) for pull in pulls))
    assert acked == [[message.id for message in pull.messages] for pull in pulls]
    assert await in_hand_and_waiting(partitions, queue) == (0, 0)


async def test_loops_that_pull_and_ack_together_serve_every_message_once(partitions: Partitions):
    queue, rings = counted_queue(), quiet_rings(partitions)
    await push(partitions, queue, [f"t{n % 7}" for n in range(640)])
    served: list[QueueMessage] = []
    before = await calls(partitions)

    async def consume() -> None:
        while messages := (await rings.pull(queue, most=1)).messages:
            served.extend(messages)
            assert len(await rings.ack(queue, held(messages))) == 1

    await asyncio.gather(*(consume() for _ in range(16)))

    assert len({message.id for message in served}) == len(served) == 640
    # 1280 alone with one partition, and more with three, each of which a pull visits.
    assert await calls(partitions) - before < 640 * len(partitions.all)
    assert await in_hand_and_waiting(partitions, queue) == (0, 0)


async def test_whoever_asked_first_is_served_first_and_gets_no_more_than_it_asked_for(plain: Partitions):
    queue, rings = counted_queue(), quiet_rings(plain)
    await push(plain, queue, ["ann"] * 10)
    pulls = await asyncio.gather(*(rings.pull(queue, most=most) for most in (3, 4, 5, 2)))

    assert [[message.id for message in pull.messages] for pull in pulls] == [
        ["0-1", "0-2", "0-3"],
        ["0-4", "0-5", "0-6", "0-7"],
        ["0-8", "0-9", "0-10"],
        [],
    ]
    # The one that got nothing hears when the first lease ends, as it would alone.
    lone = await rings.pull(queue, most=2)
    assert pulls[-1].wait_ms is not None
    assert lone.wait_ms is not None
    assert 0 <= pulls[-1].wait_ms - lone.wait_ms < 5_000


async def test_those_who_ask_at_once_share_one_call_and_those_who_ask_meanwhile_the_next(plain: Partitions):
    queue, rings = counted_queue(), quiet_rings(plain)
    await push(plain, queue, ["ann"] * 60)
    await rings.ack(queue, held((await rings.pull(queue, most=1)).messages))
    before = await calls(plain)
    first = singles(rings, queue, 20)
    await under_way()
    second = singles(rings, queue, 20)
    await asyncio.sleep(0)
    third = singles(rings, queue, 10)
    pulls = await asyncio.gather(*first, *second, *third)

    assert await calls(plain) - before == 2
    assert [message.id for message in of(pulls)] == [f"0-{n}" for n in range(2, 52)]
    await asyncio.gather(*(rings.ack(queue, held(pull.messages)) for pull in pulls))
    assert await calls(plain) - before == 3


async def test_one_consumer_makes_the_calls_it_always_made(plain: Partitions):
    queue, rings = counted_queue(), quiet_rings(plain)
    await push(plain, queue, ["ann"] * 20)
    before = await calls(plain)
    for _ in range(20):
        assert len(await rings.ack(queue, held((await rings.pull(queue, most=1)).messages))) == 1

    assert await calls(plain) - before == 40


async def test_a_shared_call_takes_no_more_than_a_call_may(plain: Partitions):
    queue, rings = counted_queue(), quiet_rings(plain)
    await push(plain, queue, ["ann"] * 500)
    before = await calls(plain)
    pulls = await asyncio.gather(*(rings.pull(queue, most=45) for _ in range(10)))

    # Four of them are 180, five would be 225.
    assert await calls(plain) - before == 3
    assert [len(pull.messages) for pull in pulls] == [45] * 10
    acks = [held(pull.messages) for pull in pulls] + [[LeasedMessage(f"0-{n}", 1)] for n in range(501, 1_101)]
    before = await calls(plain)
    acked = await asyncio.gather(*(rings.ack(queue, each) for each in acks))
    assert await calls(plain) - before == 2
    assert [len(ids) for ids in acked] == [45] * 10 + [0] * 600


async def test_a_shared_call_that_finds_nothing_answers_all_who_asked(plain: Partitions):
    queue, rings = counted_queue(), quiet_rings(plain)
    before = await calls(plain)
    pulls = await asyncio.gather(*(rings.pull(queue, most=45) for _ in range(100)))

    assert await calls(plain) - before == 1
    assert [len(pull.messages) for pull in pulls] == [0] * 100


async def test_those_who_have_no_room_in_a_call_are_served_by_the_next_in_order(plain: Partitions):
    queue, rings = counted_queue(), quiet_rings(plain)
    await push(plain, queue, ["ann"] * 190)
    pulls = await asyncio.gather(*(rings.pull(queue, most=45) for _ in range(6)))

    assert [len(pull.messages) for pull in pulls] == [45, 45, 45, 45, 10, 0]


async def test_however_many_wait_for_a_queue_and_for_however_much_they_look_together(plain: Partitions):
    """Each large pull that waited looked by itself: 1800 of one client kept web from serving others for seconds."""
    queue, patiences = counted_queue(), [Patience() for _ in range(100)]
    async with rings_with_bell(plain) as rings:
        before = await calls(plain)
        waits = [
            asyncio.create_task(rings.pull_waiting(queue, most=100, wait_ms=60_000, patience=patience))
            for patience in patiences
        ]
        async with asyncio.timeout(30):
            while await calls(plain) - before < 104:
                await asyncio.sleep(0.05)
        looked = await calls(plain) - before
        for patience in patiences:
            patience.end()
        pulls = await asyncio.gather(*waits)

    # The first look of each is its own. Of four more rounds, a hundred looks each, all but a few were shared.
    assert 104 <= looked < 150
    assert all(pull.messages == () for pull in pulls)


async def test_large_pulls_and_looks_go_by_themselves(plain: Partitions):
    queue, rings = counted_queue(), quiet_rings(plain)
    await push(plain, queue, ["ann"] * 500)
    before = await calls(plain)
    asked = (1, 0, 100, 1, 300, 0)
    pulls = await asyncio.gather(*(rings.pull(queue, most=most) for most in asked))

    assert [len(pull.messages) for pull in pulls] == [1, 0, 100, 1, 200, 0]
    assert {pull.wait_ms for pull in pulls} == {0}
    assert await calls(plain) - before == 5


async def test_other_leases_other_settings_and_other_queues_are_not_shared(plain: Partitions):
    queue, other = counted_queue(), counted_queue("other")
    strict = a_queue(charge="count", attempts_max=1)
    rings = quiet_rings(plain)
    await push(plain, queue, ["ann"] * 10)
    await push(plain, other, ["bob"] * 10)
    before = await calls(plain)
    long, short, bobs, stricts = await asyncio.gather(
        rings.pull(queue, most=1, lease_ms=90_000),
        rings.pull(queue, most=1, lease_ms=5_000),
        rings.pull(other, most=1),
        rings.pull(strict, most=1),
    )

    assert await calls(plain) - before == 4
    [of_long], [of_short] = long.messages, short.messages
    assert 80_000 < of_long.lease_until - of_short.lease_until < 90_000
    assert [message.tenant for message in of([bobs, stricts])] == ["bob", "ann"]
    # The same ids on both queues: each ack ends its own queue's.
    assert await asyncio.gather(rings.ack(queue, held([of_long])), rings.ack(other, held(bobs.messages))) == [
        [of_long.id],
        ["0-1"],
    ]
    assert await in_hand_and_waiting(plain, queue) == (2, 7)
    assert await in_hand_and_waiting(plain, other) == (0, 9)


async def test_time_is_charged_as_if_each_consumer_had_pulled_alone(plain: Partitions):
    """Eight consumers work a second each, side by side: their tenant has had eight seconds, and not one."""
    queue, rings = a_queue(lease_ms=3_600_000), quiet_rings(plain)
    await push(plain, queue, ["slow"] * 100)
    pulls = await asyncio.gather(*singles(rings, queue, 8))
    pass_time(plain, 1_000)
    await asyncio.gather(*(rings.ack(queue, held(pull.messages)) for pull in pulls))
    await push(plain, queue, ["quick"] * 100)
    served: list[QueueMessage] = []
    for _ in range(70):
        messages = (await rings.pull(queue, most=1)).messages
        pass_time(plain, 100)
        await rings.ack(queue, held(messages))
        served += messages

    assert shares_of(served)["quick"] >= 68


async def test_one_who_goes_before_the_call_is_made_takes_nothing(partitions: Partitions):
    queue, rings = counted_queue(), quiet_rings(partitions)
    await push(partitions, queue, [f"t{n}" for n in range(9)])
    tasks = singles(rings, queue, 3)
    await asyncio.sleep(0)
    tasks[1].cancel()
    first, gone, third = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(gone, asyncio.CancelledError)
    assert [len(first.messages), len(third.messages)] == [1, 1]
    assert await in_hand_and_waiting(partitions, queue) == (2, 7)


async def test_when_all_have_gone_before_the_call_none_is_made(plain: Partitions):
    queue, rings = counted_queue(), quiet_rings(plain)
    await push(plain, queue, ["ann"] * 3)
    before = await calls(plain)
    tasks = singles(rings, queue, 3)
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

    assert await calls(plain) == before
    assert len((await within(rings.pull(queue, most=5), SOON_S)).messages) == 3


async def test_messages_of_one_who_went_during_the_call_go_to_the_others_in_order(plain: Partitions):
    queue, rings = counted_queue(), quiet_rings(plain)
    await push(plain, queue, ["ann"] * 3)
    before = await calls(plain)
    first, second, third = (asyncio.create_task(rings.pull(queue, most=most)) for most in (1, 1, 2))
    await under_way()
    late = asyncio.create_task(rings.pull(queue, most=1))
    await asyncio.sleep(0)
    first.cancel()
    pulls = await asyncio.gather(second, third, late)

    assert [[message.id for message in pull.messages] for pull in pulls] == [["0-1"], ["0-2", "0-3"], []]
    assert first.cancelled()
    # One for those three, and one for the late one, for whom nothing was left.
    assert await calls(plain) - before == 2
    assert await in_hand_and_waiting(plain, queue) == (3, 0)


async def test_what_is_left_of_one_who_went_goes_to_those_who_wait_and_then_back_to_the_queue(plain: Partitions):
    queue, rings = counted_queue(), quiet_rings(plain)
    await push(plain, queue, ["ann"] * 5)
    before = await calls(plain)
    gone = asyncio.create_task(rings.pull(queue, most=5))
    await under_way()
    late = singles(rings, queue, 2)
    await asyncio.sleep(0)
    gone.cancel()
    pulls = await asyncio.gather(*late)

    assert [message.id for message in of(pulls)] == ["0-1", "0-2"]
    back = await waited_for(rings, queue, 3)
    assert [message.id for message in back] == ["0-3", "0-4", "0-5"]
    # Nothing was tried, so no attempt is spent.
    assert [message.tries for message in back] == [1] * 3
    assert await in_hand_and_waiting(plain, queue) == (5, 0)
    # The pull, and giving back: those who waited made none.
    assert await calls(plain) - before >= 2
    assert len(await rings.ack(queue, held(of(pulls)))) == 2


async def test_when_all_have_gone_during_the_call_everything_comes_back_at_once(partitions: Partitions):
    queue, rings = counted_queue(), quiet_rings(partitions)
    await push(partitions, queue, [f"t{n}" for n in range(9)])
    tasks = singles(rings, queue, 9)
    await under_way()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

    assert len(await waited_for(rings, queue, 9)) == 9


async def waited_for(rings: Rings, queue: RegisteredQueue, count: int) -> list[QueueMessage]:
    """So many messages, long before a lease ends."""
    messages: list[QueueMessage] = []
    async with asyncio.timeout(SOON_S):
        while len(messages) < count:
            messages += (await rings.pull(queue, most=count - len(messages))).messages
    return messages


async def test_one_who_goes_when_its_answer_has_just_come_leaves_it_to_the_queue(plain: Partitions):
    queue, rings = counted_queue(), quiet_rings(plain)
    await push(plain, queue, ["ann"] * 2)
    tasks: list[asyncio.Task[Pull]] = []

    async def pull_and_send_the_other_away() -> Pull:
        pull = await rings.pull(queue, most=1)
        tasks[0].cancel()
        return pull

    first = asyncio.create_task(pull_and_send_the_other_away())
    tasks += singles(rings, queue, 1)
    [message] = (await first).messages
    await asyncio.wait(tasks)

    assert tasks[0].cancelled()
    [back] = await waited_for(rings, queue, 1)
    assert [message.id, back.id, back.attempt, back.tries] == ["0-1", "0-2", 2, 1]


async def test_a_waiting_pull_that_is_cancelled_takes_nothing_with_it(plain: Partitions):
    queue = counted_queue()
    async with rings_with_bell(plain) as rings:
        waiting = [asyncio.create_task(rings.pull_waiting(queue, most=1, wait_ms=20_000)) for _ in range(20)]
        await asyncio.sleep(0.1)
        await push(plain, queue, ["ann"] * 20)
        for task in waiting[::2]:
            task.cancel()
        pulls = await asyncio.gather(*waiting[1::2])
        rest = await waited_for(rings, queue, 10)

    assert len({message.id for message in [*of(pulls), *rest]}) == 20


async def test_an_error_reaches_all_who_share_the_call_and_nobody_else(plain: Partitions):
    queue, rings = counted_queue(), quiet_rings(plain)
    await push(plain, queue, ["ann"] * 20)
    in_hand = (await rings.pull(queue, most=10)).messages
    ring, pending = plain.home.key("queue:ring:work"), plain.home.key("queue:pending:work")
    for key in (ring, pending):
        await plain.home.command("RENAME", key, f"{key}:aside")
        await plain.home.command("SET", key, "not what the script expects")
    tasks = singles(rings, queue, 5)
    acks = [asyncio.create_task(rings.ack(queue, held([message]))) for message in in_hand[:5]]
    await under_way()
    tasks[0].cancel()
    acks[0].cancel()
    late = singles(rings, queue, 3)
    late_acks = [asyncio.create_task(rings.ack(queue, held([message]))) for message in in_hand[5:]]
    for key in (ring, pending):
        await plain.home.command("RENAME", f"{key}:aside", key)
    failed = await asyncio.gather(*tasks, *acks, return_exceptions=True)
    pulls, acked = await asyncio.gather(*late), await asyncio.gather(*late_acks)

    for gone, *others in (failed[:5], failed[5:]):
        assert isinstance(gone, asyncio.CancelledError)
        assert [type(error) for error in others] == [BusAway] * 4
    assert [len(pull.messages) for pull in pulls] == [1] * 3
    assert [len(ids) for ids in acked] == [1] * 5


async def test_when_the_server_is_back_pulls_and_acks_go_on(data_dir: Path):
    server = await EmbeddedServer.start(data_dir)
    try:
        partitions = await Partitions.connect(server.url, namespace="rm:", count=1)
        queue, rings = counted_queue(), quiet_rings(partitions)
        await push(partitions, queue, ["ann"] * 10)
        in_hand = (await rings.pull(queue, most=5)).messages
        server.kill()
        await server.wait()
        acks = [rings.ack(queue, held([message])) for message in in_hand]
        failed = await asyncio.gather(*singles(rings, queue, 5), *acks, return_exceptions=True)
        assert all(isinstance(error, BusAway) for error in failed)
        await server.restart()
        pulls = await asyncio.gather(*singles(rings, queue, 5))

        assert len(of(pulls)) == 5
        acked = await asyncio.gather(*(rings.ack(queue, held([message])) for message in (*in_hand, *of(pulls))))
        assert [len(ids) for ids in acked] == [1] * 10
        await partitions.close()
    finally:
        await server.stop()


async def test_of_two_who_ack_the_same_message_the_first_has_it(partitions: Partitions):
    queue, rings = counted_queue(), quiet_rings(partitions)
    await push(partitions, queue, ["ann"] * 4)
    messages = (await rings.pull(queue, most=4)).messages
    one, two, three, four = held(messages)
    ids = [message.id for message in messages]
    asked = [[one], [one, two], [LeasedMessage(three.id, 7)], [three, three], [four, two], [one]]
    acked = await asyncio.gather(*(rings.ack(queue, each) for each in asked))

    # As if one after the other: an attempt that is not the message's takes it from nobody.
    assert acked == [ids[:1], ids[1:2], [], ids[2:3], ids[3:], []]
    assert await in_hand_and_waiting(partitions, queue) == (0, 0)


async def test_each_hears_of_its_own_messages_alone(partitions: Partitions):
    queue, rings = counted_queue(), quiet_rings(partitions)
    await push(partitions, queue, [f"t{n}" for n in range(30)])
    messages = (await rings.pull(queue, most=30)).messages
    back = messages[20:]
    await rings.nack(queue, held(back, delay_ms=60_000))
    strange = [LeasedMessage("", 1), LeasedMessage("0-999", 1), LeasedMessage("99-1", 1)]
    asked = [
        [*held(messages[n : n + 2]), LeasedMessage(messages[n + 2].id, 9), *held([back[n // 3]])]
        for n in range(0, 18, 3)
    ]
    acked = await asyncio.gather(*(rings.ack(queue, [*strange, *each]) for each in asked))

    assert [set(ids) for ids in acked] == [{m.id for m in messages[n : n + 2]} for n in range(0, 18, 3)]
    assert (await view.look(partitions, queue)).in_flight == 8
    assert (await view.look(partitions, queue)).delayed == 10


async def test_what_one_who_has_gone_wanted_to_ack_is_acked(plain: Partitions):
    queue, rings = counted_queue(), quiet_rings(plain)
    await push(plain, queue, ["ann"] * 4)
    messages = (await rings.pull(queue, most=4)).messages
    acks = [asyncio.create_task(rings.ack(queue, held([message]))) for message in messages]
    await asyncio.sleep(0)
    acks[0].cancel()
    await asyncio.sleep(0)
    acks[1].cancel()

    assert await asyncio.gather(*acks[2:]) == [["0-3"], ["0-4"]]
    assert acks[0].cancelled()
    assert await in_hand_and_waiting(plain, queue) == (0, 0)
