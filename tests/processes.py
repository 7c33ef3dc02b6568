"""Real processes of the bus for tests that kill them: each can be killed and started again on its own."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Self

from conftest import Topology
from doubledecker.store import die_with_parent
from doubledecker.store.machine import free_port
from harness import ROOT_KEY


class Process:
    """One `doubledecker` command, with its log in a file."""

    def __init__(self, name: str, *words: str, environment: dict[str, str], logs: Path) -> None:
        self.name = name
        self._words = words
        self._environment = environment
        self._log = logs / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = die_with_parent.wrapped([sys.executable, "-m", "doubledecker", *self._words])
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, env=self._environment, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """End it in good order; returns the exit code."""
        return await self._end(signal.SIGTERM)

    async def wait(self, *, within_s: float) -> int:
        """Until it ends by itself; returns the exit code."""
        assert self._process is not None
        async with asyncio.timeout(within_s):
            return await self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def _end(self, number: int) -> int:
        if self._process is None:
            return 0
        if self._process.returncode is None:
            os.kill(self._process.pid, number)
        async with asyncio.timeout(20):
            return await self._process.wait()

    @property
    def log(self) -> str:
        return self._log.read_text()


class Fleet:
    """A web process, workers and watches on one store."""

    def __init__(
        self, topology: Topology, logs: Path, *, workers: int = 1, watches: int = 0, **settings: object
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DOUBLEDECKER_")},
            "DOUBLEDECKER_REDIS_URL": topology.url,
            "DOUBLEDECKER_PARTITIONS": str(topology.partitions),
            "DOUBLEDECKER_ROOT_KEY": ROOT_KEY,
            "DOUBLEDECKER_PORT": str(self.port),
            "DOUBLEDECKER_PRIVATE_CALLBACKS": "true",
            **{f"DOUBLEDECKER_{name.upper()}": str(value) for name, value in settings.items()},
        }
        self.web = Process("web", "web", environment=self.environment, logs=logs)
        self.workers = [
            Process(f"worker-{n}", "worker", environment=self.environment, logs=logs) for n in range(workers)
        ]
        self.watches = [Process(f"watch-{n}", "watch", environment=self.environment, logs=logs) for n in range(watches)]

    async def __aenter__(self) -> Self:
        for process in (self.web, *self.workers, *self.watches):
            await process.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in (self.web, *self.workers, *self.watches):
            await process.kill()
