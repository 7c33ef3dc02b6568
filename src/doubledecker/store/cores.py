"""How many processor cores this process may use."""

import contextlib
import math
import os
from pathlib import Path

from doubledecker.store import cgroup

# Version 2 alone: version 1 spreads quota and period over two files, and has gone from current systems.
_QUOTA = {"": ("sys/fs/cgroup", "cpu.max")}


def count(root: Path = cgroup.ROOT) -> int:
    """The cores that the scheduler lets us use, or fewer if a control group, such as a container's, allows less."""
    schedulable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([schedulable, *_quotas(root)]))


def _quotas(root: Path) -> list[int]:
    """What each group allows, in whole cores: a quota of one and a half keeps two processes busy."""
    found = []
    for file in cgroup.files(_QUOTA, root):
        with contextlib.suppress(OSError, ValueError):  # none here, or `max`
            quota, period = map(int, file.read_text().split())
            found.append(math.ceil(quota / period))
    return found
