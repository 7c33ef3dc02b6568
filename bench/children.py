"""The processes that a measurement starts: each dies with the bench, and its processor time can be read."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp

from bench.load import Load, Spec
from doubledecker.store import die_with_parent

_START_S_MAX = 30.0
_STOP_S_MAX = 20.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Child:
    """One process, what it prints, and what it costs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def line(self, *, within_s: float = _START_S_MAX) -> str:
        """The next line that it prints; raises when it ends instead."""
        assert self._process.stdout is not None
        async with asyncio.timeout(within_s):
            line = await self._process.stdout.readline()
        if not line:
            raise ChildEnded(f"a process of the bench ended with {await self._process.wait()}; its words are above")
        return line.decode().strip()

    async def stop(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_S_MAX):
                await self._process.wait()
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
            await self._process.wait()


class ChildEnded(Exception):
    """A process of the bench ended before it had said what was asked."""


@contextlib.asynccontextmanager
async def started(
    *words: str, environment: Mapping[str, str] | None = None, program: Sequence[str] = (sys.executable, "-m")
) -> AsyncIterator[Child]:
    """A running `python -m <words>`, or of another program; its stderr is shown only when the block fails."""
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *die_with_parent.wrapped([*program, *words]),
            env={**_inherited(), **(environment or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
        child = Child(process)
        try:
            yield child
        except Exception:
            errors.seek(0)
            sys.stderr.write(errors.read()[-4000:].decode(errors="replace"))
            raise
        finally:
            await child.stop()


def _inherited() -> dict[str, str]:
    """Our own environment without settings of the bus: the bench measures the defaults."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("DOUBLEDECKER_", "ROUTEMASTER_"))}


def cpu_s(pid: int) -> float:
    """Processor time that a process and its ended children have used, user and system.

    Its own is read from its clock, in nanoseconds. /proc counts in ticks of 10 ms, in which a worker delivers thousands
    of events; only there is that of its children.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(_clock_of(pid)) + sum(map(int, fields[13:15])) / _TICKS_PER_S


def _clock_of(pid: int) -> int:
    """The processor time clock of a process and all its threads, as clock_getcpuclockid(3) makes it on Linux."""
    return ~pid << 3 | 2


@dataclass(frozen=True)
class Loaded:
    """A load, and the processor time that the watched processes used in its measured part."""

    load: Load
    cpu_s: dict[str, float]


async def loaded(spec: Spec, watched: Mapping[str, int]) -> Loaded:
    """Run the load generator; every request must be answered with a 2xx."""
    async with started("bench.load", json.dumps(asdict(spec))) as generator:
        await generator.line()
        before = {name: cpu_s(pid) for name, pid in watched.items()}
        answer = await generator.line(within_s=spec.measure_s + _START_S_MAX)
        used = {name: cpu_s(pid) - before[name] for name, pid in watched.items()}
    load = Load(**json.loads(answer))
    if load.failed:
        raise ChildEnded(f"{load.failed} of {load.requests} requests were refused")
    return Loaded(load, used)


class Receiver:
    """The receiver process, from outside."""

    def __init__(self, child: Child, port: int, http: aiohttp.ClientSession) -> None:
        self.pid = child.pid
        self.url = f"http://127.0.0.1:{port}"
        self._http = http

    async def open(self) -> None:
        async with self._http.post(f"{self.url}/open") as answer:
            answer.raise_for_status()

    async def tally(self) -> dict[str, object]:
        async with self._http.get(f"{self.url}/tally") as answer:
            return json.loads(await answer.read())

    async def until(self, field: str, count: int, *, within_s: float, every_s: float = 0.05) -> dict[str, object]:
        """What it has when a field has reached the count, or when the time is over."""
        end_s = asyncio.get_running_loop().time() + within_s
        while True:
            tally = await self.tally()
            if tally[field] >= count or asyncio.get_running_loop().time() > end_s:
                return tally
            await asyncio.sleep(every_s)


@contextlib.asynccontextmanager
async def a_receiver(*, is_open: bool = True) -> AsyncIterator[Receiver]:
    """A running receiver; a shut one holds its answers until `open`."""
    async with started("bench.receiver") as child, aiohttp.ClientSession() as http:
        receiver = Receiver(child, int(await child.line()), http)
        if is_open:
            await receiver.open()
        yield receiver
