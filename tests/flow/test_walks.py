"""The walks of an event in ARCHITECTURE.md lead through files that events really pass."""

import pytest

import walks
from conftest import Topology


@pytest.mark.parametrize("title", ["Publish", "Deliver", "Pull"])
async def test_an_event_passes_the_files_that_its_walk_names(one: Topology, title: str):
    found = await getattr(walks, title.lower())(one)
    passed = {file for walk in found for file in walk.files}

    named = walks.described(title)
    assert len(named) > 4
    assert [name for name in named if name not in passed] == []
