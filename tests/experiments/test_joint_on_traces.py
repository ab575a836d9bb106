"""Joint circuits and routing on recorded all-to-alls: the rows say what direct calls say; looks were judged by eye."""

import numpy as np
import pytest

from mfabric_jax import report
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Region
from mfabric_jax.policies import greedy
from mfabric_jax.report import style
from mfabric_jax.routing import best_relay_shares, degree_bound, fluid_lower_bound

pytest.importorskip("matplotlib")
pytest.importorskip("tyro")
from experiments.joint_on_traces import LOOKS, Config, build, draw, main, run, summary
from tests.experiments.test_relay_on_traces import between
from tests.experiments.test_relay_on_traces import trace as trace

SMALL = {"samples": 2, "servers": (8,), "efficiencies": (1.0, 0.5), "steps": 100, "optical_degree": 3}
SMALL |= {"electrical_nics": 1, "joint_steps": 60, "joint_rounds": 0}


@pytest.fixture(scope="module")
def rows(trace):
    return list(run(Config(str(trace), **SMALL)))


def over(rows, **values):
    return np.array([row["over_bound"] for row in rows if all(row[key] == value for key, value in values.items())])


def test_rows_equal_direct_calls(trace, rows):
    assert len(rows) == 2 * 2 * len(LOOKS)
    for row in rows:
        demand = between(trace, row)
        where = Region(8, 400.0, 3, 1, relay_efficiency=row["efficiency"])
        bound = float(degree_bound(where, demand))
        np.testing.assert_allclose(row["over_bound"], row["time_s"] / row["bound_s"], rtol=1e-12)
        assert row["limit_s"] >= row["bound_s"] * (1 - 1e-9)
        assert row["max_min_s"] >= row["time_s"] * (1 - 1e-6)
        assert row["decision_s"] > 0
        if row["policy"] == "unsplit":
            circuits = greedy(demand, where).circuits
            want = fluid_lower_bound(where, circuits, demand, routing="unsplit") / bound
            np.testing.assert_allclose(row["over_bound"], want, rtol=1e-6)
        elif row["policy"] != "joint":
            rule = {"relay": "printed", "relay-next": "next"}[row["policy"]]
            best = best_relay_shares(where, greedy(demand, where, rule=rule).circuits, demand)[1] / bound
            assert best * (1 - 1e-6) <= row["over_bound"] <= 1.02 * best


def test_joint_is_never_later_and_no_policy_beats_the_bounds(rows):
    for efficiency in SMALL["efficiencies"]:
        joint, following = (over(rows, efficiency=efficiency, policy=name) for name in ("joint", "relay-next"))
        assert (joint <= following * 1.01).all()
    for row in rows:
        if row["policy"] != "unsplit":
            assert row["time_s"] >= row["limit_s"] * (1 - 1e-6)


def test_main_writes_rows_configuration_and_picture(trace, tmp_path, capsys):
    words = ["--trace", str(trace), "--out", str(tmp_path), "--samples", "1", "--efficiencies", "1"]
    for field in ("servers", "steps", "optical_degree", "electrical_nics", "joint_steps", "joint_rounds"):
        words += ["--" + field.replace("_", "-"), str(np.ravel(SMALL[field])[0])]
    assert main(words) == 0
    rows, config = report.read_rows(tmp_path / "joint_on_traces.csv")
    assert len(rows) == len(LOOKS)
    assert (config["joint_steps"], config["dtype"]) == (60, "float64")
    assert (tmp_path / "joint_on_traces.png").read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr()
    assert said.err == ""
    lines, verdicts = (part.splitlines() for part in said.out.split("\n\n"))
    assert len(lines) == len(verdicts) == 2 + len(LOOKS)
    assert all("8 servers, efficiency 1 (recorded)" in line for line in verdicts[2:])
    assert max(map(len, said.out.splitlines())) <= 120


def test_the_summary_is_that_of_the_groups():
    fields = {"efficiency": 1.0, "policy": "joint", "bound_s": 2.0}
    fields |= {"limit_s": 3.0, "max_min_s": 4.0, "decision_s": 5.0}
    lines = summary([fields | {"servers": s, "over_bound": v} for s in (8, 16) for v in (1.0, 2.0, 6.0)])
    assert [line["servers"] for line in lines] == [8, 16]
    assert (lines[0]["mean"], lines[0]["worst"], lines[0]["samples"]) == (3.0, 6.0, 3)
    assert lines[0]["p90"] == pytest.approx(5.2)
    assert (lines[0]["limit"], lines[0]["max_min"], lines[0]["decision_s"]) == (1.5, 2.0, 5.0)


def test_the_figure_shows_the_rows(rows):
    more = [row | {"servers": 16, "over_bound": row["over_bound"] + 1} for row in rows]
    with style.look():
        figure = build([*rows, *more])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["8 servers", "16 servers"]
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    place = names.index("Joint, efficiency 0.5")
    want = over(rows, efficiency=0.5, policy="joint")
    for axes, values in zip(figure.axes, (want, want + 1), strict=True):
        dots = [line for line in axes.get_lines() if line.get_marker() == "."]
        np.testing.assert_array_equal(dots[place].get_xdata(), values)
        assert [note.get_text() for note in axes.texts][place] == f"{np.mean(values):.2f}"
    with pytest.raises(InputError, match="there are none"):
        draw([], "a.png")


@pytest.mark.parametrize("field", ["joint_steps", "joint_samples", "joint_rounds"])
def test_mistakes_are_found_before_anything_runs(field):
    with pytest.raises(InputError, match=f"{field} must be a whole number"):
        Config("x", **{field: -1})
    with pytest.raises(InputError, match="efficiencies must be at most 1"):
        Config("x", efficiencies=(2.0,))


def test_the_recording(shared_data):
    # One hot server or a few: greedy gives them too few ways in; joint reaches the bound.
    folder = str(shared_data / "smartmoe_gate_trace")
    settings = {field: SMALL[field] for field in ("steps", "joint_steps", "joint_rounds")}
    rows = list(run(Config(folder, samples=4, servers=(8,), efficiencies=(1.0,), **settings)))
    assert over(rows, policy="joint").mean() < 1.02
    assert over(rows, policy="unsplit").mean() > 1.2
    assert np.isfinite(over(rows, policy="relay")).all()
