"""Fixtures: a real server, in three shapes, emptied before each test."""

import os
import re
import signal
import sys
import threading
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import redis.asyncio as redis
from hypothesis import settings

from cluster import ClusterOfThree
from doubledecker.store import nodes
from doubledecker.store.embedded import EmbeddedServer
from doubledecker.store.partitions import Partitions

# A shell that starts tests in the background has them ignore interrupts, and so would all that they start.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Where no bytecode is written, each of the thousand processes that the tests start compiles all that it imports.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(
        Path(__file__).parents[1] / ".pytest_cache" / "bytecode"
    )
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A JVM of a test lives for too short a time to earn back what optimising its code costs: half of its time.
_CHEAP_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# What `spark_classes.py` makes, or empty; a JVM that it does not fit goes without, and need not say so.
_CLASSES = Path(sys.prefix) / "spark-classes.jsa"
_SHARED = f" -XX:SharedArchiveFile={_CLASSES} -Xlog:disable" if _CLASSES.exists() and _CLASSES.stat().st_size else ""
os.environ.setdefault("SPARK_SUBMIT_OPTS", _CHEAP_JVM + _SHARED)
for _program in ("SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(_program, _CHEAP_JVM)


# How long an example takes is the machine's business.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """Laws are tried with a fifth of their examples among the fast tests; `make test` tries all."""
    if config.option.markexpr == "not slow":
        os.environ.setdefault("LAW_SCALE", "0.2")


_SLOW_FILE = re.compile(r"^pytestmark = .*\bpytest\.mark\.slow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import a file for the fast tests when all of it is slow: Spark and the lake's readers stay out."""
    is_slow_file = config.option.markexpr == "not slow" and collection_path.suffix == ".py"
    return True if is_slow_file and _SLOW_FILE.search(collection_path.read_text()) else None


# On a busy machine a Redis may get no processor for seconds; what is tested is seldom that it is silent.
_ANSWER_S_MAX = 10.0


@pytest.fixture(autouse=True)
def _patience_with_redis(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for answers of Redis than the product does, but in tests about one that is silent."""
    if request.node.get_closest_marker("silent_redis") is None:
        monkeypatch.setattr(nodes, "ANSWER_S_MAX", _ANSWER_S_MAX)


@dataclass(frozen=True)
class Topology:
    """Where a bus lives: a server or a cluster, and how many partitions it has."""

    name: str
    url: str
    partitions: int
    node_urls: tuple[str, ...]

    async def clear(self) -> None:
        for url in self.node_urls:
            client = redis.from_url(url)
            await client.flushall()
            await client.aclose()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedServer]:
    """One Valkey for all tests of this process."""
    embedded = await EmbeddedServer.start(tmp_path_factory.mktemp("valkey"))
    yield embedded
    await embedded.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClusterOfThree]:
    """One Redis Cluster of three nodes for all tests of this process."""
    started = await ClusterOfThree.start(tmp_path_factory.mktemp("cluster"))
    yield started
    await started.stop()


@pytest.fixture
def one(server: EmbeddedServer) -> Topology:
    return Topology("one", server.url, 1, (server.url,))


# Several partitions take the time of several tests: they are left to `make test`.
_SHAPES = ["one", *(pytest.param(shape, marks=pytest.mark.slow) for shape in ("three", "cluster"))]


@pytest.fixture(params=_SHAPES)
def topology(request: pytest.FixtureRequest) -> Topology:
    """One partition, three on one server, three on the nodes of a cluster."""
    if request.param == "cluster":
        started: ClusterOfThree = request.getfixturevalue("cluster")
        return Topology("cluster", started.url, 3, tuple(node.url for node in started.nodes))
    url = request.getfixturevalue("server").url
    return Topology(request.param, url, 1 if request.param == "one" else 3, (url,))


@pytest.fixture
async def partitions(topology: Topology) -> AsyncIterator[Partitions]:
    """Empty partitions, in each shape."""
    await topology.clear()
    connected = await Partitions.connect(topology.url, namespace="rm:", count=topology.partitions)
    yield connected
    await connected.close()


@pytest.fixture
async def plain(one: Topology) -> AsyncIterator[Partitions]:
    """One empty partition, for what does not depend on the shape."""
    await one.clear()
    connected = await Partitions.connect(one.url, namespace="rm:", count=1)
    yield connected
    await connected.close()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / uuid.uuid4().hex[:8]
