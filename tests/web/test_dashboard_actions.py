"""What is done to receivers, queues, clients and topics on pages: what follows, what is refused, what is recorded."""

import re

from conftest import Topology
from harness import TestBus, a_bus, an_event
from receiver import Receiver
from signing_in import a_browser
from web.asking import ask
from web.test_dashboard_letters import HOSTILE, a_receiver, confirm, page, records


async def test_a_receiver_is_paused_and_resumed_and_the_page_says_so(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret, mine = await a_receiver(bus, "mine")
        async with a_browser(bus, secret) as http:
            paused = await confirm(http, bus, f"/subscribers/{mine}/pause")
            _, text = await page(http, bus, paused[1].removeprefix("/dashboard"))
            resumed = await confirm(http, bus, f"/subscribers/{mine}/resume")
            enabled = await confirm(http, bus, f"/subscribers/{mine}/enable")
        found = await records(bus)

    assert paused == (303, f"/dashboard/subscribers/{mine}?done=paused")
    assert "It is paused" in text
    assert "Resume</button>" in text
    assert (resumed[0], enabled[0]) == (303, 303)
    assert [row["action"] for row in found[:3]] == ["receiver.enabled", "receiver.resumed", "receiver.paused"]


async def test_a_test_shows_the_answer_as_text(one: Topology):
    async with a_bus(one, workers=0) as bus, Receiver(answer=lambda _: HOSTILE, headers={"X-Said": "hi"}) as server:
        secret = await bus.token("mine")
        await bus.subscribe(secret, server.url, "orders")
        [row] = await bus.get("/subscribers", secret)
        async with a_browser(bus, secret) as http:
            status, text = await confirm(http, bus, f"/subscribers/{row['subscriber']}/test")

    assert status == 200
    assert len(server.batches) == 1
    for seen in ("Delivered", "<dd>200</dd>", "X-Said: hi", "&lt;img"):
        assert seen in text
    assert "<img" not in text


async def test_a_new_secret_is_shown_once_and_an_overlap_that_is_no_number_is_asked_again(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret, mine = await a_receiver(bus, "mine")
        async with a_browser(bus, secret) as http:
            wrong, again = await confirm(http, bus, f"/subscribers/{mine}/rotate", overlap_s="a day")
            status, text = await confirm(http, bus, f"/subscribers/{mine}/rotate", overlap_s="60")
            _, later = await page(http, bus, f"/subscribers/{mine}")
        [kept] = await bus.get("/subscribers", secret)
    [shown] = re.findall(r">(whsec_[^<]+)</pre>", text)

    assert (wrong, status) == (400, 200)
    assert "must be a whole number" in again
    assert 'value="a day"' in again
    assert shown not in later
    assert kept["secret_set"]


async def test_a_subscription_ends_by_its_id_for_its_client_and_root(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret, mine = await a_receiver(bus, "mine", 2)
        other, theirs = await a_receiver(bus, "theirs")
        async with a_browser(bus, secret) as http, a_browser(bus) as root:
            _, asked = await page(http, bus, f"/subscribers/{mine}/end")
            foreign, _ = await page(http, bus, f"/subscribers/{theirs}/end")
            refused = (await ask(bus, "DELETE", f"/subscribers/{theirs}", secret)).status
            done = await confirm(http, bus, f"/subscribers/{mine}/end")
            by_root = await confirm(root, bus, f"/subscribers/{theirs}/end")
        left = [await bus.get("/subscribers", each) for each in (secret, other)]
        found = await records(bus)

    assert "2 dead letters are destroyed" in asked
    assert (foreign, refused) == (404, 404)
    assert (done, by_root[0]) == ((303, "/dashboard/subscribers?done=ended"), 303)
    assert left == [[], []]
    assert [(row["action"], row["target"]) for row in found[:2]] == [
        ("subscription.deleted", theirs),
        ("subscription.deleted", mine),
    ]


async def a_queue(bus: TestBus, name: str = "jobs") -> str:
    """A client's secret, and its queue with six messages of two tenants."""
    secret = await bus.token("mine")
    await ask(bus, "PUT", f"/queues/{name}", secret, json={"pattern": ".*"})
    await bus.publish(secret, [an_event(n, topic="orders", tenant=f"t{n % 2}") for n in range(6)])
    return secret


async def test_a_queue_is_purged_of_a_tenant_and_deleted_with_the_counts_before(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await a_queue(bus)
        async with a_browser(bus, secret) as http:
            _, asked = await page(http, bus, "/queues/jobs/purge?tenant=t1")
            purged = await confirm(http, bus, "/queues/jobs/purge?tenant=t1")
            _, text = await page(http, bus, purged[1].removeprefix("/dashboard"))
            _, asked_to_delete = await page(http, bus, "/queues/jobs/delete")
            deleted = await confirm(http, bus, "/queues/jobs/delete")
        found = await records(bus)

    assert "3 messages of tenant t1 wait" in asked
    assert purged == (303, "/dashboard/queues/jobs?done=purged&count=3")
    assert "3 waiting messages are destroyed" in text
    assert "3 waiting, 0 in flight" in asked_to_delete
    assert deleted == (303, "/dashboard/queues?done=deleted")
    assert [(row["action"], row["count"]) for row in found[:2]] == [("queue.deleted", None), ("queue.purged", 3)]


async def test_a_tenant_is_given_a_rule_and_its_messages_are_looked_at(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await a_queue(bus)
        fields = {"weight": "2.5", "concurrency": "3", "rate_per_s": "", "paused": "1"}
        async with a_browser(bus, secret) as http:
            done = await confirm(http, bus, "/queues/jobs/rule?tenant=t1", **fields)
            _, text = await page(http, bus, done[1].removeprefix("/dashboard"))
            wrong, again = await confirm(http, bus, "/queues/jobs/rule?tenant=t1", **fields | {"weight": "heavy"})
            nobody, _ = await page(http, bus, "/queues/jobs/tenant")
        facet = (await ask(bus, "GET", "/queues/jobs/facets/t1", secret)).json

    assert done == (303, "/dashboard/queues/jobs/tenant?tenant=t1&done=ruled")
    assert (facet["weight"], facet["concurrency"], facet["rate_per_s"], facet["paused"]) == (2.5, 3, None, True)
    assert text.count("<details>") == 3
    assert "badge paused" in text
    assert (wrong, nobody) == (400, 400)
    assert "must be a number" in again


async def test_a_client_is_made_with_scopes_given_another_token_and_revoked(one: Topology):
    async with a_bus(one, workers=0) as bus, a_browser(bus) as http:
        fields = {"name": "shop", "action_publish": "1", "topics": "orders, mail.*", "expires_in_s": "3600"}
        status, made = await confirm(http, bus, "/new/client", **fields)
        wrong, again = await confirm(http, bus, "/new/client", name="a b", description='"><b>')
        [row] = (await ask(bus, "GET", "/api_tokens")).json
        rotated, other = await confirm(http, bus, f"/clients/{row['token']}/rotate", overlap_s="0")
        [first, second] = [re.findall(r'aria-label="Secret">([^<]+)<', text)[0] for text in (made, other)]
        known = [(await ask(bus, "GET", "/topics", each)).status for each in (first, second)]
        _, listed = await page(http, bus, "/clients")
        revoked = await confirm(http, bus, f"/clients/{row['token']}/revoke")
        after = (await ask(bus, "GET", "/topics", second)).status

    assert (status, rotated, wrong) == (200, 200, 400)
    assert 'value="&#34;&gt;&lt;b&gt;"' in again
    assert row["scopes"] == {"actions": ["publish"], "topics": ["orders", "mail.*"], "tenants": None}
    assert known == [401, 200]
    assert (row["token"] in listed, first in listed) == (True, False)
    assert (revoked, after) == ((303, "/dashboard/clients?done=revoked"), 401)


async def test_a_queue_is_made_after_its_patterns_were_tried(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await a_queue(bus)
        fields = {"name": "mail", "pattern": ".*:orders:.*\nt9:.*", "filter": '{"tenant": ["t1"]}'}
        async with a_browser(bus, secret) as http:
            tried, text = await confirm(http, bus, "/new/queue", **fields, step="test")
            wrong, why = await confirm(http, bus, "/new/queue", **fields | {"pattern": "("}, step="test")
            made = await confirm(http, bus, "/new/queue", **fields)
            again = await confirm(http, bus, "/new/queue", **fields)
            _, found = await page(http, bus, made[1].removeprefix("/dashboard"))
        kept = (await ask(bus, "GET", "/queues/mail", secret)).json

    assert (tried, wrong) == (200, 200)
    assert "3 of 6" in text
    assert "tenant is" in text
    assert "t9:.*</textarea>" in text
    assert "not a regular expression" in why
    assert (made, again[0]) == ((303, "/dashboard/queues/mail?done=saved"), 409)
    assert "mail</h1>" in found
    assert (kept["pattern"], kept["filter"]) == ([".*:orders:.*", "t9:.*"], {"tenant": ["t1"]})


async def test_a_subscription_is_made_with_a_secret_by_a_client_and_not_by_root(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret = await a_queue(bus)
        fields = {"name": "bills", "topics": "mail.*", "callback": "https://mail.example/", "format": "json"}
        async with a_browser(bus, secret) as http, a_browser(bus) as root:
            _, tried = await confirm(http, bus, "/new/subscription", **fields, step="test")
            wrong, again = await confirm(http, bus, "/new/subscription", **fields | {"filter": "none"})
            status, made = await confirm(http, bus, "/new/subscription", **fields)
            refused, _ = await page(root, bus, "/new/subscription")
        kept = (await ask(bus, "GET", "/subscriptions/bills", secret)).json

    assert "0 of 6" in tried
    assert "no topic or glob has &#39;orders&#39;" in tried
    assert (wrong, status, refused) == (400, 200, 403)
    assert "must be a JSON object" in again
    assert re.search(r">whsec_[^<]+</pre>", made)
    assert kept["topics"] == ["mail.*"]


async def test_a_topic_is_edited_by_its_owner_and_shows_who_subscribes(one: Topology):
    async with a_bus(one, workers=0) as bus:
        secret, other = await a_queue(bus), await bus.token("other")
        await bus.subscribe(other, "https://shop.example/", "orders")
        [row] = await bus.get("/subscribers", other)
        async with a_browser(bus, secret) as http, a_browser(bus, other) as stranger, a_browser(bus) as root:
            _, listed = await page(http, bus, "/topics")
            done = await confirm(http, bus, "/topics/orders/edit", description=HOSTILE, publishers=row["client"])
            wrong, _ = await confirm(http, bus, "/topics/orders/edit", publishers="nobody")
            refused, _ = await confirm(stranger, bus, "/topics/orders/edit", description="mine")
            texts = [(await page(each, bus, "/topics/orders"))[1] for each in (http, stranger, root)]
        kept = (await ask(bus, "GET", "/topics/orders", secret)).json

    assert "/dashboard/topics/orders" in listed
    assert (done[0], wrong, refused) == (303, 400, 403)
    assert (kept["description"], kept["publishers"]) == (HOSTILE, [row["client"]])
    link = f"/dashboard/subscribers/{row['subscriber']}"
    assert [(link in text, "<img" in text, ">Edit<" in text) for text in texts] == [
        (False, False, True),
        (True, False, False),
        (True, False, True),
    ]
