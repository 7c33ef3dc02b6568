"""On a cluster of a master and two workers, tasks run on both, and every id is there once."""

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest
import pytest_asyncio
from deltalake import DeltaTable

from cli.commands import run
from conftest import Topology
from doubledecker.model.subscriber import Subscription
from doubledecker.store import die_with_parent
from doubledecker.store.scripts import all_names
from feed import Feed, a_feed
from receiver import Receiver
from spark_cluster import EXECUTOR_CONF, HOME, SparkCluster, a_spark_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TESTS = Path(__file__).parent.parent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SparkCluster]:
    """One for both tests, which use it one after the other."""
    async with a_spark_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


async def drive(cluster: SparkCluster, command: list[str], folder: Path, **more: str) -> str:
    """Run a driver to its end; returns what it printed."""
    environment = {**cluster.environment, "PYSPARK_PYTHON": sys.executable, **more}
    with (folder / "driver.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *die_with_parent.wrapped(command), env=environment, stdout=asyncio.subprocess.PIPE, stderr=log
        )
    async with asyncio.timeout(600):
        printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode()[-3000:] + (folder / "driver.log").read_text()[-3000:]
    return printed.decode()


async def test_each_part_of_the_pipeline_runs_on_both_workers(one: Topology, cluster: SparkCluster, tmp_path: Path):
    topology = Topology("three", one.url, 3, one.node_urls)
    async with Receiver() as mail, a_feed(topology) as feed:
        await feed.bus.registry.subscriptions.put(feed.publisher, Subscription([], mail.url, max=10))
        words = [cluster.url, str(cluster.folder), topology.url, "3", str(tmp_path)]
        path = os.pathsep.join([str(TESTS), *(part for part in sys.path if part)])
        printed = await drive(
            cluster, [sys.executable, str(TESTS / "on_cluster.py"), *words], tmp_path, PYTHONPATH=path
        )
    found = json.loads(printed.splitlines()[-1])
    rows = pa.table(DeltaTable(tmp_path / "lake" / "events").scan()).to_pylist()
    numbers = {
        name: Counter(json.loads(row["data"])["number"] for row in rows if row["topic"] == name)
        for name in ("sunk", "sourced")
    }

    # What was sent along is what runs there, and its scripts can be read out of the zip.
    assert found["whence"] == [f"./doubledecker.zip/doubledecker/__init__.py {len(all_names())}"]
    for part in ("sink", "source", "land", "measure", "bulk", "replay", "tend"):
        assert found[part] == ["worker-0", "worker-1"], (part, found)
    # At last the odd ones of one topic were erased.
    assert numbers == {"sunk": Counter(range(0, 400, 2)), "sourced": Counter(range(400))}
    assert len(mail.ids) == len(set(mail.ids)) == 800
    assert {row["id"] for row in rows} < set(mail.ids)
    assert mail.in_flight_max <= 4


async def submit(cluster: SparkCluster, feed: Feed, folder: Path) -> None:
    """The pipeline, once, as `doubledecker pipeline package` says that spark-submit starts it."""
    told = run("pipeline", "package", str(folder / "package"))
    assert told.returncode == 0, told.stderr
    words = told.stdout.replace("spark://HOST:7077", cluster.url).split()
    settings = {
        "DOUBLEDECKER_REDIS_URL": feed.topology.url,
        "DOUBLEDECKER_PARTITIONS": str(feed.topology.partitions),
        "DOUBLEDECKER_LAKE": str(folder / "lake"),
    }
    program = str(HOME / "bin" / words[0])
    conf = EXECUTOR_CONF | {"spark.ui.enabled": "false"}
    sizes = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    await drive(cluster, [program, *sizes, *words[1:], "--once"], folder, **settings)


async def test_spark_submit_runs_the_pipeline_from_its_package(one: Topology, cluster: SparkCluster, tmp_path: Path):
    topology = Topology("three", one.url, 3, one.node_urls)
    before = cluster.tasks()
    async with a_feed(topology) as feed:
        await feed.publish(600)
        await submit(cluster, feed, tmp_path)
        took_part = cluster.took_part(before)
    rows = pa.table(DeltaTable(tmp_path / "lake" / "events").scan())["id"].to_pylist()

    assert sorted(rows) == feed.ids
    assert took_part == cluster.workers
