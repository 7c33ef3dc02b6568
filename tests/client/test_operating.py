"""What an operator does by the client, and listening: tokens, topics, subscriptions, streams, any other route."""

import asyncio
import json
from collections.abc import AsyncGenerator

import msgspec
import pytest

from conftest import Topology
from doubledecker.client import (
    AsyncBus,
    Bus,
    BusAway,
    Conflict,
    Forbidden,
    NotFound,
    Refused,
    StreamDropped,
    Streamed,
    Unauthenticated,
)
from doubledecker.client.bus import SubscriptionOptions
from doubledecker.client.queue import QueueOptions
from doubledecker.client.views import QueueView, SubscriptionView
from doubledecker.model.queue import QueueWanted
from doubledecker.model.subscriber import Subscription
from doubledecker.store.machine import free_port
from doubledecker.web.queue_shapes import QueueAnswer, QueueMade
from doubledecker.web.shapes import SubscriberAnswer, SubscriptionMade
from harness import ROOT_KEY, TestBus, a_bus, within
from receiver import Receiver


def as_root(bus: TestBus) -> AsyncBus:
    return AsyncBus(bus.url, ROOT_KEY)


async def test_tokens_are_made_listed_rotated_and_revoked(one: Topology):
    async with a_bus(one, workers=0) as bus, as_root(bus) as root:
        none = await root.tokens()
        made = await root.create_token("shop")
        again = await root.create_token("mail", token="mail--secret")
        rotated = await root.rotate_token(made.id, overlap_s=3600)
        listed = {token.id: token for token in await root.tokens()}
        async with AsyncBus(bus.url, made.token) as shop:
            await shop.publish("orders", "paid")
        await root.revoke_token(made.id)
        await root.revoke_token(made.id)

        assert none == []
        assert again.token == "mail--secret"
        assert made.token not in repr(made)
        assert rotated.id == made.id
        assert rotated.token != made.token
        assert listed[made.id].former_until == rotated.former_until
        assert (listed[again.id].name, listed[again.id].rotated_at) == ("mail", None)
        assert [token.id for token in await root.tokens()] == [again.id]
        with pytest.raises(Conflict):
            await root.create_token("other", token="mail--secret")
        with pytest.raises(NotFound):
            await root.rotate_token(made.id)


async def test_a_portal_token_manages_the_subscriptions_of_its_tenant(one: Topology):
    async with a_bus(one, workers=0) as bus, AsyncBus(bus.url, await bus.token("shop")) as shop:
        await shop.publish("orders", "paid")
        portal = await shop.portal_token("acme", expires_in_s=60, topics=["orders"])
        async with AsyncBus(bus.url, portal.token) as acme:
            await acme.put_subscription("billing", ["orders"], "https://acme.example/hook")
            paused = await acme.pause("billing")
            with pytest.raises(Forbidden):
                await acme.publish("orders", "paid")
        [seen] = await shop.subscriptions(tenant="acme")
        await shop.delete_subscription("billing", tenant="acme")

        assert (seen.name, seen.tenant, seen.paused) == ("billing", "acme", True)
        assert paused.receiver == seen.subscriber
        assert portal.token not in repr(portal)


async def test_only_root_makes_tokens(one: Topology):
    async with a_bus(one, workers=0) as bus, AsyncBus(bus.url, await bus.token("shop")) as shop:
        with pytest.raises(Forbidden):
            await shop.create_token("mine")


async def test_a_topic_is_listed_given_and_deleted_and_its_subscription_seen(one: Topology):
    async with a_bus(one, workers=0) as bus, as_root(bus) as root, Receiver() as receiver:
        first, second = await root.create_token("first"), await root.create_token("second")
        async with AsyncBus(bus.url, first.token) as client:
            await client.publish("gifts", "create")
            await client.subscribe(["gifts"], receiver.url, max=7, uuid="us")
            [own] = await client.subscriptions()
        await root.set_topic("gifts", publishers=[first.id], description="Presents")
        await root.give_topic("gifts", second.id)
        [topic] = await root.topics()
        shown = await root.topic("gifts")
        [seen] = await root.subscriptions()
        await root.delete_topic("gifts")

        assert (topic.name, topic.publisher, topic.publisher_id, topic.events) == ("gifts", "second", second.id, 1)
        assert (shown, topic.description, topic.publishers) == (topic, "Presents", (first.id,))
        assert (own.subscriber, own.topics, own.max_events, own.uuid) == (first.id, ("gifts",), 7, "us")
        assert (seen.uuid, seen.uuid_set, seen.events.queued, seen.health) == (None, True, 0, 100)
        assert await root.topics() == []
        with pytest.raises(NotFound, match="no topic named 'gifts'"):
            await root.give_topic("gifts", second.id)


async def test_a_stream_goes_on_from_the_last_id_and_misses_nothing(topology: Topology):
    async with a_bus(topology, workers=0) as bus, AsyncBus(bus.url, await bus.token("shop")) as shop:
        long = "é" * 30_000
        await shop.publish("orders", "paid", tenant="acme", data={"n": 1})
        await shop.publish("letters", "sent")
        await shop.publish("orders", "paid", data=long)

        first = [each async for each in _events(shop, 1)]
        rest = [each async for each in _events(shop, 1, start=first[0].id)]

        assert (first[0].event.data, first[0].event.tenant) == ({"n": 1}, "acme")
        assert json.loads(first[0].json)["data"] == {"n": 1}
        assert rest[0].event.data == long


async def _events(bus: AsyncBus, count: int, *, start: str = "earliest"):
    """So many events on `orders`."""
    async for each in bus.stream("*:orders:*", start=start):
        if each.kind != "event":
            assert each.event is None
            continue
        yield each
        if (count := count - 1) == 0:
            return


async def test_a_stream_moves_on_by_heartbeats_and_says_why_the_bus_ended_it(one: Topology):
    async with a_bus(one, workers=0, heartbeat_s=0.05) as bus, as_root(bus) as root:
        token = await root.create_token("listener")
        async with AsyncBus(bus.url, token.token) as listener:
            stream = listener.stream()
            kinds = {(await anext(stream)).kind for _ in range(3)}
            await root.revoke_token(token.id)
            with pytest.raises(StreamDropped, match="the token was revoked") as dropped:
                await _exhaust(stream)

        assert dropped.value.reason == "revoked"
        assert kinds == {"position"}


async def _exhaust(stream: AsyncGenerator[Streamed, None]) -> None:
    async for _ in stream:
        pass


async def test_a_stream_that_cannot_be_or_is_silent_says_so(one: Topology):
    async with a_bus(one, workers=0, heartbeat_s=30.0) as bus, as_root(bus) as root:
        with pytest.raises(Refused, match="`earliest` or `latest`"):
            await anext(root.stream(start="yesterday"))
        with pytest.raises(BusAway, match="no bus answers at"):
            await _exhaust(root.stream(silence_s_max=0.2))
        async with AsyncBus(bus.url, "nobody") as stranger:
            with pytest.raises(Unauthenticated):
                await anext(stranger.stream())


async def test_attempts_are_listed_and_what_they_carried_is_sent_again(one: Topology):
    async with (
        a_bus(one) as bus,
        Receiver(plan=lambda n: 503 if n == 1 else 200) as receiver,
        AsyncBus(bus.url, await bus.token("shop")) as shop,
        as_root(bus) as root,
    ):
        await shop.subscribe(["orders"], receiver.url, timeout=0)
        id_ = await shop.publish("orders", "paid")
        await receiver.until_events(1)
        async with asyncio.timeout(10):
            while len((page := await shop.attempts()).attempts) < 2:
                await asyncio.sleep(0.02)
        newest, oldest = page.attempts
        older = await shop.attempts(before=newest.id, limit=1)
        of_event = await root.attempts(event=id_, status=503, start="2026-01-01")
        sent = await shop.resend(id_, topic="orders")
        with pytest.raises(NotFound):
            await shop.resend(id_, source="/elsewhere")
        again = await root.resend(attempt=newest.id, receiver=newest.receiver)
        await receiver.until_events(3)

    assert (newest.outcome, newest.events, oldest.status) == ("delivered", (id_,), 503)
    assert older.attempts == of_event.attempts == (oldest,)
    assert (sent.events, sent.missing, again) == ((id_,), (), sent)


async def test_a_plain_program_listens_too(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await bus.token("shop")

        def program() -> object:
            with Bus(bus.url, secret) as shop:
                shop.publish("orders", "paid", data=7)
                return next(each.event.data for each in shop.stream(start="earliest") if each.event)

        assert await within(asyncio.to_thread(program), 20) == 7


async def test_what_would_be_chosen_is_counted_by_a_dry_run(one: Topology):
    async with a_bus(one, workers=0) as bus, AsyncBus(bus.url, await bus.token("shop")) as shop:
        queue = shop.queue("jobs")
        await queue.register(".*:jobs:.*", attempts_max=1)
        await shop.publish_many([{"topic": "jobs", "type": "run"}] * 3)
        await queue.nack(await queue.pull(1))

        assert await queue.purge(dry_run=True) == 2
        assert [await queue.purge_dead(dry_run=True), await queue.redrive(dry_run=True)] == [1, 1]
        assert await queue.redrive() == 1
        assert await queue.purge() == 3


async def test_any_route_is_asked_and_its_answer_is_as_the_bus_wrote_it(one: Topology):
    async with a_bus(one, workers=0) as bus, AsyncBus(bus.url, await bus.token("shop")) as shop:
        await shop.publish("orders", "paid", data=msgspec.Raw(b'{"net": 1.50, "gross": null}'))
        await shop.queue("jobs").register("a:b:c")
        queue = json.loads(await shop.request("GET", "/queues/jobs"))
        pulled = await shop.request("POST", "/queues/jobs/pull", {"wait_ms": 0})
        async for each in shop.stream(start="earliest"):
            if each.kind == "event":
                break

        assert (queue["name"], json.loads(pulled)["messages"]) == ("jobs", [])
        assert '"data":{"net": 1.50, "gross": null}' in each.json
        with pytest.raises(NotFound):
            await shop.request("GET", "/queues/none")


async def test_readiness_is_a_yes_or_a_no(one: Topology):
    nowhere = f"http://127.0.0.1:{free_port()}"
    async with a_bus(one) as bus, AsyncBus(bus.url, "") as ready, AsyncBus(nowhere, "") as away:
        assert [await each.is_ready() for each in (ready, away)] == [True, False]


async def test_a_bus_that_does_not_answer_is_told_by_the_systems_own_word():
    async with AsyncBus(f"http://127.0.0.1:{free_port()}", "x", patience_s=0) as bus:
        with pytest.raises(BusAway, match=r"\(Connection refused\)$") as away:
            await bus.topics()
        assert away.value.status is None


@pytest.mark.parametrize("url", ["http://127.0.0.1:port", "http://127.0.0.1:99999", "http://[::1", "http://h:0"])
def test_an_address_with_a_port_that_is_none_is_refused_at_once(url: str):
    with pytest.raises(ValueError, match="it must be a URL like"):
        AsyncBus(url, "x")


def test_the_client_takes_and_shows_all_that_a_queue_and_a_subscription_may_have():
    def names(struct: type[msgspec.Struct]) -> set[str]:
        return {field.encode_name for field in msgspec.structs.fields(struct)}

    assert names(QueueWanted) - {"pattern"} == QueueOptions.__annotations__.keys()
    assert names(Subscription) - {"topics", "callback"} == SubscriptionOptions.__annotations__.keys()
    assert names(QueueAnswer) | names(QueueMade) == names(QueueView)
    assert names(SubscriberAnswer) | names(SubscriptionMade) == names(SubscriptionView)


async def test_a_queue_is_registered_with_all_that_its_callback_may_have(one: Topology):
    asked: QueueOptions = {
        "callback": "http://127.0.0.1:9/",
        "uuid": "us",
        "timeout": 7,
        "max": 8,
        "max_bytes": 9_000,
        "concurrency": 2,
        "retry": [100, 200],
        "rate_per_s": 2.5,
        "headers": {"X-Key": "k"},
    }
    async with a_bus(one, workers=0) as bus, AsyncBus(bus.url, await bus.token("shop")) as shop:
        made = await shop.queue("hooks").register(".*", **asked)
        found = await shop.queue("hooks").get()
        bounded = await shop.queue("hooks").register(".*", **{**asked, "retry": {"cap_ms": 5}})
        await shop.subscribe(["orders"], "http://127.0.0.1:9/", retry={"attempts_max": 3})
        [own] = await shop.subscriptions()

    for view in (made, found):
        assert {name: getattr(view, name) for name in asked} == {**asked, "retry": (100, 200)}
        assert view.uuid_set
    none = dict.fromkeys(("attempts_max", "age_max_s", "base_ms", "cap_ms"))
    assert bounded.retry == {**none, "cap_ms": 5}
    assert own.retry == {**none, "attempts_max": 3}


@pytest.mark.parametrize("queue", [True, False], ids=["queue", "subscriber"])
async def test_a_receiver_is_signed_and_tested(one: Topology, queue: bool):
    async with Receiver() as mail, a_bus(one, workers=0) as bus, AsyncBus(bus.url, await bus.token("shop")) as shop:
        headers = {"X-Key": "k"}
        if queue:
            made = await shop.queue("hooks").register(".*", callback=mail.url, headers=headers)
            again = await shop.queue("hooks").register(".*", callback=mail.url, headers=headers)
            known = await shop.queue("hooks").get()
        else:
            await shop.subscribe(["orders"], mail.url, headers=headers)
            [before] = await shop.subscriptions()
        receiver = "@hooks" if queue else None
        issued = await shop.rotate_secret(receiver, overlap_s=60)
        seen = await shop.test(receiver)

        if queue:
            assert made.secret.startswith("whsec_")
            assert (again.secret, known.secret, known.secret_set, known.headers) == ("", "", True, headers)
            assert issued.former_until == issued.rotated_at + 60_000
        else:
            assert (before.secret_set, before.headers, issued.former_until) == (False, headers, None)
            [after] = await shop.subscriptions()
            assert (after.secret_set, after.secret_rotated_at) == (True, issued.rotated_at)
        assert issued.secret not in repr(issued)
        assert (seen.signed, seen.outcome, seen.status) == (True, "delivered", 200)
        assert mail.ids == [seen.event]
        assert mail.batches[0].headers["X-Key"] == "k"
        with pytest.raises(NotFound):
            await shop.test("@unknown")


async def test_a_filter_is_tried_and_then_set(one: Topology):
    async with a_bus(one, workers=0) as bus, AsyncBus(bus.url, await bus.token("shop")) as shop:
        wanted = {"data": {"total": [{"numeric": [">", 100]}]}}
        await shop.publish("orders", "paid", id="o-1", data={"total": 5})
        recent = await shop.test_filter(wanted)
        given = await shop.test_filter(wanted, [{"topic": "orders", "type": "paid", "data": {"total": 500}}])
        made = await shop.queue("large").register(".*", filter=wanted)
        await shop.subscribe(["orders"], "http://127.0.0.1:9/", filter=wanted)
        [subscription] = await shop.subscriptions()

        assert [(each.id, each.fits, each.why[:15]) for each in recent.events] == [("o-1", False, "data.total is 5")]
        assert (given.fitting, given.events[0].why) == (1, "")
        assert made.filter == subscription.filter == wanted
