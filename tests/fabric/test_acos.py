"""ACOS: the graphs, the choice by brute force, an iteration that takes it, the bill, and what broken parts leave."""

import itertools
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import load, policies
from mfabric_jax.case.network import TOPOLOGIES
from mfabric_jax.fabric import Circuits, Region, cluster_cost
from mfabric_jax.fabric.cost import Prices
from mfabric_jax.policies.topologies import candidates
from mfabric_jax.routing.region import part_times
from mfabric_jax.units import to_gbps
from tests.oracles.tree import tree as star
from tests.small import refused, row, small

ACOS = {"network.fabric": "acos"}
JOB = {f"job.parallel.{name}": degree for name, degree in (("tp", 8), ("pp", 1), ("dp", 2), ("ep", 8))}


def region(servers=8, degree=6, electrical=2):
    return Region(servers, to_gbps(1.0), degree, electrical)


def graphs(servers, degree=6):
    return dict(zip(TOPOLOGIES, np.asarray(candidates(jnp.full(servers, degree))), strict=True))


@pytest.mark.parametrize(("servers", "degree"), list(itertools.product((2, 3, 4, 6, 8, 12, 15), (2, 3, 4, 6, 8))))
def test_graphs_are_legal_and_use_the_nics(servers, degree):
    for name, count in graphs(servers, degree).items():
        np.testing.assert_array_equal(count, count.T)
        assert (count >= 0).all()
        assert np.trace(count) == 0
        used = count.sum(axis=1)
        assert used.max() <= degree
        if name != "expander":
            assert (used == degree - degree % 2).all(), name
        elif servers % 2 == 0:
            assert (used == degree).all()


def test_graphs_by_hand():
    found = graphs(8)
    here = np.arange(8)
    ring = np.zeros((8, 8), int)
    ring[here, (here + 1) % 8] = ring[here, (here - 1) % 8] = 3
    np.testing.assert_array_equal(found["ring"], ring)
    for step in (1, 3, 5):  # strides coprime to 8, one each; 3 and 5 are the same ring
        assert found["rings"][0, step] >= 1
    assert (found["rings"][0, 3], found["rings"][0, 2]) == (2, 0)
    # 4 x 2: two neighbours in x, both links in y to the other row; two NICs more for the ring of neighbours.
    torus = found["torus"][0]
    assert (torus[4], torus[1], torus[3], torus[7]) == (2, 2, 1, 1)
    np.testing.assert_array_equal(found["expander"], graphs(8)["expander"])
    assert (found["expander"] != found["torus"]).any()


def seconds(count, demand, electrical=2):
    """Of the slowest circuit and of packet switches, in plain loops: pairs with circuits use them alone."""
    servers, left, slowest = len(demand), [[0] * len(demand) for _ in demand], Fraction(0)
    for i, j in itertools.permutations(range(servers), 2):
        if count[i][j]:
            slowest = max(slowest, Fraction(int(demand[i][j]), int(count[i][j])))
        else:
            left[i][j] = int(demand[i][j])
    port = np.full(servers, float(electrical))
    return max(float(slowest), float(np.max(star(np.array(left, float), port, port), initial=0)))


@pytest.mark.parametrize("servers", [3, 4, 6, 8])
def test_the_choice_is_the_best_by_brute_force(servers):
    rng, chosen, every = np.random.default_rng(servers), set(), list(graphs(servers).values())
    for draw in range(12):
        demand = rng.integers(0, 100, (servers, servers)) * (rng.random((servers, servers)) < (0.3, 0.6, 1.0)[draw % 3])
        np.fill_diagonal(demand, 0)
        want = [seconds(count, demand) for count in every]
        got = policies.get("topologies")(jnp.asarray(demand, float), region(servers)).circuits.count
        at = next(n for n, count in enumerate(every) if (count == np.asarray(got)).all())
        assert want[at] == pytest.approx(min(want), rel=1e-6)
        chosen.add(at)
    assert len(chosen) > 1 or servers < 6  # few servers: all have circuits under all graphs, or nearly


def test_demand_of_a_ring_picks_the_ring():
    here = np.arange(8)
    for step, name in ((1, "ring"), (3, "rings")):
        demand = np.zeros((8, 8))
        demand[here, (here + step) % 8] = demand[here, (here - step) % 8] = 60
        got = np.asarray(policies.get("topologies")(jnp.asarray(demand), region()).circuits.count)
        np.testing.assert_array_equal(got, graphs(8)[name])
        # 60 bytes over three circuits of 1 byte/s; of stride 3, over the two of 3 and 5.
        ends = jnp.maximum(*part_times(region(), Circuits(got), jnp.asarray(demand), routing="unsplit"))
        assert float(ends) == pytest.approx(60 / {"ring": 3, "rings": 2}[name])


def test_an_all_to_all_by_hand():
    # 4 servers, b bytes a pair; the ring has 3 circuits a neighbour, b / 3, and b over 2 packet NICs to the one
    # opposite: b / 2. Rings of strides 1 and 3 are the same ring. The torus 2 x 2 joins 0 to 1 and 2, and the ring on
    # the NICs that are left 0 to 1 and 3 by one circuit: b. Pairs without a circuit under the matchings: b / 2 or more.
    even = 1 - np.eye(4)
    ends = {name: seconds(count, 12 * even) for name, count in graphs(4).items()}
    assert (ends["ring"], ends["rings"], ends["torus"]) == (6, 6, 12)
    assert ends["expander"] >= 6
    got = policies.get("topologies")(jnp.asarray(12 * even), region(4)).circuits
    assert float(jnp.maximum(*part_times(region(4), got, jnp.asarray(12 * even), routing="unsplit"))) == min(
        ends.values()
    )


def test_an_iteration_takes_the_best_of_its_graphs():
    even = {"traffic.generated.skew": 0.0, "traffic.generated.drift": 0.0, "traffic.drawn": 1}
    each = {
        name: row(small(ACOS | JOB | even | {"network.acos.topologies": [name]}))["ep_comm_s"] for name in TOPOLOGIES
    }
    every = row(small(ACOS | JOB | even))
    assert every["ep_comm_s"] == pytest.approx(min(each.values()), rel=1e-9)
    assert max(each.values()) > 1.01 * min(each.values())
    assert (every["policy"], every["reconfig_s"]) == ("topologies", 0)  # the same graph for all


def test_turns_are_paid_as_on_mfabric():
    skewed = {"traffic.generated.skew": 1.0, "circuits.routing": "unsplit"}
    late, still = (row(small(ACOS | JOB | skewed | {"circuits.delay_s": delay_s})) for delay_s in (0.01, 0.0))
    assert late["reconfigurations"] == still["reconfigurations"] > 0
    assert 0 < late["reconfig_s"] <= 0.01 * late["reconfigurations"] + 1e-9
    assert late["iteration_s"] - still["iteration_s"] == pytest.approx(late["reconfig_s"], rel=1e-6)


def test_the_bill_grows_with_the_graphs():
    prices = Prices()
    fibre, tree = prices.price_of("fibre", 400), {}
    for graphs_ in (1, 2, 4):
        topologies = ("ring", "rings", "torus", "expander")[:graphs_]
        optical = 6 * (1499 + 659 + graphs_ * prices.ocs_port + (1 + graphs_ / 2) * fibre)
        tree[graphs_] = cluster_cost("acos", 1, 400, topologies=topologies) - optical
    assert tree[1] == pytest.approx(tree[2], rel=1e-9)
    assert tree[1] == pytest.approx(tree[4], rel=1e-9)
    assert tree[1] == pytest.approx(cluster_cost("mfabric", 1, 400) - 6 * (1499 + 659 + prices.ocs_port + fibre))


def test_nics_that_fail_take_their_circuits():
    degree = jnp.asarray([6, 5, 6, 6, 0, 6, 6, 6])
    for count, whole in zip(np.asarray(candidates(degree)), graphs(8).values(), strict=True):
        np.testing.assert_array_equal(count, count.T)
        assert (count.sum(1) <= np.asarray(degree)).all()
        assert (count <= whole).all()
        assert count[4].sum() == 0
        assert whole.sum() - count.sum() == 2 * (whole[4].sum() + (1 if count[1].sum() == 5 else 0))


def test_what_does_not_go():
    said = refused(ACOS | {"network.acos.topologies": ["ring", "cube"]}, small())
    assert "network.acos.topologies" in said
    assert refused(ACOS | {"network.acos.topologies": []}, small()).startswith("network.acos.topologies must name")
    assert "at least 2 on" in refused(ACOS | {"network.nics": 2, "network.nic_use": "pooled"}, small())
    with pytest.raises(Exception, match=r"circuits.policy is not read by any case here \(acos\)"):
        load(changes=ACOS | {"circuits.policy": "greedy"})
