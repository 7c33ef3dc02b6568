"""Handlers that a runner calls: acked on return, given back on error, their leases extended meanwhile."""

import asyncio
import sys
import threading
import time

import pytest

from client.consuming import QUICK, Place, a_place, is_empty
from conftest import Topology
from doubledecker.client import Backoff, BlockingMessage, ClientError, Message, NotFound, Reject, RetryLater

AT_ONCE = Backoff(base_s=0.01, cap_s=0.02)


class Seen:
    """What handlers saw, in order: number and attempt."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def add(self, message: Message | BlockingMessage) -> int:
        number = message.event.data["n"]
        self.calls.append((number, message.attempt))
        return int(number)


async def test_every_message_is_handled_once_and_acked(source: str, topology: Topology):
    async with a_place(source, topology) as place:
        seen = Seen()

        @place.consumer.handler(concurrency=5)
        async def work(message: Message) -> None:
            seen.add(message)

        await place.publish(500, tenants=7)
        async with place.running():
            view = await place.until(is_empty)

        assert sorted(seen.calls) == [(n, 1) for n in range(500)]
        assert (view.counters["acked"], view.dead) == (500, 0)


async def test_a_message_that_comes_while_the_runner_waits_is_handled_at_once(source: str, one: Topology):
    async with a_place(source, one) as place:
        took_s: list[float] = []

        @place.consumer.handler()
        async def work(message: Message) -> None:
            took_s.append(time.time() - message.event.t / 1000)

        await place.publish(1)
        async with place.running():
            for n in range(1, 6):
                await place.until(is_empty)
                await place.publish(1, first=n)
            await place.until(lambda view: view.counters["acked"] == 6)

        # The first had to wait for the runner to start. One in the middle, because the machine may be busy.
        assert sorted(took_s[1:])[2] < 0.5, "less than the wait of a pull"


async def test_plain_functions_run_side_by_side_in_threads(source: str, one: Topology):
    async with a_place(source, one) as place:
        seen = Seen()
        together = threading.Barrier(4)

        @place.consumer.handler(concurrency=4)
        def work(message: BlockingMessage) -> None:
            together.wait(10)
            seen.add(message)

        await place.publish(20)
        async with place.running():
            await place.until(is_empty)

        assert sorted(seen.calls) == [(n, 1) for n in range(20)]


@pytest.mark.slow
async def test_a_handler_that_fails_gets_its_message_again_after_the_backoff(source: str, one: Topology):
    async with a_place(source, one) as place:
        seen = Seen()
        at_s: list[float] = []

        @place.consumer.handler(backoff=Backoff(base_s=0.4))
        async def work(message: Message) -> None:
            if seen.add(message) == 3:
                at_s.append(time.monotonic())
                if message.attempt < 3:
                    raise ValueError("not yet")

        await place.publish(5)
        async with place.running():
            await place.until(is_empty)

        assert sorted(seen.calls) == [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2), (3, 3), (4, 1)]
        first_s, second_s = at_s[1] - at_s[0], at_s[2] - at_s[1]
        assert first_s >= 0.2
        assert second_s >= 0.4, "the span doubles"


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
async def test_a_message_that_always_fails_is_dead_after_its_attempts(source: str, one: Topology, is_async: bool):
    async with a_place(source, one, attempts_max=3) as place:
        seen = Seen()

        async def work(message: Message) -> None:
            seen.add(message)
            raise ValueError("no such customer")

        def plain(message: BlockingMessage) -> None:
            seen.add(message)
            raise ValueError("no such customer")

        place.consumer.handler(backoff=AT_ONCE)(work if is_async else plain)
        [id_] = await place.publish(1)
        async with place.running():
            await place.until(lambda view: view.dead == 1)

        [letter] = await place.queue.dead()
        assert seen.calls == [(0, 1), (0, 2), (0, 3)]
        assert (letter.event.id, letter.attempts, letter.why) == (id_, 3, "ValueError: no such customer")


async def test_retry_later_brings_a_message_back_after_the_delay_it_names(source: str, one: Topology):
    async with a_place(source, one) as place:
        at_s: list[float] = []

        @place.consumer.handler(backoff=AT_ONCE)
        async def work(message: Message) -> None:
            at_s.append(time.monotonic())
            if message.attempt == 1:
                raise RetryLater(0.5)

        await place.publish(1)
        async with place.running():
            await place.until(is_empty)

        assert len(at_s) == 2
        assert 0.5 <= at_s[1] - at_s[0] < 3


async def test_reject_sends_a_message_straight_to_the_dead_letters(source: str, one: Topology):
    async with a_place(source, one) as place:
        seen = Seen()

        @place.consumer.handler()
        async def work(message: Message) -> None:
            seen.add(message)
            raise Reject("not for us")

        await place.publish(1)
        async with place.running():
            view = await place.until(lambda view: view.dead == 1)

        [letter] = await place.queue.dead()
        assert seen.calls == [(0, 1)]
        assert (letter.why, letter.attempts, is_empty(view)) == ("not for us", 1, True)


def test_a_delay_that_cannot_be_is_an_error_of_the_handler():
    for delay_s in (-1, float("nan"), 1e9):
        with pytest.raises(ValueError, match="it must be from 0 to"):
            RetryLater(delay_s)


async def test_a_plain_handler_that_exits_or_forgets_async_fails_like_others(source: str, one: Topology):
    async with a_place(source, one, attempts_max=1) as place:

        @place.consumer.handler(concurrency=1)
        def work(message: BlockingMessage) -> object:
            if message.event.data["n"] == 0:
                sys.exit("enough")
            return _nothing(message.held) if message.event.data["n"] == 1 else None

        await place.publish(3)
        async with place.running():
            view = await place.until(lambda view: view.dead == 2 and is_empty(view))

        assert view.counters["acked"] == 1
        whys = sorted(letter.why for letter in await place.queue.dead())
        assert whys == [
            "SystemExit: enough",
            "TypeError: the handler returned a coroutine; declare it with `async def`",
        ]


async def test_what_a_handler_settles_itself_stays_settled(source: str, one: Topology):
    async with a_place(source, one) as place:
        seen = Seen()
        answers: list[bool] = []

        @place.consumer.handler(backoff=AT_ONCE)
        async def work(message: Message) -> None:
            if seen.add(message) == 0:
                answers.append(await message.ack())
                answers.append(await message.ack())
                raise ValueError("after the ack")
            if message.attempt == 1:
                answers.append(await message.nack(0.01))

        await place.publish(2)
        async with place.running():
            await place.until(is_empty)

        assert answers == [True, False, True]
        assert sorted(seen.calls) == [(0, 1), (1, 1), (1, 2)]


async def test_plain_functions_settle_too(source: str, one: Topology):
    async with a_place(source, one) as place:
        answers: list[bool] = []

        @place.consumer.handler()
        def work(message: BlockingMessage) -> None:
            answers.append(message.nack(0.01) if message.attempt == 1 else message.ack())

        await place.publish(1)
        async with place.running():
            await place.until(lambda view: is_empty(view) and len(answers) == 2)

        assert answers == [True, True]


async def test_work_that_outlasts_the_lease_is_done_once(source: str, one: Topology):
    async with a_place(source, one, lease_ms=QUICK) as place:
        seen = Seen()

        @place.consumer.handler(concurrency=2)
        async def work(message: Message) -> None:
            seen.add(message)
            await asyncio.sleep(5 * QUICK / 1000)

        await place.publish(2)
        async with place.running():
            view = await place.until(is_empty)

        assert sorted(seen.calls) == [(0, 1), (1, 1)]
        assert view.counters["expired"] == 0


@pytest.mark.slow
async def test_a_lease_is_not_extended_beyond_what_work_may_take(source: str, one: Topology):
    async with a_place(source, one, lease_ms=QUICK) as place:
        seen = Seen()

        @place.consumer.handler(concurrency=2, work_s_max=0.5)
        async def work(message: Message) -> None:
            seen.add(message)
            if message.attempt == 1:
                await asyncio.sleep(3)

        await place.publish(1)
        async with place.running():
            await place.until(lambda view: view.counters["expired"] == 1 and is_empty(view))

        assert seen.calls == [(0, 1), (0, 2)]


async def test_a_slow_handler_holds_no_more_than_it_works_on(source: str, one: Topology):
    async with a_place(source, one) as place:
        held: list[int] = []
        count = 0

        @place.consumer.handler(concurrency=2)
        async def work(_message: Message) -> None:
            nonlocal count
            count += 1
            await asyncio.sleep(0.1)

        await place.publish(30)
        async with place.running():
            await place.until(lambda view: view.in_flight > 0)
            while count < 20:
                held.append((await place.queue.get()).in_flight)
                await asyncio.sleep(0.01)

        # One more: a message whose ack is under way while the next is taken.
        assert max(held) <= 4
        assert sorted(held)[len(held) // 2] == 2


async def test_a_stop_finishes_what_is_at_work(source: str, one: Topology):
    async with a_place(source, one) as place:
        begun, ended = Seen(), Seen()

        @place.consumer.handler(concurrency=3)
        async def work(message: Message) -> None:
            begun.add(message)
            await asyncio.sleep(0.3)
            ended.add(message)

        await place.publish(30)
        async with place.running():
            await place.until(lambda view: view.in_flight == 3)
        view = await place.queue.get()

        assert begun.calls == ended.calls
        assert view.counters["acked"] == len(ended.calls)
        assert (view.in_flight, view.waiting) == (0, 30 - len(ended.calls))


async def test_a_stop_gives_back_what_takes_longer_than_the_grace(source: str, one: Topology):
    async with a_place(source, one) as place:
        interrupted = asyncio.Event()

        @place.consumer.handler(grace_s=0.1)
        async def work(_message: Message) -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                interrupted.set()
                raise

        await place.publish(1)
        async with place.running():
            await place.until(lambda view: view.in_flight == 1)
        view = await place.queue.get()

        assert interrupted.is_set()
        assert (view.in_flight, view.waiting, view.counters["nacked"]) == (0, 1, 1)


async def test_a_queue_that_is_not_there_or_goes_away_ends_the_runner(source: str, one: Topology):
    async with a_place(source, one) as place:
        missing = place.http.queue("missing")
        missing.handler()(_nothing)
        place.consumer.handler()(_nothing)

        with pytest.raises(NotFound, match="no queue named 'missing'"):
            await missing.run()
        running = asyncio.create_task(place.consumer.run())
        await asyncio.sleep(0)
        await place.queue.delete()
        async with asyncio.timeout(20):
            with pytest.raises(NotFound, match="no queue named 'jobs'"):
                await running


async def test_a_runner_without_handlers_says_so(one: Topology):
    async with a_place("http", one) as place:
        with pytest.raises(ClientError, match="has no handler"):
            await place.consumer.run()
        with pytest.raises(ClientError, match="no queue has a handler"):
            await place.http.run()


async def test_a_bus_runs_the_handlers_of_all_its_queues(one: Topology):
    async with a_place("http", one) as place:
        names: list[str] = []
        other = place.http.queue("other")
        await other.register("t0:jobs:run")
        for queue in (place.queue, other):

            @queue.handler()
            async def work(_message: Message, name: str = queue.name) -> None:
                names.append(name)
                if len(names) == 2:
                    place.http.stop()

        await place.publish(1)
        async with asyncio.timeout(20):
            await place.http.run()

        assert sorted(names) == ["jobs", "other"]


async def _nothing(_message: Message) -> None:
    """Nothing to do."""


async def test_a_heartbeat_that_dies_is_replaced_and_extends_at_once(source: str, one: Topology):
    # The lease is so long that nobody but a new heartbeat would extend it within the test.
    async with a_place(source, one, lease_ms=300_000) as place:
        ends: list[float] = []

        @place.consumer.handler()
        async def work(_message: Message) -> None:
            ends.append(await _lease_end(place))
            await asyncio.to_thread(_kill_heartbeats)
            async with asyncio.timeout(40):
                while await _lease_end(place) == ends[0]:
                    await asyncio.sleep(0.05)
            ends.append(await _lease_end(place))

        await place.publish(1)
        async with place.running():
            view = await place.until(lambda view: view.counters["acked"] == 1, within_s=50)

        assert ends[1] > ends[0]
        assert view.counters["nacked"] == 0


async def _lease_end(place: Place) -> float:
    home = place.bus.partitions.home
    reply = await home.command("ZRANGE", home.key("queue:pending:jobs"), 0, 0, "WITHSCORES")
    return float(reply[1])  # type: ignore[index, arg-type]


def _kill_heartbeats() -> None:
    import os
    import signal

    from cli.commands import children

    beating = [pid for pid, line in children(os.getpid()).items() if "lease_keeper" in line]
    assert beating
    for pid in beating:
        os.kill(pid, signal.SIGKILL)


async def test_tenants_are_served_in_turn(source: str, one: Topology):
    async with a_place(source, one, charge="count") as place:
        order: list[str] = []

        @place.consumer.handler(concurrency=1)
        async def work(message: Message) -> None:
            order.append(message.tenant)
            await asyncio.sleep(0.005)

        await publish_for(place, "loud", 60)
        await publish_for(place, "quiet", 3)
        async with place.running():
            await place.until(is_empty)

        assert order.index("quiet") <= 2
        assert [i for i, tenant in enumerate(order) if tenant == "quiet"][-1] < 20


async def publish_for(place: Place, tenant: str, count: int) -> None:
    events = [{"topic": "jobs", "type": "run", "tenant": tenant, "data": {"n": n}} for n in range(count)]
    await place.bus.publish(place.publisher, events)
