"""A receiver's chain: what opens it, what it lets through, and what it tells. Against real receivers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from doubledecker.delivery import chains as chains_module
from doubledecker.delivery.attempt import Dialer, DialLimits
from doubledecker.delivery.chains import ChainRules, Chains
from doubledecker.errors import CallRejected
from doubledecker.model.outcome import Kind
from doubledecker.model.subscriber import Subscriber
from receiver import Receiver

MESSAGES = [b'{"id":"1"}']
RULES = ChainRules(timeout_s=5.0, calls=4, threshold=0.5, open_s=0.2)


@contextlib.asynccontextmanager
async def some_chains(rules: ChainRules = RULES) -> AsyncIterator[Chains]:
    chains = Chains(Dialer(DialLimits(connect_s=0.5)), rules)
    yield chains
    await chains.close()


def a_subscriber(receiver: Receiver, **fields: object) -> Subscriber:
    return replace(Subscriber("s", receiver.url, "u"), **fields)


async def test_a_receiver_that_hangs_is_given_up_at_the_timeout():
    async with Receiver(plan=lambda _: "hang") as receiver, some_chains(replace(RULES, timeout_s=0.3)) as chains:
        outcome = await chains.attempt(a_subscriber(receiver), MESSAGES)

        assert (outcome.kind, outcome.status) == (Kind.TIMED_OUT, None)
        assert outcome.took_ms == 300
        assert outcome.detail == "no answer within 0.3 s"


async def test_a_receiver_that_fails_is_left_alone_until_a_probe_succeeds():
    async with Receiver(plan=lambda n: 500 if n <= 3 else 200) as receiver, some_chains() as chains:
        subscriber = a_subscriber(receiver)
        with capture_logs() as logs:
            for _ in range(2):
                assert (await chains.attempt(subscriber, MESSAGES)).status == 500
            with pytest.raises(CallRejected) as rejected:
                await chains.attempt(subscriber, MESSAGES)
            with pytest.raises(CallRejected):
                chains.check(subscriber)
            assert receiver.attempts == 2
            assert [state.circuit for state in chains.states()] == ["open"]

            await asyncio.sleep(rejected.value.delay_ms / 1000)
            assert (await chains.attempt(subscriber, MESSAGES)).status == 500  # the probe
            await asyncio.sleep(0.21)
            assert (await chains.attempt(subscriber, MESSAGES)).is_delivered  # the next

        assert rejected.value.stage == "breaker"
        assert 0 < rejected.value.delay_ms <= 201
        assert [state.circuit for state in chains.states()] == ["closed"]
        assert chains.rejections() == {("s", "breaker"): 2}
        assert chains.rejections() == {}
        assert [line["event"] for line in logs] == ["circuit.opened", "circuit.closed"]


async def test_while_a_probe_is_under_way_nobody_else_gets_through():
    async with Receiver(plan=lambda n: 500 if n <= 2 else "hang") as receiver, some_chains() as chains:
        subscriber = a_subscriber(receiver)
        for _ in range(2):
            await chains.attempt(subscriber, MESSAGES)
        await asyncio.sleep(0.21)
        chains.check(subscriber)
        probe = asyncio.create_task(chains.attempt(subscriber, MESSAGES))
        await receiver.until_attempts(3)

        with pytest.raises(CallRejected) as rejected:
            chains.check(subscriber)

        assert rejected.value.delay_ms == 1001
        [state] = chains.states()
        assert (state.circuit, state.calls) == ("half-open", 1)
        probe.cancel()
        await asyncio.wait([probe])
        chains.check(subscriber)  # a cancelled probe gives its place back


@pytest.mark.parametrize(
    ("status", "opens"), [(500, True), (404, True), (429, True), (302, True), (400, False), (422, False)]
)
async def test_an_answer_that_blames_the_content_does_not_open_the_circuit(status: int, opens: bool):
    async with Receiver(plan=lambda _: status) as receiver, some_chains() as chains:
        for _ in range(2):
            await chains.attempt(a_subscriber(receiver), MESSAGES)

        assert [state.circuit for state in chains.states()] == ["open" if opens else "closed"]


async def test_no_more_calls_are_under_way_in_a_process_than_the_subscriber_allows():
    async with Receiver(delay_s=0.05) as receiver, some_chains() as chains:
        subscriber = a_subscriber(receiver, concurrency=2)
        calls = [chains.attempt(subscriber, MESSAGES) for _ in range(5)]
        ends = await asyncio.gather(*calls, return_exceptions=True)

        assert receiver.in_flight_max == 2
        # Two at work, two waiting; the fifth is sent away, and comes back.
        assert [type(end).__name__ for end in ends].count("CallRejected") == 1
        await asyncio.gather(*(chains.attempt(replace(subscriber, concurrency=4), MESSAGES) for _ in range(4)))
        assert receiver.in_flight_max == 4


async def test_a_new_callback_begins_anew():
    async with Receiver(plan=lambda _: 500) as old, Receiver() as new, some_chains() as chains:
        for _ in range(2):
            await chains.attempt(a_subscriber(old), MESSAGES)

        assert (await chains.attempt(a_subscriber(new), MESSAGES)).is_delivered
        assert [state.circuit for state in chains.states()] == ["closed"]


async def test_one_receiver_s_circuit_is_not_another_s():
    async with Receiver(plan=lambda _: 500) as bad, Receiver() as good, some_chains() as chains:
        for _ in range(2):
            await chains.attempt(a_subscriber(bad), MESSAGES)

        assert (await chains.attempt(replace(a_subscriber(good), token="other"), MESSAGES)).is_delivered


async def test_a_chain_that_nobody_uses_is_forgotten_but_not_one_in_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chains_module, "_IDLE_S", 0.05)
    async with Receiver() as idle, Receiver(plan=lambda _: "hang") as busy, some_chains() as chains:
        await chains.attempt(replace(a_subscriber(idle), token="idle"), MESSAGES)
        call = asyncio.create_task(chains.attempt(replace(a_subscriber(busy), token="busy"), MESSAGES))
        await busy.until_attempts(1)
        await asyncio.sleep(0.1)

        assert [state.subscriber for state in chains.states()] == ["busy"]
        call.cancel()
        await asyncio.wait([call])
