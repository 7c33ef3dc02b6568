"""Fixtures of the command line's tests."""

from collections.abc import Iterator

import pytest

from cli.commands import Up, an_up


@pytest.fixture(scope="session")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One bus without demo for all tests of this process: each with clients, topics and queues of its own."""
    with an_up(tmp_path_factory.mktemp("bus") / "data", "--no-demo") as running:
        yield running
