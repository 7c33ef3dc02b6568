"""`doubledecker top`: the same view of any bus, live on a terminal and once elsewhere."""

import fcntl
import json
import os
import pty
import secrets
import signal
import struct
import subprocess
import termios

import pytest

from cli.commands import COMMAND, Up, environment, run
from cli.up.test_live import shown_until


@pytest.fixture
def queue(bus: Up) -> str:
    """A queue in which two tenants wait, with more than any other on the bus."""
    name, where = f"top-{secrets.token_hex(4)}", ["--data", str(bus.data)]
    secret = run("token", "create", "shop", *where).stdout.strip()
    assert run("queue", "register", name, f".*:{name}:.*", "--token", secret, *where).returncode == 0
    events = [{"topic": name, "type": "run", "tenant": tenant} for tenant in ["acme"] * 998 + ["zoo"]]
    assert bus.post("/events", secret, events) == 202
    return name


def test_a_snapshot_has_rates_receivers_queues_with_tenants_and_processes(bus: Up, queue: str):
    seen = json.loads(run("top", "--json", "--data", str(bus.data)).stdout)
    table = run("top", "--data", str(bus.data)).stdout

    [shown] = [each for each in seen["queues"] if each["queue"] == queue]
    assert (shown["waiting"], {each["tenant"]: each["waiting"] for each in shown["tenants"]}) == (
        999,
        {"acme": 998, "zoo": 1},
    )
    assert {"published_per_s", "delivered_per_s", "latency_ms", "subscribers", "memory"} <= seen.keys()
    assert seen["processes"].keys() >= {"web", "worker"}
    assert f"\n{queue}\t999\t0\t0\t0\tacme 998, zoo 1\n" in table
    assert "\nprocess\trunning\n" in table


@pytest.mark.parametrize("ended_by", ["q", "Ctrl-C"])
def test_a_terminal_shows_it_until_it_is_ended(bus: Up, queue: str, ended_by: str):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, "top", "--data", str(bus.data)],
        env=environment(TERM="xterm"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    try:
        shown_until(ours, b"published", queue.encode(), b"acme 998, zoo 1", b"worker", b"q or Ctrl-C ends")
        if ended_by == "q":
            os.write(ours, b"q")
        else:
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        os.close(theirs)
        os.close(ours)
