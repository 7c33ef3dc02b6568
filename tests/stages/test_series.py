"""A simulation over time: intervals, and the charts that are drawn from them."""

import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from doubledecker.plots import chart, over_grid, over_time, png, svg
from doubledecker.plots.chart import Chart, Curve, Panel
from doubledecker.stages import (
    Breaker,
    Bulkhead,
    Chain,
    Constant,
    Count,
    Even,
    Fifo,
    Outage,
    Poisson,
    Simulated,
    UniformKeys,
    simulate,
)
from doubledecker.stages.errors import ChainInvalid
from doubledecker.stages.simulation import runs
from doubledecker.stages.simulation.report import intervals, moments
from doubledecker.stages.simulation.report import over_time as means_over_time

OUT = Breaker(open_s=2) | Bulkhead(2, Fifo(50)) | Simulated(Constant(0.1), outages=[Outage(10, 20)])


def _report(**changes: object):
    given = {"traffic": Even(10), "duration": 30, "sample_every": 1, "replications": 2, **changes}
    return simulate(OUT, **given)


def test_intervals_tell_what_happened_in_them():
    report = _report()
    success = means_over_time(report, lambda one: one.success)

    assert moments(report) == list(range(1, 31))
    assert [one.mean for one in success[:10]] == [1.0] * 10
    assert all(one.mean == 0.0 for one in success[11:20])
    assert [one.mean for one in success[24:]] == [1.0] * 6
    assert means_over_time(report, lambda one: one.latency_s(0.99))[5].mean == pytest.approx(0.1)
    assert means_over_time(report, lambda one: one.arrived_per_s(0))[5].mean == pytest.approx(10)
    assert means_over_time(report, lambda one: one.at_end("breaker").state == "open")[15].mean == 1.0


def test_intervals_add_up_to_the_whole_but_for_what_ends_after_the_traffic():
    [run] = _report(replications=1, traffic=Poisson(10)).replications
    ended = sum(len(interval.latencies_s) for interval in intervals(run))

    assert ended == run.samples[-1].ended
    assert 0 <= run.sent - ended < 5
    assert sum(one.latter.succeeded - one.former.succeeded for one in intervals(run)) == run.samples[-1].succeeded


def test_an_interval_in_which_nothing_ended_has_no_success_and_no_latency():
    report = simulate(Chain() | Simulated(Constant(2.5)), traffic=Even(0.1), duration=10, sample_every=1)
    success = means_over_time(report, lambda one: one.success)
    latency_s = means_over_time(report, lambda one: one.latency_s(0.5))

    assert [None if one is None else one.mean for one in success] == [None, None, 1.0, *[None] * 7]
    assert [one is None for one in latency_s] == [one is None for one in success]


def test_the_first_look_is_before_the_first_event():
    [run] = _report(replications=1).replications

    assert run.samples[0].snapshots[0].arrived == 0
    assert sum(one.arrived_per_s(0) * one.took for one in intervals(run)) == pytest.approx(300, abs=1)


def test_looking_changes_nothing():
    watched, unwatched = _report(sample_every=0.1), _report(sample_every=None)

    assert [one.outcomes for one in watched.replications] == [one.outcomes for one in unwatched.replications]
    assert [one.latencies_s for one in watched.replications] == [one.latencies_s for one in unwatched.replications]


def test_a_chart_has_a_panel_for_all_that_was_asked_for():
    drawn = over_time.chart({"guard": _report()}, title="An outage")

    titles = [panel.title.partition(",")[0].partition(" (")[0] for panel in drawn.panels]
    assert titles == ["latency", "success", "calls per second", "waiting in queues", "circuits not closed"]
    assert [line.name for line in drawn.panels[0].lines] == ["p50", "p95", "p99"]
    assert max(drawn.panels[-1].lines[0].ys) == 1.0


def test_circuits_by_key_are_drawn_as_the_share_that_is_not_closed():
    chain = Breaker(Count(4), open_s=100, per_key=True) | Simulated(outages=[Outage(5, 30)])
    report = simulate(chain, traffic=Even(10), duration=30, sample_every=1, keys=UniformKeys(4))
    [line] = over_time.chart({"guard": report}, title="Keys").panels[-1].lines

    assert line.ys[3] == 0.0
    assert line.ys[-1] == 1.0
    assert any(0.0 < y < 1.0 for y in line.ys)


def test_compared_chains_have_a_colour_each():
    bare = simulate(Chain() | OUT.stages[-1], traffic=Even(10), duration=30, sample_every=1, replications=2)
    drawn = over_time.chart({"guard": _report(), "bare": bare}, title="Two")

    assert {(line.name, line.colour) for line in drawn.panels[1].lines} == {("guard", 0), ("bare", 1)}


def test_what_was_not_sampled_or_at_other_times_cannot_be_drawn():
    with pytest.raises(ChainInvalid, match="simulate with sample_every"):
        over_time.chart({"guard": _report(sample_every=None)}, title="x")
    with pytest.raises(ChainInvalid, match="their durations or samples differ"):
        over_time.chart({"one": _report(), "other": _report(duration=20)}, title="x")


def test_the_same_chart_is_the_same_svg_and_it_is_well_formed():
    drawings = [svg.draw(over_time.chart({"a<b": _report()}, title="R & D")) for _ in range(2)]
    root = ET.fromstring(drawings[0])

    assert drawings[0] == drawings[1]
    assert root.tag.endswith("svg")
    width, height = (float(number) for number in root.attrib["viewBox"].split()[2:])
    for element in root.iter("{http://www.w3.org/2000/svg}polyline"):
        points = [tuple(map(float, point.split(","))) for point in element.attrib["points"].split()]
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points)


def test_a_png_is_drawn_with_the_extra(tmp_path: Path):
    path = tmp_path / "chart.png"
    png.save(over_time.chart({"guard": _report()}, title="An outage"), path)

    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_grid_is_drawn_along_its_longest_axis():
    axes = [runs.parse("breaker.open_s=1,2"), runs.parse("bulkhead.queue.size_max=3,1,2,none")]
    points = runs.points(axes)
    report = _report(sample_every=None)
    words = over_grid.chart(axes, points, [report] * len(points), title="Grid")
    numbers = over_grid.chart(axes[:1], runs.points(axes[:1]), [report] * 2, title="Grid")

    assert words.x_title == "bulkhead.queue.size_max"
    assert words.x_words == ("3", "1", "2", "none")
    assert [line.name for line in words.panels[0].lines] == ["open_s=1", "open_s=2"]
    assert numbers.xs == (1.0, 2.0)
    assert ET.fromstring(svg.draw(words)).tag.endswith("svg")


def test_axes_are_marked_with_round_numbers():
    assert chart.nice_ticks(0, 60, 6) == [0, 10, 20, 30, 40, 50, 60]
    assert chart.nice_ticks(0, 0.07, 4) == [0, 0.02, 0.04, 0.06]
    assert chart.nice_ticks(5, 5, 4) == [5]
    assert [chart.nice_ceiling(value) for value in (0, 0.07, 1, 1.2, 99)] == [1, 0.075, 1, 1.5, 100]
    assert [chart.number(value) for value in (0.25, 1500, 25_000)] == ["0.25", "1500", "25,000"]


def test_a_line_is_cut_where_it_has_gaps():
    assert chart.runs((1, 2, 3, 4), (5, None, 7, math.inf)) == [[(1, 5)], [(3, 7)]]
    assert chart.runs((1, 2), (0, 1), is_step=True) == [[(1, 0), (2, 0), (2, 1)]]
    assert chart.bands((1, 2), Curve("", (1, 1), (0, 0), (2, 2))) == [[(1, 2), (2, 2), (2, 0), (1, 0)]]
    assert Panel("", (Curve("", (3.0, 7.0), (0.0, 0.0), (900.0, 900.0)),)).highest == 7.5
    assert Chart("", "", (0.0, 1.0), ()).ticks()[0] == (0, "0")
