"""`doubledecker simulate` as a user runs it."""

import json
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from cli.commands import COMMAND, children, environment, is_running, run, run_on_a_terminal, until

GUARD = """
title = "A guarded service"
duration = 30
replications = 3
seed = 7
traffic = { kind = "poisson", rate_per_s = 20 }
chain = [
  { stage = "retry", attempts = 3, backoff = { first_s = 0.1 } },
  { stage = "breaker", open_s = 2 },
  { stage = "bulkhead", workers = 4, queue = { kind = "fifo", size_max = 10 } },
  { stage = "timeout", limit_s = 0.5 },
]
[dependency]
latency = { kind = "log_normal", median_s = 0.1 }
availability = 0.9
outages = [{ start_s = 10, end_s = 15 }]
"""

TWO = """
from doubledecker.stages import *
chains = {"bare": Chain() | Timeout(0.5), "guarded": Retry(3) | Timeout(0.5)}
dependency = Simulated(LogNormal(0.1), availability=0.8)
traffic, duration, replications = Poisson(20), 20, 4
"""


@pytest.fixture
def guard(tmp_path: Path) -> str:
    path = tmp_path / "guard.toml"
    path.write_text(GUARD)
    return str(path)


@pytest.fixture
def two(tmp_path: Path) -> str:
    path = tmp_path / "two.py"
    path.write_text(TWO)
    return str(path)


def _simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In one process: starting more takes longer than these small rehearsals."""
    return run("simulate", *arguments, "--jobs", "1")


def _found(*arguments: str) -> dict:
    answer = _simulate(*arguments, "--json")
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def _rows(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


def test_it_prints_callers_and_every_stage_with_the_columns_of_production(guard: str):
    answer = _simulate(guard)
    rows = _rows(answer.stdout)
    blank = rows.index([""])

    assert answer.returncode == 0, answer.stderr
    assert rows[0] == ["callers", "guard"]
    assert [row[0] for row in rows[1:6]] == ["events", "success", "latency p50", "latency p95", "latency p99"]
    assert rows[blank + 1][:4] == ["guard", "arrived", "rejected", "queued"]
    assert [row[0] for row in rows[blank + 2 :]] == ["retry", "breaker", "bulkhead", "timeout", "simulated"]
    assert re.fullmatch(r"0\.\d+ ±0\.\d+", rows[2][1])


@pytest.mark.slow
def test_the_same_seed_gives_the_same_whatever_the_number_of_processes(guard: str):
    alone = _simulate(guard).stdout

    assert run("simulate", guard, "--jobs", "3").stdout == alone
    assert run("simulate", guard).stdout == alone
    assert _simulate(guard, "--seed", "7").stdout == alone
    assert _simulate(guard, "--seed", "8").stdout != alone


def test_settings_of_the_file_can_be_changed(guard: str):
    found = _found(guard, "--set", "retry.attempts=1", "--set", "traffic.rate_per_s=5", "--duration", "60")
    callers = found["chains"]["guard"]["callers"]

    assert callers["events"]["mean"] == pytest.approx(300, rel=0.2)
    assert callers["calls_per_event"]["mean"] <= 1.0
    assert _found(guard, "--replications", "1")["chains"]["guard"]["callers"]["success"]["margin"] is None


def test_chains_of_one_file_stand_side_by_side(two: str):
    found = _found(two)

    assert list(found["chains"]) == ["bare", "guarded"]
    assert found["difference"]["success"]["mean"] == pytest.approx(0.19, abs=0.03)
    assert _found(two, "--compare", "guarded", "bare")["difference"]["success"]["mean"] == pytest.approx(
        -0.19, abs=0.03
    )
    assert list(_found(two, "--chain", "bare")["chains"]) == ["bare"]
    assert _rows(_simulate(two).stdout)[0] == ["callers", "bare", "guarded", "difference"]


@pytest.mark.slow
def test_two_files_stand_side_by_side(guard: str, tmp_path: Path):
    shy = tmp_path / "shy.toml"
    shy.write_text(GUARD.replace("attempts = 3", "attempts = 1"))
    found = _found("--compare", guard, str(shy))

    assert list(found["chains"]) == ["guard", "shy"]
    assert found["difference"]["events"] == {"mean": 0.0, "margin": 0.0}
    assert found["difference"]["success"]["mean"] < 0


def test_two_files_that_last_differently_are_refused_before_anything_is_simulated(guard: str, tmp_path: Path):
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "guard.toml"
    other.write_text(GUARD.replace("duration = 30", "duration = 9"))
    answer = _simulate("--compare", guard, str(other))

    assert answer.returncode == 1
    assert "their durations differ (30 s and 9 s); give them the same with --duration" in answer.stderr
    assert list(_found("--compare", guard, str(other), "--duration", "5")["chains"]) == [guard, str(other)]


@pytest.mark.slow
def test_a_sweep_equals_single_runs(guard: str):
    swept = run("simulate", guard, "--sweep", "retry.attempts=1..2", "timeout=0.1,0.5", "--jobs", "2", "--json")
    grid = json.loads(swept.stdout)["grid"]

    assert [point["settings"] for point in grid] == [
        {"retry.attempts": attempts, "timeout": limit_s} for attempts in (1, 2) for limit_s in (0.1, 0.5)
    ]
    for point in grid:
        changes = [part for path, value in point["settings"].items() for part in ("--set", f"{path}={value}")]
        assert _found(guard, *changes)["chains"]["guard"]["callers"] == point["callers"]


def test_a_sweep_is_a_table_with_a_row_a_combination(guard: str, tmp_path: Path):
    drawing = tmp_path / "grid.svg"
    answer = _simulate(guard, "--sweep", "retry.attempts=1..3", "--plot", str(drawing))
    rows = _rows(answer.stdout)

    assert rows[0][:2] == ["retry.attempts", "success"]
    assert [row[0] for row in rows[1:]] == ["1", "2", "3"]
    assert "retry.attempts" in drawing.read_text()


@pytest.mark.slow
def test_it_draws_svg_and_png(guard: str, tmp_path: Path):
    for name in ("plot.svg", "plot.png"):
        answer = _simulate(guard, "--plot", str(tmp_path / name))
        assert answer.returncode == 0, answer.stderr
        assert answer.stderr == f"drawn into {tmp_path / name}\n"

    assert ET.parse(tmp_path / "plot.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_png_says_how_to_get_it(guard: str, tmp_path: Path):
    code = "import sys; sys.modules['matplotlib'] = None; from doubledecker.cli import main; main()"
    command = [sys.executable, "-c", code, "simulate", guard, "--jobs", "1", "--plot", str(tmp_path / "plot.png")]
    answer = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)

    assert answer.returncode == 1
    assert answer.stderr == (
        "doubledecker: a PNG needs a package that is not installed; get it with: pip install 'doubledecker[plots]'\n"
    )


def test_on_a_terminal_it_draws_there_and_needs_nothing_for_it(guard: str):
    shown = run_on_a_terminal("simulate", guard, "--jobs", "1")

    assert "A guarded service" in shown
    assert "latency, s" in shown
    assert "circuits not closed" in shown
    assert re.search("[\u2801-\u28ff]{10}", shown)
    assert "\u28c0" not in run_on_a_terminal("simulate", guard, "--jobs", "1", "--no-terminal")


def test_piped_it_draws_only_when_told(guard: str):
    assert "circuits not closed" not in _simulate(guard).stdout
    assert "circuits not closed" in _simulate(guard, "--terminal").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "give the FILE.py or FILE.toml to rehearse"),
        (["nowhere.toml"], 1, "cannot read nowhere.toml: No such file or directory"),
        (["guard.json"], 1, "guard.json is neither a .py nor a .toml file"),
        (["GUARD", "GUARD"], 2, "one FILE at a time"),
        (["GUARD", "--chain", "gard"], 1, "no chain is called 'gard' (did you mean 'guard'?); there are guard"),
        (["GUARD", "--compare", "guard", "nobody"], 1, "'nobody' is neither a chain of"),
        (["GUARD", "--compare", "guard", "guard"], 2, "with itself shows nothing"),
        (["GUARD", "--sweep", "retry.attempts=0..2"], 1, "retry.attempts is 0; it must be a whole number, 1 or more"),
        (["GUARD", "--sweep", "retry.tries=1"], 1, "retry.tries: no setting is called 'tries'"),
        (["GUARD", "--sweep", "retry"], 1, "'retry' is no setting; write it as retry.attempts=1..5"),
        (["GUARD", "--set", "retry=1,2"], 1, "--set retry takes one value; to try 2, use --sweep"),
        (["GUARD", "--duration", "-1"], 1, "scenario.duration is -1.0; it must be a finite number above 0"),
        (["GUARD", "--replications", "0"], 2, "0 is not in the range x>=1"),
        (["GUARD", "--plot", "plot.pdf"], 2, "draw into a .svg or a .png file"),
        (["GUARD", "--plot", "no/such/folder/plot.svg"], 2, "there is no such folder"),
        (["GUARD", "--journal", "x.jsonl"], 2, "--journal and --subscriber need --traffic recorded"),
        (["GUARD", "--traffic", "recorded", "--journal", "x.jsonl"], 1, "cannot read x.jsonl: No such file"),
        (["GUARD", "--traffic", "recorded", "--journal", "redis://127.0.0.1:1/0"], 3, "say where the journal is"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(guard: str, arguments: list[str], code: int, words: str):
    answer = _simulate(*(guard if word == "GUARD" else word for word in arguments))

    assert answer.returncode == code
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr
    assert answer.stdout == ""


def test_without_spark_it_says_how_to_get_it(guard: str):
    code = "import sys; sys.modules['pyspark'] = None; from doubledecker.cli import main; main()"
    command = [sys.executable, "-c", code, "simulate", guard, "--spark"]
    answer = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)

    assert answer.returncode == 1
    assert answer.stderr.startswith("doubledecker: --spark needs pyspark, which is not installed; get it with: pip")


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["an interrupt", "the death of a child"])
def test_an_interrupt_ends_all_processes_at_once_and_the_death_of_one_is_told(guard: str, ends: str):
    """With runs that would take hours."""
    arguments = ["simulate", guard, "--duration", "1e7", "--jobs", "2"]
    process = subprocess.Popen(
        [*COMMAND, *arguments], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    workers: list[int] = []

    def has_workers() -> bool:
        workers[:] = [pid for pid, line in children(process.pid).items() if "spawn_main" in line]
        return len(workers) == 2

    until(has_workers, within_s=30)
    if ends == "an interrupt":
        process.send_signal(signal.SIGINT)
    else:
        os.kill(workers[0], signal.SIGKILL)
    _, told = process.communicate(timeout=20)

    assert process.returncode == 1
    assert "Aborted!" in told if ends == "an interrupt" else "a process that simulated was ended" in told
    assert "Traceback" not in told
    until(lambda: not any(is_running(pid) for pid in workers), within_s=10)
