"""A Redis Cluster of three real nodes on loopback, joined without any command-line tool."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from redis.asyncio import Redis

from doubledecker.errors import ServerUnfit
from doubledecker.store import machine
from doubledecker.store.embedded import EmbeddedServer

NODES = 3
SLOTS = 16_384
JOIN_WAIT_S = 20.0
JOIN_GLANCE_S = 0.02
PORT_TRIES_MAX = 5


class ClusterOfThree:
    """Three nodes, each with a third of the slots and no replica; any of them can be killed and restarted."""

    def __init__(self, nodes: Sequence[EmbeddedServer], holdings: AsyncExitStack) -> None:
        self.nodes = tuple(nodes)
        self.url = nodes[0].url
        self._holdings = holdings

    @classmethod
    async def start(cls, directory: Path) -> Self:
        """Start the nodes, each on its own folder, and return when all three say that the cluster is ok."""
        async with AsyncExitStack() as holdings:
            started = [await _node(directory / f"node-{i}", holdings) for i in range(NODES)]
            nodes, bus_ports = [node for node, _ in started], [bus_port for _, bus_port in started]
            clients = [await holdings.enter_async_context(Redis.from_url(node.url)) for node in nodes]
            await _share_slots(clients)
            await _introduce(clients, nodes, bus_ports)
            async with asyncio.timeout(JOIN_WAIT_S):
                await _until_joined(clients)
            return cls(nodes, holdings.pop_all())

    async def stop(self) -> None:
        await self._holdings.aclose()


async def _node(directory: Path, holdings: AsyncExitStack) -> tuple[EmbeddedServer, int]:
    """A node, and the port of its bus; a port that was free may be taken a moment later, so others are tried."""
    for tries_left in reversed(range(PORT_TRIES_MAX)):
        bus_port = machine.free_port()
        try:
            node = await EmbeddedServer.start(directory, port=0, extra=_clustered(bus_port))
        except ServerUnfit as error:
            if tries_left == 0 or "Address already in use" not in str(error):
                raise
        else:
            holdings.push_async_callback(node.stop)
            return node, bus_port
    raise AssertionError("the last try returns or raises")


def _clustered(bus_port: int) -> list[str]:
    settings = {
        "cluster-enabled": "yes",
        "cluster-port": str(bus_port),
        "cluster-node-timeout": "2000",
        "cluster-require-full-coverage": "no",
    }
    return [part for name, value in settings.items() for part in (f"--{name}", value)]


async def _share_slots(clients: Sequence[Redis]) -> None:
    bounds = [SLOTS * i // NODES for i in range(NODES + 1)]
    for i, client in enumerate(clients):
        await client.execute_command("CLUSTER ADDSLOTSRANGE", bounds[i], bounds[i + 1] - 1)
        # Nodes of the same epoch would argue about it first, a second or two.
        await client.execute_command("CLUSTER SET-CONFIG-EPOCH", i + 1)


async def _introduce(clients: Sequence[Redis], nodes: Sequence[EmbeddedServer], bus_ports: Sequence[int]) -> None:
    # Each to the next: the ring is closed, and gossip does the rest.
    for i, client in enumerate(clients):
        neighbour = (i + 1) % NODES
        port = nodes[neighbour].url.rpartition(":")[2].removesuffix("/0")
        await client.execute_command("CLUSTER MEET", machine.LOOPBACK, port, bus_ports[neighbour])


async def _until_joined(clients: Sequence[Redis]) -> None:
    while not all([await _is_joined(client) for client in clients]):
        await asyncio.sleep(JOIN_GLANCE_S)


async def _is_joined(client: Redis) -> bool:
    found = await client.execute_command("CLUSTER INFO")
    expected = {"cluster_state": "ok", "cluster_known_nodes": str(NODES), "cluster_slots_ok": str(SLOTS)}
    return all(found[name] == value for name, value in expected.items())
