"""How a process was launched: its name, and how it reports that it is ready."""

import contextlib
import os
import resource
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

# More processes of one command than this would be a typo.
PROCESSES_MAX = 256
# Enough that two processes of a bus do not have the same name.
_CHANCE_BYTES = 3
# Enough for all connections of a process; the usual limit of 1024 is reached by a few clients.
_DESCRIPTORS = 65_536


@dataclass(frozen=True)
class Member:
    """One of the processes that a command runs: the first of two is 1/2."""

    number: int = 1
    count: int = 1

    def name(self, kind: str) -> str:
        """What it is called among the processes of its command: `web`, or `web-1` when there are several."""
        return kind if self.count == 1 else f"{kind}-{self.number}"

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True)
class Launch:
    """What a process of the bus is called in metrics and logs, and what it calls once it is ready to work."""

    kind: str
    process: str
    ready: Callable[[], None]


def launch(kind: str, member: Member | None = None, *, ready_fd: int | None = None) -> Launch:
    """A launch with a name that no other process has; a supervisor waits for a byte at the file descriptor."""
    _raise_descriptors()
    name = (member or Member()).name(kind)
    ready = _nobody_waits if ready_fd is None else partial(_report, ready_fd)
    return Launch(kind, f"{name}:{secrets.token_hex(_CHANCE_BYTES)}", ready)


def _raise_descriptors() -> None:
    """Take as many file descriptors as this process may have, within reason: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # then it stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _nobody_waits() -> None:
    pass


def _report(ready_fd: int) -> None:
    os.write(ready_fd, b"\n")
    os.close(ready_fd)
