"""How the embedded server gets its memory: with jemalloc, as Valkey's own builds do, or the next best that is there.

The server of the wheel is built on the C library's allocator. A script makes and frees thousands of small pieces in one
call, and in a heap full of messages glibc takes a while to find room for each: measured, a pull and its ack take a
tenth longer than with jemalloc when a queue has ten tenants, and a third longer when it has a thousand. Besides, it
leaves more holes: the same messages take half as much memory again. The one of oneTBB, a wheel of the extra
`allocator`, is near jemalloc in both.
"""

import os
import sys
from pathlib import Path

# Where distributions put shared libraries: Debian and its kin, Fedora and its kin, Arch.
FOLDERS = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib")
# Where pip puts those of a wheel.
ENVIRONMENT = Path(sys.prefix, "lib")
_JEMALLOC = "libjemalloc.so.2"
# The second takes the place of malloc, and needs the first.
_TBB = ("libtbbmalloc.so.2", "libtbbmalloc_proxy.so.2")
# The last resort: glibc keeps only seven freed pieces of a size at hand unless it is told to keep more.
_GLIBC = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=2000"}


def environment() -> dict[str, str]:
    """What the server is started with: our own environment, and its allocator unless that one names another."""
    found = jemalloc() or tbb()
    return {**_GLIBC, **({"LD_PRELOAD": ":".join(map(str, found))} if found else {}), **os.environ}


def jemalloc() -> list[Path]:
    if sys.platform != "linux":
        return []
    return [place for folder in FOLDERS for place in sorted(Path("/").glob(f"{folder[1:]}/{_JEMALLOC}"))][:1]


def tbb() -> list[Path]:
    """The libraries of the extra `allocator`, if this Python has it, and the loader can be told where."""
    places = [ENVIRONMENT / name for name in _TBB]
    is_told_apart = not any(sign in str(ENVIRONMENT) for sign in ": ")
    return places if sys.platform == "linux" and is_told_apart and all(place.exists() for place in places) else []
