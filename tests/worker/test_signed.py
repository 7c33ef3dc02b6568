"""Signed deliveries on a whole bus: verified by libraries of others, over retries, parts and a rotation."""

import json

import pytest
import standardwebhooks
import svix

from conftest import Topology
from doubledecker.store import journal
from harness import TestBus, a_bus, an_event
from receiver import Batch, Receiver
from web.asking import ask, everything


def is_verified(batch: Batch, secret: str) -> bool:
    """What both libraries say, which are of one mind."""
    verdicts = set()
    for library, refusal in (
        (standardwebhooks.Webhook(secret), standardwebhooks.WebhookVerificationError),
        (svix.Webhook(secret), svix.WebhookVerificationError),
    ):
        try:
            library.verify(batch.body, batch.headers)
            verdicts.add(True)
        except refusal:
            verdicts.add(False)
    [verdict] = verdicts
    return verdict


async def rotated(bus: TestBus, path: str, secret: str | None = None, **body: int) -> str:
    """A new signing secret."""
    answer = await ask(bus, "POST", f"{path}/rotate-secret", *([secret] if secret else []), json=body)
    assert answer.status == 200, answer.body
    return str(answer.json["secret"])


async def test_a_subscriber_is_signed_from_its_first_secret_on_and_through_a_rotation(topology: Topology):
    async with a_bus(topology) as bus, Receiver() as mail:
        subscriber, publisher = await bus.token("s"), await bus.token("publisher")
        await bus.subscribe(subscriber, mail.url, "widgets", timeout=0, uuid="mine")
        secrets = []
        for number, body in enumerate(({}, {}, {"overlap_s": 0})):
            await bus.publish(publisher, [an_event(number)])
            await mail.until_events(number + 1)
            secrets.append(await rotated(bus, "/subscriber", subscriber, **body))
            # Whoever subscribes at each boot keeps it.
            await bus.subscribe(subscriber, mail.url, "widgets", timeout=0)
        await bus.publish(publisher, [an_event(3)])
        await mail.until_events(4)

    unsigned, *signed = mail.batches
    assert not [name for name in unsigned.headers if name.lower().startswith("webhook-")]
    assert [[is_verified(batch, secret) for secret in secrets] for batch in signed] == [
        [True, False, False],
        [True, True, False],
        [False, False, True],
    ]
    assert len({batch.headers["webhook-id"] for batch in signed}) == 3
    assert {batch.uuid for batch in mail.batches} == {"mine"}


async def test_a_message_has_one_id_over_its_retries_and_each_part_of_it_another(one: Topology):
    """A batch of four, of which one event is refused for its content."""
    seen: list[tuple[str, tuple[str, ...]]] = []
    async with Receiver() as mail, a_bus(one) as bus:
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, mail.url, "widgets", timeout=200, max=4, retry=[10, 10])
        await rotated(bus, "/subscriber", subscriber)
        mail.plan = lambda number: 503 if number == 1 else 400 if "bad" in mail.attempted[number - 1] else 200
        mail.noted = lambda headers, ids: seen.append((headers["webhook-id"], tuple(ids)))

        ids = ["a", "bad", "c", "d"]
        await bus.publish(await bus.token("publisher"), [an_event(n, id=id_) for n, id_ in enumerate(ids)])
        await mail.until(lambda: len(mail.events) == 3 and mail.attempted.count(["bad"]) == 3)

    contents = dict(seen)
    assert all(contents[id_] == events for id_, events in seen)
    assert len(set(contents.values())) == len(contents)
    assert [events for _, events in seen].count(("a", "bad", "c", "d")) == 2
    assert not any("." in id_ for id_ in contents)


async def test_what_a_2xx_names_as_failed_comes_again_as_a_message_of_its_own(one: Topology):
    async with Receiver() as mail, a_bus(one) as bus:
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, mail.url, "widgets", timeout=200, max=3)
        await rotated(bus, "/subscriber", subscriber)
        mail.answer = lambda _: {"failed": ["b"]} if len(mail.batches) == 1 else {}
        await bus.publish(await bus.token("publisher"), [an_event(n, id=id_) for n, id_ in enumerate("abc")])
        await mail.until(lambda: len(mail.batches) == 2)

    assert mail.attempted == [["a", "b", "c"], ["b"]]
    assert len({batch.headers["webhook-id"] for batch in mail.batches}) == 2


async def test_a_queue_that_gets_a_callback_is_signed_and_a_retry_of_the_same_messages_has_the_same_id(one: Topology):
    seen: list[tuple[str, tuple[str, ...]]] = []
    async with Receiver() as mail, a_bus(one) as bus:
        asked = {"pattern": ".*:widgets:.*", "callback": mail.url, "timeout": 0, "max": 1, "concurrency": 1}
        made = (await ask(bus, "PUT", "/queues/hooks", json={**asked, "headers": {"X-Key": "k"}})).json
        mail.plan = lambda number: 500 if number == 1 else 200
        mail.noted = lambda headers, ids: seen.append((headers["webhook-id"], tuple(ids)))
        publisher = await bus.token("publisher")
        await bus.publish(publisher, [an_event(n, id=id_) for n, id_ in enumerate("ab")])
        await mail.until_events(2)
        second = await rotated(bus, "/queues/hooks")
        await bus.publish(publisher, [an_event(3, id="c")])
        await mail.until_events(3)

    assert len(seen) == 4
    assert len(dict(seen)) == len(set(seen)) == 3
    assert all(is_verified(batch, made["secret"]) for batch in mail.batches)
    assert [is_verified(batch, second) for batch in mail.batches] == [False, False, True]
    assert {batch.headers["X-Key"] for batch in mail.batches} == {"k"}
    assert {batch.uuid for batch in mail.batches} == {made["uuid"]}


async def test_each_attempt_is_signed_with_its_own_time(one: Topology):
    times: list[int] = []
    async with Receiver() as mail, a_bus(one) as bus:
        subscriber = await bus.token("s")
        await bus.subscribe(subscriber, mail.url, "widgets", timeout=0, retry=[1000])
        await rotated(bus, "/subscriber", subscriber)
        mail.plan = lambda number: 500 if number == 1 else 200
        mail.noted = lambda headers, _: times.append(int(headers["webhook-timestamp"]))
        await bus.publish(await bus.token("publisher"), [an_event(1)])
        await mail.until_events(1)

    assert len(times) == 2
    assert times[1] > times[0]


async def test_a_trace_is_sent_as_a_header_too(one: Topology):
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    async with Receiver() as mail, a_bus(one) as bus:
        await bus.subscribe(await bus.token("s"), mail.url, "widgets", timeout=0, max=1)
        await bus.publish(await bus.token("publisher"), [an_event(1, traceparent=trace), an_event(2)])
        await mail.until_events(2)

    assert {batch.events[0].get("traceparent"): batch.headers.get("traceparent") for batch in mail.batches} == {
        trace: trace,
        None: None,
    }


@pytest.mark.parametrize("path", ["/subscriber", "/queues/hooks"])
async def test_a_secret_is_kept_at_home_alone_and_no_journal_counter_metric_or_log_has_it(
    one: Topology, path: str, capfd: pytest.CaptureFixture[str]
):
    topology = Topology("own", one.url, 2, one.node_urls)
    async with (
        Receiver(plan=lambda number: 500 if number == 1 else 200) as mail,
        a_bus(topology, log_level="debug") as bus,
    ):
        client = await bus.token("s")
        await bus.subscribe(client, mail.url, "widgets", timeout=0, headers={"X-Key": "hidden-value"})
        asked = {"pattern": ".*:widgets:.*", "callback": mail.url, "headers": {"X-Key": "hidden-value"}}
        await ask(bus, "PUT", "/queues/hooks", client, json=asked)
        secret = await rotated(bus, path, client)
        await bus.publish(await bus.token("publisher"), [an_event(1)])
        await mail.until_events(2)
        await ask(bus, "POST", f"{path}/test", client)
        # In what DUMP compresses it would not be seen.
        await bus.partitions.home.command("CONFIG", "SET", "rdbcompression", "no")
        kept = [key for key, (dump, _) in (await everything(bus)).items() if secret.encode() in dump]
        await bus.partitions.home.command("CONFIG", "SET", "rdbcompression", "yes")
        attempts = [entry for each in bus.partitions.all for entry in await journal.read(each, "attempts")]
        shown = json.dumps([await bus.get(place) for place in ("/subscribers", "/queues", "/queues/hooks")])
        metrics = (await ask(bus, "GET", "/metrics")).body.decode()

    assert len(kept) == 1
    assert b"{0" in kept[0]
    printed = capfd.readouterr()
    logged = printed.out + printed.err
    assert "subscriber.tested" in logged
    for text in (str(attempts), shown, metrics, logged):
        assert secret not in text
        assert "hidden-value" not in text
