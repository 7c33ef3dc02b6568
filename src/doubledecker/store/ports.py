"""Ports of the loopback address for servers of our own."""

import contextlib
import secrets
import socket

from doubledecker.errors import ServerUnfit

LOOPBACK = "127.0.0.1"
# Below the ports of outgoing connections: in there, a client that dials a dead server can meet itself, and stay.
PORTS = range(20_000, 32_000)
PORT_TRIES = 100  # even with half of them taken, a hundred misses do not happen


def free_port() -> int:
    """A loopback port that nobody listens on now; chosen by chance, so that two who ask do not meet."""
    for port in secrets.SystemRandom().sample(PORTS, PORT_TRIES):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port
    raise ServerUnfit(f"{PORT_TRIES} ports of {LOOPBACK}, taken by chance from {PORTS}, are all in use")
