"""A real standalone Spark cluster on loopback: a master and two workers, as processes that die with the test.

Which worker ran tasks is read from the logs of their executors, so that any program's jobs can be looked at, also of
one that was started by spark-submit:

    before = cluster.tasks()
    ...                                  # something that runs jobs on cluster.url
    assert cluster.took_part(before) == cluster.workers
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pyspark

from doubledecker.pipeline import java
from doubledecker.store import die_with_parent
from doubledecker.store.embedded import free_port

HOME = Path(pyspark.__file__).parent
# Enough for one task at a time, with its Python.
MEMORY = "1g"
# As the other JVMs of the tests (conftest.py): executors have their options by Spark's own settings.
EXECUTOR_CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": os.environ.get("SPARK_DAEMON_JAVA_OPTS", ""),
}
START_S_MAX = 240.0
_RUN = re.compile(r"Running task \S+ in stage \S+ \(TID (\d+)\)")


@dataclass(frozen=True)
class SparkCluster:
    """Where it is, and where each worker keeps the logs of its executors."""

    url: str
    folder: Path
    workers: frozenset[str]

    @property
    def environment(self) -> dict[str, str]:
        """What a driver on this machine needs."""
        return environment()

    def tasks(self) -> dict[str, int]:
        """How many tasks each worker has begun."""
        return {name: count_tasks(self.folder / name) for name in self.workers}

    def took_part(self, before: Mapping[str, int]) -> frozenset[str]:
        """The workers that have begun tasks since then."""
        return frozenset(name for name, count in self.tasks().items() if count > before[name])


def count_tasks(work: Path) -> int:
    """How many tasks the executors of one worker have begun."""
    return sum(len(_RUN.findall(log.read_text(errors="replace"))) for log in work.glob("app-*/*/stderr"))


def environment() -> dict[str, str]:
    """Without our package on the path: what nodes run was sent to them, or is installed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DOUBLEDECKER_", "PYTHON"))}
    return {
        **kept,
        "JAVA_HOME": str(java.find_home(os.environ)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(HOME),
    }


@asynccontextmanager
async def a_spark_cluster(folder: Path, *, workers: int = 2) -> AsyncIterator[SparkCluster]:
    """A master and workers of one core each, that have found one another."""
    port, page = free_port(), free_port()
    url, names = f"spark://127.0.0.1:{port}", [f"worker-{n}" for n in range(workers)]
    async with AsyncExitStack() as holdings:
        where = ["--host", "127.0.0.1"]
        ports = ["--port", str(port), "--webui-port", str(page)]
        await _start(holdings, folder, "master", "org.apache.spark.deploy.master.Master", *where, *ports)
        async with asyncio.timeout(START_S_MAX):
            while await _alive(page) is None:
                await asyncio.sleep(0.2)
            for name in names:
                size = ["--cores", "2", "--memory", MEMORY, "--webui-port", "0", "--work-dir", str(folder / name)]
                await _start(holdings, folder, name, "org.apache.spark.deploy.worker.Worker", *where, *size, url)
            while await _alive(page) != workers:
                await asyncio.sleep(0.2)
        yield SparkCluster(url, folder, frozenset(names))


async def _start(holdings: AsyncExitStack, folder: Path, name: str, kind: str, *words: str) -> None:
    # `spark-class` becomes Java, so the launcher ties that to us; executors end when their worker is gone.
    command = die_with_parent.wrapped([str(HOME / "bin" / "spark-class"), kind, *words])
    with (folder / f"{name}.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(*command, env=environment(), stdout=log, stderr=log)
    holdings.push_async_callback(_end, process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(20):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def _alive(page: int) -> int | None:
    """How many workers the master has; None while it does not answer."""
    try:
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{page}/json/") as answer:
            return int((await answer.json(content_type=None))["aliveworkers"])
    except (aiohttp.ClientError, ValueError, KeyError):
        return None
