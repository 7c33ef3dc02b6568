"""Settings by path and grids of them, and that a grid's runs are the same whoever carries them out."""

import pytest

from doubledecker.stages import Bulkhead, Fifo, LogNormal, Poisson, Retry, Simulated, Timeout, simulate
from doubledecker.stages.errors import ChainInvalid, ScenarioInvalid
from doubledecker.stages.simulation import runs, scenario
from doubledecker.stages.simulation.runs import RunPlan
from doubledecker.stages.simulation.scenario import ScenarioFile

SOURCE = ScenarioFile(
    "/nowhere/guard.py",
    """
from doubledecker.stages import *
chain = Retry(2, Backoff(0.1)) | Bulkhead(4, Fifo(10)) | Timeout(0.2)
dependency = Simulated(LogNormal(0.1), availability=0.9)
traffic = Poisson(30)
keys = UniformKeys(10)
duration = 20
replications = 3
seed = 5
""",
)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("retry.attempts=1..5", (1, 2, 3, 4, 5)),
        ("retry.attempts=1..9..4", (1, 5, 9)),
        ("timeout=0.5,1,2", (0.5, 1, 2)),
        ("queue=none,1..3,1e3", (None, 1, 2, 3, 1000.0)),
        ("timeout.abandon=true,false", (True, False)),
    ],
)
def test_values_are_numbers_ranges_and_a_few_words(text: str, values: tuple[object, ...]):
    assert runs.parse(text).values == values


@pytest.mark.parametrize(
    "text",
    [
        "retry.attempts",
        "=5",
        "a=",
        "a=x",
        "a=5..1",
        "a=1..5..0",
        "a=1..99999",
        "a=1..99999999999",
        "a=1.." + "9" * 5000,
        "a=1,,2",
    ],
)
def test_what_is_no_setting_is_refused(text: str):
    with pytest.raises(ScenarioInvalid, match=text.replace(".", r"\.")):
        runs.parse(text)


def test_a_grid_has_every_combination():
    axes = [runs.parse("retry=1,2"), runs.parse("timeout=3..5")]

    assert runs.points(axes)[:4] == [
        (("retry", 1), ("timeout", 3)),
        (("retry", 1), ("timeout", 4)),
        (("retry", 1), ("timeout", 5)),
        (("retry", 2), ("timeout", 3)),
    ]
    assert len(runs.points(axes)) == 6


def _changed(path: str, value: runs.Value):
    return runs.apply(scenario.load_file(SOURCE), "guard", ((path, value),))


def test_a_path_leads_to_a_setting_or_deeper_and_a_stage_alone_means_its_first():
    chain = _changed("retry.backoff.first_s", 7).chain("guard")
    assert chain.stages[0].backoff.first_s == 7
    assert _changed("timeout", 7).chain("guard").stages[2] == Timeout(7)
    assert _changed("bulkhead", 7).chain("guard").stages[1] == Bulkhead(7, Fifo(10))
    assert _changed("bulkhead.queue.size_max", None).chain("guard").stages[1] == Bulkhead(4, Fifo())
    assert _changed("dependency.availability", 1).chain("guard").stages[3] == Simulated(LogNormal(0.1), 1)
    assert _changed("dependency.latency.median_s", 3).chain("guard").stages[3] == Simulated(LogNormal(3), 0.9)
    assert _changed("traffic.rate_per_s", 99).traffic == Poisson(99)
    assert _changed("keys.count", 3).keys.count == 3
    assert _changed("duration", 40).duration == 40


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("rety", 1, r"no stage is called 'rety' \(did you mean 'retry'\?\)"),
        ("retry.tries", 1, r"no setting is called 'tries'.*; there are attempts"),
        ("retry.attempts.most", 1, "name one of its settings: it has none"),
        ("retry.attempts", 0, r"retry\.attempts is 0"),
        ("retry.backoff.first_s", -1, r"backoff\.first_s is -1"),
        ("traffic", 1, "name one of its settings: rate_per_s"),
        ("traffic.rate_per_s", 0, r"poisson\.rate_per_s is 0"),
        ("duration", None, r"scenario\.duration is None"),
    ],
)
def test_a_path_that_leads_nowhere_or_to_what_cannot_be_is_refused(path: str, value: runs.Value, words: str):
    with pytest.raises(ChainInvalid, match=words):
        _changed(path, value)


def test_a_sweep_gives_what_single_runs_give():
    points = runs.points([runs.parse("retry.attempts=1..3"), runs.parse("timeout=0.1,0.3")])
    swept = runs.reports([RunPlan(SOURCE, "guard", point) for point in points], runs.here)

    found = scenario.load_file(SOURCE)
    for point, report in zip(points, swept, strict=True):
        attempts, limit_s = (value for _, value in point)
        chain = found.chain("guard").change("retry", attempts=attempts).change("timeout", limit_s=limit_s)
        alone = simulate(chain, traffic=Poisson(30), duration=20, seed=5, replications=3, keys=found.keys)
        assert report == alone


def test_the_number_of_processes_changes_nothing():
    points = runs.points([runs.parse("retry=1,2")])
    plans = [RunPlan(SOURCE, "guard", point, sample_every=1.0) for point in points]
    alone = runs.reports(plans, runs.here)

    assert runs.reports(plans, runs.in_processes(2)) == alone
    assert runs.reports(plans, runs.in_processes(3)) == alone
    assert runs.reports(plans[:1], runs.here) == alone[:1]


def test_another_seed_is_another_result_and_more_replications_begin_with_the_same():
    plan = RunPlan(SOURCE, "guard")
    [usual] = runs.reports([plan], runs.here)
    [other] = runs.reports([RunPlan(SOURCE, "guard", seed=6)], runs.here)
    [more] = runs.reports([RunPlan(SOURCE, "guard", replications=5)], runs.here)

    assert usual != other
    assert more.replications[:3] == usual.replications


def test_what_fails_in_another_process_is_told_here():
    broken = ScenarioFile(
        "/nowhere/broken.py", SOURCE.text.replace("Poisson(30)", "type('Never', (), {'arrivals': 5})()")
    )
    with pytest.raises(ChainInvalid, match="traffic"):
        runs.reports([RunPlan(broken, "broken")], runs.in_processes(2))


def test_retries_cost_calls_and_bring_success():
    points = runs.points([runs.parse("retry.attempts=1..3")])
    reports = runs.reports([RunPlan(SOURCE, "guard", point) for point in points], runs.here)
    calls = [report.stage("simulated", lambda one: one.arrived).mean for report in reports]
    success = [report.success.mean for report in reports]

    assert calls == sorted(calls)
    assert success == sorted(success)
    assert Retry(1) != Retry(2)
