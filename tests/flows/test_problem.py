"""Sums and minima between flows and links, in both of their ways."""

import jax.numpy as jnp
import numpy as np

from mfabric_jax.flows import FlowList, FlowProblem, max_min_rates
from mfabric_jax.flows.problem import paths_of
from mfabric_jax.platforms import compiling_for
from tests.mistakes import refused


def test_shares_at_padding_may_be_0():
    capacity, hops = np.array([6.0, 9.0]), np.array([[0, -1], [0, 1], [-1, 1]])
    share = np.array([[1, 0.5], [1, 0.5], [0.5, 1.0]])
    unused = FlowProblem(capacity, hops, share=np.where(hops < 0, 0, share))
    np.testing.assert_array_equal(max_min_rates(unused).rate, max_min_rates(FlowProblem(capacity, hops, share)).rate)
    assert "share must be above 0, got 0" in refused(FlowProblem, capacity, hops, share=np.where(hops == 0, 0, share))


def test_comparing_hops_with_links_is_scattering():
    # Off a CPU links are summed over by comparison; padding, links without hops and both layouts.
    rng = np.random.default_rng(0)
    hops = rng.integers(-1, 6, (9, 3))
    table = FlowProblem(rng.uniform(1, 2, 8), hops, share=rng.uniform(0.1, 1, (9, 3)))
    flow, link = np.divmod(rng.permutation(9 * 6)[:20], 6)
    flat = FlowList(rng.uniform(1, 2, 8), link, flow, flows=9)
    for problem in (table, flat):
        scattered = paths_of(problem)
        with compiling_for("gpu"):
            compared = paths_of(problem)
        assert compared.compared
        assert not scattered.compared
        value = jnp.asarray(rng.uniform(1, 2, 9))
        np.testing.assert_allclose(compared.link_sum(value), scattered.link_sum(value), rtol=1e-12)
        np.testing.assert_array_equal(compared.link_min(value), scattered.link_min(value))
        assert compared.link_min(value)[7] == np.inf
