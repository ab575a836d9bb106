"""Flow level against packet level: what the table says and the figure shows."""

import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.report import read_rows, write_rows
from mfabric_jax.report.figures import validation
from mfabric_jax.report.figures._validation import LOOKS, _collectives, _flows
from mfabric_jax.report.figures._validation import build_validation as build
from mfabric_jax.report.tables import agreement

QUANTILES = {"flow_error_q05": -0.3, "flow_error_q25": -0.1, "flow_error_q50": -0.05, "flow_error_q75": 0.0}
QUANTILES["flow_error_q95"] = 0.1


def row(group, pattern, measured_s, error, **changed):
    return {
        "run": pattern,
        "group": group,
        "topology": "leaf-spine, 8 hosts (2 spines)" if group == "leaf-spine" else "tree, 8 hosts (k=4)",
        "pattern": pattern,
        "transport": "dctcp" if group == "one-path" else "ndp",
        "routing": "ECMP" if group in ("one-path", "unknown-path") else "spraying",
        "paths_known": group == "one-path",
        "flows": 12,
        "mean_pair_mib": 4.0,
        "measured_s": measured_s,
        "predicted_s": measured_s * (1 + error),
        "error": error,
        "stated_fluid_s": measured_s,
        "large_flows": 5,
        "flow_error_median": 0.06,
        "flow_error_p90": 0.2,
        **QUANTILES,
    } | changed


def rows():
    small = dict.fromkeys([*QUANTILES, "flow_error_median", "flow_error_p90", "stated_fluid_s"])
    return [
        row("spraying", "uniform", 0.005, -0.02),
        row("spraying", "small", 0.001, -0.04, large_flows=0, **small),
        row("one-path", "row", 0.012, -0.17),
        row("unknown-path", "hot", 0.02, -0.3),
        row("leaf-spine", "hot", 0.03, 0.01),
        row("incast", "8 to 1", 0.011, -0.01),
    ]


def group(name):
    return {
        "group": name,
        "runs": 2,
        "error_median": 0.03,
        "worst_error": -0.04,
        "worst_pattern": "small",
        "worst_transport": "ndp",
        "large_flows": 5,
        "flow_error_median": 0.06,
        "flow_error_p90": 0.2,
    }


def test_the_table_has_a_block_for_each_group_and_a_line_for_each_run():
    said = agreement(rows(), [group("spraying"), group("incast")])
    lines = said.splitlines()
    for heading in ("spraying on a non-blocking tree", "one path per flow on a non-blocking tree", "incast on a"):
        assert any(line.startswith(heading) for line in lines)
    assert "(tree, 8 hosts)" in lines
    assert "(leaf-spine, 8 hosts)" in lines
    found = [line.split() for line in lines]
    assert ["row", "dctcp", "path", "12", "4.00", "12.00", "9.960", "-17.0%", "6.0%", "20.0%"] in found
    assert ["small", "ndp", "spray", "12", "4.00", "1.000", "0.960", "-4.0%", "-", "-"] in found
    assert ["spraying", "2", "3.0%", "-4.0%", "small", "ndp", "5", "6.0%", "20.0%"] in found
    assert lines[-1] == "5 of 6 files state a fluid time of their own; largest difference 3.0e-01."
    assert max(map(len, lines)) <= 100


def test_no_stated_times_no_line_about_them():
    assert "state a fluid" not in agreement([row("incast", "8 to 1", 1.0, 0.0, stated_fluid_s=None)], [])


pytest.importorskip("matplotlib")


def test_a_point_for_every_run_in_the_look_of_its_group():
    left, _ = build(rows()).axes
    points = [(curve.look, *point) for curve in _collectives(rows()).curves for point in curve.points]
    wanted = [(LOOKS[row["group"]], row["measured_s"] * 1000, row["predicted_s"] * 1000) for row in rows()]
    assert points == [(look, pytest.approx(x), pytest.approx(y)) for look, x, y in wanted]
    assert left.get_xscale() == left.get_yscale() == "log"
    assert left.get_xlim() == left.get_ylim()
    assert sorted(text.get_text() for text in left.texts) == ["hot ndp, -30%", "row dctcp, -17%"]


def test_a_box_for_every_run_that_has_large_flows():
    figure, panel = build(rows()), _flows(rows())
    assert panel.names == ["uniform ndp", "row dctcp", "hot ndp", "hot ndp", "8 to 1 ndp"]
    assert panel.whiskers == [(place, -0.3, 0.1) for place in range(5)]
    assert [(bar.start, bar.end) for bar in panel.bars] == [(-0.1, 0.0)] * 5
    assert panel.points == [(-0.05, place) for place in range(5)]
    assert figure.axes[1].get_xlim() == pytest.approx((-0.33, 0.33))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [look.label for look in LOOKS.values()]


def test_only_the_groups_that_occur_are_in_the_legend():
    (legend,) = build(rows()[-1:]).legends
    assert [text.get_text() for text in legend.get_texts()] == [LOOKS["incast"].label]


def test_rows_of_something_else():
    for made, reason in (
        ([], "there are no rows"),
        ([{"group": "incast"}], "rows lack pattern, transport, measured_s"),
    ):
        with pytest.raises(InputError, match=reason):
            build(made)


def test_the_figure_can_be_redrawn_from_a_file(tmp_path):
    write_rows(rows(), tmp_path / "rows.csv", {})
    stored, _ = read_rows(tmp_path / "rows.csv")
    first = validation(rows(), tmp_path / "a.png").read_bytes()
    assert validation(stored, tmp_path / "b.png").read_bytes() == first
