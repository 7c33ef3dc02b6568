"""Pausing, resuming and enabling receivers over HTTP: whose they are, and what is shown of them."""

from conftest import Topology
from doubledecker.bus.receiver_states import ReceiverStates
from doubledecker.model.subscriber import Subscriber
from doubledecker.store import subscribers
from harness import ROOT_KEY, TestBus, a_bus
from web.asking import ask

CALLBACK = "https://mail.example/"


async def test_a_pause_is_shown_and_survives_subscribing_anew(one: Topology):
    async with a_bus(one, workers=0) as bus:
        client = await bus.token("client")
        await bus.subscribe(client, CALLBACK, "widgets")
        [before] = await bus.get("/subscriptions", client)

        paused = (await ask(bus, "POST", "/subscriber/pause", client)).json
        await bus.subscribe(client, CALLBACK, "widgets", max=7)

        [after] = await bus.get("/subscriptions", client)
        assert paused == {"receiver": after["subscriber"], "paused": True, "disabled": None}
        assert (before["paused"], after["paused"], after["max_events"]) == (False, True, 7)
        resumed = (await ask(bus, "POST", f"/subscribers/{after['subscriber']}/resume")).json
        assert resumed["paused"] is False


async def test_a_queue_keeps_its_pause_when_it_is_put_again(one: Topology):
    async with a_bus(one, workers=0) as bus:
        asked = {"pattern": ".*", "callback": CALLBACK}
        await ask(bus, "PUT", "/queues/hooks", json=asked)

        assert (await ask(bus, "POST", "/queues/hooks/pause")).json["paused"] is True
        put = (await ask(bus, "PUT", "/queues/hooks", json={**asked, "lease_ms": 5000})).json

        assert (put["paused"], put["lease_ms"]) == (True, 5000)
        [listed] = await bus.get("/queues")
        assert (listed["paused"], listed["disabled"]) == (True, None)


async def test_a_subscriber_goes_by_its_clients_name_where_no_other_has_it(one: Topology):
    async with a_bus(one, workers=0) as bus:
        first, second = await bus.token("mail"), await bus.token("mail")
        await bus.subscribe(first, CALLBACK, "widgets")
        [seen] = await bus.get("/subscribers")

        assert (await ask(bus, "POST", "/subscribers/mail/pause")).json["receiver"] == seen["subscriber"]
        assert (await ask(bus, "POST", "/subscribers/mail/pause", second)).status == 404

        await bus.subscribe(second, CALLBACK, "widgets")
        several = await ask(bus, "POST", "/subscribers/mail/pause")
        own = await ask(bus, "POST", "/subscribers/mail/resume", first)
        ids = sorted(each["subscriber"] for each in await bus.get("/subscribers"))

        assert several.status == 400
        assert several.detail == f"2 subscribers are named 'mail'; give an id: {', '.join(ids)}"
        assert own.json["receiver"] == seen["subscriber"]


async def test_others_receivers_are_not_found(one: Topology):
    async with a_bus(one, workers=0) as bus:
        client, other = await bus.token("client"), await bus.token("other")
        await bus.subscribe(client, CALLBACK, "widgets")
        await ask(bus, "PUT", "/queues/hooks", client, json={"pattern": ".*", "callback": CALLBACK})
        [mine] = await bus.get("/subscriptions", client)

        for path in (f"/subscribers/{mine['subscriber']}/pause", "/queues/hooks/pause", "/subscriber/pause"):
            assert (await ask(bus, "POST", path, other)).status == 404, path

        assert (await bus.get("/subscriptions", client))[0]["paused"] is False


async def test_a_queue_without_a_callback_cannot_be_paused(one: Topology):
    async with a_bus(one, workers=0) as bus:
        await ask(bus, "PUT", "/queues/jobs", json={"pattern": ".*"})

        answer = await ask(bus, "POST", "/queues/jobs/pause")

        assert (answer.status, answer.detail) == (
            409,
            "queue 'jobs' has no callback, so nothing is sent; PUT /queues/jobs can give it one",
        )


async def test_one_that_was_disabled_is_shown_so_until_it_is_enabled_or_subscribes_anew(one: Topology):
    async with a_bus(one, workers=0) as bus:
        client = await bus.token("client")
        await bus.subscribe(client, CALLBACK, "widgets")

        for way in ("enable", "subscribe"):
            subscriber = await _known(bus, client)
            await ReceiverStates(bus.partitions).disable(subscriber, why="410 Gone", at=1_700_000_000_000)
            [shown] = await bus.get("/subscriptions", client)
            assert shown["disabled"] == {"since": 1_700_000_000_000, "why": "410 Gone"}
            if way == "enable":
                assert (await ask(bus, "POST", "/subscriber/enable", client)).json["disabled"] is None
            else:
                await bus.subscribe(client, CALLBACK, "widgets")
            assert (await bus.get("/subscriptions", client))[0]["disabled"] is None


async def test_what_an_address_answered_before_a_move_does_not_disable_the_next(one: Topology):
    async with a_bus(one, workers=0) as bus:
        client = await bus.token("client")
        await bus.subscribe(client, CALLBACK, "widgets")
        former = await _known(bus, client)
        await bus.subscribe(client, "https://new.example/", "widgets")

        await ReceiverStates(bus.partitions).disable(former, why="410 Gone", at=1)

        assert (await bus.get("/subscriptions", client))[0]["disabled"] is None


async def test_metrics_and_lists_show_who_is_paused(one: Topology):
    async with a_bus(one, workers=0) as bus:
        client = await bus.token("client")
        await bus.subscribe(client, CALLBACK, "widgets")
        token = (await ask(bus, "POST", "/subscriber/pause", client)).json["receiver"]

        metrics = (await ask(bus, "GET", "/metrics", ROOT_KEY)).body.decode().splitlines()

        assert f'doubledecker_subscriber_paused{{subscriber="{token}"}} 1.0' in metrics
        assert f'doubledecker_subscriber_disabled{{subscriber="{token}"}} 0.0' in metrics


async def _known(bus: TestBus, secret: str) -> Subscriber:
    [row] = await bus.get("/subscriptions", secret)
    return (await subscribers.load_many(bus.partitions.home, [row["subscriber"]]))[row["subscriber"]]
