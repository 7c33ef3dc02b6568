"""`doubledecker pipeline` as a user runs it."""

import json
import os
import signal
from pathlib import Path

import pytest

from cli.commands import Up, an_up, children, is_running, run, until
from doubledecker.store import machine


def state_of(data: Path) -> dict:
    answer = run("pipeline", "status", "--json", "--data", str(data))
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.mark.slow
def test_without_a_bus_it_says_how_to_start_one(tmp_path: Path):
    for words in (["pipeline", "run"], ["pipeline", "status"]):
        answer = run(*words, "--data", str(tmp_path))

        assert (answer.returncode, answer.stdout) == (3, "")
        assert answer.stderr.endswith(f"start one with `doubledecker up --data {tmp_path}`\n")


def test_status_of_a_bus_that_never_had_one_says_so(bus: Up):
    answer = run("pipeline", "status", "--data", str(bus.data))

    assert answer.stdout == "No pipeline has run on this bus; start one with `doubledecker pipeline run`\n"
    assert state_of(bus.data) == {"run": None, "steps": {}}


@pytest.mark.slow
def test_a_lake_that_cannot_be_made_is_one_line(bus: Up, tmp_path: Path):
    (tmp_path / "file").touch()
    answer = run("pipeline", "run", "--data", str(bus.data), "--lake", str(tmp_path / "file"))

    assert answer.returncode == 1
    assert answer.stderr.startswith("doubledecker: cannot open the lake's table")
    assert "Traceback" not in answer.stderr


def test_a_spark_conf_that_cannot_be_used_is_one_line_before_anything_starts(bus: Up, tmp_path: Path):
    for data, words in (
        (bus.data, ["pipeline", "run"]),
        (tmp_path, ["up", "--no-demo", "--port", str(machine.free_port())]),
    ):
        file = data / "spark.conf"
        file.write_text("spark.ui.enabled true\nspark.sql.session.timeZone CET\n")
        answer = run(*words, "--data", str(data))
        file.unlink()

        assert (answer.returncode, answer.stdout) == (1, "")
        assert answer.stderr == (
            f"doubledecker: {file}: spark.sql.session.timeZone is 'CET'; the pipeline needs 'UTC': leave it out\n"
        )


def test_one_event_is_not_narrowed_further():
    answer = run("events", "--id", "x", "--to", "2026-11-15")

    assert answer.returncode == 2
    assert "--id is one event; leave out --to" in answer.stderr


def test_where_to_look_is_said_once():
    answer = run("pipeline", "status", "--url", "redis://127.0.0.1:1/0", "--data", "x")

    assert answer.returncode == 2
    assert "pass one" in answer.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_up_brings_the_pipeline_up_and_events_land(data_dir: Path):
    from deltalake import DeltaTable

    with an_up(data_dir, with_pipeline=True) as up:
        until(lambda: state_of(data_dir)["run"], within_s=30)
        first = state_of(data_dir)["run"]["state"]
        command = children(up.process.pid)[up.child("pipeline")]
        until(lambda: state_of(data_dir)["steps"].get("events", {}).get("rows", 0) > 0, within_s=240)
        until(lambda: state_of(data_dir)["steps"].get("attempts", {}).get("rows", 0) > 0, within_s=60)
        running = state_of(data_dir)
        table = run("pipeline", "status", "--data", str(data_dir)).stdout
        code = up.end(within_s=15)

    assert f"pipeline run --data {data_dir} " in command, "or it would read the files of another bus's folder"
    assert first == "starting"
    assert running["run"]["state"] == "running"
    assert running["run"]["alive"]
    assert running["steps"]["events"]["failures"] == 0
    assert "The pipeline is running" in table
    assert code == 0
    rows = [DeltaTable(data_dir / "lake" / name).count() for name in ("events", "attempts")]
    assert rows[0] >= running["steps"]["events"]["rows"]
    assert rows[1] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_jvm_outlives_its_pipeline_or_an_up_that_is_stopped_while_spark_starts(data_dir: Path):
    with an_up(data_dir, "--no-demo", with_pipeline=True) as up:
        until(lambda: jvms(up), within_s=120)
        [first] = jvms(up)
        os.kill(up.child("pipeline"), signal.SIGKILL)
        until(lambda: not is_running(first), within_s=30)
        until(lambda: jvms(up), within_s=120)
        [second] = jvms(up)
        code = up.end(within_s=30)

        assert code == 0
        assert not is_running(second)


def jvms(up: Up) -> list[int]:
    """Not the shell that becomes one, nor the short-lived one that makes its command line: both have the same words."""
    lines = children(up.process.pid).items()
    return [
        pid
        for pid, line in lines
        if "/bin/java " in line
        and "org.apache.spark.deploy.SparkSubmit" in line
        and "org.apache.spark.launcher.Main" not in line
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_pass_ends_by_itself_and_another_lake_is_refused(data_dir: Path, tmp_path: Path):
    from deltalake import DeltaTable

    link = tmp_path / "link"
    link.symlink_to(data_dir)
    with an_up(data_dir, "--no-demo") as up:
        secret = run("token", "create", "shop", "--bus", up.url, "--data", str(data_dir)).stdout.split()[-1]
        assert up.post("/events", secret, [{"topic": "orders", "type": "create"} for _ in range(50)]) == 202
        first = run("pipeline", "run", "--once", "--data", str(data_dir), within_s=240)
        state = state_of(data_dir)
        report = run("report", "--data", str(data_dir), within_s=60)
        found = run("events", "--json", "--topic", "orders", "--limit", "7", "--data", str(link), within_s=240)
        wrong = run("events", "--where", "nonsense(", "--data", str(data_dir), within_s=240)
        other = run("pipeline", "run", "--once", "--data", str(data_dir), "--lake", str(tmp_path / "other"))

    assert first.returncode == 0, first.stderr
    assert (state["steps"]["events"]["rows"], state["steps"]["events"]["lag_ms"]) == (50, 0)
    assert state["steps"]["measure"]["table_rows"] == state["steps"]["measure"]["rows"] > 0
    assert state["run"]["state"] == "stopped"
    assert DeltaTable(data_dir / "lake" / "events").count() == 50
    assert "\nevents\t50\n" in report.stdout, report.stderr
    assert found.returncode == 0, found.stderr
    assert [event["topic"] for event in json.loads(found.stdout)] == ["orders"] * 7
    assert (wrong.returncode, wrong.stdout) == (4, "")
    assert "columns are partition, entry" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    assert other.returncode == 1
    assert "--take-over" in other.stderr
    assert "Traceback" not in other.stderr


def without_spark(folder: Path) -> str:
    """A folder that, before others on the path, hides pyspark."""
    (folder / "sitecustomize.py").write_text(
        "import importlib.util as u\nfound = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'pyspark' else found(name, *rest)\n"
    )
    return str(folder)


def test_up_says_that_it_has_no_pipeline_where_spark_is_missing(tmp_path: Path):
    with an_up(tmp_path / "data", "--no-demo", with_pipeline=True, PYTHONPATH=without_spark(tmp_path)) as up:
        told = up.err

    assert "there is no pipeline, as PySpark is not installed; get it with: pip install 'doubledecker[spark]'\n" in told


def test_a_missing_spark_says_what_to_install(tmp_path: Path):
    url = f"redis://127.0.0.1:{machine.free_port()}/0"
    answer = run("pipeline", "run", PYTHONPATH=without_spark(tmp_path), DOUBLEDECKER_REDIS_URL=url)

    assert answer.returncode == 1
    assert answer.stderr == "doubledecker: PySpark is not installed; get it with: pip install 'doubledecker[spark]'\n"
