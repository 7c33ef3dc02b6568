"""`web` and `worker` with several processes: real ones, which are killed, stopped and counted from outside."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from assembly.test_settings import routemaster_env
from cli.commands import an_up, children, environment, is_running, run, until
from conftest import Topology
from doubledecker.assembly.launch import Member
from doubledecker.cli.serve.keep import ChildLife, Command, Ended, Kept
from doubledecker.cli.serve.processes import Processes
from doubledecker.store import machine
from doubledecker.store.machine import free_port
from doubledecker.web import listening
from harness import ROOT_KEY, an_event, basic, until_ready
from processes import Fleet, Process
from receiver import Receiver

pytestmark = pytest.mark.timeout(300)

# With so many connections, all of them at one of two processes would be a wonder: one in a million.
CONNECTIONS = 20


@asynccontextmanager
async def a_fleet(one: Topology, logs: Path, **settings: object) -> AsyncIterator[Fleet]:
    """A bus whose web and worker have the processes that the settings say; ready when all of them are."""
    await one.clear()
    async with Fleet(one, logs, **settings) as fleet, aiohttp.ClientSession() as http:
        await until_ready(http, fleet.url, within_s=120)
        for name, process in (("web_processes", fleet.web), ("worker_processes", fleet.workers[0])):
            if name in settings:
                await until_logged(process, "processes.ready")
        yield fleet


def test_the_garbage_collector_of_a_process_never_looks_at_what_was_imported():
    program = (
        "import gc\n"
        "from doubledecker.cli.serve import processes\n"
        "async def look(_stop):\n"
        "    print(gc.get_freeze_count(), len(gc.get_objects()))\n"
        "processes.until_stopped(look)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    left_out, looked_at = map(int, done.stdout.split())

    assert left_out > 50 * looked_at


@pytest.mark.slow
async def test_web_starts_with_the_original_s_own_env_and_takes_a_token_that_it_imported(one: Topology, tmp_path: Path):
    """Only where its Redis is, and its port, are of this test."""
    await one.clear()
    port = free_port()
    given = routemaster_env() | {"ROUTEMASTER_REDIS_URL": one.url, "DOUBLEDECKER_PORT": str(port)}
    web = Process("web", "web", environment=environment(**given), logs=tmp_path)
    await web.start()
    url, event = f"http://127.0.0.1:{port}", {"type": "create", "url": "https://shop.example/1"}
    async with aiohttp.ClientSession() as http:
        # Without a worker it is not ready.
        await until_ready(http, url, path="/version", within_s=120)
        await until_logged(web, "tokens.imported")
        async with http.post(f"{url}/topics/orders", json=event, headers=basic("shop--6f1d6311")) as published:
            pass
        async with http.post(f"{url}/topics/orders", json=event, headers=basic("nobody--6f1d6311")) as refused:
            pass
        async with http.get(f"{url}/topics", headers=basic("CHANGE-ME")) as listed:
            topics = await listed.json()
    exit_code = await web.stop()

    assert (published.status, refused.status, exit_code) == (204, 401, 0)
    assert [(topic["name"], topic["publisher"], topic["events"]) for topic in topics] == [("orders", "shop", 1)]


async def until_logged(process: Process, text: str, *, times: int = 1) -> None:
    async with asyncio.timeout(120):
        while process.log.count(text) < times:
            await asyncio.sleep(0.05)


def members(process: Process) -> dict[str, int]:
    """The processes that a supervisor runs, by which of them they are."""
    found = {pid: re.search(r"--member (\S+)", line) for pid, line in children(process.pid).items()}
    return {member[1]: pid for pid, member in found.items() if member}


async def metrics_of(url: str) -> str:
    # A session of its own: a new connection may come to any of the processes.
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics", headers=basic(ROOT_KEY)) as answer:
        assert answer.status == 200
        return await answer.text()


def by_process(metrics: str, name: str) -> dict[str, float]:
    """The values of a metric, by the name of the process without what chance added to it."""
    found = re.findall(rf'^{name}{{process="([a-z0-9-]+):[0-9a-f]+"}} (\S+)', metrics, re.MULTILINE)
    return {process: float(value) for process, value in found}


async def a_client(http: aiohttp.ClientSession, url: str, name: str) -> str:
    async with http.post(f"{url}/api_tokens", json={"name": name}, headers=basic(ROOT_KEY)) as answer:
        return str((await answer.json())["token"])


async def subscribe(http: aiohttp.ClientSession, url: str, callback: str) -> None:
    headers = basic(await a_client(http, url, "subscriber"))
    body = {"topics": ["widgets"], "callback": callback, "timeout": 0, "max": 1}
    async with http.post(f"{url}/subscription", json=body, headers=headers) as answer:
        assert answer.status == 204, await answer.text()


class Publishing:
    """One who publishes without pause, and keeps the ids of all that was accepted."""

    def __init__(self, url: str, secret: str) -> None:
        self.accepted: set[str] = set()
        self._url = url
        self._secret = secret

    async def run(self) -> None:
        # A new connection each time, so that both processes are asked, also while one of them is not there.
        while True:
            async with aiohttp.ClientSession() as http:
                try:
                    async with http.post(f"{self._url}/events", json=an_event(), headers=basic(self._secret)) as answer:
                        if answer.status == 202:
                            self.accepted.update((await answer.json())["ids"])
                except (aiohttp.ClientError, OSError):
                    pass
            await asyncio.sleep(0.005)

    async def until_accepted(self, more: int) -> None:
        """Until so many more were accepted than now."""
        wanted = len(self.accepted) + more
        async with asyncio.timeout(120):
            while len(self.accepted) < wanted:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def publishing(url: str, secret: str) -> AsyncIterator[Publishing]:
    publisher = Publishing(url, secret)
    tasks = [asyncio.create_task(publisher.run()) for _ in range(2)]
    try:
        yield publisher
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.slow
async def test_two_web_processes_serve_one_address_and_the_metrics_of_either_show_both(one: Topology, tmp_path: Path):
    async with a_fleet(one, tmp_path, web_processes=2, worker_processes=2) as fleet:
        plugs = [await asyncio.open_connection("127.0.0.1", fleet.port) for _ in range(CONNECTIONS)]
        async with asyncio.timeout(120):
            while True:
                # Whoever answers knows its own connections, and those of the other as it reported them last.
                seen = by_process(metrics := await metrics_of(fleet.url), "doubledecker_connections")
                if len(seen) == 2 and min(seen.values()) > 0 and sum(seen.values()) >= CONNECTIONS:
                    break
                await asyncio.sleep(0.2)
        for _, writer in plugs:
            writer.close()

    assert seen.keys() == {"web-1", "web-2"}
    assert by_process(metrics, "doubledecker_loop_lag_seconds").keys() == {"web-1", "web-2", "worker-1", "worker-2"}
    assert 'doubledecker_processes{kind="web"} 2.0' in metrics
    assert 'doubledecker_processes{kind="worker"} 2.0' in metrics
    assert "process=web-1" in fleet.web.log
    assert "process=worker-2" in fleet.workers[0].log


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["web", "worker"])
async def test_a_killed_process_comes_back_and_no_accepted_event_is_lost(one: Topology, tmp_path: Path, kind: str):
    settings = {"web_processes": 2, "worker_processes": 2, "worker_dead_s": 2}
    async with (
        Receiver() as receiver,
        a_fleet(one, tmp_path, **settings) as fleet,
        aiohttp.ClientSession() as http,
    ):
        supervisor = fleet.web if kind == "web" else fleet.workers[0]
        await subscribe(http, fleet.url, receiver.url)
        async with publishing(fleet.url, await a_client(http, fleet.url, "publisher")) as publisher:
            await publisher.until_accepted(20)
            former = members(supervisor)
            os.kill(former["1/2"], signal.SIGKILL)
            await until_logged(supervisor, f"{kind}.started", times=3)
            await publisher.until_accepted(20)
        await receiver.until(lambda: publisher.accepted <= set(receiver.ids), within_s=120)
        now = members(supervisor)

    assert now.keys() == {"1/2", "2/2"}
    assert now["1/2"] != former["1/2"]
    assert now["2/2"] == former["2/2"]
    assert re.search(rf"process\.ended .*SIGKILL.* process={kind}-1", supervisor.log)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
async def test_a_supervisor_that_ends_leaves_no_process_behind(one: Topology, tmp_path: Path, number: signal.Signals):
    async with a_fleet(one, tmp_path, web_processes=2, worker_processes=2) as fleet:
        supervisors = (fleet.web, fleet.workers[0])
        pids = [pid for each in supervisors for pid in members(each).values()]
        for each in supervisors:
            os.kill(each.pid, number)
        codes = {await each.wait(within_s=120) for each in supervisors}
        until(lambda: not [pid for pid in pids if is_running(pid)], within_s=120)

    assert len(pids) == 4
    assert codes == ({-signal.SIGKILL} if number == signal.SIGKILL else {0})
    assert "Traceback" not in fleet.web.log + fleet.workers[0].log


@pytest.mark.slow
async def test_a_process_that_does_not_stop_is_killed_by_a_second_signal(one: Topology, tmp_path: Path):
    # With this grace the first signal alone would not end it within the test.
    async with a_fleet(one, tmp_path, worker_processes=2, shutdown_s=600) as fleet:
        [worker] = fleet.workers
        pids = members(worker)
        os.kill(pids["1/2"], signal.SIGSTOP)
        os.kill(worker.pid, signal.SIGTERM)
        # The other one obeys, so the first signal has been heard.
        until(lambda: not is_running(pids["2/2"]), within_s=120)
        os.kill(worker.pid, signal.SIGTERM)
        code = await worker.wait(within_s=120)

    assert code == 0
    assert not is_running(pids["1/2"])


@pytest.mark.slow
async def test_port_0_is_one_free_port_for_all(one: Topology, tmp_path: Path):
    await one.clear()
    fleet = Fleet(one, tmp_path, web_processes=2, port=0)
    await fleet.web.start()
    await until_logged(fleet.web, "processes.ready")
    code = await fleet.web.stop()
    ports = re.findall(r"web\.started .*port=(\d+)", fleet.web.log)

    assert code == 0
    assert len(ports) == 2
    assert len(set(ports) - {"0"}) == 1


@pytest.mark.slow
async def test_a_port_that_several_processes_share_is_taken_for_all_others(one: Topology, tmp_path: Path):
    async with a_fleet(one, tmp_path, web_processes=2) as fleet:
        others = [
            run("web", "--port", str(fleet.port), "--processes", count, within_s=120, DOUBLEDECKER_ROOT_KEY="k")
            for count in ("1", "2")
        ]

    said = f"doubledecker: cannot listen on 127.0.0.1:{fleet.port}: Address already in use\n"
    assert [(other.returncode, other.stderr) for other in others] == [(1, said)] * 2


def test_a_reserved_address_is_for_those_that_share_it_alone():
    port = free_port()
    with listening.reserve("127.0.0.1", port):
        for take in (listening.bind, listening.reserve):
            with pytest.raises(OSError, match="already in use"):
                take("127.0.0.1", port)
        shared = [listening.share("127.0.0.1", port) for _ in range(2)]
        with pytest.raises(OSError, match="already in use"):
            listening.reserve("127.0.0.1", port)
        for each in shared:
            each.close()
    with listening.bind("127.0.0.1", port):
        pass


def test_a_taken_port_is_one_line(one: Topology):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = run("web", "--processes", "3", "--port", str(port), within_s=120, DOUBLEDECKER_ROOT_KEY="k")

    assert answer.returncode == 1
    assert answer.stderr == f"doubledecker: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize(
    ("asked", "by_settings", "run_here"),
    [(None, 3, 3), (2, 3, 2), (0, 3, machine.cores()), (None, 0, machine.cores())],
)
def test_nought_is_a_process_for_each_core_and_the_option_wins_over_the_setting(
    asked: int | None, by_settings: int, run_here: int
):
    assert Processes(asked).count(by_settings) == run_here
    assert Processes(asked, member=Member(1, 4)).count(by_settings) == 1


@pytest.mark.parametrize("command", ["web", "worker", "up"])
@pytest.mark.parametrize(("count", "said"), [("-1", "0<=x<=256"), ("257", "0<=x<=256"), ("two", "not a valid integer")])
def test_a_wrong_number_of_processes_is_refused(command: str, count: str, said: str):
    answer = run(command, "--processes", count, within_s=120)

    assert answer.returncode == 2
    assert f"'--processes': '{count}' is not" in answer.stderr or f"{count} is not in the range {said}" in answer.stderr
    assert said in answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["web", "worker"])
async def test_what_keeps_all_from_starting_is_said_once_and_ends_the_command(one: Topology, command: str):
    await one.clear()
    given = {"DOUBLEDECKER_REDIS_URL": one.url, "DOUBLEDECKER_ROOT_KEY": "k", "DOUBLEDECKER_DURABLE": "true"}
    port = ["--port", "0"] if command == "web" else []
    answer = await asyncio.to_thread(run, command, "--processes", "3", *port, within_s=120, **given)

    assert answer.returncode == 1
    assert answer.stderr.count("doubledecker: DOUBLEDECKER_DURABLE is set, but the server") == 1
    assert "Traceback" not in answer.stderr


@pytest.mark.slow
async def test_a_crash_loop_is_told_as_one():
    deaths: asyncio.Queue[Ended] = asyncio.Queue()
    command = Command(["no-such-command"], os.environ, reports_readiness=True)
    kept = Kept("web-1", ChildLife(command), on_end=deaths.put_nowait, grace_s=1)
    kept.keep()
    async with asyncio.timeout(120):
        told = [await deaths.get() for _ in range(5)]
    await kept.stop()

    assert [each.is_crash_loop for each in told] == [False] * 4 + [True]
    assert str(told[0]) == "web-1 ended with exit code 2; it is started again in 0.2 s"
    assert str(told[4]) == (
        "web-1 ended with exit code 2, 5 times in a row soon after its start (a crash loop); "
        "it is started again in 3.2 s"
    )
    assert not kept.was_ready.is_set()


@pytest.mark.slow
def test_up_runs_several_processes_of_web_and_worker_and_is_ready_when_all_are(data_dir: Path):
    with an_up(data_dir, "--no-demo", "--log", "--processes", "2") as up:
        started = up.err
        lines = [line for line in children(up.process.pid).values() if "--member" in line]
        victim = next(pid for pid, line in children(up.process.pid).items() if "web --member 2/2" in line)
        os.kill(victim, signal.SIGKILL)
        until(lambda: "web-2 was ended by SIGKILL; it is started again in 0.2 s\n" in up.err, within_s=120)
        until(up.is_ready, within_s=120)
        mine = children(up.process.pid)
        code = up.end()

    assert sorted(re.search(r"doubledecker (.+?) --ready", line)[1] for line in lines) == [
        "web --member 1/2",
        "web --member 2/2",
        "worker --member 1/2",
        "worker --member 2/2",
    ]
    # Ready was printed when each of them had said that it was.
    assert all(f"{kind}.started" in started for kind in ("web", "worker"))
    assert started.count("web.started") == started.count("worker.started") == 2
    assert code == 0
    assert not [pid for pid in mine if is_running(pid)]
