"""The servers of a cluster: what a caller hears when a slot moves."""

import pytest

from cluster import ClusterOfThree
from doubledecker.errors import BusAway
from doubledecker.store.nodes import Nodes

pytestmark = pytest.mark.slow


async def test_to_a_caller_a_slot_that_moves_again_and_again_is_a_bus_that_is_away(cluster: ClusterOfThree):
    """The error was one of redis-py's, which nobody catches: it ended the worker."""
    nodes = Nodes(cluster.url)
    await nodes.discover()

    with pytest.raises(BusAway):
        await nodes.call(0, [["GET", "foo"]])  # its slot, 12182, is with another node, wherever slot 0 goes

    await nodes.close()
