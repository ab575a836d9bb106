"""Clusters whose NICs all fit on one switch: one tier, by hand; and clusters that do not fit."""

import numpy as np
import pytest

from mfabric_jax import Case, resolve, simulate
from mfabric_jax.case import cases
from mfabric_jax.case.grid import CaseBlock
from mfabric_jax.evaluate.rows.costs import bill_of
from mfabric_jax.evaluate.rows.points import EvaluatedBlock
from mfabric_jax.evaluate.rows.results import at_quoted_ports
from mfabric_jax.evaluate.whole_cluster import example_cluster
from mfabric_jax.fabric import get
from mfabric_jax.fabric.graph import graph_text
from mfabric_jax.fabric.graphs.made import GraphNumbers, make_graph
from tests.mistakes import refused

PORT, TRANSCEIVER, NIC, FIBRE, OCS = 1090, 659, 1499, 150, 520
ONE = NIC + PORT + 2 * TRANSCEIVER + FIBRE  # a NIC on one switch
TWO = NIC + 3 * PORT + 4 * TRANSCEIVER + 2 * FIBRE
OPTICAL = NIC + TRANSCEIVER + FIBRE + OCS
JOB = {"model.name": "llama-moe", "job.parallel.tp": 1, "job.parallel.pp": 1, "job.parallel.ep": 16}
JOB |= {"run.iterations": 1, "job.batch.micro_batches": 1, "traffic.source": "shares", "run.draws": 1}


def job(fabric, gpus, **more):
    return Case().with_(JOB | {"network.fabric": fabric, "job.parallel.gpus": gpus} | more)


def network_usd(case):
    found = resolve(case)
    return bill_of(found, found.job, 400.0).network_usd, found.case.network.tiers


@pytest.mark.parametrize(
    ("fabric", "gpus", "radix", "tiers", "usd"),
    [
        ("fat-tree", 64, 64, 1, 64 * ONE),  # 64 NICs on one switch of 64 ports
        ("fat-tree", 64, 62, 2, 64 * TWO),  # two ports too few
        ("fat-tree", 128, 64, 2, 128 * TWO),
        ("rail-optimized", 64, 64, 1, 64 * ONE),
        ("rail-only", 512, 64, 1, 512 * ONE),  # 64 servers: each rail is a switch
        ("rail-only", 528, 64, 2, 528 * TWO),
        ("multi-plane", 512, 64, 1, 512 * ONE),  # 8 planes: a port of 64 is 8
        ("multi-plane", 528, 64, 2, 528 * TWO),
        ("mfabric", 256, 64, 1, 32 * (6 * OPTICAL + 2 * ONE)),  # 32 servers with two NICs each on it
        ("mfabric", 272, 64, 2, 34 * (6 * OPTICAL + 2 * TWO)),
    ],
)
def test_as_few_tiers_as_the_nics_need_by_hand(fabric, gpus, radix, tiers, usd):
    case = job(fabric, gpus, **{"network.radix": radix})
    assert network_usd(case) == (pytest.approx(usd), tiers)
    found = resolve(case)
    if not get(fabric).links(found.site).pxn:
        assert found.fabric.paths(found.site).links == 2 * tiers
    assert network_usd(case.with_({"network.tiers": tiers})) == network_usd(case)


def test_an_oversubscribed_tree_needs_links_up():
    assert network_usd(job("oversub-fat-tree", 64))[1] == 2
    assert network_usd(job("fat-tree", 64, **{"network.oversubscription": 2}))[1] == 2
    assert network_usd(job("oversub-fat-tree", 64, **{"network.oversubscription": 1})) == (pytest.approx(64 * ONE), 1)
    assert network_usd(job("fat-tree", 64, **{"network.oversubscribed_at": "aggregation"}))[1] == 3


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"job.parallel.gpus": 128}, "network.tiers 1 has room for 64 NICs, on one switch of 64 ports, got 128."),
        ({"network.radix": 32}, "network.tiers 1 has room for 32 NICs, on one switch of 32 ports, got 64."),
        (
            {"network.fabric": "rail-only", "job.parallel.gpus": 1024},
            "network.tiers 1 has room for 512 NICs, on one switch of 64 ports for each of 8 trees, got 1,024.",
        ),
        (
            {"network.fabric": "oversub-fat-tree"},
            "network.tiers must be 2 or 3 on an oversubscribed oversub-fat-tree: one switch has no uplinks, got 1.",
        ),
        (
            {"network.oversubscription": 3},
            "network.tiers must be 2 or 3 on an oversubscribed fat-tree: one switch has no uplinks, got 1.",
        ),
    ],
)
def test_one_stated_tier_that_cannot_be(changes, sentence):
    assert refused(lambda: resolve(job("fat-tree", 64, **{"network.tiers": 1}).with_(changes))) == sentence


def test_two_stated_tiers_have_room_on_every_rail():
    """512 NICs a tree on switches of 32 ports; `rail-only` has 8 trees."""
    two = {"network.radix": 32, "network.tiers": 2}
    assert network_usd(job("rail-only", 1024, **two)) == network_usd(job("rail-only", 1024, **{"network.radix": 32}))
    sentence = "network.tiers 2 has room for 512 NICs, on switches of 32 ports, got 1,024."
    assert refused(lambda: resolve(job("fat-tree", 1024, **two))) == sentence


def test_a_graph_has_no_tiers_of_its_own(tmp_path):
    (tmp_path / "graph.json").write_text(graph_text(make_graph("leaf-spine", GraphNumbers(gpus=16, radix=8))))
    given = {"network.fabric": "graph", "network.graph": str(tmp_path / "graph.json")}
    for tiers in ("fewest", 1, 2):
        found = resolve(job("fat-tree", 16, **given, **{"network.tiers": tiers}))
        assert found.fabric.paths(found.site).links == 4


def test_the_latency_of_a_path_over_one_switch_by_hand():
    # What latency adds to an iteration is in proportion to the links of a path: 2 over one switch, 4 over two tiers.
    delay = {"network.link_delay_s": 1e-3, "run.dtype": "float64"}
    base = job("fat-tree", 64, **delay | {"network.link_delay_s": 0.0})
    zero, one, two = (
        simulate(case).rows()[0]["iteration_s"]
        for case in (base, job("fat-tree", 64, **delay), job("fat-tree", 64, **delay | {"network.tiers": 2}))
    )
    assert (two - zero) == pytest.approx(2 * (one - zero), rel=1e-6)
    assert one > zero


def test_a_whole_cluster_on_one_switch():
    cluster = example_cluster(job("fat-tree", 16))
    assert cluster.tree.switches == (("edge", 1),)
    assert {kind for kind, _ in cluster.network.links} == {"nvswitch up", "nvswitch down", "nic up", "nic down"}


DEGREE = "network.mfabric.optical_degree"
DEGREES = (7, 6, 5, 4)  # of 8 NICs of each of 32 servers: 32, 64, 96 and 128 NICs on the tree


def test_each_degree_has_its_tiers():
    each = [resolve(job("mfabric", 256, **{DEGREE: degree})) for degree in DEGREES]
    assert [found.tiers for found in each] == [1, 1, 2, 2]
    found = each[0]
    tiers = np.array(found.tiers_by_degree)
    assert tiers.tolist() == [2, 2, 2, 2, 2, 2, 1, 1, 1]  # of 0 to 8 optical NICs
    ports = {"optical_degree": np.array(DEGREES), "electrical_nics": 8 - np.array(DEGREES)}
    swept = bill_of(found, found.job, 400.0, tiers=tiers[[DEGREES]][0], **ports)
    alone = [bill_of(one, one.job, 400.0) for one in each]
    assert swept.network_usd.tolist() == pytest.approx([bill.network_usd for bill in alone])
    assert swept.network_watts.tolist() == pytest.approx([bill.network_watts for bill in alone])
    stated = resolve(job("mfabric", 256, **{DEGREE: 7, "network.tiers": 2}))
    assert set(stated.tiers_by_degree) == {2}


@pytest.mark.slow
def test_each_degree_of_a_sweep_has_the_row_of_its_case():
    case = job("mfabric", 256, **{"circuits.reconfigure": "on-demand"})
    swept = EvaluatedBlock(CaseBlock(case.with_({DEGREE: DEGREES[0]}), columns={DEGREE: DEGREES})).columns()
    each = [simulate(case.with_({DEGREE: degree})).rows()[0] for degree in DEGREES]
    for column in ("network_cost_usd", "iteration_s", "network_kw"):
        np.testing.assert_allclose(swept[column], [row[column] for row in each], rtol=2e-5, err_msg=column)


def test_what_quoted_ports_would_change_by_hand(tmp_path):
    # 128 NICs behind two tiers, with 3 ports each; on mfabric 2 of 8 on one switch, with one port each.
    asked = cases(job("fat-tree", 128), {"network.fabric": ("fat-tree", "mfabric", "torus")})
    usd = {"fat-tree": 128 * TWO, "mfabric": 16 * (6 * OPTICAL + 2 * ONE)}
    ports = {"fat-tree": 128 * 3, "mfabric": 16 * 2}
    words = []
    for name, listed in usd.items():
        low, high = ((listed - ports[name] * (PORT - quoted)) / 1e6 for quoted in (563, 781))
        words.append(f"{name} {low:.3g} to {high:.3g} instead of {listed / 1e6:.3g}")
    (said,) = at_quoted_ports(asked)
    assert said == (
        "A switch port of 400 Gbps is priced at 1,090 dollars (arXiv 2501.03905). At 563 to 781, quoted for 64-port "
        f"InfiniBand switches of August 2024, networks of 128 GPUs would cost, in M$: {', '.join(words)}."
    )
    assert at_quoted_ports(cases(job("torus", 128))) == []
    assert at_quoted_ports(cases(job("fat-tree", 128, **{"network.nic_gbps": 100}))) == []
    (tmp_path / "own.toml").write_text("[switch.400]\nusd = 40000\nports = 64\n")
    assert at_quoted_ports(cases(job("fat-tree", 128, **{"network.prices": str(tmp_path / "own.toml")}))) == []
