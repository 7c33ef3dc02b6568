"""The bench runs; what it measures is nobody's assertion."""

import os
import subprocess
import sys
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path

import pytest
from bench import children, comparison
from bench.against import PartFailed
from bench.comparison import Change, Comparison
from bench.rows import REASONS, TABLES, Aim, Row, reason
from bench.scale import COMPARING

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.parametrize(("part", "row"), [("ingest", "| 1 subscriber: requests |"), ("stages", "| a plain stage |")])
def test_a_quick_bench_of_a_part_prints_its_tables_and_writes_nothing(part: str, row: str):
    page = ROOT / "docs" / "benchmarks.md"
    before = page.read_bytes() if page.exists() else None
    command = [sys.executable, "-m", "bench", "--quick", "--only", part]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr
    assert row in done.stdout
    assert (page.read_bytes() if page.exists() else None) == before


_RATE = Row("events", "some.events_per_s", "/s")
_COST = Row("processor time", "some.cpu_us", "µs")


@pytest.mark.parametrize(
    ("row", "after", "verdict"),
    [
        (_RATE, (110.0, 120.0, 130.0), "better"),
        (_RATE, (80.0, 90.0, 70.0), "worse"),
        (_COST, (110.0, 120.0, 130.0), "worse"),
        (_COST, (80.0, 90.0, 70.0), "better"),
        (_RATE, (80.0, 90.0, 101.0), ""),
        (_RATE, (101.0, 102.0, 103.0), ""),
    ],
)
def test_a_row_has_changed_when_all_repetitions_agree_and_the_medians_are_apart(
    row: Row, after: tuple[float, ...], verdict: str
):
    assert Change(row, (100.0, 100.0, 100.0), after).verdict == verdict


def test_repetitions_are_not_paired_when_one_of_them_is_missing():
    change = Change(_RATE, (100.0, 100.0), (110.0, 120.0, 130.0))

    assert (change.ratio, change.ratios, change.verdict) == (1.2, [], "")


def test_a_row_that_must_reach_an_aim_is_better_when_it_is_larger():
    assert Row("fairness", "some.jain", "", aim=Aim(least=0.99)).is_better_larger
    assert not Row("lag", "some.lag_s", "s", aim=Aim(most=5)).is_better_larger


def test_a_comparison_shows_both_medians_their_ratio_and_both_ratios_to_the_floor():
    before = {"drain.1.batches_per_s": [100.0, 200.0, 300.0]}
    after = {"drain.1.batches_per_s": [150.0, 300.0, 600.0]}
    shared = {"floor.posts.1.batches_per_s": [800.0]}

    table = Comparison(before, after, shared).table()

    expected = "| batches of 1: batches | 200 /s | **300** /s | 1.50 better | 1.50 to 2.00 | 800 | 0.25 | 0.38 |"
    assert expected in table.splitlines()


def test_a_row_that_the_older_tree_has_no_figure_of_is_new():
    table = Comparison({}, {"latency.worker_calls": [2.0]}, {}).table()

    expected = "| calls of the worker to Valkey an event, beyond those of an idle one | new | **2.00** |  |  |  |  |  |"
    assert expected in table.splitlines()


def test_what_is_worse_is_told_with_its_reason_and_what_nobody_can_explain_apart():
    keys = ("ingest.array.p99_ms", "queues.1000.pushed.single_per_s", "bulk.100.events_per_s", "drain.1.batches_per_s")
    slower, faster = [100.0, 100.0], [50.0, 50.0]
    before = {keys[0]: faster, keys[1]: slower, keys[2]: slower, keys[3]: faster}
    after = {keys[0]: slower, keys[1]: faster, keys[2]: faster, keys[3]: slower}
    lines = Comparison(before, after, {}).section("some", {}, repetitions=2).splitlines()
    at = lines.index(
        "- Worse in every repetition, by 5 % at least; checks that were added since 0.1.0 are the reasons:"
    )

    assert lines[at + 1] == "  - no reason is known: `bulk.100.events_per_s` 0.50."
    assert lines[at + 2] == f"  - {reason(keys[0])}: `ingest.array.p99_ms` 2.00."
    assert lines[at + 3] == f"  - {reason(keys[1])}: `queues.1000.pushed.single_per_s` 0.50."
    assert lines[at + 4] == "- Better in every repetition, by 5 % at least: `drain.1.batches_per_s` 2.00."


def test_where_nothing_is_worse_there_is_nothing_to_explain():
    section = Comparison({}, {"latency.p50_ms": [1.0]}, {}).section("some", {}, repetitions=1)

    assert "- Worse in every repetition, by 5 % at least: none." in section


def test_every_reason_is_of_a_figure_that_is_shown():
    keys = [row.key for table in TABLES for row in table.rows]
    used = {reason(key) for key in keys} - {""}

    assert used == {*REASONS.values()}
    assert [pattern for pattern in REASONS if not any(fnmatchcase(key, pattern) for key in keys)] == []


def test_processor_time_is_read_more_finely_than_in_ticks_of_the_system():
    readings = [children.cpu_s(os.getpid()) for _ in range(10)]

    assert all(before < after for before, after in pairwise(readings))


def test_peers_and_floors_are_no_rows_of_a_comparison():
    after = {"floor.posts.1.batches_per_s": [1.0], "tenacity.guarded_us": [1.0], "guarded.retry_us": [1.0]}

    table = Comparison({}, after, {}).table()

    assert len(table.splitlines()) == len(("columns", "rule", "title", "retry"))


def test_a_page_keeps_one_comparison_and_loses_nothing_else():
    page = "# Benchmarks\n\n## Floors\n\nfigures\n"

    first = comparison.replaced(page, "## Compared with 1234567 (0.1.0)\n\nold\n")
    second = comparison.replaced(first, "## Compared with 89abcde (0.2.0)\n\nnew\n")

    assert second == f"{page}\n## Compared with 89abcde (0.2.0)\n\nnew\n"
    assert comparison.kept(second) == "## Compared with 89abcde (0.2.0)\n\nnew\n"
    assert comparison.kept(page) == ""


def test_no_part_is_measured_again_when_it_would_end_too_late_but_each_is_once():
    late_s = COMPARING.seconds_max

    assert COMPARING.is_time_for(elapsed_s=late_s, last_s=None)
    assert COMPARING.is_time_for(elapsed_s=late_s - 10, last_s=10)
    assert not COMPARING.is_time_for(elapsed_s=late_s - 9, last_s=10)


def test_both_trees_of_a_comparison_carry_as_many_events_through_the_pipeline():
    # The benchmark of 0.1.0 knows no number of rows, and takes five backlogs.
    assert COMPARING.rows == 5 * COMPARING.backlog


def test_a_part_that_failed_says_what_its_own_child_wrote_and_whether_another_try_may_help():
    trace = "Traceback (most recent call last):\n  File …\n"
    misfit = PartFailed(f"{trace}ImportError: no name 'x'\n{trace}bench.children.ChildEnded: a process ended\n")
    slow = PartFailed(f"{trace}TimeoutError\n")

    assert (str(misfit), misfit.is_misfit) == ("ImportError: no name 'x'", True)
    assert (str(slow), slow.is_misfit) == ("TimeoutError", False)


def test_no_figure_is_shown_twice():
    keys = [row.key for table in TABLES for row in table.rows if not row.key.startswith(("asyncio.", "simpy."))]

    assert sorted(keys) == sorted({*keys})


def test_an_unknown_commit_is_refused_in_one_line():
    command = [sys.executable, "-m", "bench", "--quick", "--against", "no-such-commit", "--only", "stages"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 1
    assert done.stderr.startswith("python -m bench: ")
    assert "no-such-commit" in done.stderr
    assert done.stderr.count("\n") == 1
