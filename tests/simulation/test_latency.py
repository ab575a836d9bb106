"""`network.alpha_s`: seconds of a message beside its bytes, and the column that says what they take."""

import numpy as np
import pytest

from mfabric_jax import cases
from mfabric_jax.simulation.points import Points
from tests.small import row, scenario, small

ALPHA = "network.alpha_s"


@pytest.mark.parametrize("fabric", ["fat-tree", "mfabric"])
def test_the_column_is_what_an_iteration_takes_longer(fabric):
    usual = row(small({"network.fabric": fabric}))
    assert usual["latency_s"] == 0.0
    late = row(small({"network.fabric": fabric, ALPHA: 1e-4}))
    assert late["latency_s"] == pytest.approx(late["iteration_s"] - usual["iteration_s"], rel=1e-9)
    assert late["latency_s"] > 4 * 1e-4  # two all-to-alls a block and pass at the least


def test_swept_as_columns_and_one_by_one():
    asked, alphas = {"network.fabric": "fat-tree"}, [0.0, 1e-5, 1e-3]
    (block,) = cases(small(asked), {ALPHA: alphas}).blocks
    swept = Points(block).columns()
    for name in ("iteration_s", "latency_s", "ep_comm_s"):
        np.testing.assert_allclose(swept[name], [row(small(asked | {ALPHA: one}))[name] for one in alphas], rtol=1e-9)


def test_links_of_the_longest_way():
    """Regions of 4 servers: a torus has them in a square, a ring of a rail has two steps, on topoopt all meet."""
    for fabric, links in (("fat-tree", 6), ("torus", 2), ("photonic-rails", 2), ("topoopt", 1), ("dragonfly", 5)):
        assert scenario(small({"network.fabric": fabric})).path_links == links, fabric
    alpha = {"network.link_delay_s": 1e-3}
    near, far = (row(small({"network.fabric": "torus"} | one)) for one in ({"network.link_delay_s": 0.0}, alpha))
    assert far["ep_comm_s"] - near["ep_comm_s"] >= 4 * 2e-3  # two all-to-alls forward and backward, of two links each
