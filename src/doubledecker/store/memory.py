"""How the embedded server gets its memory: with jemalloc, as Valkey's own builds do, where the system has it.

The server of the wheel is built on the C library's allocator. A script makes and frees thousands of small pieces in one
call, and in a heap full of messages glibc takes a while to find room for each: measured, a pull and its ack take a
tenth longer than with jemalloc when a queue has ten tenants, and a third longer when it has a thousand.
"""

import os
import sys
from pathlib import Path

# Where distributions put shared libraries: Debian and its kin, Fedora and its kin, Arch.
FOLDERS = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib")
_JEMALLOC = "libjemalloc.so.2"
# The next best: glibc keeps only seven freed pieces of a size at hand unless it is told to keep more.
_GLIBC = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=2000"}


def environment() -> dict[str, str]:
    """What the server is started with: our own environment, and its allocator unless that one names another."""
    found = jemalloc()
    return {**_GLIBC, **({"LD_PRELOAD": str(found)} if found else {}), **os.environ}


def jemalloc() -> Path | None:
    """The system's jemalloc, if it has one."""
    if sys.platform != "linux":
        return None
    places = (place for folder in FOLDERS for place in sorted(Path("/").glob(f"{folder[1:]}/{_JEMALLOC}")))
    return next(places, None)
