"""Subscribers: one a client, created and replaced by `POST /subscription`, seen by the client and by root."""

from uuid import UUID

import pytest
from structlog.testing import capture_logs

from conftest import Topology
from harness import a_bus, an_event
from web.asking import another_web, ask, everything

CALLBACK = "https://mail.example/events"
LEAST = {"topics": ["orders"], "callback": CALLBACK}


@pytest.mark.parametrize("path", ["/subscription", "/subscriber"])
async def test_a_subscriber_has_the_defaults_for_what_it_does_not_say(one: Topology, path: str):
    async with a_bus(one, workers=0) as bus:
        made = (await ask(bus, "POST", "/api_tokens", json={"name": "mail"})).json
        answer = await ask(bus, "POST", path, made["token"], json=LEAST)

        assert answer.status == 204
        [row] = await bus.get("/subscriptions", made["token"])
        assert [row | {"uuid": ""}] == [
            {
                "subscriber": made["id"],
                "name": "default",
                "client": made["id"],
                "callback": CALLBACK,
                "max_events": 100,
                "timeout": 500,
                "topics": ["orders"],
                "uuid": "",
                "uuid_set": True,
                "events": {"sent": 0, "queued": 0, "oldest": 0},
                "max_bytes": 1_048_576,
                "concurrency": 4,
                "tier": "live",
                "health": 100,
                "failures": 0,
                "refusals": 0,
                "last_attempted_at": None,
                "paused": False,
                "disabled": None,
                "retry": None,
                "headers": {},
                "secret_set": False,
                "secret_rotated_at": None,
                "rate_per_s": 0,
                "format": "routemaster",
                "ordered": False,
                "on_dead": "continue",
                "filter": None,
                "held_key_count": 0,
                "held_keys": [],
                "backlog_max_bytes": 0,
                "dead": 0,
                "dropped": None,
            }
        ]


async def test_a_uuid_is_random_unless_given_stays_and_is_shown_to_its_owner_alone(one: Topology):
    """It was the token's id, which every client sees: whoever knew it could post to the callback as the bus does."""
    async with a_bus(one, workers=0) as bus:
        mail, web = await bus.token("mail"), await bus.token("web")
        seen = set()
        for _ in range(2):
            await bus.subscribe(mail, CALLBACK, "orders")
            seen |= {row["uuid"] for row in await bus.get("/subscribers", mail)}
        await bus.subscribe(web, CALLBACK, "orders")
        [other] = await bus.get("/subscribers", web)
        as_root = await ask(bus, "GET", "/subscribers")
        metrics = await ask(bus, "GET", "/metrics")

        [uuid] = seen
        assert UUID(uuid).version == 4
        assert uuid != other["uuid"]
        assert [(set(row) & {"uuid"}, row["uuid_set"]) for row in as_root.json] == [(set(), True)] * 2
        assert uuid.encode() not in as_root.body + metrics.body


async def test_a_uuid_that_is_the_public_id_stays_and_is_warned_of_at_start(one: Topology):
    """Version 0.1.0 made such ones."""
    async with a_bus(one, workers=0) as bus:
        mail = (await ask(bus, "POST", "/api_tokens", json={"name": "mail"})).json
        home = bus.partitions.home
        await bus.subscribe(mail["token"], CALLBACK, "orders")
        await home.command("HSET", home.key(f"subscriber:{mail['id']}"), "uuid", mail["id"])
        with capture_logs() as logs:
            async with another_web(bus) as url:
                await ask(bus, "POST", "/subscription", mail["token"], json=LEAST, url=url)
                [row] = (await ask(bus, "GET", "/subscribers", mail["token"], url=url)).json

        assert (row["uuid"], row["uuid_set"]) == (mail["id"], False)
        assert [line["subscriber"] for line in logs if line["event"] == "subscriber.forgeable"] == [mail["id"]]


@pytest.mark.parametrize(
    ("given", "uuid", "kept"),
    [
        ("https://us@mail.example/events", None, "us"),
        ("https://us@mail.example/events", "us", "us"),
        ("https://u%40s%21@mail.example/events", None, "u@s!"),
        ("https://us:@mail.example/events", None, "us"),
        ("https://@mail.example/events", "us", "us"),
        ("https://mail.example/events", "us", "us"),
    ],
)
async def test_a_user_name_in_a_callback_is_the_uuid_and_leaves_the_url(
    one: Topology, given: str, uuid: str | None, kept: str
):
    """The original's command line asks for the uuid in this way."""
    async with a_bus(one, workers=0) as bus:
        mail = await bus.token("mail")
        await bus.subscribe(mail, given, "orders", uuid=uuid)
        queue = {"pattern": ".*:orders:.*", "callback": given, "uuid": uuid}
        made = (await ask(bus, "PUT", "/queues/jobs", mail, json=queue)).json

        [row] = await bus.get("/subscribers", mail)
        assert (row["callback"], row["uuid"]) == (made["callback"], made["uuid"]) == (CALLBACK, kept)


@pytest.mark.parametrize(
    ("given", "uuid", "said"),
    [
        ("https://us@mail.example/", "them", "the uuid is another"),
        ("https://us:secret@mail.example/", None, "must not carry a password"),
        ("https://:secret@mail.example/", None, "must not carry a password"),
        ("https://a%3Ab@mail.example/", None, "without a colon"),
        ("https://a%20b@mail.example/", None, "printable ASCII"),
    ],
)
async def test_credentials_in_a_callback_that_cannot_be_the_uuid_are_400(
    one: Topology, given: str, uuid: str | None, said: str
):
    async with a_bus(one, workers=0) as bus:
        mail = await bus.token("mail")
        before = await everything(bus)
        bodies = {
            ("POST", "/subscription"): {"topics": ["orders"], "callback": given, "uuid": uuid},
            ("PUT", "/queues/jobs"): {"pattern": ".*:orders:.*", "callback": given, "uuid": uuid},
        }
        for (method, path), body in bodies.items():
            answer = await ask(bus, method, path, mail, json=body)
            assert (answer.status, said in answer.detail, "secret" in answer.detail) == (400, True, False)

        assert await everything(bus) == before


async def test_a_second_post_replaces_the_topics_and_keeps_the_fields_that_are_absent_or_null(one: Topology):
    async with a_bus(one, workers=0) as bus:
        mail = await bus.token("mail")
        fields = {"uuid": "u", "timeout": 0, "max": 7, "max_bytes": 1000, "concurrency": 2}
        await bus.subscribe(mail, CALLBACK, "orders", "refunds", **fields)
        await bus.subscribe(mail, "https://mail.example/other", "letters")
        await bus.subscribe(mail, "https://mail.example/other", "letters", **dict.fromkeys(fields))

        [row] = await bus.get("/subscribers", mail)
        assert row["callback"] == "https://mail.example/other"
        assert row["topics"] == ["letters"]
        seen = [row[name] for name in ("uuid", "timeout", "max_events", "max_bytes", "concurrency")]
        assert seen == ["u", 0, 7, 1000, 2]


async def test_no_topics_keep_the_subscriber_and_end_its_subscriptions(one: Topology):
    async with a_bus(one, workers=0) as bus:
        mail, shop = await bus.token("mail"), await bus.token("shop")
        await bus.subscribe(mail, CALLBACK, "orders")
        await bus.publish(shop, [an_event(1, topic="orders")])
        await bus.subscribe(mail, CALLBACK)
        await bus.publish(shop, [an_event(2, topic="orders")])

        [row] = await bus.get("/subscribers", mail)
        assert row["topics"] == []
        assert row["events"]["queued"] == 1


async def test_a_topic_may_be_named_twice_and_is_subscribed_to_once(one: Topology):
    async with a_bus(one, workers=0) as bus:
        mail = await bus.token("mail")
        await bus.subscribe(mail, CALLBACK, "b", "a", "b")

        [row] = await bus.get("/subscribers", mail)
        assert row["topics"] == ["a", "b"]


async def test_the_numbers_of_waiting_events_are_real(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        mail = await bus.token("mail")
        await bus.subscribe(mail, CALLBACK, "orders")
        await bus.publish(await bus.token("shop"), [an_event(n, topic="orders", tenant=f"t{n}") for n in range(9)])

        [row] = await bus.get("/subscribers", mail)
        assert row["events"]["queued"] == 9
        assert row["events"]["sent"] == 0
        assert 0 <= row["events"]["oldest"] < 5_000


@pytest.mark.parametrize("path", ["/subscriptions", "/subscribers"])
async def test_a_client_sees_its_own_subscriber_and_root_sees_all(one: Topology, path: str):
    async with a_bus(one, workers=0) as bus:
        mail, web, shop = await bus.token("mail"), await bus.token("web"), await bus.token("shop")
        await bus.subscribe(mail, CALLBACK, "orders")
        await bus.subscribe(web, CALLBACK, "orders")

        assert [row["subscriber"].split("-")[0] for row in await bus.get(path, mail)] == ["mail"]
        assert sorted(row["subscriber"].split("-")[0] for row in await bus.get(path)) == ["mail", "web"]
        assert await bus.get(path, shop) == []


async def test_what_is_at_the_bounds_is_taken(one: Topology):
    async with a_bus(one, workers=0) as bus:
        mail = await bus.token("mail")
        names = [a + b + c for a in "abcdefghij" for b in "abcdefghij" for c in "abcdefghij"]
        for change in (
            {"timeout": 0},
            {"timeout": 3_600_000},
            {"max": 1},
            {"max": 10_000},
            {"max_bytes": 1},
            {"max_bytes": 16_777_216},
            {"concurrency": 1},
            {"concurrency": 100},
            {"rate_per_s": 0},
            {"rate_per_s": 0.5},
            {"rate_per_s": 10_000},
            {"ordered": True, "on_dead": "block"},
            {"ordered": False, "on_dead": "continue"},
            {"uuid": "x" * 255},
            {"callback": "https://mail.example/" + "x" * (2048 - 21)},
            {"callback": "https://mail.example:8443/events?a=1&b=%20"},
            {"topics": names},
        ):
            assert (await ask(bus, "POST", "/subscription", mail, json={**LEAST, **change})).status == 204, change


BAD = [
    ({"timeout": -1}, "from 0 to 3600000"),
    ({"timeout": 3_600_001}, "from 0 to 3600000"),
    ({"timeout": 0.5}, "timeout is a number; it must be a whole number or null"),
    ({"timeout": "500"}, "timeout is a string; it must be a whole number or null"),
    ({"max": 0}, "max is 0; it must be from 1 to 10000"),
    ({"max": 10_001}, "from 1 to 10000"),
    ({"max": True}, "max is true or false; it must be a whole number or null"),
    ({"max_bytes": 0}, "from 1 to 16777216"),
    ({"max_bytes": 16_777_217}, "from 1 to 16777216"),
    ({"concurrency": 0}, "from 1 to 100"),
    ({"concurrency": 101}, "from 1 to 100"),
    ({"rate_per_s": -1}, "rate_per_s is -1.0; it must be 0, or from 0.001 to 10000.0"),
    ({"rate_per_s": 10_001}, "it must be 0, or from 0.001 to 10000"),
    ({"rate_per_s": 0.0009}, "must be 0, or from 0.001 to 10000"),
    ({"rate_per_s": 1e-20}, "must be 0, or from 0.001 to 10000"),
    ({"on_dead": "stop", "ordered": True}, "continue or block"),
    ({"on_dead": "block"}, "set ordered to true"),
    ({"ordered": True, "tier": "bulk"}, "cannot be ordered"),
    ({"uuid": ""}, "1 to 255"),
    ({"uuid": "a:b"}, "without a colon"),
    ({"uuid": "a b"}, "printable ASCII"),
    ({"uuid": "ü"}, "printable ASCII"),
    ({"uuid": "x" * 256}, "1 to 255"),
    ({"callback": ""}, "must be a URL with https"),
    ({"callback": "mail.example"}, "must be a URL with https"),
    ({"callback": "ftp://mail.example/"}, "must be a URL with https"),
    ({"callback": "https:///events"}, "must be a URL with https"),
    ({"callback": "https://mail.example:0/"}, "from 1 to 65535"),
    ({"callback": "https://mail.example:99999/"}, "from 1 to 65535"),
    ({"callback": "https://[::1/"}, "must be a URL with https"),
    ({"callback": "https://user:password@mail.example/"}, "must not carry a password"),
    ({"callback": "https://mail.example/#a"}, "fragment"),
    ({"callback": "https://mail.example/a b"}, "printable ASCII"),
    ({"callback": "https://mail.example/\n"}, "printable ASCII"),
    ({"callback": "https://mail.example/ü"}, "printable ASCII"),
    ({"callback": "https://mail.example/" + "x" * (2049 - 21)}, "2048"),
    ({"callback": None}, "callback is null; it must be a string"),
    ({"topics": None}, "topics is null; it must be an array"),
    ({"topics": "orders"}, "topics is a string; it must be an array"),
    ({"topics": ["orders", "7orders"]}, "must match [A-Za-z_*?][A-Za-z0-9_.*?-]{0,63}"),
    ({"topics": ["orders", 1]}, "topics[1] is a whole number; it must be a string"),
    ({"topics": ["a"] * 10_001}, "at most 10000"),
    ({"max_events": 5}, "a subscription has no field 'max_events'; its fields are topics, callback, "),
]


async def test_a_bad_subscription_is_400_says_what_is_allowed_and_changes_nothing(one: Topology):
    async with a_bus(one, workers=0) as bus:
        mail = await bus.token("mail")
        await bus.subscribe(mail, CALLBACK, "letters", uuid="u")
        before = await everything(bus)
        for change, said in BAD:
            for path in ("/subscription", "/subscriber"):
                answer = await ask(bus, "POST", path, mail, json={**LEAST, **change})
                assert answer.status == 400, change
                assert said in answer.detail, change
        for body in (
            b"",
            b"{",
            b"[]",
            b"null",
            b'{"topics":[]}',
            b'{"callback":"https://mail.example/"}',
            b"\xff",
            b"[" * 9999,
        ):
            assert (await ask(bus, "POST", "/subscription", mail, body=body)).status == 400, body

        assert await everything(bus) == before


async def test_a_callback_over_plain_http_is_refused_unless_private_ones_are_allowed(one: Topology):
    async with a_bus(one, workers=0, private_callbacks=False) as bus:
        mail = await bus.token("mail")
        answer = await ask(bus, "POST", "/subscription", mail, json={**LEAST, "callback": "http://mail.example/"})

        assert answer.status == 400
        assert answer.detail == (
            "callback is 'http://mail.example/'; it must be a URL with https; "
            "DOUBLEDECKER_PRIVATE_CALLBACKS=true of the bus allows http"
        )


@pytest.mark.parametrize("host", ["10.0.0.1", "127.0.0.1", "169.254.169.254", "[::1]", "0x7f.1", "2130706433"])
async def test_a_callback_at_an_address_that_is_not_public_is_400_and_changes_nothing(one: Topology, host: str):
    async with a_bus(one, workers=0, private_callbacks=False) as bus:
        mail = await bus.token("mail")
        before = await everything(bus)
        callback = f"https://{host}/"
        bodies = {
            ("POST", "/subscription"): {**LEAST, "callback": callback},
            ("PUT", "/queues/jobs"): {"pattern": ".*:orders:.*", "callback": callback},
        }
        for (method, path), body in bodies.items():
            answer = await ask(bus, method, path, mail, json=body)
            said = "not allowed" if host.count(".") == 3 or ":" in host else "four decimal numbers"
            assert (answer.status, said in answer.detail) == (400, True)

        assert await everything(bus) == before


async def test_the_log_names_callbacks_at_start_that_were_taken_before_and_are_not_called_any_more(one: Topology):
    async with a_bus(one, workers=0) as bus:
        mail = (await ask(bus, "POST", "/api_tokens", json={"name": "mail"})).json
        news = (await ask(bus, "POST", "/api_tokens", json={"name": "news"})).json
        home = bus.partitions.home
        await bus.subscribe(mail["token"], CALLBACK, "orders")
        await bus.subscribe(news["token"], CALLBACK, "orders")
        await home.command("HSET", home.key(f"subscriber:{mail['id']}"), "callback", "https://0x7f.1/")
        with capture_logs() as logs:
            async with another_web(bus):
                pass

        [line] = [line for line in logs if line["event"] == "callback.refused"]
        assert (line["subscriber"], line["callback"]) == (mail["id"], "https://0x7f.1/")
        assert "four decimal numbers" in line["why"]


async def test_a_subscriber_is_deleted_once_and_then_not_found(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        mail = await bus.token("mail")
        await bus.subscribe(mail, CALLBACK, "orders")
        first = await ask(bus, "DELETE", "/subscriber", mail)
        second = await ask(bus, "DELETE", "/subscriber", mail)

        assert first.status == 204
        assert second.status == 404
        assert second.detail == "subscriber not found"
        assert await bus.get("/subscribers") == []


async def test_one_subscription_is_ended_once_and_then_not_found(one: Topology):
    async with a_bus(one, workers=0) as bus:
        mail = await bus.token("mail")
        await bus.subscribe(mail, CALLBACK, "orders", "letters")
        first = await ask(bus, "DELETE", "/subscriber/topics/orders", mail)
        second = await ask(bus, "DELETE", "/subscriber/topics/orders", mail)

        assert first.status == 204
        assert second.status == 404
        assert second.detail == "not subscribed to 'orders'"
        [row] = await bus.get("/subscribers", mail)
        assert row["topics"] == ["letters"]


async def test_a_client_ends_only_its_own_subscriptions(one: Topology):
    async with a_bus(one, workers=0) as bus:
        mail, other = await bus.token("mail"), await bus.token("other")
        await bus.subscribe(mail, CALLBACK, "orders")

        assert (await ask(bus, "DELETE", "/subscriber/topics/orders", other)).status == 404
        assert (await ask(bus, "DELETE", "/subscriber", other)).status == 404
        assert len(await bus.get("/subscribers", mail)) == 1
