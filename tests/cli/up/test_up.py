"""`doubledecker up` with real processes: it comes up, heals, and goes down without leaving anything behind."""

import os
import re
import signal
import socket
import stat
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import redis

from assembly.test_settings import routemaster_env
from cli.commands import Up, an_up, children, is_running, run, until
from conftest import Topology
from doubledecker import clock
from doubledecker.errors import SettingInvalid
from doubledecker.store import embedded, machine
from doubledecker.store.embedded import DiskReserve


def a_token(up: Up, name: str = "shop") -> str:
    answer = run("token", "create", name, "--bus", up.url, "--data", str(up.data))
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def publish(up: Up, secret: str) -> int:
    return up.post("/events", secret, [{"topic": "orders", "type": "create"}])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_becomes_ready_takes_events_and_ends_cleanly(data_dir: Path, number: int):
    with an_up(data_dir, "--no-demo") as up:
        secret = a_token(up)
        accepted = publish(up, secret)
        mine = children(up.process.pid)
        exit_code = up.end(number)

    assert (accepted, exit_code) == (202, 0)
    assert len(mine) == 3
    assert not [pid for pid in mine if is_running(pid)]
    assert f"Doubledecker is at {up.url}\n" in up.out
    assert f'curl -u "$(cat {data_dir}/root.key):" {up.url}/subscribers' in up.out
    # Quiet: the logs are in files.
    assert up.err == "Doubledecker has stopped\n"
    # Where the bus, the key and the logs are, a link that signs in, and what to try.
    assert up.out.count("\n") == 5
    assert f"Logs are in {data_dir}/logs\n" in up.out
    assert "web.started" in (data_dir / "logs" / "web.log").read_text()
    assert not (data_dir / "redis.url").exists()


INTERRUPTED = """\
import os
import re
import signal
import sys

class Interrupt:
    def find_spec(self, name, *rest):
        if name == "doubledecker.cli.up.up":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
"""


def test_an_interrupt_before_anything_has_started_ends_it_as_one_later_does(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED)
    answer = run("up", "--data", str(tmp_path / "data"), "--port", "0", PYTHONPATH=str(tmp_path))

    assert (answer.returncode, answer.stdout) == (0, "")
    assert answer.stderr == "Doubledecker has stopped\n"


@pytest.mark.slow
def test_it_prints_a_link_that_signs_in_to_the_dashboard_once(data_dir: Path):
    with an_up(data_dir, "--no-demo") as up:
        [link] = re.findall(r"Dashboard: (http://127\.0\.0\.1:[0-9]+/login\?code=\S+)", up.out)
        with urllib.request.urlopen(link) as answer:
            cookies = answer.headers.get_all("Set-Cookie")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(link)

    assert cookies[0].startswith("doubledecker-session=")


@pytest.mark.slow
def test_a_killed_up_leaves_no_process_behind(data_dir: Path):
    with an_up(data_dir, "--no-demo") as up:
        mine = children(up.process.pid)
        up.end(signal.SIGKILL)

    until(lambda: not [pid for pid in mine if is_running(pid)])


@pytest.mark.slow
def test_a_killed_web_process_is_started_again_and_said(data_dir: Path):
    with an_up(data_dir, "--no-demo") as up:
        former = up.child("web")
        os.kill(former, signal.SIGKILL)
        until(lambda: up.child("web") not in {0, former})
        until(up.is_ready)

    assert "web was ended by SIGKILL; it is started again in 0.2 s\n" in up.err


@pytest.mark.slow
def test_a_killed_valkey_is_restarted_and_nothing_is_forgotten(data_dir: Path):
    with an_up(data_dir, "--no-demo") as up:
        secret = a_token(up)
        publish(up, secret)
        former = up.child("valkey-server")
        os.kill(former, signal.SIGKILL)
        until(lambda: up.child("valkey-server") not in {0, former})
        until(lambda: publish(up, secret) == 202)
        published = up.status()["published"]

    assert published >= 2
    assert "valkey was ended by SIGKILL; it is started again in 0.2 s\n" in up.err


@pytest.mark.slow
def test_its_valkey_may_use_a_share_of_the_machines_memory(data_dir: Path):
    with an_up(data_dir, "--no-demo", DOUBLEDECKER_REDIS_MEMORY_SHARE="0.05") as up:
        status = up.status()

    assert status["memory_limit_bytes"] == int(machine.memory_bytes() * 0.05)
    assert status["memory"] == "ok"


@pytest.mark.slow
def test_data_that_needs_more_than_the_limit_set_is_not_dropped_at_start(data_dir: Path):
    # A small journal: what is left to drop is the queue, of which nobody has taken anything.
    settings = {"DOUBLEDECKER_REDIS_MIN_FREE_BYTES": "8000000", "DOUBLEDECKER_JOURNAL_BYTES_MAX": "1024"}
    settings["DOUBLEDECKER_CLIENT_WAITING_BYTES_MAX"] = "0"
    with an_up(data_dir, "--no-demo", **settings) as up:
        secret = a_token(up)
        assert up.send("PUT", "/queues/jobs", secret, {"pattern": ".*", "max_length": 1000}) == 201
        events = [{"topic": "orders", "type": "create", "data": "x" * 60_000}] * 100
        assert [up.post("/events", secret, events) for _ in range(4)] == [202] * 4
    with an_up(data_dir, "--no-demo", **settings, ROUTEMASTER_REDIS_MAX_MEM="10000000") as up:
        began_at = clock.now_ms()
        until(lambda: memory_looked_at(up) > began_at)
        accepted = publish(up, secret)
        status = up.status()

    assert "the data takes more than the" in up.err
    assert (accepted, status["dropped"], status["memory"]) == (202, 0, "ok")
    assert status["memory_limit_bytes"] > 24_000_000


def memory_looked_at(up: Up) -> int:
    """When a worker last looked at the memory of the server."""
    with redis.Redis.from_url((up.data / "redis.url").read_text().strip()) as client:
        return int(client.hget("rm:memory", "at") or 0)


def test_a_limit_that_leaves_nothing_for_events_is_refused_at_start(data_dir: Path):
    answer = run("up", "--data", str(data_dir), DOUBLEDECKER_REDIS_MAX_MEM_BYTES="1000000")

    assert answer.returncode != 0
    assert "DOUBLEDECKER_REDIS_MIN_FREE_BYTES keeps 16777216 of it free" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(("name", "said"), [("redis.url", "Is a directory"), ("valkey.lock", "Is a directory")])
def test_a_folder_that_cannot_be_written_is_one_line(data_dir: Path, name: str, said: str):
    (data_dir / name).mkdir(parents=True)
    answer = run("up", "--no-pipeline", "--port", "0", "--data", str(data_dir))

    assert answer.returncode == 1
    assert f"cannot keep data in {data_dir}: {said}; make room there, or pass another --data" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_disk_without_the_reserve_is_refused_at_start(data_dir: Path):
    with pytest.raises(SettingInvalid, match=rf"{10**18} are kept free: make room"):
        DiskReserve(10**18).check(data_dir.parent)


@pytest.mark.slow
def test_a_child_that_does_not_stop_is_killed_after_its_grace(data_dir: Path):
    with an_up(data_dir, "--no-demo") as up:
        web = up.child("web")
        os.kill(web, signal.SIGSTOP)
        exit_code = up.end()

    assert exit_code == 0
    assert not is_running(web)


@pytest.mark.slow
def test_a_second_ctrl_c_hurries(data_dir: Path):
    with an_up(data_dir, "--no-demo") as up:
        mine = children(up.process.pid)
        for pid in mine:
            os.kill(pid, signal.SIGSTOP)
        up.process.send_signal(signal.SIGINT)
        until(lambda: took_the_signal(up))
        # Less than the grace that children have otherwise, though the machine is busy.
        exit_code = up.end(signal.SIGINT, within_s=4)

    assert exit_code == 0
    assert "started again" not in up.err
    assert not [pid for pid in mine if is_running(pid)]


def took_the_signal(up: Up) -> bool:
    """Two that are pending at once would be one."""
    status = Path(f"/proc/{up.process.pid}/status").read_text()
    pending = next(line for line in status.splitlines() if line.startswith("ShdPnd"))
    return int(pending.split()[1], 16) == 0


@pytest.mark.slow
def test_a_second_up_on_the_same_data_is_refused(data_dir: Path):
    with an_up(data_dir, "--no-demo") as up:
        second = run("up", "--no-demo", "--no-pipeline", "--data", str(data_dir), "--port", str(embedded.free_port()))

    assert second.returncode == 1
    assert f"doubledecker: {data_dir} is in use by process {up.process.pid}" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_taken_port_is_told_before_anything_starts(data_dir: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = run("up", "--no-demo", "--no-pipeline", "--data", str(data_dir), "--port", str(port))

    assert answer.returncode == 1
    assert answer.stderr == (
        f"doubledecker: cannot listen on 127.0.0.1:{port}: Address already in use; pass another --port\n"
    )
    assert not data_dir.exists()


@pytest.mark.slow
def test_the_root_key_is_made_once_for_the_owner_alone(data_dir: Path):
    keys = []
    for _ in range(2):
        with an_up(data_dir, "--no-demo") as up:
            keys.append(up.root_key)
            as_root = up.post("/api_tokens", up.root_key, {"name": "shop"})

    assert keys[0] == keys[1]
    assert len(keys[0]) >= 32
    assert as_root == 201
    assert stat.S_IMODE((data_dir / "root.key").stat().st_mode) == 0o600
    assert f"The root key is in {data_dir}/root.key\n" in up.out


@pytest.mark.slow
def test_a_server_and_a_key_that_are_given_are_used(data_dir: Path, one: Topology):
    given = {"DOUBLEDECKER_REDIS_URL": one.url, "ROUTEMASTER_ROOT_KEY": "mine", "DOUBLEDECKER_NAMESPACE": "up:"}
    with an_up(data_dir, "--no-demo", **given) as up:
        lines = children(up.process.pid).values()
        as_root = up.post("/api_tokens", "mine", {"name": "shop"})

    assert as_root == 201
    assert not [line for line in lines if "valkey" in line]
    assert 'curl -u "$ROUTEMASTER_ROOT_KEY:"' in up.out
    assert [path.name for path in data_dir.iterdir()] == ["logs"]


@pytest.mark.slow
def test_the_original_s_own_env_starts_the_bus(data_dir: Path, one: Topology):
    given = {**routemaster_env(), "ROUTEMASTER_REDIS_URL": "REDISCLOUD_URL", "REDISCLOUD_URL": one.url}
    with an_up(data_dir, "--no-demo", DOUBLEDECKER_NAMESPACE="old:", **given) as up:
        as_root = up.post("/api_tokens", "CHANGE-ME", {"name": "new"})
        event = {"type": "create", "url": "https://shop.example/1"}
        until(lambda: up.post("/topics/orders", "demo", event) == 204)

    assert as_root == 201
    assert 'curl -u "$ROUTEMASTER_ROOT_KEY:"' in up.out


@pytest.mark.slow
def test_a_given_server_that_is_away_is_exit_code_3(data_dir: Path):
    url = f"redis://127.0.0.1:{embedded.free_port()}/0"
    answer = run("up", "--no-demo", "--no-pipeline", "--data", str(data_dir), "--port", "0", DOUBLEDECKER_REDIS_URL=url)

    assert answer.returncode == 3
    assert answer.stderr == (
        f"doubledecker: Redis at {url}: Connection refused; start it, or unset DOUBLEDECKER_REDIS_URL: "
        "`up` then runs a server of its own\n"
    )
