"""Keeping processes running: each is started again when it dies, at first at once, then with longer and longer pauses.

A `Life` is how to start, await and end one process; a `Kept` is the rule that keeps it alive. There are two lives: a
child command of ours, and the embedded Valkey.
"""

import asyncio
import contextlib
import enum
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from doubledecker.errors import ServerUnfit
from doubledecker.store import die_with_parent
from doubledecker.store.embedded import EmbeddedServer

PAUSE_S_MIN = 0.2
PAUSE_S_MAX = 10.0
# A process that ran this long was well; its death is news, not the next of a series.
WELL_S = 30.0
# So many deaths in a row, none after a good run, are called a crash loop.
CRASH_LOOP_DEATHS = 5
# A log that a start finds larger than this is put aside, and the one put aside before is removed.
LOG_BYTES_MAX = 16_777_216
_STDERR = 2
_GLANCE_S = 0.1


@dataclass(frozen=True)
class Ended:
    """The end of a kept process: how it ended, how often in a row it did soon after its start, when it starts again."""

    name: str
    how: str
    exit_code: int | None
    deaths: int
    again_s: float

    @property
    def is_crash_loop(self) -> bool:
        return self.deaths >= CRASH_LOOP_DEATHS

    def __str__(self) -> str:
        loop = f", {self.deaths} times in a row soon after its start (a crash loop)" if self.is_crash_loop else ""
        return f"{self.name} {self.how}{loop}; it is started again in {self.again_s:.1f} s"


OnEnd = Callable[[Ended], None]


class KeptState(enum.Enum):
    """How a kept process stands."""

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"


class ProcessKind(Protocol):
    """One process: how to start it, to learn that it is ready and that it has ended, and to end it."""

    async def start(self) -> None: ...

    async def until_ready(self) -> bool: ...

    async def wait(self) -> int: ...

    def kill(self) -> None: ...

    async def stop(self, *, grace_s: float) -> None: ...


class Kept:
    """A process that is started again whenever it dies, until it is stopped."""

    def __init__(self, name: str, life: ProcessKind, *, on_end: OnEnd, grace_s: float, kind: str = "") -> None:
        self.name = name
        self.kind = kind or name
        self.state = KeptState.STARTING
        self.restarts = 0
        self.was_ready = asyncio.Event()
        self._life = life
        self._on_end = on_end
        self._grace_s = grace_s
        self._task: asyncio.Task[None] | None = None

    def keep(self) -> None:
        """Start it, and keep it running in the background; one that already runs is taken over."""
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """End it in good order, by force after its grace."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.state = KeptState.STOPPING
        await self._life.stop(grace_s=self._grace_s)
        self.state = KeptState.STOPPED

    def kill(self) -> None:
        """End it at once, for good; `stop` still has to be called."""
        self.state = KeptState.STOPPING
        self._life.kill()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s, deaths = 0.0, 0
        while not self._is_stopping():
            began_s = loop.time()
            exit_code, how = await self._live_once()
            if self._is_stopping():
                return
            ran_s = loop.time() - began_s
            pause_s = next_pause_s(pause_s, ran_s=ran_s)
            deaths = 1 if ran_s >= WELL_S else deaths + 1
            self.state = KeptState.RESTARTING
            self._on_end(Ended(self.name, how, exit_code, deaths, pause_s))
            await asyncio.sleep(pause_s)
            self.restarts += 1

    def _is_stopping(self) -> bool:
        return self.state is KeptState.STOPPING

    async def _live_once(self) -> tuple[int | None, str]:
        """Start it and wait for its end; the exit code, and how it ended."""
        self.state = KeptState.STARTING
        try:
            await self._life.start()
        except (OSError, ServerUnfit) as error:
            return None, f"did not start ({error})"
        noting = asyncio.create_task(self._note_readiness())
        try:
            exit_code = await self._life.wait()
        finally:
            noting.cancel()
            await asyncio.gather(noting, return_exceptions=True)
        return exit_code, how_it_ended(exit_code)

    async def _note_readiness(self) -> None:
        if await self._life.until_ready() and self.state is KeptState.STARTING:
            self.state = KeptState.RUNNING
            self.was_ready.set()


def next_pause_s(last_s: float, *, ran_s: float) -> float:
    """How long to wait before a process that ran this long is started again."""
    if last_s == 0 or ran_s >= WELL_S:
        return PAUSE_S_MIN
    return min(PAUSE_S_MAX, last_s * 2)


def how_it_ended(exit_code: int) -> str:
    """An exit code in words."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-exit_code).name}"
    return f"was ended by signal {-exit_code}"


@dataclass(frozen=True)
class Command:
    """A command of ours to run as a child; its words go to `log`, or to our stderr.

    One that reports when it is ready takes `--ready-fd`, the end of a pipe to write to; others are ready once they run.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path | None = None
    reports_readiness: bool = False


class ChildLife:
    """A child in a session of its own, so that a Ctrl-C in the terminal reaches us alone, and we stop it in order."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._ready: BinaryIO | None = None

    async def start(self) -> None:
        """Start it from this thread, which must be the main one (see `die_with_parent`)."""
        with _opened(self._command.log) as output, self._readiness() as pipe:
            words = [*self._command.arguments, *(["--ready-fd", str(pipe)] if pipe is not None else [])]
            self._process = await asyncio.create_subprocess_exec(
                # -P: what lies in the current folder must not be taken for a module of ours.
                *die_with_parent.wrapped([sys.executable, "-P", "-m", "doubledecker", *words]),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(self._command.environment),
                start_new_session=True,
                pass_fds=() if pipe is None else (pipe,),
            )

    @contextlib.contextmanager
    def _readiness(self) -> Iterator[int | None]:
        """The end of a pipe that a child writes to when it is ready; ours alone is kept open."""
        if not self._command.reports_readiness:
            yield None
            return
        reading, writing = os.pipe()
        self._ready = os.fdopen(reading, "rb", buffering=0)
        try:
            yield writing
        finally:
            os.close(writing)

    async def until_ready(self) -> bool:
        """Whether it came to be ready; False when it ended before."""
        if self._ready is None:
            return True
        heard = asyncio.StreamReader()
        pipe, self._ready = self._ready, None
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(heard), pipe
        )
        try:
            return bool(await heard.read(1))
        finally:
            transport.close()

    async def wait(self) -> int:
        """Wait for its end; what it had started and left behind, such as Spark's JVM, is then ended too."""
        exit_code = await self._started().wait()
        self._signal_group(signal.SIGTERM)
        return exit_code

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    async def stop(self, *, grace_s: float) -> None:
        """SIGTERM, to it and then to what it left behind, and SIGKILL after the grace."""
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._process.wait()
                while self._signal_group(signal.SIGTERM):  # noqa: ASYNC110 - others' processes set no Event
                    await asyncio.sleep(_GLANCE_S)
        self._signal_group(signal.SIGKILL)
        await self._process.wait()

    def _signal(self, number: int) -> None:
        # Not `send_signal`: it may reap a child that just died, and asyncio then never learns the exit code.
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                # It leads the group of its session; with SIGKILL nobody in there is spared.
                (os.killpg if number == signal.SIGKILL else os.kill)(self._process.pid, number)

    def _signal_group(self, number: int) -> bool:
        """Signal all that is left of its group; returns whether there was any. No other gets its id before that."""
        try:
            os.killpg(self._started().pid, number)
        except (ProcessLookupError, PermissionError):
            return False  # macOS answers the second when none of the group lives
        return True

    def _started(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "asked after its start"
        return self._process


class ValkeyLife:
    """The embedded server, which runs already when this takes it over."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._is_running = True

    async def start(self) -> None:
        if not self._is_running:
            await self._server.restart()
        self._is_running = True

    async def until_ready(self) -> bool:
        return True  # its start ends when it answers

    async def wait(self) -> int:
        exit_code = await self._server.wait()
        self._is_running = False
        return exit_code

    def kill(self) -> None:
        self._server.kill()

    async def stop(self, *, grace_s: float) -> None:
        """End the server and give up its data."""
        timer = asyncio.get_running_loop().call_later(grace_s, self._server.kill)
        try:
            await self._server.stop()
        finally:
            timer.cancel()


@contextlib.contextmanager
def _opened(log: Path | None) -> Iterator[int]:
    """The file descriptor that a child writes to."""
    if log is None:
        yield _STDERR
        return
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_suffix(".old.log"))
    with log.open("ab") as file:
        yield file.fileno()
