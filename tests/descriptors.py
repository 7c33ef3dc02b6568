"""A process that has no file descriptors left, for a while."""

import contextlib
import os
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Until the block ends this process opens nothing; what is open stays."""
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The lowest that is free is the next to be given.
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
