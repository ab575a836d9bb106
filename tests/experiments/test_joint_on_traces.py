"""Joint circuits and routing on recorded all-to-alls: the rows say what direct calls say; looks were judged by eye."""

import numpy as np
import pytest

from experiments.joint_on_traces import PICTURE, POLICIES, SCRIPT, Config, run, summary
from mfabric_jax.fabric import Region
from mfabric_jax.policies import greedy
from mfabric_jax.report import style
from mfabric_jax.routing import best_relay_shares, degree_bound, fluid_lower_bound
from tests.experiments.recorded import between, over
from tests.experiments.recorded import trace as trace
from tests.rows import only

SMALL = {"samples": 2, "servers": (8,), "efficiencies": (1.0, 0.5), "steps": 100, "optical_degree": 3}
SMALL |= {"electrical_nics": 1, "joint_steps": 60, "joint_rounds": 0}


@pytest.fixture(scope="module")
def rows(trace):
    return list(run(Config(str(trace), **SMALL)))


def test_rows_equal_direct_calls_and_joint_is_never_later(trace, rows):
    assert len(rows) == 2 * 2 * len(POLICIES)
    recorded = np.load(trace)
    for row in rows:
        demand = between(recorded[row["record"], row["layer"] % 2, row["micro_batch"]], 8)
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
            continue
        assert row["time_s"] >= row["limit_s"] * (1 - 1e-6)
        if row["policy"] != "joint":
            rule = {"relay": "printed", "relay-next": "next"}[row["policy"]]
            best = best_relay_shares(where, greedy(demand, where, rule=rule).circuits, demand)[1] / bound
            assert best * (1 - 1e-6) <= row["over_bound"] <= 1.02 * best
    for efficiency in SMALL["efficiencies"]:
        joint, following = (over(rows, efficiency=efficiency, policy=name) for name in ("joint", "relay-next"))
        assert (joint <= following * 1.01).all()


def test_table_verdicts_and_figure(rows):
    assert len(SCRIPT.table(rows).splitlines()) == 2 + 2 * len(POLICIES)
    claims = [line.claim for line in SCRIPT.verdicts(rows)]
    assert claims[-1] == "over degree bound, joint, 8 servers, efficiency 0.5 (recorded)"
    with style.look():
        (axes,) = PICTURE.build(rows).axes
    place = [label.get_text() for label in axes.get_yticklabels()].index("Joint, efficiency 0.5")
    mean = np.mean(over(rows, efficiency=0.5, policy="joint"))
    assert axes.texts[place].get_text() == f"{mean:.2f}"
    line = only(summary(rows), efficiency=0.5, policy="joint")
    assert (line["mean"], line["samples"]) == (pytest.approx(mean), 2)
