"""Fixtures of the client's tests."""

import pytest


@pytest.fixture(params=["http", pytest.param("redis", marks=pytest.mark.slow)])
def source(request: pytest.FixtureRequest) -> str:
    """Where a consumer takes its messages from; what holds for one holds for the other."""
    return str(request.param)
