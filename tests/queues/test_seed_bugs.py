"""The bugs of the driver's Lua, each with a test named for it: none of them is here."""

import asyncio
import time

import pytest

from doubledecker.errors import BadRequest
from doubledecker.model.matching import PatternMatcher, check_pattern
from doubledecker.store.partitions import Partitions
from doubledecker.store.queues import pull
from queues.pulling import a_queue, drain, held, pass_time, push, quiet_rings, rings_with_bell

HOSTILE = (
    "(a+)+$",
    "(a|a)*b",
    "(.*)*x",
    "((a*)*)*b",
    "(a?){50}a{50}",
    ".*.*.*.*.*.*.*.*.*.*x",
    "([a-z]+)*:page:.*!",
)


async def test_a_facet_enters_the_order_with_its_first_message(plain: Partitions):
    """`not redis.call('sismember', …)` was never true, so nothing was ever served."""
    queue = a_queue()
    await push(plain, queue, ["ann"])

    assert [message.tenant for message in await drain(quiet_rings(plain), queue)] == ["ann"]


async def test_a_routing_key_is_taken_apart_and_matched_without_functions_that_do_not_exist(plain: Partitions):
    """`split` and `message_topic.find` are no functions of Redis's Lua; here patterns never reach Redis."""
    matcher = PatternMatcher()
    matcher.put("emails", (".*:email_event:.*",))

    assert matcher.match("5:email_event:opened_email") == ("emails",)
    assert matcher.match("5:page:view") == ()


async def test_pulling_from_an_empty_queue_returns_nothing(partitions: Partitions):
    """It raised, as there was no facet to pop from."""
    result = await quiet_rings(partitions).pull(a_queue("never-seen"), most=10)

    assert result.messages == ()
    assert result.wait_ms is None


@pytest.mark.parametrize(
    ("pattern", "key"),
    [
        (r"(a|b):page:.*", "b:page:view"),
        (r"\d+:page:.*", "42:page:view"),
        (r"my-tenant:page:.*", "my-tenant:page:view"),
        (r"[^:]+:page:(view|click)", "x:page:click"),
    ],
)
def test_patterns_are_regular_expressions(pattern: str, key: str):
    """Lua's patterns know no alternation and no `\\d`, and take a `-` for a repetition."""
    matcher = PatternMatcher()
    matcher.put("q", (pattern,))

    assert matcher.match(key) == ("q",)
    assert matcher.match(key + ":more" if ".*" not in pattern else "other:" + key[::-1]) == ()


@pytest.mark.parametrize("pattern", HOSTILE)
def test_a_hostile_pattern_blocks_nobody(pattern: str):
    """One pattern blocked the whole server for 10.9 s."""
    try:
        check_pattern(pattern)
    except BadRequest:
        return  # refused before it is anyone's business
    matcher = PatternMatcher()
    matcher.put("hostile", (pattern,))
    matcher.put("honest", ("a+:page:.*",))
    longest = "a" * 64 + ":page:" + "a" * 64

    started = time.perf_counter()
    names = matcher.match(longest)

    assert time.perf_counter() - started < 5
    assert "honest" in names


@pytest.mark.parametrize("name", ["facets", "facet_order", "state", "ring", "index", "dead", "new"])
async def test_a_tenant_or_queue_named_like_a_key_collides_with_nothing(plain: Partitions, name: str):
    """A tenant named `facets` shared its key with the set of facets."""
    queue, other = a_queue(name), a_queue("other")
    await push(plain, queue, [name, "ann", name])
    await push(plain, other, [name])
    rings = quiet_rings(plain)

    assert sorted(message.tenant for message in await drain(rings, queue)) == sorted([name, "ann", name])
    assert [message.tenant for message in await drain(rings, other)] == [name]


async def test_whoever_is_woken_finds_the_message(partitions: Partitions):
    """PUBLISH came before the push: a consumer that it woke found nothing."""
    queue = a_queue()
    async with rings_with_bell(partitions) as rings:
        for number in range(10):
            waiting = asyncio.create_task(rings.pull_waiting(queue, most=1, wait_ms=10_000))
            await asyncio.sleep(0.01)
            await push(partitions, queue, [f"tenant-{number}"])
            [message] = (await waiting).messages

            assert message.tenant == f"tenant-{number}"
            await rings.ack(queue, held([message]))


async def test_a_message_pulled_by_a_consumer_that_dies_is_served_again(partitions: Partitions):
    """It was lost: pulling removed it."""
    queue = a_queue()
    await push(partitions, queue, ["ann"])
    rings = quiet_rings(partitions)
    [lost] = (await rings.pull(queue, most=1, lease_ms=5_000)).messages
    assert (await rings.pull(queue, most=1)).messages == ()

    pass_time(partitions, 5_000)
    [again] = (await rings.pull(queue, most=1)).messages

    assert (again.id, again.event, again.attempt) == (lost.id, lost.event, 2)
    assert await rings.ack(queue, held([lost])) == []
    assert await rings.ack(queue, held([again])) == [again.id]


async def test_one_script_call_serves_while_thousands_wait(plain: Partitions):
    """Nothing walks over all facets: a pull beside 5000 of them holds the server for a moment only."""
    queue = a_queue()
    await push(plain, queue, [f"t{n}" for n in range(5000)])
    await plain.home.command("CONFIG", "RESETSTAT")

    for _ in range(20):
        await pull(plain.home, queue, most=1, lease_ms=60_000)

    stats = (await plain.home.command("INFO", "commandstats")).decode()
    [line] = [row for row in stats.splitlines() if row.startswith("cmdstat_evalsha:")]
    assert float(line.split("usec_per_call=")[1].split(",")[0]) < 5_000
