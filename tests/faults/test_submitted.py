"""A pipeline that spark-submit started: when its JVM dies, the Python that the JVM had started ends too."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from cli.commands import children, run
from conftest import Topology
from doubledecker.store import pipeline
from doubledecker.store.partitions import Partition
from feed import a_feed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


async def until_running(home: Partition) -> None:
    async with asyncio.timeout(240):
        while (found := (await pipeline.read(home)).run) is None or found.state != "running":
            await asyncio.sleep(0.2)


def is_there(pid: int) -> bool:
    """Whether a process runs; a zombie, which nobody waits for, does not."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    except OSError:
        return False


async def test_the_driver_ends_when_the_jvm_of_spark_submit_dies(one: Topology, tmp_path: Path):
    words = run("pipeline", "package", str(tmp_path)).stdout.replace("spark://HOST:7077", "local[1]").split()
    settings = {"DOUBLEDECKER_REDIS_URL": one.url, "DOUBLEDECKER_LAKE": str(tmp_path / "lake")}
    with (tmp_path / "log").open("wb") as log:
        async with a_feed(one) as feed:
            jvm = await asyncio.create_subprocess_exec(
                str(Path(sys.executable).with_name(words[0])),
                *words[1:],
                env={**os.environ, **settings, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            try:
                await until_running(feed.bus.partitions.home)
                [driver] = [pid for pid, line in children(jvm.pid).items() if "doubledecker_pipeline.py" in line]
            finally:
                jvm.send_signal(signal.SIGKILL)
                await jvm.wait()
            try:
                async with asyncio.timeout(60):
                    while is_there(driver):
                        await asyncio.sleep(0.1)
            finally:
                if is_there(driver):
                    os.kill(driver, signal.SIGKILL)
            told = (await pipeline.read(feed.bus.partitions.home)).run

    assert told is not None
    assert told.state == "stopped"
