"""Fixtures of the command line's tests."""

from collections.abc import Iterator

import pytest

from cli.commands import Up, an_up


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One bus without demo for all tests of a file."""
    with an_up(tmp_path_factory.mktemp("bus") / "data", "--no-demo") as running:
        yield running
