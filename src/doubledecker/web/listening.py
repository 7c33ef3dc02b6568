"""The address that web listens on: by one process alone, or by several that share it.

Several listen with SO_REUSEPORT: Linux spreads new connections over them, and when one dies the others get what comes.
The option also lets a second bus of the same user listen there unnoticed. So the supervisor reserves the address first:
it checks that nobody listens, and holds a socket that takes no connections and that only sockets with SO_REUSEPORT can
bind beside.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from doubledecker.errors import SettingInvalid

BACKLOG = 2048


@contextmanager
def on(host: str, port: int, *, by: Callable[[str, int], socket.socket], remedy: str = "") -> Iterator[socket.socket]:
    """What one of the functions below makes, closed with the block; raises SettingInvalid when the address is taken."""
    try:
        made = by(host, port)
    except OSError as error:
        raise SettingInvalid(f"cannot listen on {host}:{port}: {error.strerror}{remedy}") from error
    with made:
        yield made


def bind(host: str, port: int) -> socket.socket:
    """A listening socket of one process alone; raises OSError when the address is taken."""
    return _listening(_socket(host), host, port)


def share(host: str, port: int) -> socket.socket:
    """A listening socket beside those of others that share the address."""
    listener = _socket(host)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return _listening(listener, host, port)


def reserve(host: str, port: int) -> socket.socket:
    """A socket that keeps an address for those that share it, until it is closed; raises OSError when it is taken."""
    bind(host, port).close()
    held = _socket(host)
    try:
        held.bind((host, port))
        # Changed after it is bound: now the kernel lets nobody bind beside it but those who share.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError:
        held.close()
        raise
    return held


def _listening(listener: socket.socket, host: str, port: int) -> socket.socket:
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _socket(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off; else each body waits 40 ms for the head's ACK.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # What lingers of a former run is no hindrance.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made
