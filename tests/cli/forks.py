"""Commands in processes of their own, forked from one that has imported the command line: a tenth of a start's work.

Each has its own arguments, environment, folder and streams, and ends with its own exit code. What Python itself reads
from the environment at its start has no effect; a command that needs that is started as users start it.
"""

import multiprocessing
import os
import pkgutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from doubledecker import cli

_START = multiprocessing.get_context("forkserver")
# The server passes over a module that it cannot find, so they are found rather than named.
_IMPORTED = [module.name for module in pkgutil.walk_packages(cli.__path__, f"{cli.__name__}.")]
_START.set_forkserver_preload(["__main__", *_IMPORTED])


def run(
    arguments: Sequence[str], *, environment: Mapping[str, str], stdin: str, within_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("stdin", "stdout", "stderr")]
        streams[0].write_text(stdin)
        process = _START.Process(target=_command, args=(arguments, environment, os.getcwd(), streams))  # noqa: PTH109
        process.start()
        process.join(within_s)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(arguments, within_s, streams[1].read_bytes(), streams[2].read_bytes())
        return subprocess.CompletedProcess(
            arguments, process.exitcode or 0, streams[1].read_text(), streams[2].read_text()
        )


def _command(arguments: Sequence[str], environment: Mapping[str, str], folder: str, streams: Sequence[Path]) -> None:
    for number, (path, mode) in enumerate(zip(streams, (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT] * 2), strict=True)):
        opened = os.open(path, mode)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False, errors="backslashreplace")
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    sys.argv = ["doubledecker", *arguments]

    from doubledecker.cli import main

    main()
