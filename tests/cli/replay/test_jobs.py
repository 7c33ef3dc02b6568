"""`doubledecker replay`, `replays` and `erase` as a user runs them."""

import asyncio
import json
from pathlib import Path

import pytest

from cli.commands import COMMAND, Up, an_up, environment, run, until
from conftest import Topology
from doubledecker import clock
from doubledecker.model.step import RunReport
from doubledecker.store import machine, pipeline
from harness import a_bus


def a_client(up: Up, name: str) -> str:
    return run("token", "create", name, "--bus", up.url, "--data", str(up.data)).stdout.split()[-1]


def test_without_a_bus_it_says_how_to_start_one(tmp_path: Path):
    for words in (["replay", "--to-queue", "q"], ["replays"], ["erase", "--tenant", "t"]):
        answer = run(*words, "--data", str(tmp_path))

        assert (answer.returncode, answer.stdout) == (3, ""), words
        assert answer.stderr.endswith(f"start one with `doubledecker up --data {tmp_path}`\n")


def test_a_redis_that_is_not_there_says_how_to_start_a_bus():
    url = f"redis://127.0.0.1:{machine.free_port()}/0"
    for words in (["replay", "--receiver", "@q"], ["replays"], ["erase", "--tenant", "t"]):
        answer = run(*words, DOUBLEDECKER_REDIS_URL=url)

        assert (answer.returncode, answer.stdout) == (3, ""), words
        assert answer.stderr == (
            f"doubledecker: cannot reach the bus: Redis at {url}: Connection refused; "
            "start one with `doubledecker up`, or pass its --data\n"
        )


async def test_a_count_that_waits_for_a_pipeline_says_so(one: Topology):
    """It printed nothing until Spark had started."""
    async with a_bus(one, workers=0) as bus:
        await bus.subscribe(await bus.token("mail"), "https://mail.example/", "orders")
        at = clock.now_ms() + 60_000
        await pipeline.report_run(bus.partitions.home, RunReport("starting", at=at, began_at=at))
        asked = await asyncio.create_subprocess_exec(
            *COMMAND,
            *("replay", "--receiver", "mail", "--dry-run"),
            env=environment(DOUBLEDECKER_REDIS_URL=one.url),
            stderr=asyncio.subprocess.PIPE,
        )
        assert asked.stderr is not None
        told = await asked.stderr.readline()
        await pipeline.report_run(bus.partitions.home, RunReport("stopped", at=at, began_at=at))
        exit_code = await asked.wait()

    assert told.startswith(b"Waiting for the pipeline to take up ")
    assert exit_code == 3


def test_a_replay_that_is_followed_is_not_asked_for_anew():
    answer = run("replay", "--id", "x", "--topic", "orders")

    assert answer.returncode == 2
    assert "--id is a replay as it was asked for; leave out --topic" in answer.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["replay"], "say to whom it goes with one of --receiver, --to-topic; there is none"),
        (["replay", "--receiver", "@q", "--to-topic", "t"], "there is --receiver and --to-topic"),
        (["replay", "--to-queue", "q", "--to-topic", "t"], "there is --to-topic and --to-queue"),
        (["erase", "--topic", "orders"], "say what to erase with one of --tenant, --key; there is none"),
        (["erase", "--tenant", "acme", "--key", "k"], "there is --tenant and --key"),
    ],
)
def test_an_job_without_exactly_one_object_is_wrong_usage(words: list[str], told: str):
    answer = run(*words)

    assert (answer.returncode, answer.stdout) == (2, "")
    assert told in answer.stderr


def test_a_list_of_none_and_a_replay_that_is_not_there(bus: Up):
    data = str(bus.data)
    listed = run("replays", "--json", "--data", data)
    cancelled = run("replays", "--cancel", "nothing", "--data", data)
    followed = run("replay", "--id", "nothing", "--data", data)

    assert json.loads(listed.stdout) == []
    for answer in (cancelled, followed):
        assert (answer.returncode, answer.stdout) == (4, "")
        assert answer.stderr == "doubledecker: there is no replay 'nothing'\n"


def test_what_is_refused_is_refused_before_a_pipeline_is_started(bus: Up):
    for words, told in (
        (["replay", "--from", "yesterday", "--to-queue", "q"], "from is 'yesterday'; write it like"),
        (["replay", "--receiver", "@stranger"], "no queue named 'stranger'"),
        (["replay", "--receiver", "stranger"], "no subscriber named 'stranger'"),
        (["replay", "--to-queue", "stranger"], "no queue named 'stranger'"),
        (["erase", "--tenant", "acme", "--topic", "orders"], "leave the topic out"),
    ):
        answer = run(*words, "--data", str(bus.data))

        assert (answer.returncode, answer.stdout) == (4, ""), words
        assert told in answer.stderr
        assert answer.stderr.count("\n") == 1


def test_a_lake_in_an_object_store_is_refused_before_a_pipeline_is_started(bus: Up):
    for words in (["replay", "--to-queue", "q"], ["erase", "--tenant", "acme"]):
        answer = run(*words, "--lake", "s3://bucket/lake", "--data", str(bus.data))

        assert (answer.returncode, answer.stdout) == (1, ""), words
        assert answer.stderr.startswith("doubledecker: the lake s3://bucket/lake can only be landed in: ")
        assert answer.stderr.count("\n") == 1


EVENTS = [{"topic": "orders", "type": "create", "tenant": f"t{n % 3}", "key": f"k{n}"} for n in range(60)]


def waiting(data: Path) -> int:
    return json.loads(run("queue", "show", "late", "--json", "--data", str(data)).stdout)["waiting"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_with_no_pipeline_running_it_is_done_here(data_dir: Path):
    with an_up(data_dir, "--no-demo") as up:
        data = ("--data", str(data_dir))
        assert up.post("/events", a_client(up, "shop"), EVENTS) == 202
        assert run("queue", "register", "late", "nothing:nothing:nothing", *data).returncode == 0
        done = run("replay", "--to-queue", "late", "--tenant", "t1", "--yes", "--json", *data, within_s=400)
        held = waiting(data_dir)

    assert done.returncode == 0, done.stderr
    assert "No pipeline runs; one is started here" in done.stderr
    assert (json.loads(done.stdout)["state"], json.loads(done.stdout)["sent"]) == ("done", 20)
    assert held == 20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_with_a_pipeline_running_it_is_asked_and_followed(data_dir: Path):
    with an_up(data_dir, "--no-demo", with_pipeline=True) as up:
        data = ("--data", str(data_dir))
        assert up.post("/events", a_client(up, "shop"), EVENTS) == 202
        assert run("queue", "register", "late", "nothing:nothing:nothing", *data).returncode == 0
        state = lambda: json.loads(run("pipeline", "status", "--json", *data).stdout)["run"]  # noqa: E731 - used once
        until(lambda: (state() or {}).get("state") == "running", within_s=240)
        asked = ("replay", "--receiver", "@late", "--tenant", "t1", *data)
        counted = run(*asked, "--dry-run", within_s=120)
        refused = run(*asked, stdin="n\n", within_s=120)
        nothing = waiting(data_dir)
        done = run(*asked, "--yes", "--json", within_s=120)
        held = waiting(data_dir)
        wrong = run("replay", "--to-queue", "late", "--where", "nonsense(", "--yes", *data, within_s=120)
        stranger = run("replay", "--to-queue", "nobodys", "--yes", *data)
        erased = run("erase", "--tenant", "t2", "--yes", "--json", *data, within_s=120)
        again = run("erase", "--tenant", "t2", "--dry-run", "--json", *data, within_s=120)
        listed = run("replays", *data)

    assert counted.returncode == 0, counted.stderr
    assert counted.stdout.splitlines()[1].split("\t")[::2] == ["orders", "20"]
    assert (refused.returncode, nothing) == (1, 0)
    assert "Replay 20 events?" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert "No pipeline runs" not in done.stderr
    assert json.loads(done.stdout)["sent"] == held == 20
    assert wrong.returncode == stranger.returncode == 4
    assert "the condition cannot be used" in wrong.stderr
    assert "no queue named 'nobodys'" in stranger.stderr
    assert erased.returncode == 0, erased.stderr
    assert (json.loads(erased.stdout)["state"], json.loads(erased.stdout)["erased"]) == ("done", 20)
    assert json.loads(again.stdout)["total"] == 0
    assert len(listed.stdout.splitlines()) == 6
    for answer in (counted, refused, done, wrong, stranger, erased):
        assert "Traceback" not in answer.stderr
