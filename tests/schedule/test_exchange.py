"""All-to-alls of an iteration and what the schedule makes of them: symmetries, scaling, policies, tracing, slopes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import units
from mfabric_jax.fabric import Circuits, Electrical, Region
from mfabric_jax.policies import Plan, greedy, keep, uniform
from mfabric_jax.routing import all_to_all_time, spray_time
from mfabric_jax.schedule import exchanges, iterate
from mfabric_jax.schedule.iteration import all_reduce_seconds, running_blocks
from mfabric_jax.schedule.order import BACKWARD, one_f_one_b
from mfabric_jax.workload import BlockSeconds
from tests.oracles.greedy import greedy as plain_greedy
from tests.schedule.jobs import draw_tokens, job

RTOL = 1e-9
NVSWITCH = 300e9
WORKLOAD = job(pp=2, ep=8, experts=8, blocks=4, micro_batches=3)       # 4 servers of 2 ranks a stage; 3 peers each
SECONDS = BlockSeconds(*(jnp.asarray(part) for part in (0.02, 0.03, 0.04)))
GREEDY, KEEP, UNIFORM = range(3)


class Chosen(eqx.Module):
    """A policy with an array in it: one of three by number, so that all share one trace."""

    number: jax.Array

    def __call__(self, demand, region, *, previous=None, key=None):
        plans = [policy(demand, region, previous=previous, key=key) for policy in (greedy, keep, uniform)]
        return Plan(Circuits(jnp.stack([plan.circuits.count for plan in plans])[self.number]))


def simulate(fabric, tokens, policy):
    found = exchanges(WORKLOAD, fabric, tokens, policy, nvswitch_Bps=NVSWITCH)
    return found, iterate(WORKLOAD, fabric, found, SECONDS, NVSWITCH)


# A second trace of either fabric fails whichever test asks for it.
ON_REGION = eqx.filter_jit(eqx.debug.assert_max_traces(lambda *a: simulate(*a), max_traces=1))
ON_TREE = eqx.filter_jit(eqx.debug.assert_max_traces(lambda *a: simulate(*a), max_traces=1))
TOKENS = draw_tokens(0, WORKLOAD)


def region(nic_gbps=400.0, degree=6, nics=2.0, delay=0.025):
    return Region(4, *(jnp.asarray(x) for x in (nic_gbps, degree, nics, delay)))


def on_region(tokens=TOKENS, policy=GREEDY, **settings):
    return ON_REGION(region(**settings), tokens, Chosen(jnp.asarray(policy)))


def on_tree(tokens=TOKENS, nic_gbps=400.0, oversubscription=1.0):
    fabric = Electrical("fat-tree", jnp.asarray(nic_gbps), oversubscription=jnp.asarray(oversubscription))
    return ON_TREE(fabric, tokens, greedy)


# ------------------------------------------------------------------------------------------------ one trace for all
def test_new_numbers_do_not_retrace_and_all_matter():
    base = float(on_region()[1].iteration_s)
    changes = [{"nic_gbps": 100.0}, {"degree": 3}, {"nics": 4.0}, {"delay": 0.5}, {"tokens": draw_tokens(1, WORKLOAD)}]
    for change in changes:
        assert float(on_region(**change)[1].iteration_s) != base
    base = float(on_tree()[1].iteration_s)
    for change in ({"nic_gbps": 100.0}, {"oversubscription": 3.0}, {"tokens": draw_tokens(1, WORKLOAD)}):
        assert float(on_tree(**change)[1].iteration_s) != base


@pytest.mark.parametrize("where", [on_region, on_tree])
def test_more_bandwidth_is_never_slower(where):
    times = [float(where(nic_gbps=rate)[1].iteration_s) for rate in (25.0, 50.0, 100.0, 200.0, 400.0, 800.0, 1600.0)]
    assert np.all(np.diff(times) < 0)


def test_a_longer_delay_is_never_faster():
    got = [on_region(delay=delay)[1] for delay in (0.0, 0.01, 0.1, 1.0, 10.0)]
    assert np.all(np.diff([float(one.iteration_s) for one in got]) > 0)
    np.testing.assert_array_equal(got[0].reconfig_s, 0)


# ---------------------------------------------------------------------------------------------------------- policies
@pytest.mark.parametrize("policy", [KEEP, UNIFORM])
def test_policies_that_keep_their_circuits_never_pay(policy):
    found, got = on_region(policy=policy, delay=10.0)
    assert not found.switch.any()
    assert float(got.reconfig_s) == 0
    np.testing.assert_array_equal(found.count, np.broadcast_to(2 * (1 - np.eye(4)), found.count.shape))


def test_greedy_switches_once_where_demand_never_changes():
    skewed = np.ones_like(TOKENS)
    skewed[..., :2, 2:4] = 50.0                                        # server 0 to server 1
    found, got = on_region(skewed, delay=0.5)
    switch = np.asarray(found.switch)
    assert switch.sum() == 2
    assert switch[:, 0, 0].all()                                       # the first block of either stage
    np.testing.assert_allclose(got.reconfig_s, 0.5, rtol=RTOL)
    # Even demand asks for what the region starts with.
    assert not on_region(np.ones_like(TOKENS))[0].switch.any()


def test_greedy_gets_every_block_s_own_demand_in_running_order():
    found, _ = on_region()
    order, ranks = one_f_one_b(2, 3), TOKENS * 1000 * 2
    for p in range(2):
        before = 2 * (1 - np.eye(4, dtype=int))
        for q in range(6):
            layers = [2 * p, 2 * p + 1]
            for slot, layer in enumerate(layers[::-1] if order.kind[p, q] == BACKWARD else layers):
                one = ranks[layer, order.micro_batch[p, q]].reshape(4, 2, 4, 2).sum(axis=(1, 3))
                count = np.array(plain_greedy(one, 6))
                np.testing.assert_array_equal(found.count[p, q, slot], count)
                assert bool(found.switch[p, q, slot]) == (count != before).any()
                before = count
    assert 2 < np.asarray(found.switch).sum() < found.switch.size      # some change, some stay


# ------------------------------------------------------------------------------------------------ scale and symmetry
def demands(ranks):
    """24 of [R R], bytes: drawn, thinned out to a few flows, and an even one."""
    rng = np.random.default_rng(ranks)
    drawn = rng.uniform(0, 1, (23, ranks, ranks)) ** 4 * 1e9
    drawn[12:] *= rng.random((11, ranks, ranks)) < 0.3
    drawn[:, 0, -1] += 1e6                                             # nobody sends nothing
    return np.concatenate([drawn, np.full((1, ranks, ranks), 1e8)])


@eqx.filter_jit
def times(fabric, demand, routing=None):
    """A batch of all-to-alls: between 8 ranks on an electrical fabric, between 4 servers on a region."""
    if routing is None:
        return jax.vmap(lambda one: spray_time(fabric, one, 2))(demand)
    plans = jax.vmap(lambda one: greedy(one, fabric).circuits.count)(demand)
    return jax.vmap(lambda c, d: all_to_all_time(fabric, Circuits(c), d, routing=routing))(plans, demand)


FABRICS = {
    "own NICs": (Electrical("fat-tree", jnp.asarray(37.0), oversubscription=jnp.asarray(1.7)), None),
    "pooled NICs": (Electrical("fat-tree", jnp.asarray(37.0), oversubscription=1.7, nic_use="pooled"), None),
    "unsplit": (region(nic_gbps=37.0, degree=2), "unsplit"),
    "best-path": (region(nic_gbps=37.0, degree=2), "best-path"),
}


@pytest.mark.parametrize("name", FABRICS)
def test_time_is_load_over_bandwidth_and_the_same_transposed(name):
    fabric, routing = FABRICS[name]
    demand = demands(8 if routing is None else 4)
    want = times(fabric, demand, routing)
    assert np.all(np.asarray(want) > 0)
    np.testing.assert_allclose(times(fabric, demand.swapaxes(1, 2), routing), want, rtol=RTOL)
    unit = eqx.tree_at(lambda f: f.nic_gbps, fabric, jnp.asarray(units.to_gbps(1.0)))
    np.testing.assert_allclose(times(unit, demand, routing) / (37e9 / 8), want, rtol=RTOL)


def test_loads_are_times_at_any_bandwidth():
    order, ranks = one_f_one_b(2, 3), TOKENS * 1000 * 2
    layer = np.arange(4).reshape(2, 2)[:, None, :].repeat(6, axis=1)
    layer = np.where(order.kind[..., None] == BACKWARD, layer[..., ::-1], layer)                 # [P Q L]
    picked = ranks[layer, order.micro_batch[..., None]].reshape(-1, 8, 8)
    fabric, _ = FABRICS["own NICs"]
    load = np.asarray(on_tree(nic_gbps=200.0, oversubscription=1.7)[0].load).reshape(-1)
    np.testing.assert_allclose(load / (37e9 / 8), times(fabric, picked), rtol=RTOL)
    fabric, _ = FABRICS["unsplit"]
    load = np.asarray(on_region(nic_gbps=200.0, degree=2)[0].load).reshape(-1)
    between = picked.reshape(-1, 4, 2, 4, 2).sum(axis=(2, 4))
    np.testing.assert_allclose(load / (37e9 / 8), times(fabric, between, "unsplit"), rtol=RTOL)


def test_balanced_load_by_hand():
    # 500,000 selections of 2,000 B over 8 ranks: 125 MB to each; 6 of 8 peers are on other servers.
    # Fat-tree, 4 NICs a rank: 750 / 4 MB; behind 3-fold oversubscription 1500 MB of two ranks over 8/3 NICs.
    np.testing.assert_allclose(on_tree()[0].balanced, 187.5e6, rtol=RTOL)
    np.testing.assert_allclose(on_tree(oversubscription=3.0)[0].balanced, 562.5e6, rtol=RTOL)
    # Region: 500 MB between two servers over 2 circuits of 6 / 3.
    np.testing.assert_allclose(on_region()[0].balanced, 250e6, rtol=RTOL)


# ---------------------------------------------------------------------------------------------------- element sizes
def test_a_wider_combine_lengthens_its_own_halves():
    # fp8 dispatch, bf16 combine: forward (dispatch, combine) 1 : 2, backward (combine and dispatch gradients) 2 : 1.
    found, _ = on_tree()
    nic = 400e9 / 8
    backward = one_f_one_b(2, 3).kind == BACKWARD
    for dispatch, combine in ((1, 1), (1, 2), (2, 1)):
        workload = job(pp=2, ep=8, experts=8, blocks=4, micro_batches=3, dispatch_bytes=dispatch, combine_bytes=combine)
        got = np.asarray(running_blocks(workload, Electrical("fat-tree", 400.0), found).exchange_s)
        one = np.maximum(np.asarray(found.load) / nic, np.asarray(found.inside_s))
        first, second = np.where(backward, combine, dispatch), np.where(backward, dispatch, combine)
        np.testing.assert_allclose(got[..., 0], one * first[..., None] / dispatch, rtol=RTOL)
        np.testing.assert_allclose(got[..., 1], one * second[..., None] / dispatch, rtol=RTOL)


# -------------------------------------------------------------------------------------------- gradient all-reduce
REDUCE = Electrical("fat-tree", nic_gbps=8.0)                          # 8 GB/s a server


@pytest.mark.parametrize(
    ("degrees", "dense", "expert"),
    [
        # TP 4, EP 4, 4 experts: 2 GB of dense gradients, 2 x 1 expert x 3e6 x 1000 B = 6 GB a rank; 2 ranks a server.
        # DP 2, 4 servers: dense: ring of 4: 2 x 2 x 3/4 = 3 GB, 2 ranks inside: 0.5 GB. Experts: a server's 12 GB with
        # its one twin: 12 GB; nothing to add up inside.
        ({"tp": 4, "ep": 4, "dp": 2}, (3.0, 0.5), (12.0, 0.0)),
        # TP 8, EP 2, 2 experts a rank (12 GB), one rank a server, DP 3, 6 servers: dense 2 x 2 x 5/6, experts
        # 2 x 12 x 2/3.
        ({"tp": 8, "ep": 2, "dp": 3}, (10 / 3, 0.0), (16.0, 0.0)),
        # TP 2, EP 2: groups of 4 GPUs, two replicas in a server; DP 4, 2 servers. 12 GB a rank, its TP slices 6 GB:
        # added up over 2 replicas inside: 6 GB. Between: two ranks' 24 GB with the other server: 24 GB.
        # Dense: ring of 2: 2 GB; inside 4 ranks on slices of 1 GB: 1.5 GB.
        ({"tp": 2, "ep": 2, "dp": 4}, (2.0, 1.5), (24.0, 6.0)),
        # One server: TP 4, EP 2, DP 1: nothing leaves.
        ({"tp": 4, "ep": 2, "dp": 1}, (0.0, 0.5), (0.0, 0.0)),
    ],
)  # fmt: skip
def test_all_reduce_by_hand(degrees, dense, expert):
    (between, inside), gigabytes = np.add(dense, expert), 1e9
    got = all_reduce_seconds(job(**degrees), REDUCE, 0.5e9)
    np.testing.assert_allclose(got, [between / 8 + inside * gigabytes / 0.5e9], rtol=RTOL)


def test_all_reduce_of_every_stage():
    # 3 blocks on 2 stages: 2 and 1. TP 4, EP 4, DP 2, 4 servers a stage: 3 + 12 GB, 0.5 GB; half of that.
    got = all_reduce_seconds(job(pp=2, blocks=3, dp=2), REDUCE, 0.5e9)
    np.testing.assert_allclose(got, [15 / 8 + 1, 7.5 / 8 + 0.5], rtol=RTOL)
    # Of a region only the electrical NICs count: 2 GB/s.
    got = all_reduce_seconds(job(pp=2, blocks=3, dp=2), Region(2, 8.0, electrical_nics=2), 0.5e9)
    np.testing.assert_allclose(got, [15 / 2 + 1, 7.5 / 2 + 0.5], rtol=RTOL)


# ------------------------------------------------------------------------------------------------------- derivatives
def test_slopes_on_the_region():
    # Reverse mode, against differences.
    point = {"nic_gbps": jnp.asarray(200.0), "nics": jnp.asarray(2.0), "delay": jnp.asarray(0.3)}

    def total(at):
        return simulate(region(**at), TOKENS, greedy)[1].iteration_s

    slope = jax.jit(jax.grad(total))(point)
    for name, at in point.items():
        step = 1e-5 * float(at)
        ahead, behind = (on_region(**point | {name: at + sign * step})[1].iteration_s for sign in (1, -1))
        want = (float(ahead) - float(behind)) / (2 * step)
        assert want != 0
        np.testing.assert_allclose(slope[name], want, rtol=1e-5, err_msg=name)


def test_slope_of_bandwidth_on_the_fat_tree():
    at, step = jnp.asarray(200.0), 1e-3

    def total(nic_gbps):
        fabric = Electrical("fat-tree", nic_gbps, oversubscription=jnp.asarray(1.0))
        return simulate(fabric, TOKENS, greedy)[1].iteration_s

    _, forward = jax.jit(lambda x: jax.jvp(total, (x,), (jnp.ones(()),)))(at)
    ahead, behind = (float(on_tree(nic_gbps=at + sign * step)[1].iteration_s) for sign in (1, -1))
    assert float(forward) < 0
    np.testing.assert_allclose(forward, (ahead - behind) / (2 * step), rtol=1e-6)
