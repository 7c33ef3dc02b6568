"""Many tenants and many messages in one call, which the scripts ask about together and not one by one."""

from doubledecker.model.queue import FacetRule
from doubledecker.store import events, facets, queue_contents
from doubledecker.store.events import PublishLimits
from doubledecker.store.partitions import Partitions
from queues.pulling import a_queue, an_offer, drain, held, push, quiet_rings, shares_of

TENANTS = tuple(f"t{n}" for n in range(100))
WITH_MORE = TENANTS[::3]


async def members(partitions: Partitions, key: str) -> set[str]:
    return {name.decode() for name in await partitions.home.command("ZRANGE", partitions.home.key(key), 0, -1)}


async def test_of_many_tenants_those_that_have_more_stay_in_the_ring_and_the_others_rest(plain: Partitions):
    queue, rings = a_queue(), quiet_rings(plain)
    await push(plain, queue, [*TENANTS, *WITH_MORE])
    first = await rings.pull(queue, most=100)

    assert shares_of(first.messages) == dict.fromkeys(TENANTS, 1)
    assert await members(plain, "queue:ring:work") == set(WITH_MORE)
    await rings.ack(queue, held(first.messages))
    assert await members(plain, "queue:ring:work") == set(WITH_MORE)
    [resting] = await members(plain, "queue:idle:work")
    assert set(resting.split()) == set(TENANTS) - set(WITH_MORE)
    second = await rings.pull(queue, most=100)
    assert shares_of(second.messages) == dict.fromkeys(WITH_MORE, 1)
    assert await members(plain, "queue:ring:work") == set()


async def test_among_many_messages_those_that_came_back_are_told_from_new_ones(plain: Partitions):
    queue, rings = a_queue(), quiet_rings(plain)
    await push(plain, queue, ["ann"] * 40)
    first = await rings.pull(queue, most=20)
    back = first.messages[5:8]
    await rings.nack(queue, held(back))

    # Waiting in line, they are nobody's.
    kept = [message.id for message in first.messages if message not in back]
    assert await rings.ack(queue, held(first.messages)) == kept
    second = await rings.pull(queue, most=20)
    assert [message.attempt for message in second.messages] == [2] * 3 + [1] * 17
    assert [message.id for message in second.messages[:3]] == [message.id for message in back]
    assert len(await rings.ack(queue, held(second.messages))) == 20


async def test_a_line_that_somebody_removed_does_not_hold_up_the_others(plain: Partitions):
    queue, rings = a_queue(), quiet_rings(plain)
    await push(plain, queue, TENANTS)
    await plain.home.command("HDEL", plain.home.key("queue:facets:work"), "t7")
    pull = await rings.pull(queue, most=100)

    assert shares_of(pull.messages) == dict.fromkeys(set(TENANTS) - {"t7"}, 1)
    assert len(await rings.ack(queue, held(pull.messages))) == 99
    assert (await rings.pull(queue, most=100)).wait_ms is None


async def test_a_tail_that_somebody_removed_ends_the_line_at_its_head(plain: Partitions):
    queue, rings = a_queue(), quiet_rings(plain)
    await push(plain, queue, ["ann"] * 50)
    await plain.home.command("DEL", plain.home.key("queue:new:work:ann"))
    served = [(await rings.pull(queue, most=1)).messages for _ in range(20)]

    ids = [message.id for messages in served for message in messages]
    assert ids == [f"0-{n}" for n in range(1, len(ids) + 1)]
    assert 0 < len(ids) < 20
    assert await rings.ack(queue, [each for messages in served for each in held(messages)]) == ids
    assert (await rings.pull(queue, most=1)).wait_ms is None


async def test_a_long_line_is_served_in_order_from_head_and_tail_alike(plain: Partitions):
    queue, rings = a_queue(), quiet_rings(plain)
    for count in (1, 30, 9):
        await push(plain, queue, ["ann"] * count)
    served = []
    for most in (1, 2, 7, 1, 12, 1, 1, 15):
        served += (await rings.pull(queue, most=most)).messages

    assert [message.id for message in served] == [f"0-{n}" for n in range(1, 41)]
    # Given back out of order, each finds its old place, in the head or far behind it.
    for message in (*served[::2], *reversed(served[1::2])):
        await rings.nack(queue, held([message]))
    again = [message for most in (3, 30, 7) for message in (await rings.pull(queue, most=most)).messages]
    assert [message.id for message in again] == [message.id for message in served]


async def test_a_tenant_whose_events_go_different_ways_in_one_call_has_one_line(plain: Partitions):
    narrow, wide = a_queue("narrow"), a_queue("wide")
    offers = [an_offer("ann", wide, *([narrow] if n % 3 else [])) for n in range(30)]
    await events.publish(plain.home, offers, version=10**9, limits=PublishLimits())

    for queue, count in ((wide, 30), (narrow, 20)):
        ids = [f"0-{n}" for n in range(1, count + 1)]
        [line] = await facets.facets(plain.home, queue, ["ann"])
        assert (line.waiting, line.oldest_id, line.is_served) == (count, "0-1", True)
        assert [id_ for id_, _ in await queue_contents.peek(plain.home, queue, "ann", most=100)] == ids
        assert [id_ for id_, _ in await queue_contents.peek(plain.home, queue, "ann", most=3)] == ids[:3]
        assert [message.id for message in await drain(quiet_rings(plain), queue, most=7)] == ids


async def test_quick_messages_of_many_tenants_are_acked_without_a_look_at_their_facets(plain: Partitions):
    queue, rings = a_queue(charge="count"), quiet_rings(plain)
    await push(plain, queue, [*TENANTS, *WITH_MORE])
    key, idle = plain.home.key("queue:facets:work"), plain.home.key("queue:idle:work")
    first = await rings.pull(queue, most=100)
    before = await plain.home.command("HGETALL", key), await plain.home.command("ZRANGE", idle, 0, -1, "WITHSCORES")
    assert [row.in_flight for row in await facets.facets(plain.home, queue, TENANTS)] == [1] * 100

    assert len(await rings.ack(queue, held(first.messages))) == 100
    after = await plain.home.command("HGETALL", key), await plain.home.command("ZRANGE", idle, 0, -1, "WITHSCORES")
    assert after == before
    assert [row.in_flight for row in await facets.facets(plain.home, queue, TENANTS)] == [0] * 100


async def test_many_tenants_that_have_nothing_are_all_forgotten_while_another_is_served(plain: Partitions):
    queue, rings = a_queue(charge="count"), quiet_rings(plain)
    await push(plain, queue, ["busy"] * 100)
    await push(plain, queue, [f"once-{n}" for n in range(1_000)])
    served = await drain(rings, queue, most=90, count_max=1_020)
    assert shares_of(served)["busy"] == 20
    await drain(rings, queue, most=5, count_max=50)

    assert await plain.home.command("HKEYS", plain.home.key("queue:facets:work")) == [b"busy"]
    assert await members(plain, "queue:idle:work") == set()


async def test_a_cap_counts_what_was_in_flight_before_it(plain: Partitions):
    queue, rings = a_queue(), quiet_rings(plain)
    await push(plain, queue, [*["ann"] * 1_500, *["bob"] * 700])
    in_hand = [message for _ in range(10) for message in (await rings.pull(queue, most=200)).messages]
    of_ann = [message for message in in_hand if message.tenant == "ann"]
    await facets.set_rule(plain.home, queue, "ann", FacetRule(concurrency=len(of_ann)))
    rest = await rings.pull(queue, most=200)
    assert (len(of_ann), rest.messages) == (1_300, ())

    await rings.ack(queue, held(of_ann[:3]))
    assert shares_of((await rings.pull(queue, most=200)).messages) == {"ann": 3}
