"""What cannot work is refused when a function is guarded or a chain is bound, not when the first event comes."""

import asyncio
import functools
import time
from collections.abc import Awaitable
from unittest.mock import AsyncMock

import pytest

from doubledecker.stages import (
    AsideCache,
    Batch,
    Breaker,
    Bulkhead,
    Cache,
    Chain,
    Event,
    Fallback,
    Poisson,
    RateLimit,
    Retry,
    Router,
    Simulated,
    SingleFlight,
    Stage,
    Timeout,
    UniformKeys,
    simulate,
    value,
)
from doubledecker.stages.errors import ChainInvalid, KeyMissing
from stages.rehearsal import bind, virtually

CHAIN = Retry(2) | Timeout(1)


def plain(word: str) -> str:
    return word


async def waiting(word: str) -> str:
    return word


class Plain:
    def __call__(self, word: str) -> str:
        return word


class Waiting:
    async def __call__(self, word: str) -> str:
        return word


def handing_on(word: str) -> Awaitable[str]:
    return waiting(word)


@functools.wraps(waiting)
def wrapping(word: str) -> object:
    return waiting(word)


class Endless:
    """A proxy, as lazy imports and mocks are: it says yes to every question."""

    def __call__(self, word: str) -> str:
        return word

    def __getattr__(self, name: str) -> object:
        return Endless() if name == "__wrapped__" else object.__getattribute__(self, name)


SYNC = {
    "proxy": Endless(),
    "function": plain,
    "partial": functools.partial(plain, "x"),
    "object": Plain(),
    "method": Plain().__call__,
    "builtin": time.sleep,
    "class": dict,
}


@pytest.mark.parametrize("name", SYNC)
@pytest.mark.parametrize("guard", [CHAIN, CHAIN.keyed(str), CHAIN.batched], ids=["chain", "keyed", "batched"])
def test_a_sync_function_is_refused_with_what_to_do(guard, name: str):
    with pytest.raises(ChainInvalid, match=r"sync function.*`@chain\.in_thread`.*`@chain\.blocking`"):
        guard(SYNC[name])


def test_a_sync_function_is_refused_by_a_bound_chain_and_never_called():
    called: list[str] = []

    async def main() -> None:
        with pytest.raises(ChainInvalid, match="in_thread"):
            await bind(CHAIN).call(called.append, "x")
        with pytest.raises(ChainInvalid, match="in_thread"):
            await bind(CHAIN).options(priority=1).call(called.append, "x")

    virtually(main())

    assert called == []


@pytest.mark.parametrize(
    "function",
    [
        waiting,
        Waiting(),
        handing_on,
        wrapping,
        functools.partial(waiting),
        lambda word="x": waiting(word),
        CHAIN(waiting),
    ],
)
def test_whatever_gives_something_to_await_is_guarded(function):
    async def main() -> object:
        return await CHAIN(function)("x"), await bind(CHAIN).call(function, "x")

    assert virtually(main()) == ("x", "x")


def test_an_async_mock_is_guarded():
    ask = AsyncMock(return_value="answer")

    async def main() -> object:
        return await CHAIN(ask)("x"), await bind(CHAIN).call(ask, "x")

    assert virtually(main()) == ("answer", "answer")


@pytest.mark.parametrize("guard", [CHAIN.in_thread, CHAIN.blocking, CHAIN.keyed(str).in_thread])
def test_an_async_function_is_refused_where_a_thread_would_call_it(guard):
    with pytest.raises(ChainInvalid, match=r"is async.*`@chain`"):
        guard(waiting)


@pytest.mark.parametrize("name", ["start", "admit", "succeeded", "failed", "cancelled"])
def test_a_method_that_cannot_wait_is_refused_when_it_is_async(name: str):
    async def method(self: Stage, *_: object) -> None:
        """It would never be awaited."""

    kind = type("Quota", (Stage,), {name: method})

    with pytest.raises(ChainInvalid, match=rf"quota: `{name}` is declared with `async def`.*`in_thread`"):
        (Chain() | kind()).bind()


def test_a_stage_whose_work_is_sync_is_refused():
    class Quick(Stage):
        def work(self, event: Event) -> object:  # type: ignore[override]
            return event.key

    with pytest.raises(ChainInvalid, match="quick: `work` is a sync function"):
        bind(Quick())


KEYED = {
    "cache": Chain() | Cache(),
    "aside_cache": Chain() | AsideCache(),
    "single_flight": Retry(2) | SingleFlight(),
    "breaker": Chain() | Breaker(per_key=True),
    "rate_limit": Chain() | RateLimit(per_key=True),
    "a branch": Chain() | Fallback(Chain() | Cache(), function=value(0)),
    "a route": Chain() | Router({"x": Chain() | Cache()}),
}


@pytest.mark.parametrize("name", KEYED)
def test_a_stage_that_goes_by_keys_says_so_when_a_function_has_none(name: str):
    for guard in (KEYED[name], KEYED[name].in_thread, KEYED[name].blocking, KEYED[name].batched):
        with pytest.raises(KeyMissing, match=r"needs events with a key.*chain\.keyed"):
            guard(waiting)


@pytest.mark.parametrize("name", ["cache", "aside_cache", "single_flight", "breaker", "rate_limit"])
def test_a_stage_that_goes_by_keys_refuses_an_event_without_one(name: str):
    async def main() -> None:
        bound = bind(KEYED[name])
        with pytest.raises(KeyMissing, match=r"needs events with a key.*bound\.options"):
            await bound.call(waiting, "x")
        assert bound[name].snapshot().rejected == 1, "and the retry around it has not asked again"

    virtually(main())


def test_a_rehearsal_without_keys_shows_what_is_missing():
    chain = Cache() | Simulated()
    [without] = simulate(chain, traffic=Poisson(10), duration=10).replications

    assert list(without.outcomes) == ["KeyMissing"]
    assert simulate(chain, traffic=Poisson(10), duration=10, keys=UniformKeys(5)).success.mean == 1.0


def test_a_keyed_batch_is_single_for_each_key():
    calls: list[list[int]] = []

    @(SingleFlight() | Batch(10, wait_s=1.0)).keyed(str).batched
    async def look_up(numbers: list[int]) -> list[str]:
        calls.append(numbers)
        return [str(number) for number in numbers]

    async def main() -> object:
        return await asyncio.gather(look_up(1), look_up(2), look_up(1))

    assert virtually(main()) == ["1", "2", "1"]
    assert calls == [[1, 2]]


def test_a_call_has_its_key_priority_and_deadline():
    seen: list[Event] = []

    class Look(Stage):
        def admit(self, event: Event) -> None:
            seen.append(event)

    async def main() -> None:
        bound = bind(Look())
        await asyncio.sleep(10)
        await bound.options(key="k", priority=3, deadline_s=2.0, attributes={"a": 1}).call(waiting, "x")

    virtually(main())

    [event] = seen
    assert (event.key, event.priority, event.deadline, event.attributes) == ("k", 3, 12.0, {"a": 1})


def test_options_serve_several_calls_and_bad_ones_are_refused():
    async def main() -> list[str]:
        options = bind(Bulkhead(workers=1)).options(priority=1)
        with pytest.raises(ChainInvalid, match=r"options\.deadline_s is -1"):
            bind(CHAIN).options(deadline_s=-1)
        return [await options.call(waiting, "a"), await options.call(waiting, "b")]

    assert virtually(main()) == ["a", "b"]


def test_a_bound_stage_is_found_by_its_class():
    async def main() -> None:
        bound = bind(Timeout(1, name="outer") | Breaker() | Timeout(1))
        assert bound.stage(Breaker) is bound["breaker"]
        assert bound.stage(Timeout, "outer") is bound["outer"]
        with pytest.raises(ChainInvalid, match=r"2 stages are a Timeout.*there are outer, breaker, timeout"):
            bound.stage(Timeout)
        with pytest.raises(ChainInvalid, match="0 stages are a Cache"):
            bound.stage(Cache)

    virtually(main())
