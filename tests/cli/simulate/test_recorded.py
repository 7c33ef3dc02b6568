"""What if: the traffic that a bus really had, against another chain."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from cli.commands import COMMAND, environment, run
from conftest import Topology
from doubledecker.stages import LogNormal
from harness import a_bus, an_event, within
from receiver import Receiver

GUARD = """
chain = [{ stage = "retry", attempts = 4 }, { stage = "timeout", limit_s = 5.0 }]
replications = 3
"""


@pytest.fixture
def guard(tmp_path: Path) -> str:
    path = tmp_path / "guard.toml"
    path.write_text(GUARD)
    return str(path)


def _attempts(count: int = 1_500, **common: object) -> list[dict[str, object]]:
    """A journal with known parameters: 20 a second, median 80 ms, availability 0.9, one outage from 20 to 30 s."""
    random, at, rows = Random(4), 0.0, []
    for number in range(count):
        at += random.expovariate(20)
        is_out = 20 <= at < 30
        is_success = not is_out and random.random() < 0.9
        rows.append(
            {
                "batch": str(number),
                "subscriber": "shop-00000001",
                "attempt": 1,
                "outcome": "delivered" if is_success else "refused",
                "took_ms": round(1_000 * LogNormal(0.08, 0.3).draw(random)),
                "at": 1_700_000_000_000 + round(at * 1_000),
                "events": ["e"],
                **common,
            }
        )
    return rows


def _write(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _found(*arguments: str) -> dict:
    answer = run("simulate", *arguments, "--traffic", "recorded", "--jobs", "1", "--json")
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_a_file_of_attempts_is_fitted_and_stands_beside_the_simulation(guard: str, tmp_path: Path):
    journal = _write(tmp_path / "attempts.jsonl", _attempts())
    drawing = tmp_path / "plot.svg"
    found = _found(guard, "--journal", journal, "--plot", str(drawing))
    fit, recorded, guarded = found["fit"], found["chains"]["recorded"], found["chains"]["guard"]

    assert fit["events"] == 1_500
    assert fit["availability"]["low"] <= 0.9 <= fit["availability"]["high"]
    assert fit["median_s"]["low"] <= 0.08 <= fit["median_s"]["high"]
    assert [(round(one["start_s"]), round(one["end_s"])) for one in fit["outages"]] == [(20, 30)]
    assert recorded["callers"]["events"]["mean"] == guarded["callers"]["events"]["mean"] == 1_500
    assert found["difference"]["success"]["mean"] == pytest.approx(0.9 * (1 - 200 / 1_500) * 0.111, abs=0.03)
    assert "recorded p99" in drawing.read_text()


def test_recorded_and_simulated_are_columns_of_one_table(guard: str, tmp_path: Path):
    journal = _write(tmp_path / "attempts.jsonl", _attempts())
    lines = run("simulate", guard, "--traffic", "recorded", "--journal", journal, "--jobs", "1").stdout.splitlines()

    assert lines[0].startswith("fitted from the record")
    assert "callers\trecorded\tguard\tdifference" in lines
    assert any(line.startswith("outages\t20") for line in lines)


def test_only_one_subscriber_and_only_the_beginning_may_be_wanted(guard: str, tmp_path: Path):
    rows = _attempts() + _attempts(count=50, subscriber="other-00000002", outcome="delivered")
    journal = _write(tmp_path / "attempts.jsonl", rows)

    assert _found(guard, "--journal", journal, "--subscriber", "other-00000002")["fit"]["events"] == 50
    assert _found(guard, "--journal", journal)["fit"]["events"] == 1_550
    assert _found(guard, "--journal", journal, "--duration", "10")["fit"]["events"] < 350


def test_arrivals_are_when_events_were_accepted_and_waiting_shows(guard: str, tmp_path: Path):
    """The old policy let every batch wait for five seconds."""
    rows = _attempts(count=300)
    known = [{**row, "accepted_at": row["at"] - 5_000} for row in rows]
    unknown = [{**row, "accepted_at": 0} for row in rows]
    waited = _found(guard, "--journal", _write(tmp_path / "known.jsonl", known))["chains"]
    plain = _found(guard, "--journal", _write(tmp_path / "unknown.jsonl", unknown))["chains"]
    before = _found(guard, "--journal", _write(tmp_path / "before.jsonl", rows))["chains"]

    assert 5 < waited["recorded"]["callers"]["latency_p50"]["mean"] < 6
    assert waited["guard"]["callers"]["latency_p50"]["mean"] < 1
    assert plain == before
    assert plain["recorded"]["callers"]["latency_p50"]["mean"] < 1


def test_a_sweep_on_recorded_traffic(guard: str, tmp_path: Path):
    journal = _write(tmp_path / "attempts.jsonl", _attempts(count=300))
    grid = _found(guard, "--journal", journal, "--sweep", "retry.attempts=1..3")["grid"]
    success = [point["callers"]["success"]["mean"] for point in grid]

    assert success == sorted(success)
    assert success[0] == pytest.approx(0.9, abs=0.05)


@pytest.mark.slow
def test_a_parquet_file_of_attempts_is_the_same_as_lines(guard: str, tmp_path: Path):
    arrow = pytest.importorskip("pyarrow", reason="comes with the extra spark")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = _attempts(count=300)
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "attempts.parquet")

    lines = _found(guard, "--journal", _write(tmp_path / "attempts.jsonl", rows))
    assert _found(guard, "--journal", str(tmp_path / "attempts.parquet")) == lines


@pytest.mark.slow
def test_a_delta_table_of_the_lake_is_read_without_the_files_that_no_longer_count(guard: str, tmp_path: Path):
    arrow = pytest.importorskip("pyarrow", reason="comes with the extra spark")
    delta = pytest.importorskip("deltalake", reason="comes with the extra spark")
    rows = _attempts(count=300)
    moment = arrow.timestamp("us", tz="UTC")
    landed = arrow.Table.from_pylist(rows).drop_columns(["at"])
    landed = landed.append_column("at", arrow.array([1_800_000_000_000_000] * 300, moment))
    landed = landed.append_column("attempted_at", arrow.array([row["at"] * 1_000 for row in rows], moment))
    accepted = [(row["at"] - 5_000) * 1_000 if number % 2 else None for number, row in enumerate(rows)]
    landed = landed.append_column("accepted_at", arrow.array(accepted, moment))
    for _ in range(2):
        delta.write_deltalake(str(tmp_path / "attempts"), landed, mode="overwrite")
    told = [{**row, "accepted_at": row["at"] - 5_000 if number % 2 else 0} for number, row in enumerate(rows)]

    lines = _found(guard, "--journal", _write(tmp_path / "attempts.jsonl", told))
    assert _found(guard, "--journal", str(tmp_path / "attempts")) == lines


@pytest.mark.slow
def test_what_is_no_parquet_file_is_told_in_a_line(guard: str, tmp_path: Path):
    pytest.importorskip("pyarrow", reason="comes with the extra spark")
    (tmp_path / "x.parquet").write_text("no parquet")
    answer = run("simulate", guard, "--traffic", "recorded", "--journal", str(tmp_path / "x.parquet"))

    assert answer.returncode == 1
    assert "x.parquet holds no attempts" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_parquet_file_without_pyarrow_says_how_to_get_it(guard: str, tmp_path: Path):
    (tmp_path / "x.parquet").touch()
    code = "import sys; sys.modules['pyarrow'] = None; from doubledecker.cli import main; main()"
    answer = _run_code(code, "simulate", guard, "--traffic", "recorded", "--journal", str(tmp_path / "x.parquet"))

    assert answer[0] == 1
    assert answer[1].endswith("x.parquet needs a package that is not here: pip install 'doubledecker[spark]'\n")


def _run_code(code: str, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-c", code, *arguments]
    answer = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    return answer.returncode, answer.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "has no attempts"),
        ("not json", "line 1 is no attempt"),
        ('{"at": 1}', "missing required field `took_ms`"),
        ('{"at": 1, "took_ms": 5, "outcome": "fine"}', "the outcome 'fine'; known are delivered, refused, timed_out"),
        ('{"at": 1, "took_ms": -5, "outcome": "delivered"}', "took -5.0 ms; it cannot be less than 0"),
        ('{"at": 1, "took_ms": 5, "outcome": "refused"}', "none of the 1 recorded attempts succeeded"),
    ],
)
def test_a_record_that_cannot_be_is_told_in_a_line(guard: str, tmp_path: Path, line: str, words: str):
    (tmp_path / "attempts.jsonl").write_text(line + "\n")
    answer = run("simulate", guard, "--traffic", "recorded", "--journal", str(tmp_path / "attempts.jsonl"))

    assert answer.returncode == 1
    assert words in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_a_subscriber_without_attempts_is_told_who_has_some(guard: str, tmp_path: Path):
    journal = _write(tmp_path / "attempts.jsonl", _attempts(count=5))
    answer = run("simulate", guard, "--traffic", "recorded", "--journal", journal, "--subscriber", "nobody")

    assert "has no attempts of nobody; there are attempts of shop-00000001" in answer.stderr


async def test_the_journal_of_a_real_bus_is_read_and_its_deliveries_are_found_in_it(topology: Topology, guard: str):
    def plan(number: int) -> int:
        return 500 if number % 3 == 0 else 200

    async with a_bus(topology) as bus, Receiver(plan=plan, delay_s=0.02) as receiver:
        publisher = await bus.token("publisher")
        await bus.subscribe(await bus.token("shop"), receiver.url, "widgets", timeout=0, max=1)
        for number in range(30):
            await bus.publish(publisher, [an_event(number)])
        await receiver.until_events(30)
        arguments = ["simulate", guard, "--traffic", "recorded", "--journal", topology.url, "--jobs", "1", "--json"]
        answer = await asyncio.create_subprocess_exec(
            *[*COMMAND, *arguments],
            env=environment(DOUBLEDECKER_PARTITIONS=str(topology.partitions)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, told = await within(answer.communicate(), 60)

    assert answer.returncode == 0, told
    found = json.loads(printed)
    recorded = found["chains"]["recorded"]["callers"]
    # The journal's last entry is written after the receiver has answered; it may be missing.
    assert 28 <= recorded["events"]["mean"] <= 30
    assert recorded["call_success"]["mean"] == pytest.approx(receiver_success(receiver), abs=0.05)
    assert 0.02 <= found["fit"]["median_s"]["value"] < 0.5


def receiver_success(receiver: Receiver) -> float:
    return len(receiver.batches) / receiver.attempts
