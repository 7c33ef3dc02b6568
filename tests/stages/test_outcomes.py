"""`on=` with classes and predicates, delays that dependencies ask for, slow calls, and circuits that are forced."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from doubledecker.stages import (
    Breaker,
    Cache,
    Chain,
    Count,
    Event,
    Fallback,
    Notice,
    Result,
    Retry,
    value,
)
from doubledecker.stages.context import Transitions
from doubledecker.stages.errors import ChainInvalid, SettingInvalid
from doubledecker.stages.techniques.retry import asked_delay_s
from stages.rehearsal import Broken, a_call, bind, ending, now, virtually


class Coded(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def is_server_error(error: Exception) -> bool:
    return isinstance(error, Coded) and error.code >= 500


def is_bad(result: object) -> bool:
    return result == "bad"


def giving(*outcomes: object) -> tuple[Callable[[], object], list[float]]:
    """A function that ends as told, one call after the other, and when it was called."""
    left, moments = list(outcomes), []

    async def ask() -> object:
        moments.append(now())
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return ask, moments


@pytest.mark.parametrize("on", [is_server_error, (OSError, is_server_error), [is_server_error]])
def test_a_predicate_decides_which_exceptions_are_retried(on):
    async def main(*outcomes: object) -> tuple[str, int]:
        ask, calls = giving(*outcomes)
        ended = await ending(bind(Retry(3, on=on)).run(Event(function=ask)))
        return ended.how, len(calls)

    assert virtually(main(Coded(503), "fine")) == ("ok", 2)
    assert virtually(main(Coded(404), "fine")) == ("Coded", 1)


def test_a_class_alone_and_never_are_predicates_too():
    async def main(*outcomes: object) -> tuple[str, int]:
        ask, calls = giving(*outcomes)
        ended = await ending(bind(Retry(3, on=Coded, never=is_server_error)).run(Event(function=ask)))
        return ended.how, len(calls)

    assert virtually(main(Coded(404), "fine")) == ("ok", 2)
    assert virtually(main(Coded(503), "fine")) == ("Coded", 1)
    assert virtually(main(OSError(), "fine")) == ("OSError", 1)


def test_a_result_can_be_retried_and_the_last_one_passes_unchanged():
    async def main(*outcomes: object) -> tuple[object, int]:
        ask, calls = giving(*outcomes)
        return await bind(Retry(2, on=(OSError, Result(is_bad)))).run(Event(function=ask)), len(calls)

    assert virtually(main("bad", "fine")) == ("fine", 2)
    assert virtually(main("bad", "bad")) == ("bad", 2)
    assert virtually(main("fine")) == ("fine", 1)


def test_a_breaker_counts_bad_results_and_gives_them_on():
    async def main() -> tuple[list[object], str]:
        bound = bind(Breaker(Count(4), on=(Result(is_bad), is_server_error)))
        ask, _ = giving("bad", "bad", "bad", "fine")
        return [await bound.run(Event(function=ask)) for _ in range(4)], bound["breaker"].state

    assert virtually(main()) == (["bad", "bad", "bad", "fine"], "closed")

    async def with_errors() -> str:
        bound = bind(Breaker(Count(2), on=(Result(is_bad), is_server_error)))
        ask, _ = giving("bad", Coded(404), Coded(500), "bad")
        for _ in range(4):
            await ending(bound.run(Event(function=ask)))
        return bound["breaker"].state

    assert virtually(with_errors()) == "open"


def test_a_fallback_and_a_cache_go_by_predicates():
    async def main() -> list[object]:
        ask, _ = giving("bad", Coded(500), "fine")
        fallback = bind(Fallback(function=value("else"), on=(Result(is_bad), is_server_error)))
        found = [await fallback.run(Event(function=ask)) for _ in range(3)]
        ask, calls = giving("bad", "fine", "never")
        cache = bind(Cache(ttl_s=60, negative_s=5, negative_on=Result(is_bad)))
        for _ in range(4):
            found.append(await cache.run(Event("k", function=ask)))
            await asyncio.sleep(3)
        return [*found, len(calls)]

    assert virtually(main()) == ["else", "else", "fine", "bad", "bad", "fine", "fine", 2]


@pytest.mark.parametrize("make", [lambda on: Retry(on=on), lambda on: Breaker(on=on), lambda on: Fallback(on=on)])
@pytest.mark.parametrize("wrong", [7, int, "OSError", (OSError, 7), (OSError, int)])
def test_what_is_neither_class_nor_predicate_is_refused(make, wrong: object):
    with pytest.raises(SettingInvalid, match=r"\.on is .* it must be exception classes, predicates"):
        make(wrong)


class Response:
    def __init__(self, status: int, headers: object) -> None:
        self.status = status
        self.headers = headers


class Failed(Exception):
    """As the libraries have them: headers of its own, or a response that has."""

    def __init__(self, **fields: object) -> None:
        super().__init__("failed")
        self.__dict__.update(fields)


_AT = datetime(2026, 1, 1, tzinfo=UTC)
_IN_A_MINUTE = {
    "Date": format_datetime(_AT, usegmt=True),
    "Retry-After": format_datetime(_AT + timedelta(minutes=1), usegmt=True),
}


@pytest.mark.parametrize(
    ("outcome", "asked_s"),
    [
        (Failed(retry_after_s=7.5), 7.5),
        (Failed(retry_after=7), 7),
        (Failed(retry_after=timedelta(seconds=7)), 7),
        (Failed(headers={"Retry-After": "7"}), 7),
        (Failed(headers={b"retry-after": b" 7 "}), 7),
        (Failed(headers=[("X", "1"), ("RETRY-AFTER", "7")]), 7),
        (Failed(response=Response(503, {"retry-after": "7"})), 7),
        (Failed(headers=_IN_A_MINUTE), 60),
        (Response(429, {"Retry-After": "0"}), 0),
        (Failed(headers={"Retry-After": "-3"}), 0),
        (Failed(headers={"Retry-After": "soon"}), None),
        (Failed(headers={"Retry-After": "nan"}), None),
        (Failed(retry_after_s=float("inf")), None),
        (Failed(retry_after_s=True), None),
        (Failed(headers=None), None),
        (Failed(headers=7, response=7), None),
        ("a result", None),
        (None, None),
    ],
)
def test_the_delay_that_a_dependency_asks_for_is_read_where_it_is(outcome: object, asked_s: float | None):
    assert asked_delay_s(outcome) == asked_s


def test_a_date_without_a_date_of_the_answer_is_compared_with_our_clock():
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)

    assert asked_delay_s(Failed(headers={"Retry-After": later})) == pytest.approx(3600, abs=60)


def test_retry_after_is_kept_of_exceptions_and_of_responses():
    async def main() -> list[float]:
        outcomes = [Failed(headers={"Retry-After": "7"}), Response(503, {"Retry-After": "5"}), Response(200, {})]
        ask, moments = giving(*outcomes)
        chain = Retry(3, on=(Failed, Result(lambda response: response.status == 503)))
        await bind(chain).run(Event(function=ask))
        return moments

    assert virtually(main()) == [0, 7, 12]


def test_a_retry_that_is_asked_for_after_the_deadline_is_not_tried():
    async def main() -> tuple[str, list[float]]:
        ask, moments = giving(Failed(retry_after=7), "fine")
        ended = await ending(bind(Retry(3)).options(deadline_s=5.0).call(ask))
        return ended.how, moments

    assert virtually(main()) == ("Failed", [0])


def test_slow_answers_open_a_circuit_and_slow_probes_keep_it_open():
    async def main() -> list[str]:
        bound = bind(Breaker(Count(4), slow_s=1.0, open_s=5.0))
        states = []
        for takes_s in (2.0, 0.5, 2.0, 2.0):
            await bound.run(a_call(takes_s))
            states.append(bound["breaker"].state)
        await asyncio.sleep(6)
        for takes_s, wait_s in ((2.0, 6.0), (0.5, 0.0)):
            await bound.run(a_call(takes_s))
            states.append(bound["breaker"].state)
            await asyncio.sleep(wait_s)
        return states

    assert virtually(main()) == ["closed", "closed", "closed", "open", "open", "closed"]


def test_calls_at_the_same_time_are_timed_apart():
    async def main() -> str:
        bound = bind(Breaker(Count(2), slow_s=1.0, calls_min=2))
        await asyncio.gather(bound.run(a_call(0.9)), bound.run(a_call(0.8)), bound.run(a_call(0.9)))
        return bound["breaker"].state

    assert virtually(main()) == "closed"


def test_a_forced_circuit_stays_where_it_is_until_it_is_released():
    heard: list[str] = []

    async def main() -> None:
        bound = bind(Breaker(Count(2), open_s=1.0), listener=lambda notice: heard.append(notice.what))
        breaker = bound.stage(Breaker)
        breaker.force_open()
        await asyncio.sleep(100)
        assert (await ending(bound.run(a_call()))).how == "CircuitOpen"
        assert breaker.refusal(Event()) is not None
        breaker.force_closed()
        for _ in range(20):
            assert (await ending(bound.run(a_call(fails=True)))).how == "Broken"
        assert breaker.state == "forced closed"
        breaker.release()
        for _ in range(2):
            await ending(bound.run(a_call(fails=True)))
        assert breaker.state == "open"

    virtually(main())

    assert [what for what in heard if what != "rejected"] == ["forced open", "forced closed", "closed", "open"]


def test_one_key_can_be_forced_or_all():
    async def hows(bound, *keys: str) -> list[str]:
        return [(await ending(bound.run(a_call(key=key)))).how for key in keys]

    async def main() -> None:
        bound = bind(Breaker(Count(2), per_key=True, keys_max=2))
        breaker = bound.stage(Breaker)
        breaker.force_open("a")
        assert await hows(bound, "a", "b", "c", "d", "a") == ["CircuitOpen", "ok", "ok", "ok", "CircuitOpen"]
        breaker.force_open()
        breaker.force_closed("b")
        assert await hows(bound, "a", "b", "c") == ["CircuitOpen", "ok", "CircuitOpen"]
        assert breaker.state == "forced open"
        breaker.release()
        breaker.release("b")
        assert await hows(bound, "a", "b", "c") == ["CircuitOpen", "ok", "ok"]
        breaker.release("a")
        assert await hows(bound, "a") == ["ok"]
        assert breaker.state == "0 of 2 not closed"

    virtually(main())


def test_a_key_of_a_breaker_without_keys_cannot_be_forced():
    async def main() -> None:
        with pytest.raises(ChainInvalid, match="one circuit for all keys"):
            bind(Breaker()).stage(Breaker).force_open("a")

    virtually(main())


def test_a_log_hears_of_forced_circuits():
    heard: list[str] = []
    listener = Transitions(opened=lambda: heard.append("opened"), closed=lambda: heard.append("closed"))
    for what in ("forced open", "open", "forced closed", "closed"):
        listener(Notice("breaker", what, 0.0))

    assert heard == ["opened", "closed"]


def test_a_probe_gives_its_place_back_when_it_is_turned_away_inside():
    async def main() -> str:
        bound = (Chain() | Breaker(Count(2), calls_min=1, open_s=1.0) | Retry(1)).bind()
        await ending(bound.run(a_call(fails=True)))
        await ending(bound.run(a_call(fails=True)))
        await asyncio.sleep(2)
        probe = asyncio.create_task(bound.run(a_call(5.0)))
        await asyncio.sleep(1)
        probe.cancel()
        await asyncio.wait([probe])
        return (await ending(bound.run(a_call()))).how

    assert virtually(main()) == "ok"
    assert issubclass(Broken, Exception)
