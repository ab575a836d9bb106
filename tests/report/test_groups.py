"""The picture of groups: means over a number, with what they are sure of."""

import pytest

from mfabric_jax import InputError
from mfabric_jax.report import figures
from mfabric_jax.report.figures.groups import groups_chart

ROWS = [
    {"policy": policy, "delay_s": delay, "rows": 5, "s_mean": mean, "s_ci95": half}
    for policy, delay, mean, half in (("a", 0.1, 4.0, 0.5), ("a", 0.001, 2.0, 0.25), ("b", 0.1, 3.0, None))
]


def test_a_line_for_each_group_over_its_number_with_intervals():
    chart = groups_chart(ROWS, ["policy", "delay_s"])
    (panel,) = chart.panels
    assert (panel.x, panel.y) == ("delay_s", "s")
    first, second = panel.curves
    assert [curve.look.label for curve in panel.curves] == ["a", "b"]
    assert first.points == [(0.001, 2.0), (0.1, 4.0)]
    assert first.spread == [(1.75, 2.25), (3.5, 4.5)]
    assert second.spread == [(3.0, 3.0)]  # one value is sure of nothing
    assert "95 %" in chart.note


def test_ratios_say_what_they_are_over():
    rows = [{"delay_s": row["delay_s"], "s_over_mean": row["s_mean"]} for row in ROWS[:2]]
    chart = groups_chart(rows, ["delay_s"], over="policy = a")
    assert chart.panels[0].y == "s over policy = a"
    assert chart.title == "Means of s over policy = a"


def test_the_last_number_is_along_and_a_lone_group_has_a_line(tmp_path):
    rows = [{key: value for key, value in row.items() if key not in ("policy", "s_ci95")} for row in ROWS[:2]]
    chart = groups_chart(rows, ["delay_s"])
    assert [curve.look.label for curve in chart.panels[0].curves] == ["all"]
    assert not chart.panels[0].curves[0].spread
    assert not chart.note
    assert figures.groups(rows, tmp_path / "means.png", by=["delay_s"]).stat().st_size > 0


@pytest.mark.parametrize(
    ("rows", "by"), [(ROWS, ["policy"]), ([{"delay_s": 1.0, "s_max": 2.0}], ["delay_s"]), ([], [])]
)
def test_without_a_number_or_a_mean_there_is_none(rows, by):
    with pytest.raises(InputError, match="figure must have a column of numbers in by and a mean"):
        groups_chart(rows, by)
