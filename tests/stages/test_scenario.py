"""Scenarios from files: what may be said, and what is said of what may not."""

from dataclasses import fields
from pathlib import Path

import pytest

from doubledecker.stages import (
    AsideCache,
    Backoff,
    Breaker,
    Budget,
    Bulkhead,
    Chain,
    CoDel,
    Constant,
    Fallback,
    Fault,
    LogNormal,
    Normal,
    Outage,
    Poisson,
    Retry,
    Router,
    Saturation,
    Simulated,
    Time,
    Timeout,
    UniformKeys,
)
from doubledecker.stages.errors import ScenarioInvalid, TimedOut
from doubledecker.stages.simulation import declared, scenario
from doubledecker.stages.simulation.scenario import Scenario, ScenarioFile

DECLARED = """
title = "All of it"
duration = 90
seed = 3
replications = 2
sample_every = 0.5
traffic = { kind = "poisson", rate_per_s = 20 }
keys = { kind = "uniform", count = 7 }

[[chain]]
stage = "retry"
attempts = 3
backoff = { first_s = 0.1, cap_s = 2 }
budget = { share = 0.2 }
on = ["TimedOut"]

[[chain]]
stage = "breaker"
window = { kind = "time", span_s = 5 }
name = "fuse"

[[chain]]
stage = "bulkhead"
workers = 8
queue = { kind = "codel", target_s = 0.01, size_max = 50 }

[[chain]]
stage = "timeout"
limit_s = 1
abandon = true

[dependency]
latency = { kind = "log_normal", median_s = 0.05 }
availability = 0.99
failure_latency = { kind = "constant", value_s = 0.01 }
saturation = [[10, 1.0], [50, 4.0]]
outages = [{ start_s = 10, end_s = 20 }]
"""

WRITTEN = (
    Retry(3, Backoff(0.1, 2), Budget(0.2), on=(TimedOut,))
    | Breaker(Time(5), name="fuse")
    | Bulkhead(8, queue=CoDel(50, target_s=0.01))
    | Timeout(1, abandon=True)
    | Simulated(
        LogNormal(0.05),
        0.99,
        Constant(0.01),
        saturation=Saturation([(10, 1.0), (50, 4.0)]),
        outages=[Outage(10, 20)],
    )
)


def _load(text: str, name: str = "a_guard.toml") -> Scenario:
    return scenario.load_file(ScenarioFile(f"/nowhere/{name}", text))


def test_what_is_declared_is_the_chain_that_python_would_write():
    found = _load(DECLARED)

    assert found.chains == {"a_guard": WRITTEN}
    assert (found.traffic, found.keys) == (Poisson(20), UniformKeys(7))
    assert (found.title, found.duration, found.seed, found.replications) == ("All of it", 90, 3, 2)
    assert found.sample_every == 0.5


def test_branches_are_declared_as_chains():
    found = _load(
        """
        dependency = {}
        [[chain]]
        stage = "fallback"
        function = { value = "none" }
        chain = [{ stage = "aside_cache", capacity = 5 }]
        [[chain]]
        stage = "router"
        routes.slow = [{ stage = "timeout", limit_s = 30 }]
        [[chain]]
        stage = "fault"
        rate = 0.5
        error = "TimeoutError"
        delay = { kind = "normal", mean_s = 1, deviation_s = 0.1 }
        """
    )

    fallback, router, fault, _ = found.chains["a_guard"]
    assert isinstance(fallback, Fallback)
    assert fallback.chain == Chain() | AsideCache(5)
    assert router == Router({"slow": Chain() | Timeout(30)})
    assert fault == Fault(0.5, TimeoutError, delay=Normal(1, 0.1))


@pytest.mark.parametrize("name", sorted(declared.STAGES))
def test_every_technique_can_be_declared_by_name(name: str):
    settings = {"fallback": "function = { value = 1 }"}.get(name, "")
    inside = "" if name == "simulated" else "[dependency]"
    found = _load(f"[[chain]]\nstage = '{name}'\n{settings}\n{inside}")

    assert type(found.chains["a_guard"].stages[0]) is declared.STAGES[name]


@pytest.mark.parametrize("name", sorted(declared.STAGES))
def test_every_setting_of_a_technique_can_be_declared_but_how_a_router_chooses(name: str):
    settings = {field.name for field in fields(declared.STAGES[name]) if field.init}
    cannot = []
    for setting in settings:
        try:
            _load(f"[[chain]]\nstage = '{name}'\n{setting} = 1979-05-27")
        except ScenarioInvalid as error:
            cannot += [setting] if "cannot be written in TOML" in str(error) else []

    assert cannot == (["by"] if name == "router" else [])


def test_several_chains_have_names_and_share_the_dependency():
    found = _load("[[chains.bare]]\nstage = 'timeout'\n[[chains.shy]]\nstage = 'shed'\n[dependency]\n")

    assert list(found.chains) == ["bare", "shy"]
    assert all(chain.stages[-1] == Simulated() for chain in found.chains.values())


WRONG = {
    "[[chain]]\nstage = 'retri'": r"chain\[1\]: no stage is called 'retri' \(did you mean 'retry'\?\); there are adap",
    "[[chain]]\nattempts = 2": r"chain\[1\] needs a stage: one of adaptive, ",
    "[[chain]]\nstage = 'retry'\natempts = 2": r"chain\[1\] \(retry\): no setting is called 'atempts' .* attempts",
    "[[chain]]\nstage = 'retry'\nattempts = '2'": r"\(retry\)\.attempts is '2'; it must be a whole number",
    "[[chain]]\nstage = 'retry'\nattempts = true": r"\(retry\)\.attempts is True; it must be a whole number",
    "[[chain]]\nstage = 'retry'\nattempts = 0": r"retry\.attempts is 0; it must be a whole number, 1 or more",
    "[[chain]]\nstage = 'retry'\non = ['Timeout']": r"no exception is called 'Timeout' \(did you mean 'TimedOut'",
    "[[chain]]\nstage = 'timeout'\nabandon = 1": r"\.abandon is 1; it must be true or false",
    "[[chain]]\nstage = 'bulkhead'\nqueue = 5": r"\.queue is 5; it must be a table",
    "[[chain]]\nstage = 'bulkhead'\nqueue = { kind = 'ring' }": r"no kind is called 'ring'; there are codel, fifo",
    "[[chain]]\nstage = 'breaker'\nwindow = { size = 5 }": r"\.window needs a kind: one of count, time",
    "[[chain]]\nstage = 'fallback'\nfunction = 'x'": r"\.function is 'x'; it must be a table",
    "[[chain]]\nstage = 'router'\nby = 'key'": r"\.by cannot be written in TOML; describe this chain in a \.py file",
    "chain = 'retry'": r"chain is 'retry'; it must be a list",
    "chains = 1": r"chains is 1; it must be a table",
    "duration = 5": r"it has no chain; define `chain`",
    "dependency = { latency = { kind = 'log_normal' } }": r"missing 1 required positional argument: 'median_s'",
    "dependency = { saturation = [1, 2] }": r"dependency\.saturation is 1; it must be a list",
    "dependency = { saturation = [[5, 1], [5, 2]] }": r"by growing numbers at work",
    "dependency = { outages = [{ start_s = 2, end_s = 1 }] }": r"outage\.start_s is 2; it must be at most end_s",
    "durations = 5": r"no key is called 'durations' \(did you mean 'duration'\?\)",
    "traffic = { kind = 'poison' }": r"no kind is called 'poison' \(did you mean 'poisson'",
    "chain = [": r"Invalid value",
}
FINE = "[[chain]]\nstage = 'timeout'\n[dependency]\n"


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_what_cannot_be_is_told_with_its_place_and_what_can(text: str):
    with pytest.raises(ScenarioInvalid, match=WRONG[text]) as refused:
        _load(text)

    assert str(refused.value).startswith("a_guard.toml: ")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("duration = 0", r"scenario\.duration is 0"),
        ("duration = 'long'", r"scenario\.duration is 'long'; it must be a finite number above 0"),
        ("replications = 0", r"scenario\.replications is 0; it must be a whole number, 1 or more"),
        ("seed = 1.5", r"scenario\.seed is 1\.5"),
        ("sample_every = -1", r"scenario\.sample_every is -1"),
    ],
)
def test_numbers_of_the_scenario_are_checked(line: str, words: str):
    with pytest.raises(ScenarioInvalid, match=words):
        _load(f"{line}\n{FINE}")


PYTHON = "from doubledecker.stages import *\n"


def test_a_python_file_says_the_same_with_names():
    found = _load(
        f"{PYTHON}chain = Timeout(1)\ndependency = Simulated()\ntraffic = Even(5)\nhelper = 7\n", "short_wait.py"
    )

    assert found.chains == {"short_wait": Timeout(1) | Simulated()}
    assert found.title == "short wait"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("chain = Timeout(-1)", r"x\.py, line 2: timeout\.limit_s is -1"),
        ("chain = Tiemout(1)", r"x\.py, line 2: NameError: name 'Tiemout' is not defined"),
        ("chain = (", r"x\.py, line 2: SyntaxError"),
        ("import nonesuch_at_all", r"x\.py, line 2: ModuleNotFoundError"),
        ("raise SystemExit", r"x\.py: it ends the program"),
        ("chain = 5", r"scenario\.chain is 5; it must be a chain"),
        ("chain = Timeout(1)", r"x has no dependency at its end; add `dependency`"),
        ("chain = Timeout(1); dependency = Timeout(2)", r"scenario\.dependency is Timeout"),
        ("chain = Timeout(1); chains = {}; dependency = Simulated()", r"both `chain` and `chains`"),
        (
            "chain = Timeout(1) | Simulated(); traffic = 5",
            r"scenario\.traffic is 5; it must be traffic, such as Poisson",
        ),
    ],
)
def test_a_fault_of_a_python_file_is_told_with_its_line(text: str, words: str):
    with pytest.raises(ScenarioInvalid, match=words):
        _load(PYTHON + text, "x.py")


def test_a_python_file_may_import_its_neighbours(tmp_path: Path):
    (tmp_path / "neighbour_of_guard.py").write_text("LIMIT_S = 4\n")
    guard = tmp_path / "guard.py"
    guard.write_text(f"{PYTHON}import neighbour_of_guard\nchain = Timeout(neighbour_of_guard.LIMIT_S) | Simulated()\n")

    assert scenario.load_file(scenario.read_file(guard)).chains["guard"].stages[0] == Timeout(4)


@pytest.mark.parametrize(("name", "words"), [("x.yaml", "neither a .py nor a .toml"), ("none.toml", "No such file")])
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, name: str, words: str):
    with pytest.raises(ScenarioInvalid, match=words):
        scenario.read_file(tmp_path / name)


def test_saturation_lies_on_straight_lines_between_its_points():
    saturation = Saturation([(10, 1.0), (20, 3.0)])

    assert [saturation(working) for working in (0, 10, 15, 20, 99)] == [1.0, 1.0, 2.0, 3.0, 3.0]
