"""Fixtures for Spark: one session for all tests of this process."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever starts Spark takes its seconds."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def _session() -> "Iterator[SparkSession]":
    """Two tasks side by side, as on the smallest machine; one that fails is tried again, as on a cluster."""
    from doubledecker.pipeline.session import SessionPlan, open_session
    from doubledecker.pipeline.spark_format import connector

    session = open_session(SessionPlan(master="local[2,3]", name="tests"))
    connector.register(session)
    yield session
    session.stop()


@pytest.fixture
def spark(_session: "SparkSession") -> "Iterator[SparkSession]":
    """The session, left as it was found: of a job that failed, other tasks may still run, and would publish on."""
    yield _session
    deadline_s = time.monotonic() + 30
    tracker = _session.sparkContext._jsc.sc().statusTracker()
    while sum(executor.numRunningTasks() for executor in tracker.getExecutorInfos()) > 0:
        assert time.monotonic() < deadline_s, "tasks of the test still run"
        time.sleep(0.05)
