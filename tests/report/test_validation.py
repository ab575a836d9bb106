"""Flow level against packet level: what the table says and the figure shows."""

import pytest

from mfabric_jax.report import read_rows, write_rows
from mfabric_jax.report.figures import validation
from mfabric_jax.report.figures.studies import LOOKS, _collectives, _flows
from mfabric_jax.report.figures.studies import build_validation as build
from mfabric_jax.report.tables import agreement
from tests.mistakes import check_refused


def row(group, pattern, measured_s, error, **changed):
    hosts = "leaf-spine, 8 hosts (2 spines)" if group == "leaf-spine" else "tree, 8 hosts (k=4)"
    row = {"run": pattern, "group": group, "pattern": pattern, "flows": 12, "mean_pair_mib": 4.0, "large_flows": 5}
    row |= {
        "topology": hosts,
        "paths_known": group == "one-path",
        "transport": "dctcp" if group == "one-path" else "ndp",
    }
    row |= {"routing": "ECMP" if group in ("one-path", "unknown-path") else "spraying"}
    row |= {"measured_s": measured_s, "predicted_s": measured_s * (1 + error), "error": error}
    row |= {"stated_fluid_s": measured_s, "flow_error_median": 0.06, "flow_error_p90": 0.2}
    row |= {"corrected_by": "none", "corrected_s": row["predicted_s"], "corrected_error": error}
    row |= {"corrected_flow_error_median": row["flow_error_median"], "corrected_flow_error_p90": 0.2}
    return row | dict(zip(QUANTILES, (-0.3, -0.1, -0.05, 0.0, 0.1), strict=True)) | changed


QUANTILES = [f"flow_error_q{quantile}" for quantile in ("05", "25", "50", "75", "95")]


def rows():
    small = dict.fromkeys([*QUANTILES, "flow_error_median", "flow_error_p90", "stated_fluid_s"])
    small |= dict.fromkeys(["corrected_flow_error_median", "corrected_flow_error_p90"])
    return [
        row("spraying", "uniform", 0.005, -0.02),
        row("spraying", "small", 0.001, -0.04, large_flows=0, **small),
        row("one-path", "row", 0.012, -0.17),
        row("unknown-path", "hot", 0.02, -0.3),
        row("leaf-spine", "hot", 0.03, 0.01),
        row("incast", "8 to 1", 0.011, -0.01),
    ]


def group(name, transport="ndp"):
    plain = {"error_mean": 0.03, "error_p90": 0.035, "worst_error": -0.04, "worst_pattern": "small"}
    plain |= {"flow_error_median": 0.06, "flow_error_p90": 0.2}
    row = {"group": name, "transport": transport, "runs": 2, "large_flows": 5} | plain
    return row | {f"corrected_{key}": value if isinstance(value, str) else value / 10 for key, value in plain.items()}


def test_the_table_has_a_block_for_each_group_and_a_line_for_each_run():
    made = rows()
    made[2] |= {"corrected_by": "dctcp", "corrected_s": 0.0114, "corrected_error": -0.05}
    made[2] |= {"corrected_flow_error_median": 0.01, "corrected_flow_error_p90": 0.1}
    lines = agreement(made, [group("spraying"), group("incast", "dctcp")]).splitlines()
    for heading in ("spraying on a non-blocking tree, ndp", "one path per flow on a non-blocking tree, dctcp"):
        assert heading in lines
    assert {
        "(tree, 8 hosts, sprayed; corrected by: none)",
        "(leaf-spine, 8 hosts, sprayed; corrected by: none)",
    } <= set(lines)
    found = [line.split() for line in lines]
    assert ["row", "4.00", "12.00", "9.960", "-17.0%", "11.40", "-5.0%", "1.0%", "10.0%"] in found
    assert ["small", "4.00", "1.000", "0.960", "-4.0%", "0.960", "-4.0%", "-", "-"] in found
    for words in (
        ["spraying", "ndp", "plain", "2", "3.0%", "3.5%", "-4.0%", "small", "5"],
        ["incast", "dctcp", "corrected", "2", "0.3%", "0.4%", "-0.4%", "small", "5"],
    ):
        assert any(line[: len(words)] == words for line in found)
    assert lines[-1] == "5 of 6 files state a fluid time of their own; largest difference 3.0e-01."
    assert max(map(len, lines)) <= 100
    assert "state a fluid" not in agreement([row("incast", "8 to 1", 1.0, 0.0, stated_fluid_s=None)], [])


def test_a_point_for_every_run_and_a_box_for_every_one_that_has_large_flows():
    points = [(curve.look, *point) for curve in _collectives(rows()).curves for point in curve.points]
    wanted = [(LOOKS[row["group"]], row["measured_s"] * 1000, row["predicted_s"] * 1000) for row in rows()]
    assert points == [(look, pytest.approx(x), pytest.approx(y)) for look, x, y in wanted]
    panel = _flows(rows())
    assert panel.names == ["uniform ndp", "row dctcp", "hot ndp", "hot ndp", "8 to 1 ndp"]
    assert panel.whiskers == [(place, -0.3, 0.1) for place in range(5)]
    assert [(bar.start, bar.end) for bar in panel.bars] == [(-0.1, 0.0)] * 5
    assert panel.points == [(-0.05, place) for place in range(5)]
    figure = build(rows())
    left, right = figure.axes
    assert left.get_xscale() == left.get_yscale() == "log"
    assert left.get_xlim() == left.get_ylim()
    assert sorted(text.get_text() for text in left.texts) == ["hot ndp, -30%", "row dctcp, -17%"]
    assert right.get_xlim() == pytest.approx((-0.33, 0.33))
    for drawn, groups in ((figure, LOOKS), (build(rows()[-1:]), ["incast"])):  # only the groups that occur
        assert [text.get_text() for text in drawn.legends[0].get_texts()] == [LOOKS[name].label for name in groups]


def test_rows_of_something_else_are_refused_and_stored_ones_draw_the_same(tmp_path):
    lacking = [([], "there are no rows"), ([{"group": "incast"}], "rows lack pattern, transport, measured_s")]
    for made, reason in lacking:
        check_refused(reason, build, made)
    stored, _ = read_rows(write_rows(rows(), tmp_path / "rows.csv", {}))
    first, second = (validation(made, tmp_path / "a.png").read_bytes() for made in (rows(), stored))
    assert first == second
