"""Commands of a page, run by a shell as a reader would."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from cli.commands import environment


@contextlib.asynccontextmanager
async def a_shell(commands: str, folder: Path, **changes: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run commands in a session of their own, all of which ends with the block."""
    shell = await asyncio.create_subprocess_exec(
        "bash",
        "-ec",
        commands + "\nwait",
        cwd=folder,
        env=environment(**changes),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield shell
    finally:
        # What it started may be there though it has ended itself.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGTERM)
        await shell.communicate()
