"""Data that an older release wrote is opened as it is: nothing in it is lost, and nothing is misread.

Each archive beside this file is a data folder that one release filled (`fill.py`), taken after all its processes were
killed.
"""

import asyncio
import json
import os
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cli.commands import run
from conftest import Topology
from doubledecker.model import moment
from doubledecker.model.reserved import is_reserved
from doubledecker.store import journal
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.store.partitions import Partitions
from harness import ROOT_KEY, basic, until_ready
from processes import Fleet, Process
from receiver import Receiver
from upgrade.fill import TOKENS, orders

pytestmark = pytest.mark.slow

DUMPS = sorted(Path(__file__).parent.glob("*.tar.gz"))
# What a subscriber asked for, which must not change; how it fares does, as soon as workers run.
ASKED = ("subscriber", "max_events", "timeout", "topics", "max_bytes", "concurrency", "tier", "callback")
OWNED = ("name", "publisher", "events")
REGISTERED = ("name", "owner", "pattern", "lease_ms", "attempts_max", "charge", "max_length", "overflow")
HELD = ("waiting", "in_flight", "delayed", "dead")
KEY = "request-of-the-dump"


@dataclass
class Opened:
    """A bus of this release on the data of an older one."""

    url: str
    http: aiohttp.ClientSession
    facts: dict[str, Any]
    environment: dict[str, str]
    data: Path

    async def call(self, method: str, path: str, body: object = None, *, client: str = "") -> Any:
        headers = basic(TOKENS[client] if client else ROOT_KEY)
        async with self.http.request(method, self.url + path, json=body, headers=headers) as response:
            assert response.status < 300, f"{method} {path}: {response.status} {await response.text()}"
            return await response.json() if response.status not in {201, 204} else None

    async def repeat(self, body: object) -> tuple[int, Any]:
        """Publish as the shop under the key of the dump; the bytes count, so they are made as `fill.py` does."""
        headers = basic(TOKENS["shop"]) | {"Idempotency-Key": KEY, "Content-Type": "application/x-www-form-urlencoded"}
        async with self.http.post(f"{self.url}/events", data=json.dumps(body).encode(), headers=headers) as response:
            return response.status, await response.json()

    async def subscribe(self, client: str, receiver: Receiver) -> None:
        await self.call(
            "POST", "/subscription", {"topics": ["orders", "pages"], "callback": receiver.url}, client=client
        )


@pytest.fixture(params=DUMPS, ids=lambda path: path.name.removesuffix(".tar.gz"))
def dump(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The data folder, unpacked."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "data"


@asynccontextmanager
async def opened(data: Path, *, workers: int = 1) -> AsyncIterator[Opened]:
    async with AsyncExitStack() as held:
        server = await EmbeddedServer.start(data)
        held.push_async_callback(server.stop)
        topology = Topology("one", server.url, 1, (server.url,))
        fleet = await held.enter_async_context(
            Fleet(topology, data.parent, workers=workers, watches=workers, worker_dead_s=1, backoff_cap_ms=500)
        )
        http = await held.enter_async_context(aiohttp.ClientSession())
        await until_ready(http, fleet.url, path="/readyz" if workers else "/version", within_s=60)
        facts = json.loads((data / "facts.json").read_text())
        yield Opened(fleet.url, http, facts, fleet.environment, data)


async def test_clients_topics_subscribers_and_queues_are_as_they_were(dump: Path):
    async with opened(dump, workers=0) as bus:
        answers = {path: await bus.call("GET", path) for path in bus.facts["answers"]}
        pulses = [await bus.call("GET", "/pulse", client=name) for name in TOKENS]

    before = bus.facts["answers"]
    assert pulses == [None] * len(TOKENS)
    assert ids(answers["/api_tokens"]) == ids(before["/api_tokens"])
    assert chosen(answers["/topics"], OWNED) == chosen(before["/topics"], OWNED)
    assert chosen(answers["/subscriptions"], ASKED) == chosen(before["/subscriptions"], ASKED)
    assert chosen(answers["/queues"], REGISTERED) == chosen(before["/queues"], REGISTERED)
    assert totals(answers["/queues"]) == totals(before["/queues"])
    rules = ("tenant", "weight", "concurrency", "rate_per_s", "paused")
    assert chosen(answers["/queues/jobs"]["facets"], rules) == chosen(before["/queues/jobs"]["facets"], rules)
    for errands in ("/replays", "/erasures"):
        assert chosen(answers[errands], ("id", "state")) == chosen(before[errands], ("id", "state"))


async def test_the_one_subscription_of_a_client_is_its_default_one_beside_others(dump: Path):
    async with opened(dump, workers=0) as bus:
        [before] = [row for row in bus.facts["answers"]["/subscriptions"] if row["subscriber"].startswith("backlog-")]
        kept = await bus.call("GET", "/subscriptions/default", client="backlog")
        wanted = {"topics": ["orders"], "callback": "http://127.0.0.1:9/"}
        await bus.call("PUT", "/subscriptions/more", wanted, client="backlog")
        listed = await bus.call("GET", "/subscriptions", client="backlog")

    assert chosen([kept], ASKED) == chosen([before], ASKED)
    assert (kept["name"], kept["client"]) == ("default", before["subscriber"])
    assert [row["subscriber"].removeprefix(before["subscriber"]) for row in listed] == ["", "/more"]


# It was published to those who failed, to one whose worker died with it, and to one whose batch was still open.
@pytest.mark.parametrize("client", ["billing", "mailer", "backlog", "digest"])
async def test_what_waited_for_a_subscriber_is_delivered_to_it(dump: Path, client: str):
    async with opened(dump) as bus, Receiver() as receiver:
        await bus.subscribe(client, receiver)

        await receiver.until(lambda: {*bus.facts["waiting"]} <= {*receiver.ids}, within_s=60)
        credentials = {batch.uuid for batch in receiver.batches}

    before = {each["subscriber"].split("-")[0]: each["uuid"] for each in bus.facts["answers"]["/subscriptions"]}
    assert credentials == {before[client]}


async def test_a_subscriber_that_takes_one_batch_at_a_time_gets_what_waited_in_order(dump: Path):
    async with opened(dump) as bus, Receiver() as receiver:
        await bus.subscribe("backlog", receiver)

        await receiver.until(lambda: {*bus.facts["waiting"]} <= {*receiver.ids}, within_s=60)

    assert list(dict.fromkeys(receiver.ids)) == bus.facts["waiting"]


async def test_what_waited_on_a_queue_with_a_callback_is_pushed(dump: Path):
    async with opened(dump) as bus, Receiver() as receiver:
        await bus.call("PUT", "/queues/hooks", {"pattern": ".*:orders:paid", "callback": receiver.url}, client="blog")

        await receiver.until(lambda: {*bus.facts["waiting"]} <= {*receiver.ids}, within_s=60)


async def test_what_a_queue_held_is_pulled_and_its_dead_letter_comes_back(dump: Path):
    async with opened(dump) as bus:
        await bus.call("PATCH", "/queues/jobs/facets/late", {"paused": False}, client="shop")
        dead = await bus.call("GET", "/queues/jobs/dead", client="shop")
        await bus.call("POST", "/queues/jobs/dead/redrive", {}, client="shop")
        pulled: dict[str, str] = {}
        # Leases and delays of the dump end a minute after it was written.
        async with asyncio.timeout(90):
            while len(pulled) < sum(totals(bus.facts["answers"]["/queues"])["jobs"]):
                answer = await bus.call("POST", "/queues/jobs/pull", {"max": 100, "wait_ms": 1000}, client="shop")
                pulled |= {message["id"]: message["event"]["id"] for message in answer["messages"]}
                again = [{"id": each["id"], "attempt": each["attempt"]} for each in answer["messages"]]
                if again:
                    await bus.call("POST", "/queues/jobs/ack", {"messages": again}, client="shop")

    assert [letter["id"] for letter in dead["messages"]] == [bus.facts["dead"]]
    assert {bus.facts["dead"], bus.facts["delayed"], bus.facts["leased"]} <= {*pulled}
    assert bus.facts["acked"] not in pulled
    assert {*bus.facts["waiting"]} <= {*pulled.values()}


async def test_a_request_with_a_key_that_the_dump_remembers_is_not_published_again(dump: Path):
    """A key is remembered for a day: the one of the dump is made as old as if the repeat came at once."""
    async with opened(dump, workers=0) as bus:
        [shop] = [each["token"] for each in bus.facts["answers"]["/api_tokens"] if each["name"] == "shop"]
        parts = await Partitions.connect(bus.environment["DOUBLEDECKER_REDIS_URL"], namespace="rm:", count=1)
        ages = parts.home.key(f"ages:{shop}")
        assert await parts.home.command("ZADD", ages, "XX", "CH", await parts.home.time_ms(), KEY) == 1
        before = (await journal.read_extent(parts.home, "events")).last
        again = await bus.repeat(orders("acme", 1))
        other = await bus.repeat(orders("acme", 2))
        after = (await journal.read_extent(parts.home, "events")).last
        await parts.close()

    assert (again[0], other[0]) == (202, 409)
    assert again[1]["refused"] == []
    [id_] = again[1]["ids"]
    assert id_ in bus.facts["landed"]
    assert before == after


def test_a_report_opens_the_measures(dump: Path):
    facts = json.loads((dump / "facts.json").read_text())
    begin = moment.from_ms(min(each["created_at"] for each in facts["answers"]["/api_tokens"]))
    words = ["--from", (begin - timedelta(hours=1)).isoformat(), "--to", (begin + timedelta(hours=3)).isoformat()]
    answer = run("report", "--json", "--lake", str(dump / "lake"), *words)

    assert answer.returncode == os.EX_OK, answer.stderr
    told = json.loads(answer.stdout)
    # Measures keep what was counted before it was erased.
    assert told["total"]["events"] == len(facts["landed"]) + len(facts["erased"])
    assert {"orders", "pages"} == {each["name"] for each in told["topics"]}
    assert {"billing", "bulk", "@hooks"} == {each["name"].split("-")[0] for each in told["subscribers"]}
    assert [(queue["name"], queue["jain"]) for queue in told["queues"]] == [("hooks", None)]


async def test_lake_and_journal_are_searched_as_they_are(dump: Path):
    """Nothing has been rewritten, so no file has an index of ids."""
    async with opened(dump, workers=0) as bus:
        found = await found_by_command(bus, dump / "lake")
        one = bus.facts["landed"][0]
        life = await by_command(bus, "--id", one, "--lake", str(dump / "lake"))

    assert sorted(found) == sorted([*bus.facts["landed"], *bus.facts["waiting"]])
    assert [event["id"] for event in life["events"]] == [one]


@pytest.mark.timeout(600)
async def test_the_lake_goes_on_where_it_was(dump: Path):
    """Every event once: what had landed, and what waited in the journal; what was erased stays away."""
    async with opened(dump) as bus, Receiver() as receiver:
        await bus.subscribe("bulk", receiver)
        lake = dump / "lake"
        pipeline = Process(
            "pipeline", "pipeline", "run", "--lake", str(lake), environment=bus.environment, logs=dump.parent
        )
        await pipeline.start()
        try:
            wanted = sorted([*bus.facts["landed"], *bus.facts["waiting"]])
            async with asyncio.timeout(240):
                while len(landed(lake)) < len(wanted):
                    await asyncio.sleep(0.5)
            await receiver.until(lambda: {*bus.facts["waiting"]} <= {*receiver.ids}, within_s=120)
        finally:
            await pipeline.stop()

        found = await found_by_command(bus, lake)

    assert sorted(landed(lake)) == wanted
    assert sorted(found) == wanted


def landed(lake: Path) -> list[str]:
    """The ids of clients' events in the lake, each as often as it is there; receivers that fail make further ones."""
    rows = pa.table(DeltaTable(lake / "events").scan()).to_pylist()
    return [str(row["id"]) for row in rows if not is_reserved(row["topic"])]


async def found_by_command(bus: Opened, lake: Path) -> list[str]:
    found = await by_command(bus, "--limit", "1000", "--lake", str(lake))
    return [event["id"] for event in found if not is_reserved(event["topic"])]


async def by_command(bus: Opened, *words: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "doubledecker", "events", "--json", *words),
        env=bus.environment,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == os.EX_OK
    return json.loads(out)


def ids(tokens: list[dict[str, str]]) -> list[str]:
    return sorted(token["token"] for token in tokens)


def chosen(things: list[dict[str, Any]], fields: tuple[str, ...]) -> list[tuple[str, ...]]:
    """These fields of each, in an order of their own."""
    return sorted(tuple(json.dumps(thing[name]) for name in fields) for thing in things)


def totals(queues: list[dict[str, Any]]) -> dict[str, list[int]]:
    """How many messages each queue holds: those alive in whatever state, and dead letters."""
    return {queue["name"]: [sum(queue[name] for name in HELD[:3]), queue["dead"]] for queue in queues}
