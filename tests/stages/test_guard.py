"""Guarded functions and blocks."""

import asyncio
import inspect
import threading

import pytest
import uvloop

from doubledecker.stages import Bulkhead, Chain, Event, Notice, RateLimit, Retry, SingleFlight, Timeout
from doubledecker.stages.errors import ChainInvalid, QueueFull, RateExceeded
from stages.rehearsal import Broken, a_call, bind, ending, now, virtually

CHAIN = Retry(2) | Timeout(1)


def test_a_guarded_function_keeps_its_name_signature_and_docstring():
    @CHAIN
    async def deliver(url: str, *, body: bytes = b"") -> int:
        """Send it."""
        return len(url) + len(body)

    assert deliver.__name__ == "deliver"
    assert deliver.__doc__ == "Send it."
    assert list(inspect.signature(deliver).parameters) == ["url", "body"]


def test_arguments_and_results_pass_through():
    @CHAIN
    async def deliver(url: str, *, body: bytes = b"") -> int:
        return len(url) + len(body)

    async def main() -> int:
        return await deliver("abc", body=b"d")

    assert virtually(main()) == 4


def test_a_method_can_be_guarded():
    class Client:
        def __init__(self) -> None:
            self.asked: list[str] = []

        @CHAIN
        async def ask(self, question: str) -> str:
            self.asked.append(question)
            return question.upper()

    async def main() -> None:
        client = Client()
        assert await client.ask("why") == "WHY"
        assert client.asked == ["why"]

    virtually(main())


def test_each_loop_has_its_own_state_and_closed_loops_are_forgotten():
    @(Chain() | RateLimit(0.001))
    async def ask() -> str:
        return "answer"

    async def main() -> str:
        return await ask()

    for _ in range(3):
        assert virtually(main()) == "answer"
        assert asyncio.run(main()) == "answer"
    assert len(ask.bound.__self__._by_loop) == 1


def test_two_loops_in_two_threads_do_not_meet():
    @(Chain() | Bulkhead(workers=1))
    async def ask() -> str:
        await asyncio.sleep(0.01)
        return "answer"

    async def main() -> str:
        return await ask()

    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(asyncio.run(main()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert answers == ["answer"] * 3


def test_a_sync_function_runs_in_a_thread():
    @CHAIN.in_thread
    def where(word: str) -> tuple[str, int]:
        return word, threading.get_ident()

    word, thread = asyncio.run(_await(where("x")))

    assert word == "x"
    assert thread != threading.get_ident()


async def _await(call):
    return await call


def test_it_works_on_uvloop_whose_timers_ring_early():
    async def main() -> list[str]:
        bound = bind(RateLimit(200, wait_s_max=1) | Timeout(0.4))
        calls = (ending(bound.run(a_call(takes_s))) for takes_s in (0.001, 0.001, 60))
        return [end.how for end in await asyncio.gather(*calls)]

    assert uvloop.run(main()) == ["ok", "ok", "TimedOut"]


def test_a_keyed_function_shares_by_its_key():
    calls: list[str] = []

    @(Chain() | SingleFlight()).keyed(lambda url: url)
    async def fetch(url: str) -> str:
        calls.append(url)
        await asyncio.sleep(1)
        return url

    async def main() -> list[str]:
        return list(await asyncio.gather(fetch("a"), fetch("b"), fetch("a")))

    assert virtually(main()) == ["a", "b", "a"]
    assert calls == ["a", "b"]


def test_a_block_is_let_in_and_counted():
    async def main() -> None:
        bound = bind(Bulkhead(workers=1))
        async with bound.admission():
            assert bound["bulkhead"].snapshot().working == 1
            with pytest.raises(QueueFull):
                async with bound.admission():
                    pass
        with pytest.raises(Broken):
            async with bound.admission():
                raise Broken
        snapshot = bound["bulkhead"].snapshot()

        assert (snapshot.succeeded, snapshot.failed, snapshot.rejected, snapshot.working) == (1, 1, 1, 0)
        assert snapshot.is_balanced

    virtually(main())


def test_a_block_waits_for_its_turn():
    async def main() -> list[float]:
        bound = bind(RateLimit(1, wait_s_max=10))
        moments = []
        for _ in range(3):
            async with bound.admission(Event("key")) as event:
                moments.append(now())
                assert event.key == "key"
        return moments

    assert virtually(main()) == pytest.approx([0, 1, 2])


@pytest.mark.parametrize("cut_after_s", [0.5, 1.5])
def test_a_block_that_is_cancelled_gives_its_worker_back(cut_after_s: float):
    async def block(bound) -> None:
        async with bound.admission():
            await asyncio.sleep(1)

    async def main() -> None:
        bound = bind(RateLimit(1, wait_s_max=10) | Bulkhead(workers=1))
        await bound.run(a_call())
        task = asyncio.create_task(block(bound))
        await asyncio.sleep(cut_after_s)
        task.cancel()

        assert (await ending(task)).how == "Cancelled"
        assert all(snapshot.is_balanced and snapshot.working == 0 for snapshot in bound.snapshots())
        assert len(asyncio.all_tasks()) == 1

    virtually(main())


def test_a_stage_that_would_repeat_the_block_is_refused():
    with pytest.raises(ChainInvalid):
        bind(Bulkhead(workers=1) | Retry(3)).admission()


def test_a_listener_hears_of_rejections():
    heard: list[Notice] = []

    async def main() -> None:
        bound = bind(RateLimit(1), heard.append)
        await bound.run(a_call(key="k"))
        with pytest.raises(RateExceeded) as caught:
            await bound.run(a_call(key="k"))
        assert str(caught.value) == "rate_limit: more events than the rate allows, again in 1 s"

    virtually(main())

    assert heard == [Notice("rate_limit", "rejected", 0.0, "k")]
