"""Steps are kept apart: one that fails is tried again, told, and does not hold up the others."""

import threading
from collections.abc import Callable

import pytest

from doubledecker.model.step import StepReport
from doubledecker.pipeline import steps
from doubledecker.pipeline.steps import Keeper, PipelineStep, Round


class Told:
    """What steps said, in order."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, StepReport]] = []

    def __call__(self, name: str, report: StepReport) -> None:
        self.reports.append((name, report))

    def last(self, name: str) -> StepReport:
        return [report for step, report in self.reports if step == name][-1]


def a_keeper(name: str, act: Callable[[], Round], told: Told) -> Keeper:
    return Keeper(PipelineStep(name, act, interval_s=0.01), told)


def test_one_pass_goes_on_while_there_is_more():
    rounds = iter([Round(5, has_more=True), Round(7, has_more=True), Round(1)])
    told = Told()

    is_done = steps.pass_all([a_keeper("events", lambda: next(rounds), told)], threading.Event())

    assert is_done
    assert told.last("events").rows == 13
    assert told.last("events").state == "waiting"


def test_a_failing_step_is_told_and_tried_again_while_others_go_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steps, "PAUSE_S_MIN", 0.01)
    told, stop = Told(), threading.Event()
    rounds = {"bad": 0, "good": 0}

    def bad() -> Round:
        rounds["bad"] += 1
        raise OSError("the disk\nis full")

    def good() -> Round:
        rounds["good"] += 1
        if rounds["good"] > 20 and rounds["bad"] > 3:
            stop.set()
        return Round(1)

    is_well = steps.keep_all([a_keeper("bad", bad, told), a_keeper("good", good, told)], stop)

    failures = [report for name, report in told.reports if name == "bad" and report.state == "failing"]
    assert not is_well
    assert [report.failures for report in failures[:4]] == [1, 2, 3, 4]
    assert failures[0].error == "the disk is full"
    assert failures[0].retry_at >= failures[0].at
    assert told.last("good").rows == rounds["good"]


def test_a_step_that_recovers_forgets_its_failures(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steps, "PAUSE_S_MIN", 0.01)
    outcomes = iter([True, True, False])
    told = Told()

    def act() -> Round:
        if next(outcomes):
            raise OSError("away")
        return Round(3)

    is_done = steps.pass_all([a_keeper("events", act, told)], threading.Event())

    assert is_done
    assert (told.last("events").failures, told.last("events").error) == (0, "")


def test_one_pass_gives_up_after_three_failures(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steps, "PAUSE_S_MIN", 0.01)
    told = Told()

    def act() -> Round:
        raise OSError("away")

    assert not steps.pass_all([a_keeper("events", act, told)], threading.Event())
    assert told.last("events").failures == 3


def test_one_pass_runs_a_later_phase_after_the_others_are_done():
    order = []
    rounds = iter([Round(1, has_more=True), Round(1)])

    def land() -> Round:
        order.append("land")
        return next(rounds)

    def measure() -> Round:
        order.append("measure")
        return Round(1)

    keepers = [Keeper(PipelineStep("measure", measure, 0.01, phase=1), Told()), a_keeper("land", land, Told())]

    assert steps.pass_all(keepers, threading.Event())
    assert order == ["land", "land", "measure"]


def test_the_pause_doubles_up_to_a_minute():
    assert [steps.pause_s(failures) for failures in (1, 2, 3, 7, 100)] == [1.0, 2.0, 4.0, 60.0, 60.0]
