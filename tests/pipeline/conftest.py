"""Fixtures for Spark: one session for all tests of this process."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from doubledecker.pipeline import connector
from doubledecker.pipeline.session import SessionPlan, open_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two tasks side by side, as on the smallest machine; one that fails is tried again, as on a cluster."""
    session = open_session(SessionPlan(master="local[2,3]", name="tests"))
    connector.register(session)
    yield session
    session.stop()
