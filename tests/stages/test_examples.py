"""The rehearsals in examples/simulations run, teach what the page says, and the page has their numbers."""

import importlib.util
import re
from pathlib import Path

import pytest

from doubledecker.stages.simulation import runs
from doubledecker.stages.simulation.report import Report, over_time
from doubledecker.stages.simulation.report import measures as measures_of
from doubledecker.stages.simulation.runs import RunPlan
from doubledecker.stages.simulation.scenario import ScenarioFile, load_file, read_file

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "simulations"
PAGE = ROOT / "docs" / "simulations.md"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "redraw")


def _reports(name: str, *, duration: float, replications: int = 1) -> dict[str, Report]:
    source = read_file(EXAMPLES / f"{name}.py")
    plans = {
        chain: RunPlan(source, chain, (("duration", duration),), replications=replications, sample_every=duration / 100)
        for chain in load_file(source).chains
    }
    return dict(zip(plans, runs.reports(list(plans.values()), runs.here), strict=True))


def _measure(report: Report, name: str) -> float:
    return measures_of(report)[name].mean


def test_there_are_five_and_the_page_tells_of_each():
    page = PAGE.read_text()

    assert len(NAMES) == 5
    assert [name for name in NAMES if f"<!-- simulate {name}.py" not in page] == []


def test_a_budget_ends_a_retry_storm_and_backoff_does_not():
    found = _reports("retry_storm", duration=30)
    peaks = {
        name: max(one.mean for one in over_time(report, lambda one: one.arrived_per_s(-1)) if one)
        for name, report in found.items()
    }

    assert peaks["at once"] > 350
    assert peaks["backoff"] > 350
    assert peaks["budget"] < 200


def test_an_overload_stays_until_a_bound_ends_it():
    found = _reports("metastable_overload", duration=45)
    at_the_end = {name: over_time(report, lambda one: one.success)[-10:] for name, report in found.items()}

    assert all(one is not None and one.mean < 0.1 for one in at_the_end["unbounded"])
    assert all(one is not None and one.mean > 0.9 for one in at_the_end["bounded"])


def test_single_flight_ends_a_stampede_and_a_stale_answer_the_waiting():
    found = _reports("cache_stampede", duration=25)
    calls = {name: _measure(report, "calls per event") for name, report in found.items()}

    assert calls["cache"] > 10 * calls["single-flight"]
    assert calls["stale"] == pytest.approx(calls["single-flight"], rel=0.2)
    assert _measure(found["stale"], "latency p95") == 0 < _measure(found["single-flight"], "latency p99")


def test_a_breaker_saves_waiting_and_one_that_opens_too_easily_costs_success():
    found = _reports("breaker_tuning", duration=60)
    source = read_file(EXAMPLES / "breaker_tuning.py")
    settings = (("duration", 60), ("breaker.threshold", 0.1))
    [easy] = runs.reports([RunPlan(source, "breaker", settings, replications=1)], runs.here)

    assert _measure(found["none"], "latency p95") == 1.0
    assert _measure(found["breaker"], "latency p95") < 0.2
    assert _measure(found["breaker"], "success") > _measure(found["none"], "success") - 0.03
    assert _measure(easy, "success") < 0.7 * _measure(found["breaker"], "success")


def test_a_deadline_keeps_its_word_and_newest_first_serves_more():
    found = _reports("deadline_or_timeout", duration=30)

    assert _measure(found["timeout"], "latency p99") > 5
    assert _measure(found["deadline"], "latency p99") == pytest.approx(1.0)
    assert _measure(found["newest first"], "success") > 1.1 * _measure(found["deadline"], "success")
    assert _measure(found["newest first"], "calls per event") < _measure(found["deadline"], "calls per event")


def test_the_files_on_the_page_can_be_run():
    toml, python = re.search(r"```toml\n(.+?)```.+?```python\n(.+?)```", PAGE.read_text(), re.DOTALL).groups()

    for name, text in (("page.toml", toml), ("page.py", python)):
        source = ScenarioFile(f"/nowhere/{name}", text)
        scenario = load_file(source)
        plans = [RunPlan(source, chain, (("duration", 5),), replications=1) for chain in scenario.chains]
        assert all(report.replications[0].sent > 100 for report in runs.reports(plans, runs.here))


def test_the_page_lists_every_kind():
    from doubledecker.stages.simulation import declared
    from doubledecker.stages.simulation.scenario import NAMES as KEYS

    page = PAGE.read_text()
    kinds = [*declared.DISTRIBUTIONS, *declared.QUEUES, *declared.WINDOWS, *declared.TRAFFIC, *declared.KEYS]
    assert [word for word in (*kinds, *KEYS) if f"`{word}`" not in page] == []


@pytest.mark.slow
def test_numbers_and_plots_of_the_page_are_what_the_files_give(tmp_path: Path):
    spec = importlib.util.spec_from_file_location("redraw", EXAMPLES / "redraw.py")
    redraw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(redraw)

    page = PAGE.read_text()
    assert redraw.redrawn(page, tmp_path) == page, "run `make plots`"
    drawn = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    assert drawn == {path.name: path.read_text() for path in (PAGE.parent / "simulations").glob("*.svg")}
