"""The network: other names for servers change nothing else; its plans are legal; batches; any number of servers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax.fabric import Circuits
from mfabric_jax.policies.learned import PolicyNetwork
from mfabric_jax.policies.samples import normalised
from mfabric_jax.routing import fluid_lower_bound
from mfabric_jax.routing.relay import checked_shares
from tests.batches import assert_batch_is_its_loop
from tests.policies import drawn
from tests.policies.drawn import SEEDS, any_degrees, hostile
from tests.routing.regions import pairs

SERVERS = 5
NETWORK = PolicyNetwork(6, 1, key=jax.random.key(1))
NETWORK = eqx.tree_at(
    lambda network: network.score.weight, NETWORK, replace_fn=lambda weight: 100 * weight
)  # as trained
SIGMA = jnp.asarray(0.5)


def region(degree=6, electrical=2.0, servers=SERVERS):
    return drawn.region(servers, degree, electrical)


@eqx.filter_jit
def planned(demand, where, sigma=SIGMA):
    return NETWORK(demand, where, sigma=sigma)


def draw(seed, servers=SERVERS):
    return np.random.default_rng(seed).lognormal(0, 1.5, (servers, servers)) * 2.0**20


def test_servers_in_another_order_get_the_same_plan_in_that_order():
    for seed in range(10):
        rng, demand = np.random.default_rng(seed), draw(seed)
        degree, electrical = rng.integers(1, 9, SERVERS), rng.integers(1, 4, SERVERS).astype(float)
        order = rng.permutation(SERVERS)
        plan = planned(demand, region(degree, electrical))
        moved = planned(demand[order][:, order], region(degree[order], electrical[order]))
        np.testing.assert_array_equal(moved.circuits.count, np.asarray(plan.circuits.count)[order][:, order])


@settings(max_examples=60, derandomize=True)
@given(SEEDS, any_degrees(SERVERS), st.sampled_from([jnp.float32, jnp.float64]))
def test_is_legal_whatever_the_demand(seed, degree, dtype):
    demand = hostile(seed, SERVERS) * ~np.eye(SERVERS, dtype=bool)
    where = region(np.asarray(degree), float(seed % 3))
    plan = planned(jnp.asarray(demand, dtype), where)
    count = np.asarray(plan.circuits.count)
    assert np.issubdtype(count.dtype, np.integer)
    Circuits(count).checked(np.asarray(degree))
    assert plan.shares is not None
    assert plan.shares.dtype == dtype
    checked_shares(np.asarray(plan.shares), SERVERS)
    time = fluid_lower_bound(where, plan, jnp.asarray(demand, dtype), routing="relay")
    stuck = (np.asarray(degree) == 0) & (np.asarray(where.electrical_nics) == 0)
    assert np.isfinite(time) or (demand[stuck].any() or demand[:, stuck].any() or not where.electrical_nics.any())


def test_unit_of_bytes_does_not_matter():
    demand = draw(2)
    want = planned(demand, region())
    for factor in (2.0**-40, 2.0**40):
        got = planned(demand * factor, region())
        np.testing.assert_array_equal(got.circuits.count, want.circuits.count)
        np.testing.assert_array_equal(got.shares, want.shares)


def test_need_is_measured_in_nics_of_the_busiest_server():
    # 0 sends 6 + 2 to 1 and 2, all over 4 + 1 NICs: 8/5 bytes a NIC. Server 3 has no NIC: its bytes do not count.
    demand = pairs({(0, 1): 6, (0, 2): 2, (3, 0): 100, (1, 1): 50}, servers=4)
    need = normalised(demand, region([4, 4, 4, 0], [1.0, 1.0, 1.0, 0.0], servers=4))
    want = pairs({(0, 1): 6 / (8 / 5), (0, 2): 2 / (8 / 5)}, servers=4)
    np.testing.assert_allclose(need.pairs, want, rtol=1e-12)


def test_a_batch_over_demands_and_regions_equals_its_loop_and_new_numbers_do_not_retrace():
    once = eqx.filter_jit(eqx.debug.assert_max_traces(lambda d, w: NETWORK(d, w), max_traces=1))
    cases = [(draw(seed), region(seed)) for seed in range(9)]
    assert_batch_is_its_loop(NETWORK, cases, once, atol=2e-5)  # circuits are whole: equal


def test_the_same_weights_serve_another_number_of_servers():
    plan = NETWORK(draw(4, 3), region(servers=3))
    Circuits(np.asarray(plan.circuits.count)).checked(6)
    assert plan.shares is not None
    assert plan.shares.shape == (3, 3, 5)


def test_how_far_a_forecast_may_be_off_is_seen():
    # One heavy pair among equal ones: of a forecast that errs as much as that, most is not believed.
    demand = np.full((SERVERS, SERVERS), 1e6)
    demand[0, 1] = 1e8
    sure, unsure = (planned(demand, region(), jnp.asarray(sigma)).circuits.count for sigma in (0.0, 2.0))
    assert sure[0, 1] > unsure[0, 1]
    need, degrees = normalised(draw(5), region()), region().degrees
    # The uncertainty itself moves the logits.
    sure, unsure = (NETWORK.logits(need, degrees, jnp.asarray(spread)) for spread in (0.0, 1.0))
    assert np.abs(sure - unsure).max() > 0.01
