"""Folders that hold what others must not read: everything that passes over the bus is in them."""

import contextlib
import os
import stat
from collections.abc import Collection
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep(folder: Path, *, marks: Collection[str], prepared: Collection[str] = ()) -> bool:
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
