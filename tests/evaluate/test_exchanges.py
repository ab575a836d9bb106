"""All-to-alls of an iteration and what the schedule makes of them: policies, loads, gradients, slopes."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.evaluate.exchanges import exchanges_between
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.policies import REGISTRY, Plan, for_demand_alone, get, greedy, random_circuits, reads_of
from mfabric_jax.policies.reads import ALONE, BY_NAME, Reads, traced_reads
from mfabric_jax.timing import First, exchanges, iterate, rates_of
from mfabric_jax.timing.iteration import all_reduce_seconds, iterate_compiled
from mfabric_jax.timing.passes import Exchanges
from mfabric_jax.workload.compute import BlockSeconds
from tests.timing import jobs
from tests.timing.jobs import (
    DRAWN,
    NVSWITCH,
    SECONDS,
    TOKENS,
    drawn,
    fat_tree,
    job,
    numbers,
    of_cases,
    region,
    simulate,
    timed,
)

RTOL = 1e-9


def test_policies_that_keep_their_circuits_never_pay():
    for policy in (jobs.KEEP, jobs.UNIFORM):
        found, got = drawn(region(delay=10.0), policy=policy)
        assert not found.switch.any()
        assert float(got.reconfig_s) == 0
        np.testing.assert_array_equal(found.count, np.broadcast_to(2 * (1 - np.eye(4)), found.count.shape))


def test_balanced_load_by_hand():
    # 500,000 selections of 1,000 B over 8 ranks: 62.5 MB to each; 6 of 8 peers are on other servers.
    # Fat-tree, 4 NICs a rank: 375 / 4 MB; behind 3-fold oversubscription 750 MB of two ranks over 8/3 NICs.
    np.testing.assert_allclose(drawn(fat_tree())[0].balanced, 93.75e6, rtol=RTOL)
    np.testing.assert_allclose(drawn(fat_tree(oversubscription=3.0))[0].balanced, 281.25e6, rtol=RTOL)
    # Region: 250 MB between two servers over 6 / 3 circuits.
    np.testing.assert_allclose(drawn(region())[0].balanced, 125e6, rtol=RTOL)


def test_at_the_bound_an_all_to_all_takes_its_busiest_server_by_hand():
    """What the busiest server sends or receives, over its 6 circuits and 2 NICs at 1 byte/s each."""
    found = exchanges(DRAWN, region(), TOKENS, greedy, first=First("bound"))
    servers = np.add.reduceat(np.add.reduceat(TOKENS[:, 0], (0, 2, 4, 6), axis=1), (0, 2, 4, 6), axis=2)
    between = servers * (1 - np.eye(4)) * jobs.BYTES_PER_TOKEN
    busiest = np.maximum(between.sum(axis=1), between.sum(axis=2)).max(axis=1)
    for stage, blocks in enumerate(jobs.STAGES):
        for at, block in enumerate(blocks):
            want = busiest[block - jobs.DENSE] / 8 if block >= jobs.DENSE else 0
            np.testing.assert_allclose(found.load[stage, 0, at], [want, want], rtol=RTOL)
    # 62.5 MB from each rank to each other: 4 of them between two servers, 3 peers, over 8 links.
    np.testing.assert_allclose(found.balanced, 4 * 62.5e6 * 3 / 8, rtol=RTOL)


def at(fabric):
    return rates_of(fabric, nvlink_Bps=NVSWITCH)


REDUCE = rates_of(Electrical(nic_gbps=8.0), nvlink_Bps=0.5e9)  # 8 GB/s a server


def test_all_reduce_by_hand():
    # TP, EP, DP; gigabytes between servers and inside, of dense gradients and of experts.
    for (tp, ep, dp), dense, expert in [
        # 4 experts: 2 GB of dense gradients, 2 x 1 expert x 3e6 x 1000 B = 6 GB a rank; 2 ranks a server, 4 servers.
        # Dense: ring of 4: 2 x 2 x 3/4 = 3 GB, 2 ranks inside: 0.5 GB. Experts: a server's 12 GB with its one twin:
        # 12 GB; nothing to add up inside.
        ((4, 4, 2), (3.0, 0.5), (12.0, 0.0)),
        # 2 experts a rank (12 GB), one rank a server, 6 servers: dense 2 x 2 x 5/6, experts 2 x 12 x 2/3.
        ((8, 2, 3), (10 / 3, 0.0), (16.0, 0.0)),
        # Groups of 4 GPUs, two replicas in a server, 2 servers. 12 GB a rank, its TP slices 6 GB: added up over 2
        # replicas inside: 6 GB. Between: two ranks' 24 GB with the other server: 24 GB. Dense: ring of 2: 2 GB; inside
        # 4 ranks on slices of 1 GB: 1.5 GB.
        ((2, 2, 4), (2.0, 1.5), (24.0, 6.0)),
        ((4, 2, 1), (0.0, 0.5), (0.0, 0.0)),  # one server: nothing leaves
    ]:
        (between, inside), gigabytes = np.add(dense, expert), 1e9
        (got,) = all_reduce_seconds(job(tp=tp, ep=ep, dp=dp), of_cases(REDUCE))
        np.testing.assert_allclose(got, [between / 8 + inside * gigabytes / 0.5e9], rtol=RTOL)


@pytest.mark.parametrize("fabric", [region(delay=3.0), Region(4, 8.0, 6, 2, 3.0)], ids=["float64", "plain numbers"])
def test_an_iteration_keeps_the_type_of_its_loads(fabric):
    workload, single = job(blocks=1, ep=8, experts=8, micro_batches=1), jnp.float32
    some, first = jnp.full((1, 2, 1, 2), 1e9, single), jnp.zeros((1, 2, 1, 2), bool).at[..., 0].set(True)
    ahead = jnp.asarray([[[False], [True]]])
    found = Exchanges(some, 2 * some, 0 * some[..., 0], first, ahead, None, jnp.zeros((), single))
    parts = eqx.filter_jit(timed)(workload, fabric, found, BlockSeconds(1.0, 1.0, 1.0), 0.5e9)
    assert all(part.dtype == single for name, part in parts._asdict().items() if name != "stage")
    np.testing.assert_allclose(parts.reconfig_s, 2 + 2, rtol=1e-6)  # 3 s less a slack of 2 - 1


def difference(function, at):
    """Central difference of a function of one number."""
    step = 1e-5 * at
    return (float(function(at + step)) - float(function(at - step))) / (2 * step)


def test_slopes_through_the_all_to_alls():
    # Reverse mode from the electrical NICs of a region through the star to the iteration; one block and micro-batch,
    # one whose circuits change (not with what is moved here). One circuit a server leaves pairs to the EPS.
    workload = job(blocks=1, ep=8, experts=8, micro_batches=1)

    def total(at):
        return simulate(workload, region(degree=1, **at), TOKENS[1:2, 1:2], SECONDS, greedy, NVSWITCH)[1].iteration_s

    both = jax.jit(jax.value_and_grad(total))
    point = {"nic_gbps": jnp.asarray(6.0), "nics": jnp.asarray(2.0), "delay": jnp.asarray(1.3)}
    for name, slope in both(point)[1].items():
        want = difference(lambda x, name=name: both(point | {name: jnp.asarray(x)})[0], float(point[name]))
        assert want != 0
        np.testing.assert_allclose(slope, want, rtol=1e-6, err_msg=name)


def attentive(demand, region, *, previous=None, key=None):
    """Greedy that looks at the circuits in place, to no effect."""
    count = greedy(demand, region).circuits.count
    return Plan(Circuits(count if previous is None else count + 0 * previous.circuits.count.astype(count.dtype)))


@eqx.filter_jit
def once_and_each(region, tokens):
    return [exchanges_between(DRAWN, region, tokens, policy) for policy in (greedy, attentive)]


def test_once_for_each_demand_is_what_block_after_block_gives():
    once, each = once_and_each(region(degree=5), TOKENS)
    assert np.asarray(once.switch).any()
    assert not np.asarray(once.switch).all()
    unused = {"waiting", "busy", "early", "moved", "reconfigurations_during"}
    assert all(getattr(found, name) is None for found in (once, each) for name in unused)
    for name in set(once._fields) - unused:
        np.testing.assert_allclose(getattr(once, name), getattr(each, name), rtol=1e-12, err_msg=name)


ASKED = Region(4, *numbers(8.0, 5, 2.0, 1.0, 1.0))


@pytest.mark.parametrize("name", REGISTRY)
def test_a_policy_reads_no_more_than_its_entry_says(name):
    settings = {"mean": jnp.ones((4, 4))} if name == "static" else {}
    policy = get(name, **settings)
    said, found = reads_of(policy, ASKED), traced_reads(policy, ASKED)
    assert said == BY_NAME.get(name, ALONE)
    assert said.before >= found.before
    assert said.key >= found.key


def of_what_is_there(demand, region, *, previous=None, key=None):
    return previous


def of_the_key(demand, region, *, previous=None, key=None):
    return random_circuits(demand, region, key=key)


def of_both(demand, region, *, previous=None, key=None):
    drawn = random_circuits(demand, region, key=key).circuits.count
    return Plan(Circuits(jnp.where(demand[0, 1] > 0, drawn, previous.circuits.count)))


def of_neither(demand, region, *, previous=None, key=None):
    return greedy(demand + 0 * previous.circuits.count.shape[0], region)


def test_what_an_own_policy_reads_is_judged_from_its_program():
    for policy, want in [
        (of_what_is_there, Reads(before=True, key=False)),
        (of_the_key, Reads(before=False, key=True)),
        (of_both, Reads(before=True, key=True)),
        (of_neither, Reads(before=False, key=False)),
        (functools.partial(of_neither), Reads(before=False, key=False)),
        (for_demand_alone(of_both), Reads(before=False, key=False)),  # called without either
    ]:
        assert reads_of(policy, ASKED) == want, policy


def test_other_bandwidths_run_in_the_same_program():
    """Numbers that are data are not compiled in: one trace for all bandwidths, delays and seconds of a shape."""
    traced = []

    def counted(demand, region, *, previous=None, key=None):
        traced.append(None)
        return jobs.uniform(demand, region, previous=previous, key=key)

    small, tokens = job(ep=8, experts=8), np.full((2, 2, 8, 8), 1000.0)
    times, programs = [], []
    for gbps in (100.0, 200.0, 400.0):
        found = exchanges(small, Region(4, gbps, 6, 2.0, gbps / 1e4), tokens, counted)
        rates = rates_of(Region(4, gbps, 6, 2.0, gbps / 1e4), nvlink_Bps=1e9 * gbps)
        times.append(float(iterate(small, rates, found, BlockSeconds(1e-6 / gbps, 0.0, 0.0)).ep_comm_s))
        programs.append((len(traced), iterate_compiled._cached._cache_size()))
    assert programs[0][0] > 0
    assert programs == programs[:1] * 3
    assert times[0] > times[1] > times[2]
