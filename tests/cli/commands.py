"""Commands as a user runs them: real processes, each with a data folder and a port of its own."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cli import forks
from doubledecker.store import embedded, machine

COMMAND = [sys.executable, "-m", "doubledecker"]


def environment(**changes: str) -> dict[str, str]:
    """Ours, without any setting of a bus."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DOUBLEDECKER_", "ROUTEMASTER_", "BUS_"))}
    return kept | changes


def run(*arguments: str, stdin: str = "", within_s: float = 30.0, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    if not any(name.startswith("PYTHON") for name in changes):
        return forks.run(arguments, environment=environment(**changes), stdin=stdin, within_s=within_s)
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(**changes),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )


# Root may read everything by two capabilities (DAC_OVERRIDE and DAC_READ_SEARCH). What is started without them in its
# bounding set (prctl 24) has the rights of the owner, and no others. Others than root have none of them anyway.
_WITHOUT_RIGHTS = """\
import ctypes, os, sys
if os.getuid() == 0:
    for capability in (1, 2):
        assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0
os.execv(sys.executable, [sys.executable, "-m", "doubledecker", *sys.argv[1:]])
"""


def run_without_rights(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end as one who may not read what its mode forbids, also when we are root."""
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT_RIGHTS, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def run_on_a_terminal(*arguments: str) -> str:
    """What a command shows on a terminal without colours."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        env=environment(COLUMNS="100", TERM="xterm", NO_COLOR="1"),
        stdin=child,
        stdout=child,
        stderr=subprocess.DEVNULL,
    )
    os.close(child)
    shown = b""
    while True:
        try:
            part = os.read(parent, 65_536)
        except OSError:  # how Linux tells that the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(parent)
    assert process.wait(30) == 0
    return shown.decode()


def until(holds: Callable[[], object], *, within_s: float = 15.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    return embedded._is_running(pid)


def children(pid: int) -> dict[int, str]:
    """The command lines of all that a process started, and of what those started."""
    found: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found |= {int(path.name): words, **children(int(path.name))}
        except OSError:
            continue  # it ended while we looked
    return found


class Up:
    """A running `doubledecker up`."""

    def __init__(self, data: Path, port: int, *arguments: str, with_pipeline: bool = False, **changes: str) -> None:
        self.data = data
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._out, self._err = data.parent / f"{data.name}.out", data.parent / f"{data.name}.err"
        # Spark takes a core for many seconds; the test that is about it asks for it.
        pipeline = [] if with_pipeline else ["--no-pipeline"]
        command = [*COMMAND, "up", "--port", str(port), "--data", str(data), *pipeline, *arguments]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(command, env=environment(**changes), stdout=out, stderr=err)

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def root_key(self) -> str:
        return (self.data / "root.key").read_text().strip()

    def until_ready(self) -> None:
        until(lambda: "Ready." in self.out or self.process.poll() is not None, within_s=120)
        assert self.process.poll() is None, self.err

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def child(self, name: str) -> int:
        """The process id of web, worker, demo or valkey-server; 0 while it is not there."""
        mine = children(self.process.pid).items()
        return next((pid for pid, line in mine if f"doubledecker {name} " in line or f"{name} unixsocket" in line), 0)

    def status(self) -> dict:
        answer = run("status", "--json", "--data", str(self.data))
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    def post(self, path: str, secret: str, body: object) -> int:
        return self.send("POST", path, secret, body)

    def send(self, method: str, path: str, secret: str, body: object) -> int:
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    def end(self, number: int = signal.SIGTERM, *, within_s: float = 12.0) -> int:
        """Signal it and wait; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(within_s)


@contextmanager
def an_up(data: Path, *arguments: str, with_pipeline: bool = False, **changes: str) -> Iterator[Up]:
    """A bus that is ready; ended with the block, if the test did not end it."""
    running = Up(data, machine.free_port(), *arguments, with_pipeline=with_pipeline, **changes)
    try:
        running.until_ready()
        yield running
    finally:
        if running.process.poll() is None:
            running.end()
