"""Backup and restore as docs/production.md describes them: what the backup has is there again, and goes on."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis.asyncio as redis

from cli.commands import Up, an_up, run
from conftest import Topology
from doubledecker.store.embedded import EmbeddedServer
from harness import TestBus, a_bus, an_event, basic
from receiver import Receiver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "running"])
async def test_all_that_a_backup_holds_is_there_after_a_restore(data_dir: Path, tmp_path: Path, is_stopped: bool):
    files, backup = data_dir / "valkey" / "appendonlydir", tmp_path / "backup"
    async with a_filled_bus(data_dir) as (bus, server, secrets, receiver, waiting):
        if is_stopped:
            server.kill()
            await server.wait()
            shutil.copytree(files, backup)
            await server.restart()
        else:
            await copy_while_it_runs(server, bus, secrets["publisher"], files, backup)
        # What happens after the backup is undone by the restore.
        await bus.publish(secrets["publisher"], [an_event(99, topic="jobs", id="late")])
        server.kill()
        await server.wait()
        shutil.rmtree(files)
        shutil.copytree(backup, files)
        await server.restart()
        receiver.plan = lambda _: 200

        messages = await pulled(bus, secrets["consumer"])
        letters = await bus.get("/queues/jobs/dead", secrets["consumer"])
        await receiver.until(lambda: waiting <= {id_ for batch in receiver.batches for id_ in ids(batch.events)})

        assert waiting == {"waits-0", "waits-1", "waits-2"}
        assert messages == ["job-1", "job-2"]
        assert [letter["event"]["id"] for letter in letters["messages"]] == ["job-0"]
        assert {client["name"] for client in await bus.get("/api_tokens")} == set(secrets)


async def copy_while_it_runs(server: EmbeddedServer, bus: TestBus, secret: str, files: Path, backup: Path) -> None:
    """With rewrites off, while somebody publishes."""
    async with redis.from_url(server.url, decode_responses=True) as client, asyncio.TaskGroup() as tasks:
        await client.config_set("auto-aof-rewrite-percentage", 0)
        assert (await client.info("persistence"))["aof_rewrite_in_progress"] == 0
        publishing = [tasks.create_task(bus.publish(secret, [an_event(n, topic="noise")] * 20)) for n in range(50)]
        await asyncio.to_thread(shutil.copytree, files, backup)
        await asyncio.gather(*publishing)
        await client.config_set("auto-aof-rewrite-percentage", 100)


@asynccontextmanager
async def a_filled_bus(
    data: Path,
) -> AsyncIterator[tuple[TestBus, EmbeddedServer, dict[str, str], Receiver, set[str]]]:
    """Events wait for a receiver that fails, and on a queue; the queue has a dead letter; there are three tokens."""
    server = await EmbeddedServer.start(data, port=0)
    async with Receiver(plan=lambda _: 500) as receiver, a_bus(Topology("own", server.url, 1, (server.url,))) as bus:
        secrets = {name: await bus.token(name) for name in ("publisher", "subscriber", "consumer")}
        await bus.subscribe(secrets["subscriber"], receiver.url, "orders", timeout=0, max=1)
        body = {"pattern": ".*:jobs:.*"}
        await ask(bus, "PUT", "/queues/jobs", secrets["consumer"], body)
        jobs = [an_event(n, topic="jobs", id=f"job-{n}") for n in range(3)]
        orders = [an_event(n, topic="orders", id=f"waits-{n}") for n in range(3)]
        await bus.publish(secrets["publisher"], jobs + orders)
        [first] = (await ask(bus, "POST", "/queues/jobs/pull", secrets["consumer"], {}))["messages"]
        await ask(bus, "POST", "/queues/jobs/nack", secrets["consumer"], refused(first))
        yield bus, server, secrets, receiver, set(ids(orders))
    await server.stop()


def refused(message: dict) -> object:
    return {"messages": [{"id": message["id"], "attempt": message["attempt"]}], "reject": True}


async def ask(bus: TestBus, method: str, path: str, secret: str, body: object) -> dict:
    async with bus.http.request(method, bus.url + path, json=body, headers=basic(secret)) as response:
        assert response.status < 300, await response.text()
        return dict(await response.json()) if response.status == 200 else {}


async def pulled(bus: TestBus, secret: str) -> list[str]:
    return ids(
        [each["event"] for each in (await ask(bus, "POST", "/queues/jobs/pull", secret, {"max": 10}))["messages"]]
    )


def ids(events: list[dict[str, object]]) -> list[str]:
    return [str(event["id"]) for event in events]


def test_the_data_of_up_are_there_after_a_restore(data_dir: Path, tmp_path: Path):
    kept = Path("valkey", "appendonlydir")
    with an_up(data_dir, "--no-demo") as up:
        publish(up)
    shutil.copytree(data_dir / kept, tmp_path / "backup")
    shutil.rmtree(data_dir / "valkey")
    shutil.copytree(tmp_path / "backup", data_dir / kept)

    with an_up(data_dir, "--no-demo") as up:
        assert waiting(up) == 5
        assert "shop" in run("token", "list", "--data", str(data_dir)).stdout


def publish(up: Up) -> None:
    made = run("token", "create", "shop", "--data", str(up.data)).stdout.strip()
    assert up.send("PUT", "/queues/jobs", made, {"pattern": ".*"}) in (200, 201, 204)
    assert up.post("/events", made, [an_event(n) for n in range(5)]) == 202


def waiting(up: Up) -> int:
    [row] = json.loads(run("queue", "list", "--json", "--data", str(up.data)).stdout)
    return int(row["waiting"])
