"""Lines, areas and marks of plots, and the series that they show."""

import re

from doubledecker.dashboard import drawing, figures, series
from doubledecker.dashboard.drawing import Line, Plot
from doubledecker.dashboard.series import SPANS
from doubledecker.store.history import Sample

FIVE_MINUTES = SPANS["5m"]


def a_sample(at_s: int, span_s: float = 1.0, published: float = 0.0) -> Sample:
    return Sample(at_s, span_s, published, 0.0, 0.0, 0, 0, 0, None, 0, (0.0,) * 16)


def test_a_line_is_drawn_from_point_to_point_and_broken_where_nothing_is_known():
    assert drawing.path([0.0, 5.0, None, 10.0, 10.0, 0.0], top=10.0) == "M0 1000l1 -500M3 0l1 0 1 1000"
    assert drawing.path([None, None], top=1.0) == ""


def test_the_axis_reaches_above_the_highest_value_in_even_steps():
    plot = Plot([Line("a", [0.0, 2_287.0], "", "a")], "5 min", 300, 0, write=figures.count)

    assert plot.marks == ["3,000", "2,000", "1,000", "0"]
    assert Plot([Line("a", [0.0], "", "a")], "5 min", 300, 0).ticks[0] == 0.0


def test_the_area_is_filled_where_the_first_line_is_above_the_second():
    lines = [Line("due", [5.0, 9.0, 5.0, 5.0], "", "due"), Line("done", [5.0, 4.0, 5.0, 8.0], "", "done")]
    [d] = re.findall(r'class="behind" d="([^"]*)"', Plot(lines, "5 min", 300, 0, fills_gap=True).svg)

    assert d.startswith("M0 500l1 -400 1 400")
    assert d.endswith("z")


def test_a_late_sample_stands_for_the_seconds_that_were_missed():
    found = series.arrange([a_sample(100, published=4), a_sample(103, 3.0, published=9)], FIVE_MINUTES, now_s=104)

    assert found.published[-5:] == [None, 4.0, 9.0, 9.0, 9.0]
    assert len(found.published) == 300


def test_a_history_that_has_stopped_is_not_drawn_up_to_now():
    found = series.arrange([a_sample(100, published=4)], FIVE_MINUTES, now_s=160)

    assert found.published[-61:] == [4.0] + [None] * 60


def test_durations_are_short():
    written = [str(figures.duration(ms)) for ms in (None, 0, 7.46, 340, 4_200, 24_000, 90_000, 7_200_000, 3e8)]

    assert written == ["\N{EN DASH}", "0 ms", "7.5 ms", "340 ms", "4.2 s", "24 s", "1.5 min", "2.0 h", "3 d"]
