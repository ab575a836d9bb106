"""How long copies take on fabrics: the busiest link of torus, full mesh and Clos, and a step on every fabric."""

import itertools

import numpy as np
import pytest

from mfabric_jax.apps.serving import deployment, family
from mfabric_jax.apps.serving.expert_load import copies_of, place_experts
from mfabric_jax.apps.serving.group import crossing_of, group_of
from mfabric_jax.apps.serving.rows import row_of
from mfabric_jax.case import Case
from mfabric_jax.case.network import NAMES
from mfabric_jax.fabric.graph import graph_text
from mfabric_jax.fabric.graphs.made import GraphNumbers, make_graph
from tests.evaluate.rows.test_wirings import WIRINGS
from tests.mistakes import refused
from tests.oracles import serving as plain

pytestmark = pytest.mark.usefixtures("as_users_have_it")
COPIES = 8  # of a token of V3


def case(fabric, ep, **settings):
    said = {"model.name": "deepseek-v3", "network.fabric": fabric, "gpu.name": "H800-SXM", "network.nic_gbps": 400.0}
    return Case().with_(
        said | {"serving.ep": ep} | {name.replace("__", "."): value for name, value in settings.items()}
    )


def between(fabric, ep, **settings):
    return deployment(case(fabric, ep, **settings)).decode.crossing.between


# ------------------------------------------------------------------------------------------------- even all-to-alls
def mean_hops(size):
    """On a ring, to all of its places alike, one's own included."""
    return sum(min(n, size - n) for n in range(size)) / size


@pytest.mark.parametrize(("ep", "shape"), [(32, (2, 2)), (64, (2, 4)), (128, (4, 4)), (512, (8, 8))])
def test_an_even_all_to_all_on_a_torus_takes_its_bytes_times_mean_hops_over_links(ep, shape):
    """A plane of servers of 8 GPUs, with a NIC up and one down in each of two dimensions."""
    assert between("torus", ep) == pytest.approx(max(8 * COPIES * mean_hops(n) / 2 for n in shape), rel=1e-9)


LINES = [(16, (2,)), (32, (4,)), (64, (8,)), (256, (32,))]


@pytest.mark.parametrize(("ep", "shape"), [*LINES, (32, (2, 2)), (64, (2, 4)), (512, (8, 8))])
def test_an_even_all_to_all_on_a_full_mesh(ep, shape):
    """8 NICs split over the servers of a line (left open), or of a row and a column, 1 in n bytes to each of n."""
    link = 8 / sum(n - 1 for n in shape)
    stated = {} if len(shape) == 1 else {"network__full-mesh__dimensions": len(shape)}
    assert between("full-mesh", ep, **stated) == pytest.approx(max(8 * COPIES / n for n in shape) / link, rel=1e-6)


@pytest.mark.parametrize("fabric", ["fat-tree", "rail-optimized", "multi-plane"])
@pytest.mark.parametrize("ep", [16, 64, 256])
def test_an_even_all_to_all_on_a_clos_is_bound_by_nics(fabric, ep):
    assert between(fabric, ep) == pytest.approx(COPIES * (1 - 8 / ep), rel=1e-12)


@pytest.mark.parametrize(("kind", "bound"), [("torus", COPIES * 3 / 6), ("full-mesh", COPIES * 2.25 / 9)])
def test_grids_of_single_gpus_as_others_measured_them(tmp_path, kind, bound):
    """4 x 4 x 4 GPUs: 3 hops of 6 links, or 2.25 of 9 (github.com/junsunchoi/booksim2, experiments/README.md)."""
    file = tmp_path / "grid.json"
    file.write_text(graph_text(make_graph(kind, GraphNumbers(gpus=64, shape=(4, 4, 4), gpus_per_server=1))))
    assert between("graph", 64, network__graph=str(file), gpu__gpus_per_server=1) == pytest.approx(bound, rel=1e-9)


# ----------------------------------------------------------------------------------------------- uneven all-to-alls
def skewed(fabric, gpus, seed, rule="expert", per_server=2):
    """(crossing, flows between GPUs) where experts are taken unevenly and stand in order."""
    drawn = np.random.default_rng(seed)
    facts = {"experts": 2 * gpus, "top_k": 2, "expert_groups": 1, "top_groups": 1}
    facts = {f"model__{name}": n for name, n in facts.items()}
    said = case(fabric, gpus, gpu__gpus_per_server=per_server, **facts, **plain.PLANE)
    group = group_of(said, gpus)
    facts = deployment(said).decode.model.architecture
    load = place_experts(facts, gpus, 2, drawn.dirichlet(np.full(2 * gpus, 0.7))[None], placed=False)
    flows = copies_of(load, rule, per_server).between[0]
    pairs = {(a, b): flows[a, b] for a, b in itertools.permutations(range(gpus), 2) if flows[a, b]}
    return crossing_of(group, family("ideal"), load).between, pairs


def test_on_a_clos_the_busiest_receiver_is_the_last():
    for seed in range(10):
        found, pairs = skewed("fat-tree", 8, seed)
        received = [sum(size for (_, to), size in pairs.items() if to == gpu) for gpu in range(8)]
        sent = [sum(size for (come, _), size in pairs.items() if come == gpu) for gpu in range(8)]
        assert found == pytest.approx(max(received + sent), rel=1e-9)
        assert max(received) > 1.2 * np.mean(received)


def busiest(flows, capacity):
    use = dict.fromkeys(capacity, 0.0)
    for size, links in flows:
        for link, part in links.items():
            use[link] += part * size
    return max(use[link] / capacity[link] for link in capacity)


@pytest.mark.parametrize("fabric", ["torus", "full-mesh"])
def test_on_grids_fair_flows_end_with_the_busiest_link_or_shortly_behind(fabric, monkeypatch):
    """The oracle's fluid flows agree; where flows cross several links, fair shares may leave the busiest one idle."""
    seen = []
    drained = plain.drained
    monkeypatch.setattr(plain, "drained", lambda *given: seen.append(busiest(*given)) or drained(*given))
    on = {"torus": plain.on_torus, "full-mesh": plain.on_full_mesh}[fabric]
    for seed in range(10):
        found, pairs = skewed(fabric, 16, seed)
        fluid = on(pairs, 2, 8)
        assert found == pytest.approx(fluid, rel=1e-6)
        assert seen[-1] * (1 - 1e-6) <= found <= seen[-1] * 1.05


# ------------------------------------------------------------------------------------------------------- all fabrics
LONG = {"topoopt", "acos", "mfabric"}  # search circuits
SIZES = {"twisted-torus": 128}  # no twisted torus has 8 servers
FASTER = {"nvl72", "mfabric-cpo", "scale-up", "cloudmatrix384"}  # a domain of 64 GPUs
EVERY = [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in NAMES]
KNOWN = "tpot_s", "ttft_s", "tokens_per_s_per_gpu", "memory_gb", "prefill_tokens_per_s_per_gpu"


@pytest.mark.parametrize("fabric", EVERY)
def test_every_fabric_serves(fabric):
    ep = SIZES.get(fabric, 64)
    row = row_of(deployment(case(fabric, ep)))
    assert (row["model"], row["gpu"], row["fabric"], row["ep"]) == ("deepseek-v3", "H800-SXM", fabric, ep)
    assert all(np.isfinite(row[name]) and row[name] > 0 for name in KNOWN)
    assert row["tpot_low_s"] <= row["tpot_s"] <= row["tpot_high_s"]
    assert row["prefill_low_s"] <= row["prefill_s"] <= row["prefill_high_s"]
    tree = row_of(deployment(case("fat-tree", ep)))
    assert (row["kernels"] == "nvlink-one-sided") is (fabric in FASTER)
    if fabric not in FASTER:  # the same NICs on a network that is not oversubscribed are the fastest
        assert row["dispatch_s"] >= tree["dispatch_s"] * (1 - 1e-9)


def test_a_graph_of_ones_own_serves_as_the_tree_that_it_is(tmp_path):
    file = tmp_path / "leaf-spine.json"
    file.write_text(graph_text(make_graph("leaf-spine", GraphNumbers(gpus=64, radix=16))))
    graph = row_of(deployment(case("graph", 64, network__graph=str(file))))
    tree = row_of(deployment(case("fat-tree", 64)))
    for name in ("dispatch_s", "combine_s", "tpot_s"):
        assert graph[name] == pytest.approx(tree[name], rel=1e-6)


def test_served_models_cross_the_stated_circuits():
    said = {"model.name": "deepseek-v3", "network.fabric": "topoopt", "gpu.name": "H800-SXM", "serving.ep": 64}
    between = [
        deployment(Case().with_(said | {"network.topoopt.wiring": wiring})).decode.crossing.between
        for wiring in WIRINGS
    ]
    assert between[0] == pytest.approx(between[2], rel=1e-9), "8 servers in one stage: one ring, and matchings"
    assert between[1] < between[0]


def test_a_group_that_serves_shares_its_network_with_others():
    case = Case().with_({"model.name": "deepseek-v3", "network.fabric": "fat-tree"})
    assert group_of(case, 8).hardware.tiers == 2
    stated = case.with_({"network.tiers": 1})
    assert group_of(stated, 64).hardware.tiers == 1
    assert "network.tiers 1 has room for 64 NICs" in refused(lambda: group_of(stated, 72))
