"""The routes that say how the bus is, and what every route says when Redis is away."""

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from conftest import Topology
from doubledecker import __version__
from doubledecker.store import journal as journals
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.web import listening
from harness import TestBus, a_bus, an_event
from receiver import Receiver
from web.asking import ask, journal

pytestmark = pytest.mark.silent_redis

NEED_REDIS = [
    ("GET", "/pulse", None),
    ("GET", "/pulse/scaling", None),
    ("GET", "/topics", None),
    ("POST", "/topics/widgets", {"type": "noop", "url": "https://shop.example/"}),
    ("POST", "/events", [an_event(1, tenant="a"), an_event(2, tenant="b")]),
    ("POST", "/events?all=1", [an_event(1), an_event(2)]),
    ("DELETE", "/topics/widgets", None),
    ("POST", "/subscription", {"topics": [], "callback": "https://mail.example/"}),
    ("GET", "/subscribers", None),
    ("DELETE", "/subscriber/topics/widgets", None),
    ("DELETE", "/subscriber", None),
]


async def test_the_process_says_that_it_runs_and_which_version(one: Topology):
    async with a_bus(one, workers=0) as bus:
        for path in ("/health", "/health/ping", "/health/ping.json"):
            assert (await ask(bus, "GET", path, None)).json == {"status": "ok", "version": __version__}
        assert (await ask(bus, "GET", "/livez", None)).json == {"status": "alive"}
        assert (await ask(bus, "GET", "/version", None)).json == {"name": "doubledecker", "version": __version__}


async def test_the_date_of_answers_is_kept_by_one_look_at_the_clock_a_second(
    one: Topology, monkeypatch: pytest.MonkeyPatch
):
    looks = 0
    look = uvicorn.Server.on_tick

    async def count(server: uvicorn.Server, counter: int) -> bool:
        nonlocal looks
        looks += 1
        return await look(server, counter)

    monkeypatch.setattr(uvicorn.Server, "on_tick", count)
    async with a_bus(one, workers=0) as bus, asyncio.timeout(20):
        dates, looks = {(await ask(bus, "GET", "/livez", None)).headers["Date"]}, 0
        while len(dates) <= 2:
            dates.add((await ask(bus, "GET", "/livez", None)).headers["Date"])

        assert looks <= 3


async def test_ready_means_that_a_worker_is_alive(topology: Topology):
    async with a_bus(topology, workers=0) as bus:
        answer = await ask(bus, "GET", "/readyz", None)

        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"
        assert answer.json["checks"]["redis"] == "ok"
        assert "doubledecker worker" in answer.json["checks"]["worker"]
    async with a_bus(topology, workers=1) as bus:
        assert (await ask(bus, "GET", "/readyz", None)).json == {
            "status": "ready",
            "checks": {"redis": "ok", "worker": "ok"},
            "memory": "ok",
        }


async def test_metrics_are_what_prometheus_reads_and_count_what_was_published(topology: Topology):
    async with a_bus(topology) as bus, Receiver() as receiver:
        await bus.subscribe(await bus.token("mail"), receiver.url, "widgets", timeout=0)
        await bus.publish(await bus.token("shop"), [an_event(n, tenant=f"t{n}") for n in range(7)])
        await receiver.until_events(7)
        answer = await ask(bus, "GET", "/metrics")

        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
        [published] = families["doubledecker_events_published"].samples
        assert published.labels == {"topic": "widgets"}
        assert published.value == 7
        assert families["doubledecker_worker_slots"].samples[0].value >= 8


async def test_metrics_have_the_lag_of_each_journal_once_something_archives(one: Topology):
    async with a_bus(one, workers=0) as bus:
        await bus.publish(await bus.token("shop"), [an_event(n) for n in range(3)])
        home = bus.partitions.home
        before = await by_journal(bus)
        await journals.register_archive(home, "lake")
        behind = await by_journal(bus)
        [entry] = await journals.read(home, "events")
        await journals.confirm(home, "events", archive="lake", last_id=entry.id)
        landed = await by_journal(bus)

    assert before["doubledecker_pipeline_lag_seconds"] == {}
    assert before["doubledecker_journal_age_seconds"]["events"] > 0
    assert before["doubledecker_journal_age_seconds"]["attempts"] == 0
    assert behind["doubledecker_pipeline_lag_seconds"]["events"] > 0
    assert behind["doubledecker_pipeline_lag_seconds"]["attempts"] == 0
    assert landed["doubledecker_pipeline_lag_seconds"]["events"] == 0


async def by_journal(bus: TestBus) -> dict[str, dict[str, float]]:
    """The metrics that are told by journal."""
    text = (await ask(bus, "GET", "/metrics")).body.decode()
    return {
        family.name: {sample.labels["journal"]: sample.value for sample in family.samples if "journal" in sample.labels}
        for family in text_string_to_metric_families(text)
    }


async def test_an_unknown_path_is_404_and_a_wrong_method_405_with_those_allowed(one: Topology):
    async with a_bus(one, workers=0) as bus:
        unknown = await ask(bus, "GET", "/nothing", None)
        wrong = await ask(bus, "PATCH", "/subscriber", None)

        assert unknown.status == 404
        assert unknown.detail == "there is nothing at '/nothing'; GET /openapi.json lists what there is"
        assert wrong.status == 405
        assert wrong.headers["Allow"] == "DELETE, POST"
        assert wrong.detail == "PATCH is not possible here; DELETE and POST are"


async def test_scaling_answers_at_once_below_the_threshold(one: Topology):
    async with a_bus(one, workers=0, scaling_threshold=2) as bus:
        await a_due_batch(bus)
        async with asyncio.timeout(0.8):
            assert (await ask(bus, "GET", "/pulse/scaling")).status == 204


async def test_scaling_answers_after_a_second_at_the_threshold_and_others_do_not_wait(one: Topology):
    async with a_bus(one, workers=0, scaling_threshold=1) as bus:
        await a_due_batch(bus)
        loop = asyncio.get_running_loop()
        start = loop.time()
        held = [asyncio.create_task(ask(bus, "GET", "/pulse/scaling")) for _ in range(20)]
        for _ in range(10):
            assert (await ask(bus, "GET", "/pulse")).status == 204
        is_any_held = not all(each.done() for each in held)
        answers = await asyncio.gather(*held)

        assert is_any_held
        assert {answer.status for answer in answers} == {204}
        assert loop.time() - start >= 1.0


async def test_scaling_counts_batches_that_are_due_by_the_deadline(one: Topology):
    async with a_bus(one, workers=0, scaling_threshold=1, scaling_deadline_ms=60_000) as bus:
        await a_due_batch(bus, timeout_ms=30_000)
        start = asyncio.get_running_loop().time()
        await ask(bus, "GET", "/pulse/scaling")

        assert asyncio.get_running_loop().time() - start >= 1.0


async def test_every_route_is_503_at_once_while_redis_is_away_and_heals_by_itself(data_dir: Path):
    async with a_server(data_dir) as (redis, topology), a_bus(topology, workers=0) as bus:
        client = await bus.token("client")
        await bus.publish(client, [an_event(0)])
        redis.kill()
        await redis.wait()

        for method, path, body in NEED_REDIS:
            async with asyncio.timeout(1):
                answer = await ask(bus, method, path, client, json=body)
            assert answer.status == 503, path
            assert int(answer.headers["Retry-After"]) > 0, path
            assert answer.detail == "Redis does not answer", path
        for path in ("/livez", "/version", "/health", "/openapi.json"):
            assert (await ask(bus, "GET", path, None)).status == 200
        ready = await ask(bus, "GET", "/readyz", None)
        assert ready.status == 503
        assert ready.json["checks"] == {"redis": "Redis does not answer", "worker": "unknown"}
        assert (await ask(bus, "GET", "/pulse", "unknown--token")).status == 503

        await redis.restart()
        await until_healed(bus, client)
        assert (await ask(bus, "POST", "/events", client, json=an_event(9))).status == 202
        assert [event["url"] for event in await journal(bus)] == ["https://example.org/0", "https://example.org/9"]


async def test_what_redis_refuses_is_told_to_the_log_and_not_to_the_client(one: Topology):
    """The reply names a line of our script, and its sender's address."""
    async with a_bus(one, workers=0) as bus:
        client = await bus.token("client")
        home = bus.partitions.home
        await home.command("SET", home.key("counters"), "not a hash")
        with capture_logs() as logs:
            answers = [await ask(bus, "POST", "/events", client, json=an_event(n)) for n in range(3)]

        assert {answer.status for answer in answers} == {503}
        assert {answer.detail for answer in answers} == {"Redis refused a command; the log of the bus says which"}
        [line] = [line for line in logs if line["event"] == "redis.refused"]
        assert "WRONGTYPE" in line["error"]


async def test_a_redis_that_hangs_is_503_soon_and_heals_by_itself(data_dir: Path):
    async with a_server(data_dir) as (redis, topology), a_bus(topology, workers=0) as bus:
        client = await bus.token("client")
        os.kill(redis.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(2):
                answers = await asyncio.gather(
                    ask(bus, "GET", "/pulse", client), ask(bus, "POST", "/events", client, json=an_event(1))
                )
        finally:
            os.kill(redis.pid, signal.SIGCONT)

        assert [answer.status for answer in answers] == [503, 503]
        await until_healed(bus, client)
        assert (await ask(bus, "POST", "/events", client, json=an_event(2))).status == 202


async def test_after_some_failures_a_redis_that_hangs_is_503_at_once_with_one_call_at_a_time_to_see(data_dir: Path):
    async with a_server(data_dir) as (redis, topology), a_bus(topology, workers=0) as bus:
        client = await bus.token("client")
        os.kill(redis.pid, signal.SIGSTOP)
        try:
            with capture_logs() as logs:
                await asyncio.gather(*(ask(bus, "GET", "/pulse", client) for _ in range(8)))
                start = asyncio.get_running_loop().time()
                answers = [await ask(bus, "POST", "/events", client, json=an_event(n)) for n in range(20)]
                took_s = asyncio.get_running_loop().time() - start
                away = (await ask(bus, "GET", "/metrics")).body.decode()
        finally:
            os.kill(redis.pid, signal.SIGCONT)
        await until_healed(bus, client)
        metrics = (await ask(bus, "GET", "/metrics")).body.decode()

        assert {answer.status for answer in answers} == {503}
        # One of them may have been the probe, and waited its second; without a breaker it would be twenty.
        assert took_s < 10
        assert [line["event"] for line in logs if line["event"].startswith("redis.")] == ["redis.away"]
        assert stages(away, "state", "(open|half-open)") == ["1.0"]
        assert "doubledecker_redis_up 0.0" in away
        assert stages(metrics, "state", "closed") == ["1.0"]
        [rejected] = stages(metrics, "rejected_total")
        assert float(rejected) >= 10


def stages(metrics: str, name: str, state: str = "") -> list[str]:
    """The values of a metric of this process's breaker for Redis."""
    labels = r'chain="redis-0",process="web:[0-9a-f]{6}",stage="breaker"' + (f',state="{state}"' if state else "")
    return [found[-1] for found in re.findall(rf"doubledecker_stage_{name}{{({labels})}} (\S+)", metrics)]


async def until_healed(bus, client: str) -> None:
    """The circuit is probed several times a second, whether or not anyone asks."""
    async with asyncio.timeout(2):
        while (await ask(bus, "GET", "/pulse", client)).status != 204:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_listener_names_its_protocol_so_that_answers_are_not_held_back_by_nagle(host: str):
    if host == "::1" and not socket.has_ipv6:
        pytest.skip("no IPv6")
    with listening.bind(host, 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


async def a_due_batch(bus, *, timeout_ms: int = 0) -> None:
    """One batch that no worker takes."""
    await bus.subscribe(await bus.token("mail"), "https://mail.example/", "widgets", timeout=timeout_ms)
    await bus.publish(await bus.token("shop"), [an_event(1)])


@asynccontextmanager
async def a_server(directory: Path) -> AsyncIterator[tuple[EmbeddedServer, Topology]]:
    """A Redis of the test's own, to be killed."""
    redis = await EmbeddedServer.start(directory)
    try:
        yield redis, Topology("own", redis.url, 1, (redis.url,))
    finally:
        await redis.stop()
