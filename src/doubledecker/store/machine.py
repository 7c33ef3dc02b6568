"""What this process may use of its machine: memory and processor cores, or less if a control group of Linux says so."""

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

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
