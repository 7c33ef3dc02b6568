"""`doubledecker doctor`: it finds what is amiss, says how to mend it, and leaves nothing on the bus."""

import asyncio
import json
import socket
from pathlib import Path

import pytest
import redis

from cli.commands import Up, an_up, run
from doubledecker.assembly.settings import Settings
from doubledecker.cli.doctor import servers
from doubledecker.store import machine
from doubledecker.store.embedded import EmbeddedServer


def findings(*arguments: str, code: int, **changes: str) -> dict[str, dict[str, str]]:
    answer = run("doctor", "--json", "--no-pipeline", *arguments, **changes)
    assert answer.returncode == code, answer.stderr
    found = {each.pop("check"): each for each in json.loads(answer.stdout)}
    assert all(bool(each["remedy"]) == (each["state"] != "ok") for each in found.values())
    return found


def test_a_bus_that_is_well_has_no_findings_and_nothing_is_left_on_it(bus: Up):
    where = ["--data", str(bus.data)]
    found = findings(*where, code=0)
    listed = [run(kind, "list", "--json", *where).stdout for kind in ("token", "topic", "queue")]

    assert {name for name, each in found.items() if each["state"] == "failed"} == set()
    assert found["publish and deliver"]["found"].startswith("an event was published, and pulled from a queue in")
    assert found["Redis persistence"]["found"] == "appendonly is yes"
    assert "doctor-" not in "".join(listed)


def test_a_client_s_round_trip_leaves_nothing_of_it_either(bus: Up):
    where = ["--data", str(bus.data)]
    secret = run("token", "create", "patient", *where).stdout.strip()
    found = findings(*where, "--token", secret, code=0)
    listed = [run(kind, "list", "--json", *where).stdout for kind in ("topic", "queue")]

    assert found["publish and deliver"]["state"] == "ok"
    assert "doctor-" not in "".join(listed)


@pytest.mark.slow
def test_a_worker_s_delivery_is_tried_where_the_bus_may_call_this_machine(data_dir: Path):
    with an_up(data_dir, "--no-demo", DOUBLEDECKER_PRIVATE_CALLBACKS="true"):
        found = findings("--data", str(data_dir), code=0)

    assert found["publish and deliver"]["found"].startswith("an event was published, and delivered by a worker in")


def test_what_is_amiss_is_failed_with_a_remedy():
    url = f"redis://127.0.0.1:{machine.free_port()}/0"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = findings(
            "--bus",
            f"http://127.0.0.1:{machine.free_port()}",
            code=1,
            DOUBLEDECKER_REDIS_URL=url,
            DOUBLEDECKER_PORT=str(port),
        )

    assert {name for name, each in found.items() if each["state"] == "failed"} == {
        "Redis",
        "port",
        "publish and deliver",
    }
    assert found["Redis"]["remedy"] == "start it, or set DOUBLEDECKER_REDIS_URL to where it is"


def test_a_setting_that_is_not_known_is_failed():
    found = findings(code=1, DOUBLEDECKER_PROT="1")["settings"]

    assert found["state"] == "failed"
    assert "did you mean DOUBLEDECKER_PORT?" in found["found"]


def test_a_server_that_would_lose_events_is_found(tmp_path: Path):
    async def look() -> dict[str, str]:
        server = await EmbeddedServer.start(tmp_path / "data")
        with redis.Redis.from_url(server.url) as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
            client.config_set("appendonly", "no")
            client.config_set("save", "")
            client.config_set("maxmemory", 0)
            now_ms = int(client.time()[0]) * 1000
        found = await asyncio.to_thread(servers.check, Settings(redis_url=server.url), None, lambda: now_ms + 70_000)
        await server.stop()
        return {each.check: each.state for each in found}

    assert asyncio.run(look()) == {
        "Redis": "ok",
        "Redis policy": "failed",
        "Redis persistence": "warning",
        "Redis memory": "warning",
        "clock": "failed",
    }


def test_memory_is_short_when_less_than_the_reserve_is_free(tmp_path: Path):
    async def look(**changes: int) -> str:
        settings = Settings(redis_url=server.url, redis_max_mem_bytes=100_000_000, **changes)
        found = await asyncio.to_thread(servers.check, settings, None, lambda: 0)
        return next(each.state for each in found if each.check == "Redis memory")

    async def both() -> list[str]:
        return [await look(), await look(redis_min_free_bytes=99_900_000)]

    with asyncio.Runner() as runner:
        server = runner.run(EmbeddedServer.start(tmp_path / "data"))
        assert runner.run(both()) == ["ok", "warning"]
        runner.run(server.stop())
