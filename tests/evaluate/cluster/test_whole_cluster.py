"""Whole clusters in small: every fabric solves, bytes add up, circuits are legal, one traffic alone ends in time."""

import functools
import itertools

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from mfabric_jax import Case, load, resolve, simulate, units
from mfabric_jax.evaluate import whole_cluster
from mfabric_jax.evaluate.resolving.resolve import hardware_of
from mfabric_jax.evaluate.whole_cluster import (
    build_cluster,
    cluster_rows,
    flow_rows,
    link_rows,
    solve_cluster,
)
from mfabric_jax.fabric import get
from mfabric_jax.fabric.parts_list import get_ocs
from mfabric_jax.flows import completion, max_min
from mfabric_jax.routing.transfers import link_bytes
from mfabric_jax.traffic import measured_tokens, region_bytes
from mfabric_jax.traffic.training import expert_flows
from tests.mistakes import check_refused
from tests.oracles.greedy import greedy
from tests.oracles.tree import tree as star
from tests.routing.clusters import CLUSTERS

KINDS = ("EP", "DP inside", "DP between", "DP experts", "PP")


@pytest.fixture(scope="module", autouse=True)
def quick_to_compile():
    """Many programs, each run once: hardly optimised, and of one level (large tables are packed otherwise)."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (completion, max_min):
            patch.setattr(module, "SMALL", 10**6)
        yield


def config(name="fat-tree", changes=None, model=None, gpus=None):
    """LLaMA-MoE on 8 servers, two in each region; Mixtral on 4 scale-up domains, each for two groups."""
    usual = ("mixtral-8x7b", 256) if get(name).domain_gpus else ("llama-moe", 64)
    given = {"model.name": model or usual[0], "job.parallel.gpus": gpus or usual[1], "network.fabric": name}
    given |= {"run.dtype": "float64", "job.batch.per_stage": 1, "network.link_delay_s": 1e-6}
    return load(preset="paper").with_(given | (changes or {}))


@functools.cache
def solved(name="fat-tree", **radix):
    return solve_cluster(config(name, {f"network.{key}": value for key, value in radix.items()}))


def built(case):
    """The fabric with circuits, and the job."""
    one = resolve(case)
    return build_cluster(one, tokens_of(one.job)), one.job


QUICK = ("fat-tree", "mfabric", "topoopt", "nvl72")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in CLUSTERS if name not in QUICK and not get(name).phases]


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_every_fabric_solves(name):
    done = solved(name)
    rows = {row["traffic"]: row for row in cluster_rows(done)}
    assert list(rows) == ["all", *(kind for kind in KINDS if done.flows.of(kind).any())]
    every = rows.pop("all")
    assert every["flows"] == sum(row["flows"] for row in rows.values()) == len(done.flows.src)
    assert every["bytes"] == pytest.approx(sum(row["bytes"] for row in rows.values()), rel=1e-12)
    assert every["end_s"] == max(row["end_s"] for row in rows.values())
    servers, gpus = (4, 256) if get(name).domain_gpus else (8, 64)
    facts = {"model": config(name).model.name, "fabric": name, "servers": servers, "gpus": gpus, "nic_gbps": 400.0}
    assert every.items() >= (facts | {"links": len(done.network.tail)}).items()
    assert min(every["build_s"], every["solve_s"]) > 0
    assert every["peak_mb"] > 50
    # No sharing ends before the busiest link is through.
    bound = np.max(link_bytes(done.network, done.routes, done.flows.size) / done.network.capacity)
    assert bound <= every["end_s"] <= 1.5 * bound
    assert np.all((done.transfers.finish > 0) & np.isfinite(done.transfers.finish))
    assert np.all(done.transfers.utilisation <= 1 + 1e-9)


def test_rows_of_links_and_flows():
    done = solved("mfabric")
    links, flows, network = link_rows(done), flow_rows(done), done.network
    assert [row["link"] for row in links] == list(range(len(network.tail)))
    assert {kind: sum(row["kind"] == kind for row in links) for kind, _ in network.links} == dict(network.links)
    circuits = [row for row in links if row["kind"] == "circuit"]
    assert {(row["from"], row["to"]) for row in circuits} >= {("optics 0", "optics 1"), ("optics 1", "optics 0")}
    assert {row["capacity_bytes_per_s"] for row in circuits} == {6 * units.gbps(400.0)}
    sent = done.flows.size[done.flows.of("PP")].sum()  # between regions: over the tree, all of it
    for kind in ("nic up", "nic down"):
        assert sum(row["bytes"] for row in links if row["kind"] == kind) == pytest.approx(sent, rel=1e-12)
    assert [(row["flow"], row["src"], row["dst"]) for row in flows] == [
        (n, *ends) for n, ends in enumerate(zip(done.flows.src, done.flows.dst, strict=True))
    ]
    assert {row["traffic"] for row in flows} <= set(KINDS)
    assert {row["bottleneck"] for row in flows} <= {f"{row['from']} -> {row['to']}" for row in links}
    assert max(row["finish_s"] for row in flows) == cluster_rows(done)[0]["end_s"]
    assert flows[7]["bytes"] / flows[7]["rate_bytes_per_s"] > 0


def test_a_seed_repeats():
    one, again, other = (solve_cluster(config(changes={"run.seed": seed})) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.transfers.finish, again.transfers.finish)
    assert np.any(one.flows.size != other.flows.size)


@functools.cache
def expert_bytes():
    """[stage rank rank] of the one replica, a loop over layers and micro-batches of the tokens that are drawn."""
    job = resolve(config()).job
    tokens = measured_tokens(job, iterations=1, drift=0.0).count[0]
    sent = np.zeros((job.pp, 16, 16))
    for stage in range(job.pp):
        for layer in job.stage_layers(stage):
            for m in range(job.micro_batches):
                one_way = tokens[layer, m % tokens.shape[1]].astype(float) * 4096 * 2 * 2
                sent[stage] += one_way + one_way.T  # 16 experts: one a rank
        np.fill_diagonal(sent[stage], 0)
    return sent


def test_experts_alone_end_with_the_busiest_port_or_circuits(monkeypatch):
    monkeypatch.setattr(whole_cluster, "training_flows", expert_flows)
    # Non-blocking: between servers the ports of NICs, inside the NVSwitch: two stars that share nothing.
    server = np.arange(16) // 8
    same, nic, inside = server[:, None] == server, units.gbps(400.0), units.gigabytes_per_s(900.0)
    stars = [
        star(np.where(same == within, demand, 0), *[np.full(16, port)] * 2).max()
        for demand in expert_bytes()
        for within, port in ((False, nic), (True, inside))
    ]
    # Two servers a region: all six circuits join them, and each way ends with its bytes over six NICs.
    ways = [demand[a : a + 8, b : b + 8].sum() / (6 * nic) for demand in expert_bytes() for a, b in ((0, 8), (8, 0))]
    for name, ends in (("fat-tree", stars), ("mfabric", ways)):
        done = solve_cluster(config(name))
        (row,) = [row for row in cluster_rows(done) if row["traffic"] == "EP"]
        assert max(ends) <= row["end_s"] * (1 + 1e-9)
        assert row["end_s"] < max(ends) + units.us(6.1)  # propagation over six links
        assert row["bytes"] == pytest.approx(expert_bytes().sum(), rel=1e-12)
    np.testing.assert_array_equal(done.cluster.circuits.count, 6)


def tokens_of(job, seed=0):
    return measured_tokens(job, iterations=min(job.dp, 2), drift=0.0, seed=seed).count


JOBS = [("llama-moe", 16), ("mixtral-8x7b", 32), ("qwen-moe", 16)]


@pytest.mark.parametrize(("model", "servers"), JOBS[1:])
def test_circuits_of_topoopt(model, servers):
    cluster, job = built(config("topoopt", model=model, gpus=8 * servers))
    (count,) = cluster.regions
    np.testing.assert_array_equal(count, count.T)
    assert np.all(np.diagonal(count) == 0)
    assert count.sum(1).max() <= 8
    assert connected_components(csr_array(count))[0] == 1
    stage, size, server = servers // job.pp, job.servers_per_region, np.arange(servers)
    ahead = server // stage * stage + (server + 1) % stage
    assert np.all(count[server, ahead] >= 1)  # the ring of every stage
    np.testing.assert_array_equal(count[server[:-stage], server[:-stage] + stage], 1)
    # Nothing else between regions, and their matchings use what the ring and the pipeline leave.
    region = server // size
    apart = (region[:, None] != region) & ~np.isin(np.abs(server[:, None] - server), [0, 1, stage - 1, stage])
    assert np.all(count[apart] == 0)
    inside = np.where(region[:, None] == region, count, 0).sum(1)
    assert inside.max() <= 6
    assert inside.min() >= (5 if size % 2 == 0 else 1)


def test_circuits_of_regions():
    for (model, servers), policy in itertools.product(JOBS[1:], ("greedy", "uniform")):
        cluster, job = built(config("mfabric", {"circuits.policy": policy}, model=model, gpus=8 * servers))
        tokens, size = tokens_of(job), job.servers_per_region
        count = cluster.regions
        assert count.shape == (servers // size, size, size)
        np.testing.assert_array_equal(count, count.transpose(0, 2, 1))
        np.testing.assert_array_equal(count.sum(2), 6)
        if policy == "greedy":  # region g is replica g % dp of stage g // dp
            for g, one in enumerate(count):
                ranks = region_bytes(job, tokens)[g // job.dp, g % job.dp]
                between = ranks.reshape((size, job.ranks_per_server) * 2).sum((1, 3))
                np.testing.assert_array_equal(one, greedy(between * ~np.eye(size, dtype=bool), 6, "printed"))


def test_a_gpu_has_what_its_nic_leaves_in_a_cluster_too():
    # 8 Tbps less a NIC of 400 Gbps: 950 GB/s of NVLink, or 9 optical ports and 475 GB/s; of 800 Gbps: 900, 4 and 450.
    for gbps, ports, nvlink in ((400.0, 9, 950.0), (800.0, 4, 900.0)):
        same = {"network.nic_gbps": gbps, "job.parallel.dp": 1, "job.parallel.gpus": None}
        made = {}
        for name in ("nvl72", "mfabric-cpo"):
            made[name], _ = built(config(name, same | {"circuits.policy": "uniform"}, model="deepseek-v3"))
        assert made["nvl72"].nvswitch_gigabytes_per_s == pytest.approx(nvlink)
        assert made["mfabric-cpo"].nvswitch_gigabytes_per_s == pytest.approx(nvlink / 2)
        np.testing.assert_array_equal(made["mfabric-cpo"].regions.sum(2), 64 * ports)


def test_settings_reach_the_fabric_and_the_job():
    paths = {"network.radix": 16, "network.goodput": 0.9, "network.nic_gbps": 100, "network.link_delay_s": 2e-6}
    made, _ = built(config("rail-optimized", paths | {"network.rail-optimized.pxn": True}))
    assert (made.tree.radix, made.tree.tiers, made.pxn, made.nic_Bps) == (16, 3, True, 0.9 * units.gbps(100.0))
    assert made.link_delay_s == 2e-6
    made, _ = built(config(changes=paths))
    assert not made.pxn  # of rails alone
    made, _ = built(config("mfabric", {"network.mfabric.optical_degree": 5}))
    assert (made.nics, made.regions.sum(2).max()) == (3, 5)
    made, _ = built(config("oversub-fat-tree", {"network.radix": 16, "network.leaf_servers": "most"}))
    assert made.tree.edge_ports == (4, 12)
    paths = {"network.radix": 16, "network.oversubscription": 3, "network.oversubscribed_at": "aggregation"}
    made, _ = built(config("fat-tree", paths))
    assert (made.tree.oversubscription, made.tree.oversubscribed_at, made.tree.edge_ports) == (3, "aggregation", (8, 8))
    made, _ = built(config("mfabric-cpo"))  # groups that share a domain have no circuits
    assert (made.regions.shape, len(made.circuits.src)) == ((4, 1, 1), 0)


MISTAKES = [
    (solve_cluster, "fat-tree", {"placement.rule": "hierarchical"}, "placement.rule must be contiguous for a whole"),
    (solve_cluster, "fat-tree", {"traffic.source": "authors"}, "traffic.source must be shares for a whole cluster"),
    (solve_cluster, "fat-tree", {"network.radix": 4}, "has room for 16 hosts, got 64; choose a larger radix"),
    (
        solve_cluster,
        "mfabric",
        {"circuits.policy": "static"},
        "circuits.policy must not be static for a single all-to-all",
    ),
    (simulate, "fat-tree", {"network.paths": "least-loaded"}, "network.paths must be spray or ecmp for"),
    (simulate, "fat-tree", {"network.oversubscribed_at": "aggregation"}, "oversubscribed_at must be edge for"),
]


def test_what_a_whole_cluster_is_not_of_and_what_an_iteration_is_not_of():
    for ask, name, changes, words in MISTAKES:
        check_refused(words, ask, config(name, changes))


def test_hardware_is_that_of_a_case_whatever_runs_there():
    # 2,048 ports fit two tiers of 64-port switches: 32 domains of 64 GPUs, or 256 servers of 8.
    for name, servers, tiers in (("nvl72", 32, 2), ("nvl72", 33, 3), ("fat-tree", 256, 2), ("fat-tree", 257, 3)):
        assert hardware_of(Case().with_({"network.fabric": name}), servers).tiers == tiers
    sliced = Case().with_({"network.fabric": "mfabric", "gpu.gpus_per_server": 4, "circuits.ocs": "polatis"})
    found = hardware_of(sliced, 4)
    assert (found.server_nics, found.optical_degree, found.electrical_nics) == (4, 3, 1)
    assert found.delay_s == get_ocs("polatis", None).delay_s[1]
    one = resolve(config("mfabric"))
    there = hardware_of(config("mfabric"), one.job.servers)
    for name in ("server_nics", "optical_degree", "electrical_nics", "tiers", "delay_s", "pxn"):
        assert getattr(there, name) == getattr(one, name)


def test_oversubscription_lowers_what_is_between_edge_switches():
    # 12 hosts below each edge switch at 3:1 of 16 ports: regions of two servers are cut.
    tight = solved("oversub-fat-tree", radix=16, leaf_servers="most")
    assert tight.transfers.finish.max() > 1.2 * solved().transfers.finish.max()
    links_up = [row["capacity_bytes_per_s"] for row in link_rows(tight) if row["kind"] == "edge up"]
    assert max(links_up) == 4 * units.gbps(400.0)
    assert min(links_up) == 2 * units.gbps(400.0)  # of the last one, with 4 hosts
