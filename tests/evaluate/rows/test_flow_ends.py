"""Columns of one all-to-all: when its flows end, and its busiest link."""

import pytest

from mfabric_jax import cases
from mfabric_jax.evaluate.flow_ends import COLUMNS, slot_of
from mfabric_jax.evaluate.rows.points import EvaluatedBlock
from mfabric_jax.evaluate.solving import solve
from tests.small import row, scenario, small

FABRICS = ("fat-tree", "oversub-fat-tree", "multi-plane", "rail-optimized", "topoopt", "mfabric", "torus", "dragonfly")


def last_s(case):
    """When the last byte of the shown dispatch is through, as the engine has it."""
    one = scenario(case)
    return float(solve(one).load[(one.shown_iteration, *slot_of(one.workload).position)]) / float(
        one.rates(one.bandwidths[0]).nic_Bps
    )


@pytest.mark.parametrize("fabric", FABRICS)
def test_ends_of_a_row(fabric):
    case = small({"network.fabric": fabric})
    one = row(case)
    assert 0 < one["flow_p50_s"] <= one["flow_p99_s"] <= last_s(case) * (1 + 1e-9)
    assert one["flow_p99_s"] > 0.5 * last_s(case)
    assert 0 < one["busiest_link_use"] <= 1 + 1e-9
    assert one["busiest_link"]


@pytest.mark.parametrize("fabric", ["fat-tree", "mfabric"])
def test_rows_and_columns_say_the_same(fabric):
    given = small({"network.fabric": fabric, "run.iterations": 2})
    (block,) = cases(given, {"network.nic_gbps": [100.0, 400.0], "run.sample": [None, 0, 1]}).blocks
    swept = EvaluatedBlock(block).columns()
    each = [row(given.with_({"network.nic_gbps": gbps})) for gbps in (100.0, 400.0)]
    for name in COLUMNS:
        want, last, first, second = [one[name] for one in each], *(swept[name].tolist()[at::3] for at in range(3))
        assert last == second == (want if name == "busiest_link" else pytest.approx(want, rel=1e-6)), name
        assert first != second or name.startswith("busiest")


def test_unknown_where_drawn_paths_share_circuits():
    one = row(small({"network.fabric": "mfabric", "network.paths": "ecmp"}))
    assert [one[name] for name in COLUMNS] == [None] * len(COLUMNS)
