"""What this process may use of its machine: memory, processor cores, free ports, and folders for its own user alone."""

import contextlib
import math
import os
import secrets
import socket
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from doubledecker.errors import ServerUnfit

# Folders that hold what others must not read: everything that passes over the bus is in them.

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_private(folder: Path, *, marks: Collection[str], prepared: Collection[str] = ()) -> bool:
    """Make a folder for our user alone, or close one that was there to others; returns whether it is closed.

    A folder that holds other things than ours is left as it is: somebody may have passed `/tmp`, or a home. It is ours
    when it holds one of the `marks`, or nothing but what a user may have `prepared` there for us. A sticky one is
    shared on purpose.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    seen = folder.stat()
    if not seen.st_mode & _OTHERS:
        return True
    if seen.st_mode & stat.S_ISVTX or seen.st_uid != os.geteuid():
        return False
    names = {path.name for path in folder.iterdir()}
    if names.isdisjoint(marks) and not names <= set(prepared):
        return False
    # Some file systems have no permissions to change.
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
    return not folder.stat().st_mode & _OTHERS


# Ports of the loopback address for servers of our own.

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


# What this process may use of its machine: memory and processor cores, or less if a control group of Linux says so.

ROOT = Path("/")
# By the name of the controller, which is empty in version 2: the folder of its hierarchy, and the file of the limit.
_MEMORY = {"": ("sys/fs/cgroup", "memory.max"), "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes")}
# Version 2 alone: version 1 spreads quota and period over two files, and has gone from current systems.
_QUOTA = {"": ("sys/fs/cgroup", "cpu.max")}


def memory_bytes(root: Path = ROOT) -> int:
    """The machine's memory, or less if a control group that we are in, such as a container's, allows less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(int(text) for text in _limits(_MEMORY, root))])


def cores(root: Path = ROOT) -> int:
    """The cores that the scheduler lets us use, or fewer if a control group allows less.

    A quota counts in whole cores: one and a half keep two processes busy.
    """
    schedulable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pairs = (map(int, text.split()) for text in _limits(_QUOTA, root))
    return max(1, min([schedulable, *(math.ceil(quota / period) for quota, period in pairs)]))


def _limits(hierarchies: Mapping[str, tuple[str, str]], root: Path) -> Iterator[str]:
    """What our group, and all that it is in, say of a limit, where they have one."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # not a Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for name in set(controllers.split(",")) & hierarchies.keys():
            folder, file = hierarchies[name]
            for place in _upwards(root / folder, path):
                with contextlib.suppress(OSError):
                    text = (place / file).read_text()
                    if not text.startswith("max"):
                        yield text


def _upwards(top: Path, path: str) -> list[Path]:
    """The group and all that it is in. In a container the path may be that of the host; then only the top is there."""
    group = top / path.lstrip("/")
    return [place for place in (group, *group.parents) if place.is_relative_to(top)]
