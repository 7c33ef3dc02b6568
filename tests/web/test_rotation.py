"""Rotation: a client's secret is replaced while it works, and all that it owns stays."""

import asyncio
import json

import pytest

from conftest import Topology
from doubledecker import clock
from harness import TestBus, a_bus, an_event, basic
from streams import a_stream
from web.asking import Answer, another_web, ask, everything
from web.test_authentication import ask_by_digest

DAY_S = 86_400


async def make(bus: TestBus, name: str = "shop", **fields: object) -> dict[str, str]:
    return (await ask(bus, "POST", "/api_tokens", json={"name": name, **fields})).json


async def rotate(bus: TestBus, which: str, **asked: object) -> Answer:
    return await ask(bus, "POST", f"/api_tokens/{which}/rotate", json=asked)


async def works(bus: TestBus, secret: str, *, name: str = "shop", url: str | None = None) -> list[bool]:
    """Whether a secret is taken as Bearer, by Basic and by Digest."""
    bearer = await ask(bus, "GET", "/pulse", secret, url=url)
    by_basic = await ask(bus, "GET", "/pulse", None, headers=basic(secret), url=url)
    digest = await ask_by_digest(bus, "GET", "/pulse", user=name, secret=secret, url=url)
    return [answer.status == 204 for answer in (bearer, by_basic, digest)]


class _Clock:
    """Wall time that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead_ms = 0
        now_ms = clock.now_ms
        monkeypatch.setattr(clock, "now_ms", lambda: now_ms() + self._ahead_ms)

    def move(self, seconds: float) -> None:
        self._ahead_ms += int(seconds * 1000)


async def test_both_secrets_work_until_the_overlap_ends_by_each_scheme(one: Topology, monkeypatch: pytest.MonkeyPatch):
    time = _Clock(monkeypatch)
    async with a_bus(one, workers=0) as bus:
        made = await make(bus)
        answer = await rotate(bus, made["id"], overlap_s=3600)
        during = [await works(bus, secret) for secret in (made["token"], answer.json["token"])]
        time.move(3590)
        late = [await works(bus, secret) for secret in (made["token"], answer.json["token"])]
        time.move(20)
        after = [await works(bus, secret) for secret in (made["token"], answer.json["token"])]

        assert answer.status == 200
        assert answer.json["token"].startswith("shop--")
        assert (answer.json["name"], answer.json["id"]) == ("shop", made["id"])
        assert during == late == [[True] * 3, [True] * 3]
        assert after == [[False] * 3, [True] * 3]


async def test_all_that_a_client_owns_stays_with_it(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        made = await make(bus)
        await bus.publish(made["token"], [an_event(1, topic="orders", id="own")])
        await bus.subscribe(made["token"], "https://shop.example/", "orders", uuid="kept")
        await ask(bus, "PUT", "/queues/jobs", made["token"], json={"pattern": ".*:orders:.*"})
        fresh = (await rotate(bus, made["id"], overlap_s=0)).json["token"]
        await bus.publish(fresh, [an_event(2, topic="orders"), an_event(1, topic="orders", id="own")])

        [row] = await bus.get("/subscribers", fresh)
        assert (row["subscriber"], row["uuid"], row["events"]["queued"]) == (made["id"], "kept", 1)
        assert [queue["name"] for queue in await bus.get("/queues", fresh)] == ["jobs"]
        assert (await ask(bus, "GET", "/pulse", made["token"])).status == 401


async def test_the_id_says_nothing_of_the_secret(one: Topology):
    async with a_bus(one, workers=0) as bus:
        ids = set()
        for _ in range(3):
            made = await make(bus, token="the-same-secret")
            ids.add(made["id"])
            await ask(bus, "DELETE", f"/api_tokens/{made['id']}")

        assert len(ids) == 3


async def test_a_secret_may_be_chosen_and_the_same_again_only_shortens_the_overlap(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = await make(bus)
        first = await rotate(bus, made["id"], token="chosen")
        again = await rotate(bus, made["id"], token="chosen")
        assert await works(bus, made["token"]) == [True] * 3
        ended = await rotate(bus, made["id"], token="chosen", overlap_s=0)

        assert [answer.status for answer in (first, again, ended)] == [200] * 3
        assert (first.json["token"], again.json["former_until"]) == ("chosen", first.json["former_until"])
        assert await works(bus, made["token"]) == [False] * 3
        assert await works(bus, "chosen") == [True] * 3


async def test_a_rotation_whose_answer_was_lost_can_be_made_again(one: Topology):
    """Nobody has seen the second secret; the first must go on working while the third is handed out."""
    async with a_bus(one, workers=0) as bus:
        made = await make(bus)
        lost = await rotate(bus, made["id"])
        third = await rotate(bus, made["id"])
        during = [await works(bus, secret) for secret in (made["token"], third.json["token"])]
        await rotate(bus, made["id"], token=third.json["token"], overlap_s=0)

        assert during == [[True] * 3] * 2
        assert [await works(bus, secret) for secret in (made["token"], lost.json["token"])] == [[False] * 3] * 2


async def test_a_former_secret_can_be_taken_back(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = await make(bus)
        bad = (await rotate(bus, made["id"])).json["token"]
        await rotate(bus, made["id"], token=made["token"], overlap_s=0)

        assert await works(bus, made["token"]) == [True] * 3
        assert await works(bus, bad) == [False] * 3


async def test_there_are_not_ever_more_secrets(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = await make(bus)
        answers = [await rotate(bus, made["id"], overlap_s=DAY_S) for _ in range(11)]

        assert [answer.status for answer in answers] == [200] * 10 + [429]
        assert "at most 10 may" in answers[-1].detail
        assert (await rotate(bus, made["id"], overlap_s=0)).status == 200


async def test_the_list_says_when_a_secret_was_replaced_and_when_the_former_one_ends(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = await make(bus)
        [before] = await bus.get("/api_tokens")
        began = clock.now_ms()
        answer = await rotate(bus, made["id"])
        [after] = await bus.get("/api_tokens")

        assert (before["rotated_at"], before["former_until"]) == (None, None)
        assert began <= after["rotated_at"] <= clock.now_ms()
        assert after["former_until"] == answer.json["former_until"] == after["rotated_at"] + DAY_S * 1000
        assert after["token"] == made["id"]


@pytest.mark.parametrize("by", ["id", "former", "current"])
async def test_a_token_is_rotated_and_revoked_by_its_id_or_by_either_secret(one: Topology, by: str):
    async with a_bus(one, workers=0) as bus:
        made = await make(bus)
        fresh = (await rotate(bus, made["token"])).json["token"]
        which = {"id": made["id"], "former": made["token"], "current": fresh}[by]
        rotated = await rotate(bus, which)
        revoked = await ask(bus, "DELETE", f"/api_tokens/{which}")

        assert (rotated.status, revoked.status) == (200, 204)
        assert (await ask(bus, "GET", "/api_tokens")).status == 204
        for secret in (made["token"], fresh, rotated.json["token"]):
            assert (await ask(bus, "GET", "/pulse", secret)).status == 401


async def test_a_secret_that_has_ended_revokes_nothing(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = await make(bus)
        fresh = (await rotate(bus, made["id"], overlap_s=0)).json["token"]
        await ask(bus, "DELETE", f"/api_tokens/{made['token']}")

        assert (await rotate(bus, made["token"])).status == 404
        assert (await ask(bus, "GET", "/pulse", fresh)).status == 204


async def test_a_rotation_that_cannot_be_changes_nothing(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = await make(bus)
        await make(bus, "other", token="taken")
        taken = await rotate(bus, made["id"], token="taken")
        await rotate(bus, "taken", token="newer")
        before = await everything(bus)
        still_taken = await rotate(bus, made["id"], token="taken")

        assert [answer.status for answer in (taken, still_taken)] == [409, 409]
        for asked in ({"overlap_s": -1}, {"overlap_s": 30 * DAY_S + 1}, {"overlap_s": "1h"}, {"token": "A"}, {"x": 1}):
            assert (await rotate(bus, made["id"], **asked)).status == 400, asked
        assert (await rotate(bus, "nobody-00000000")).status == 404
        assert (await ask(bus, "POST", f"/api_tokens/{made['id']}/rotate", made["token"])).status == 403
        assert await everything(bus) == before


async def test_an_empty_body_rotates_with_the_defaults(one: Topology):
    async with a_bus(one, workers=0) as bus:
        made = await make(bus)

        assert (await ask(bus, "POST", f"/api_tokens/{made['id']}/rotate")).status == 200
        assert await works(bus, made["token"]) == [True] * 3


async def test_another_web_process_takes_the_new_secret_and_soon_refuses_the_replaced_one(one: Topology):
    async with a_bus(one, workers=0) as bus, another_web(bus) as url:
        made = await make(bus)
        assert (await ask(bus, "GET", "/pulse", made["token"], url=url)).status == 204
        fresh = (await rotate(bus, made["id"], overlap_s=0)).json["token"]
        async with asyncio.timeout(5):
            while not all(await works(bus, fresh, url=url)):
                await asyncio.sleep(0.02)

        async with asyncio.timeout(5):
            while (await ask(bus, "GET", "/pulse", made["token"], url=url)).status != 401:
                await asyncio.sleep(0.02)


async def test_a_stream_ends_when_its_secret_does(one: Topology):
    async with a_bus(one, workers=0, heartbeat_s=0.1) as bus:
        made = await make(bus)
        async with a_stream(bus.url, made["token"]) as stream:
            await rotate(bus, made["id"], overlap_s=0)
            frames = await stream.until_ended()

    assert [(frame.name, frame.data["reason"]) for frame in frames] == [("dropped", "revoked")]


async def test_no_two_clients_get_the_same_secret_at_once(one: Topology):
    """Both web processes look before either writes; which one wins does not matter."""
    async with a_bus(one, workers=0) as bus, another_web(bus) as url:
        for n in range(10):
            first, second = await make(bus, "first"), await make(bus, "second")
            secret = f"same-{n}"
            answers = await asyncio.gather(
                ask(bus, "POST", "/api_tokens", json={"name": "third", "token": secret}),
                ask(bus, "POST", f"/api_tokens/{first['id']}/rotate", json={"token": secret}, url=url),
                ask(bus, "POST", f"/api_tokens/{second['id']}/rotate", json={"token": secret}),
            )

            assert sorted(answer.status for answer in answers)[1:] == [409, 409]


async def test_many_clients_are_made_at_once(one: Topology):
    async with a_bus(one, workers=0) as bus, another_web(bus) as url:
        answers = await asyncio.gather(
            *(ask(bus, "POST", "/api_tokens", json={"name": f"n{n}"}, url=(bus.url, url)[n % 2]) for n in range(40))
        )

        assert {answer.status for answer in answers} == {201}
        assert len(await bus.get("/api_tokens")) == 40


async def test_a_token_of_version_0_1_0_works_and_is_rotated(one: Topology):
    """Its id was made of the secret's hash, and its record knows nothing of rotation."""
    record = {
        "id": "old-2bb80d53",
        "name": "old",
        "hash": "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b",
        "ha1": "7edf997758a7a0c6f09b5edf096d52bdcf8faa50322bf5c3247141c05c168c6e",
        "created_at": 1,
    }
    async with a_bus(one, workers=0) as bus:
        home = bus.partitions.home
        await home.command("HSET", home.key("api_tokens"), "old-2bb80d53", json.dumps(record))
        await make(bus, "newcomer")
        async with another_web(bus) as url:
            assert (await ask(bus, "GET", "/pulse", "secret", url=url)).status == 204
            answer = await ask(bus, "POST", "/api_tokens/old-2bb80d53/rotate", json={"overlap_s": 60}, url=url)
            both = [await works(bus, each, name="old", url=url) for each in ("secret", answer.json["token"])]

        assert answer.json["id"] == "old-2bb80d53"
        assert both == [[True] * 3] * 2
