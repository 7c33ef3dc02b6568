"""Test events: what is sent, what is shown of the answer, and that nothing else comes of it."""

import asyncio
import json

import pytest
import standardwebhooks

from conftest import Topology
from doubledecker.web import trials
from harness import TestBus, a_bus, an_event, within
from receiver import Receiver
from web.asking import another_web, ask, journal


async def test_a_test_event_is_signed_has_the_own_headers_and_shows_the_answer(one: Topology):
    async with Receiver(headers={"X-Answer": "yes"}) as mail, a_bus(one, workers=0) as bus:
        mail.answer = lambda _: {"failed": [], "padding": "x" * 3000}
        client = await bus.token("client")
        await bus.subscribe(client, mail.url, "widgets", headers={"X-Key": "k"})
        unsigned = (await ask(bus, "POST", "/subscriber/test", client)).json
        secret = (await ask(bus, "POST", "/subscriber/rotate-secret", client)).json["secret"]
        signed = (await ask(bus, "POST", "/subscriber/test", client)).json

        first, second = mail.batches
        [event] = second.events
        assert (unsigned["signed"], signed["signed"]) == (False, True)
        assert "webhook-id" not in first.headers
        standardwebhooks.Webhook(secret).verify(second.body, second.headers)
        assert second.headers["webhook-id"] == signed["event"] == event["id"]
        assert (event["topic"], event["type"], event["data"]) == (
            "doubledecker.test",
            "test",
            {"receiver": signed["receiver"]},
        )
        assert second.headers["X-Key"] == "k"
        assert (signed["outcome"], signed["status"], signed["detail"]) == ("delivered", 200, "")
        assert "X-Answer: yes" in signed["headers"]
        assert signed["answer"].startswith('{"failed": [], "padding": "xxx')
        assert len(signed["answer"]) == 2048


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n\x00\xff\x1b[m", ("delivered", 200, "\x00\\xff\x1b[m")),
        (
            b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\nbusy",
            ("refused", 503, "busy"),
        ),
        (b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n", ("refused", 410, "")),
        (b"nonsense\r\n\r\n", ("broken", None, "")),
    ],
)
async def test_whatever_comes_back_is_shown_as_text(one: Topology, answer: bytes, shown: tuple[str, int | None, str]):
    async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"]")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(on_connect, "127.0.0.1", 0) as server, a_bus(one, workers=0) as bus:
        port = server.sockets[0].getsockname()[1]
        await ask(bus, "PUT", "/queues/hooks", json={"pattern": ".*", "callback": f"http://127.0.0.1:{port}/"})
        seen = (await ask(bus, "POST", "/queues/hooks/test")).json
        [queue] = await bus.get("/queues")

    assert (seen["outcome"], seen["status"], seen["answer"]) == shown
    assert seen["retry_after_ms"] == (7000 if seen["status"] == 503 else None)
    assert queue["disabled"] is None


async def test_a_test_changes_nothing_and_is_possible_while_the_receiver_is_failing_and_paused(one: Topology):
    async with Receiver(plan=lambda _: 503, headers={"Retry-After": "60"}) as mail, a_bus(one) as bus:
        client, publisher = await bus.token("client"), await bus.token("publisher")
        await bus.subscribe(client, mail.url, "widgets", timeout=0)
        await bus.publish(publisher, [an_event(1)])
        await mail.until_attempts(1)
        await ask(bus, "POST", "/subscriber/pause", client)
        # The failure has been counted once its owner is notified of it.
        async with asyncio.timeout(10):
            while len(journaled := await journal(bus)) < 2:
                await asyncio.sleep(0.02)
        before = await _known_of(bus, client)

        for status in (503, 200, 410):
            mail.plan = lambda _, status=status: status
            assert (await ask(bus, "POST", "/subscriber/test", client)).json["status"] == status

        assert mail.attempts == 4
        assert await _known_of(bus, client) == before
        assert await journal(bus) == journaled


async def _known_of(bus: TestBus, client: str) -> tuple[object, ...]:
    """All that is told of a receiver, but for an age."""
    [row] = await bus.get("/subscribers", client)
    row["events"]["oldest"] = 0
    attempts = await bus.get("/subscriber/attempts", client)
    metrics = (await ask(bus, "GET", "/metrics")).body.decode().splitlines()
    counted = [line for line in metrics if f'subscriber="{row["subscriber"]}"' in line and "oldest" not in line]
    return row, attempts, counted


async def test_a_refusal_of_the_guard_is_like_a_name_that_nobody_has(one: Topology):
    """With what the guard refuses inside, and a listener there that must not be dialled."""
    dialled: list[object] = []
    async with await asyncio.start_server(lambda *both: dialled.append(both), "127.0.0.1", 0) as trap:
        port = trap.sockets[0].getsockname()[1]
        async with a_bus(one, workers=0, private_callbacks=False) as bus:
            seen = []
            for host in (f"localhost:{port}", f"no-such-name.invalid:{port}"):
                await ask(bus, "PUT", "/queues/hooks", json={"pattern": ".*", "callback": f"https://{host}/"})
                seen.append((await ask(bus, "POST", "/queues/hooks/test")).json)

    assert dialled == []
    for answer in seen:
        assert {**answer, "event": "", "took_ms": 0} == {
            "receiver": "@hooks",
            "event": "",
            "signed": True,
            "outcome": "unreachable",
            "status": None,
            "took_ms": 0,
            "detail": "refused by the bus: address not allowed, or none found",
            "retry_after_ms": None,
            "headers": [],
            "answer": "",
        }


async def test_a_receiver_that_hangs_holds_a_few_requests_of_its_client_and_no_one_elses(one: Topology):
    async with Receiver(plan=lambda _: "hang") as mail, Receiver() as well, a_bus(one, workers=0) as bus:
        clients = [await bus.token(name) for name in ("client", "other")]
        for client, receiver in zip(clients, (mail, well), strict=True):
            await bus.subscribe(client, receiver.url, "widgets")
        hanging = [
            asyncio.create_task(ask(bus, "POST", "/subscriber/test", clients[0]))
            for _ in range(trials.CLIENT_TRIALS_MAX)
        ]
        await mail.until_attempts(len(hanging))

        refused = await ask(bus, "POST", "/subscriber/test", clients[0])
        other = await within(ask(bus, "POST", "/subscriber/test", clients[1]), 5)

        assert (refused.status, refused.headers["Retry-After"]) == (429, "2")
        assert refused.detail.startswith("4 test events of this client are under way")
        assert other.json["outcome"] == "delivered"
        mail._released.set()
        assert {(await each).json["status"] for each in hanging} == {500}


async def test_a_receiver_that_hangs_is_given_up_like_in_any_attempt(one: Topology):
    async with Receiver(plan=lambda _: "hang") as mail, a_bus(one, workers=0, delivery_timeout_s=0.3) as bus:
        client = await bus.token("client")
        await bus.subscribe(client, mail.url, "widgets")
        seen = (await within(ask(bus, "POST", "/subscriber/test", client), 5)).json

    assert (seen["outcome"], seen["detail"]) == ("timed_out", "no answer within 0.3 s")


async def test_tests_are_so_many_a_minute(one: Topology, monkeypatch: pytest.MonkeyPatch):
    """In all web processes together."""
    monkeypatch.setattr("doubledecker.web.trials.MINUTE_TRIALS_MAX", 2)
    async with Receiver() as mail, a_bus(one, workers=0) as bus, another_web(bus) as other:
        client = await bus.token("client")
        await bus.subscribe(client, mail.url, "widgets")
        answers = [await ask(bus, "POST", "/subscriber/test", client, url=url) for url in (bus.url, other, other)]
        [row] = await bus.get("/subscriptions", client)
        by_root = await ask(bus, "POST", f"/subscribers/{row['subscriber']}/test")

    assert [answer.status for answer in answers] == [200, 200, 429]
    assert "2 test events in a minute; try again in 30 s" in answers[2].detail
    assert answers[2].headers["Retry-After"] == "30"
    assert json.loads(by_root.body)["outcome"] == "delivered"
