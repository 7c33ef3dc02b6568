"""Fixtures of the client's tests."""

import pytest


@pytest.fixture(params=["http", "redis"])
def source(request: pytest.FixtureRequest) -> str:
    """Where a consumer takes its messages from; what holds for one holds for the other."""
    return str(request.param)
