"""Chains in sync programs: the same stages, each call waited for."""

import contextvars
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from doubledecker.stages import Breaker, Bulkhead, Cache, Chain, Count, Fifo, Hedge, Retry, SingleFlight, Timeout
from doubledecker.stages.errors import CircuitOpen, QueueFull, TimedOut

GUARD = Retry(3) | Breaker(Count(20)) | Bulkhead(workers=4, queue=Fifo(10)) | Timeout(30.0)


def test_a_sync_function_is_guarded_and_called_as_before():
    calls: list[int] = []

    @GUARD.blocking
    def add(one: int, *, other: int = 0) -> int:
        """Add them."""
        calls.append(one)
        if len(calls) < 3:
            raise OSError("not yet")
        return one + other

    assert add(1, other=2) == 3
    assert calls == [1, 1, 1]
    assert (add.__name__, add.__doc__) == ("add", "Add them.")
    assert [(each.stage, each.succeeded, each.failed) for each in add.bound().snapshots()][:2] == [
        ("retry", 1, 0),
        ("breaker", 1, 2),
    ]


def test_a_method_and_a_keyed_function_are_guarded():
    class Client:
        def __init__(self) -> None:
            self.asked: list[str] = []

        @GUARD.blocking
        def ask(self, question: str) -> str:
            self.asked.append(question)
            return question.upper()

    calls: list[int] = []

    @(Chain() | Cache(10)).keyed(str).blocking
    def load(user: int) -> int:
        calls.append(user)
        return user * 2

    client = Client()

    assert client.ask("why") == "WHY"
    assert client.asked == ["why"]
    assert [load(1), load(1), load(2)] == [2, 2, 4]
    assert calls == [1, 2]


def test_what_the_function_raises_passes_unchanged():
    class Odd(BaseException):
        """Neither a failure nor a cancellation."""

    def fail(error: BaseException) -> None:
        raise error

    guarded = (Chain() | Retry(2)).blocking(fail)
    for error in (ValueError("x"), SystemExit(3), KeyboardInterrupt(), Odd()):
        with pytest.raises(type(error)) as raised:
            guarded(error)
        assert raised.value is error
    with pytest.raises(RuntimeError, match="StopIteration"):
        guarded(StopIteration())

    assert (Chain() | Retry(2)).blocking(len)("abc") == 3, "the loop is still there"


def test_a_timeout_ends_the_waiting_and_the_function_goes_on_to_its_end():
    freed, ended = threading.Event(), threading.Event()

    @(Chain() | Timeout(0.05)).blocking
    def hang() -> None:
        freed.wait(30)
        ended.set()

    with pytest.raises(TimedOut):
        hang()
    freed.set()

    assert ended.wait(30)


def test_many_threads_share_one_state():
    at_work, most = 0, 0
    lock, together = threading.Lock(), threading.Barrier(2, timeout=30)

    @(Chain() | Bulkhead(workers=2, queue=Fifo(10))).blocking
    def work() -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        together.wait()
        with lock:
            at_work -= 1

    with ThreadPoolExecutor(8) as pool:
        for call in [pool.submit(work) for _ in range(8)]:
            call.result()

    assert most == 2
    assert work.bound().snapshots()[0].succeeded == 8


def test_who_finds_no_place_is_turned_away():
    begun, freed = threading.Event(), threading.Event()

    @(Chain() | Bulkhead(workers=1)).blocking
    def work() -> None:
        begun.set()
        freed.wait(30)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(work)
        assert begun.wait(30)
        with pytest.raises(QueueFull):
            work()
        freed.set()
        first.result()


def test_the_function_sees_the_callers_context_also_when_it_is_hedged():
    word = contextvars.ContextVar("word", default="none")
    freed = threading.Event()
    seen: list[str] = []

    @(Chain() | Hedge(0.01)).blocking
    def look() -> str:
        seen.append(word.get())
        if len(seen) == 1:
            freed.wait(30)
        return word.get()

    word.set("mine")

    assert look() == "mine"
    freed.set()
    assert seen == ["mine", "mine"]


def test_a_bound_chain_serves_several_functions_and_can_be_changed():
    heard: list[str] = []
    chain = Breaker() | Bulkhead(workers=2)
    with chain.bind_blocking(listener=lambda notice: heard.append(notice.what)) as bound:
        assert bound.call(len, "abc") == 3
        assert bound.options(key="k", priority=1, deadline_s=60).call(max, 1, 2) == 2
        bound.do(lambda stages: stages.stage(Breaker).force_open())
        with pytest.raises(CircuitOpen):
            bound.call(len, "abc")
        bound.do(lambda stages: stages["bulkhead"].resize(8))

        assert [each.workers for each in bound.snapshots()] == [None, 8]
    assert heard == ["forced open", "rejected"]


def test_single_flights_of_threads_meet():
    calls: list[int] = []
    freed = threading.Event()

    @(Chain() | SingleFlight()).keyed(str).blocking
    def load(user: int) -> int:
        calls.append(user)
        freed.wait(30)
        return user

    with ThreadPoolExecutor(4) as pool:
        flying = [pool.submit(load, 7) for _ in range(4)]
        while load.bound().do(lambda stages: stages["single_flight"].working) < 4:
            pass
        freed.set()
        assert [flight.result() for flight in flying] == [7] * 4
    assert calls == [7]


def test_it_works_in_a_fork_and_a_hanging_call_does_not_keep_a_program():
    program = """
        import os, sys, threading
        from doubledecker.stages import Chain, Timeout
        from doubledecker.stages.errors import TimedOut

        @(Chain() | Timeout(0.05)).blocking
        def work(event):
            return event if event is None else event.wait()

        work(None)
        child = os.fork()
        if child == 0:
            work(None)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        try:
            work(threading.Event())
        except TimedOut:
            print("timed out")
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONDEVMODE": "0"},
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "timed out\n", "")
