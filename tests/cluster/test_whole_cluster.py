"""Whole clusters in small: every fabric solves, bytes add up, circuits are legal, one traffic alone ends in time."""

import functools
import itertools

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from mfabric_jax import InputError, units, workload
from mfabric_jax.cluster import whole_cluster
from mfabric_jax.cluster.whole_cluster import (
    WholeCluster,
    build_cluster,
    cluster_rows,
    flow_rows,
    link_rows,
    lower_bound,
    solve_cluster,
)
from mfabric_jax.fabric import NAMES as CLUSTERS
from mfabric_jax.flows import completion, max_min
from mfabric_jax.traffic import measured, region_bytes
from mfabric_jax.traffic.training import expert_flows
from tests.mistakes import check_refused
from tests.oracles.greedy import greedy
from tests.oracles.tree import tree as star

KINDS = ("EP", "DP inside", "DP between", "DP experts", "PP")


@pytest.fixture(scope="module", autouse=True)
def quick_to_compile():
    """Many programs, each run once: hardly optimised, and of one level (large tables are packed otherwise)."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (completion, max_min):
            patch.setattr(module, "SMALL", 10**6)
        yield


def config(name="fat-tree", **settings):
    """LLaMA-MoE on 8 servers, two in each region; Mixtral on 4 scale-up domains, each for two groups."""
    model, servers = ("mixtral-8x7b", 4) if name in ("nvl72", "mfabric-cpo") else ("llama-moe", 8)
    return WholeCluster(fabric=name, **{"model": model, "servers": servers, "dtype": "float64"} | settings)


@functools.cache
def solved(name="fat-tree", **settings):
    return solve_cluster(config(name, **settings))


QUICK = ("fat-tree", "mfabric", "topoopt", "nvl72")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in CLUSTERS if name not in QUICK]


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_every_fabric_solves(name):
    done = solved(name)
    rows = {row["traffic"]: row for row in cluster_rows(done)}
    assert list(rows) == ["all", *(kind for kind in KINDS if done.flows.of(kind).any())]
    every = rows.pop("all")
    assert every["flows"] == sum(row["flows"] for row in rows.values()) == len(done.flows.src)
    assert every["bytes"] == pytest.approx(sum(row["bytes"] for row in rows.values()), rel=1e-12)
    assert every["end_s"] == max(row["end_s"] for row in rows.values())
    servers, gpus = (4, 256) if name in ("nvl72", "mfabric-cpo") else (8, 64)
    facts = {"model": config(name).model, "fabric": name, "servers": servers, "gpus": gpus, "nic_gbps": 400.0}
    assert every.items() >= (facts | {"links": len(done.network.tail)}).items()
    assert min(every["build_s"], every["solve_s"]) > 0
    assert every["peak_mb"] > 50
    # No sharing ends before the busiest link is through.
    bound = lower_bound(done.network, done.routes, done.flows)
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
    one, again, other = (solve_cluster(config(seed=seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.transfers.finish, again.transfers.finish)
    assert np.any(one.flows.size != other.flows.size)


@functools.cache
def expert_bytes():
    """[stage rank rank] of the one replica, a loop over layers and micro-batches of the tokens that are drawn."""
    job = config().job()
    tokens = measured(job, iterations=1, drift=0.0).count[0]
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
    return measured(job, iterations=min(job.dp, 2), drift=0.0, seed=seed).count


JOBS = [("llama-moe", 16), ("mixtral-8x7b", 32), ("qwen-moe", 16)]


@pytest.mark.parametrize(("model", "servers"), JOBS[1:])
def test_circuits_of_topoopt(model, servers):
    asked = config("topoopt", model=model, servers=servers)
    job = asked.job()
    (count,) = build_cluster(asked, job, tokens_of(job)).regions
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
        asked = config("mfabric", model=model, servers=servers, policy=policy)
        job = asked.job()
        tokens, size = tokens_of(job), job.servers_per_region
        count = build_cluster(asked, job, tokens).regions
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
        same = {"nic_gbps": gbps, "model": "deepseek-v3", "policy": "uniform"}
        made = {}
        for name in ("nvl72", "mfabric-cpo"):
            asked = config(name, servers=0, **same)
            made[name] = build_cluster(asked, asked.job(), tokens_of(asked.job()))
        assert made["nvl72"].nvswitch_gigabytes_per_s == pytest.approx(nvlink)
        assert made["mfabric-cpo"].nvswitch_gigabytes_per_s == pytest.approx(nvlink / 2)
        np.testing.assert_array_equal(made["mfabric-cpo"].regions.sum(2), 64 * ports)


def test_settings_reach_the_fabric_and_the_job():
    job = config().job()
    made = build_cluster(config(radix=16, tiers=3, goodput=0.9, pxn=True, nic_gbps=100.0), job, tokens_of(job))
    assert (made.tree.radix, made.tree.tiers, made.pxn, made.nic_Bps) == (16, 3, True, 0.9 * units.gbps(100.0))
    made = build_cluster(config("mfabric", electrical_nics=3, optical_degree=5), job, tokens_of(job))
    assert (made.nics, made.regions.sum(2).max()) == (3, 5)
    made = build_cluster(config("oversub-fat-tree", radix=16), job, tokens_of(job))
    assert made.tree.edge_ports == (4, 12)
    asked = config("mfabric-cpo")  # groups that share a domain have no circuits
    made = build_cluster(asked, asked.job(), tokens_of(asked.job()))
    assert (made.regions.shape, len(made.circuits.src)) == ((4, 1, 1), 0)
    assert WholeCluster(model="llama-moe").job() == workload.get("llama-moe")
    for model, servers, fabric, want in (  # servers change the replicas
        ("llama-moe", 24, "fat-tree", {"dp": 3, "gpus": 192, "servers": 24, "ep": 16, "pp": 4}),
        ("mixtral-8x22b", 192, "fat-tree", {"dp": 3, "gpus": 1536}),
        ("mixtral-8x22b", 0, "nvl72", {"gpus_per_server": 64, "servers": 16, "servers_per_region": 1}),
        ("mixtral-8x7b", 4, "mfabric-cpo", {"gpus_per_server": 64, "servers": 4, "servers_per_region": 1}),
    ):
        job = WholeCluster(model=model, servers=servers, fabric=fabric).job()
        assert {name: getattr(job, name) for name in want} == want


def test_mistakes():
    for settings, words in [
        ({"model": "llama"}, "model 'llama' is unknown"),
        ({"fabric": "rails"}, "fabric 'rails' is unknown"),
        ({"routing": "split"}, "routing 'split' is unknown"),
        ({"policy": "best"}, "policy 'best' is unknown"),
        ({"rule": "print"}, "rule 'print' is unknown (did you mean 'printed'?)"),
        ({"dtype": "half"}, "dtype 'half' is unknown"),
        ({"servers": -1}, "servers must be a whole number of at least 0, got -1."),
        ({"servers": 12}, "servers must hold whole replicas of llama-moe (64 GPUs each)"),
        ({"servers": 1, "fabric": "nvl72"}, "a pipeline stage of dp x tp x ep = 1 x 1 x 16 = 16 GPUs must fill"),
        ({"graph": "x.json", "nic_gbps": 100.0}, "nic_gbps is not used on a graph, which says all of its fabric"),
        ({"graph": "x.json", "fabric": "fat-tree"}, "fabric is not used on a graph"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1."),
        ({"nic_gbps": 0.0}, "nic_gbps must be finite and above 0, got 0.0."),
    ]:
        with pytest.raises(InputError) as caught:
            WholeCluster(**{"model": "llama-moe"} | settings)
        assert str(caught.value).removeprefix("llama-moe: ").startswith(words)
    for name, settings, words in (
        ("mfabric", {"electrical_nics": 0}, "no path leads from server"),
        ("fat-tree", {"radix": 4}, "has room for 16 hosts, got 64; choose a larger radix"),
    ):
        check_refused(words, solve_cluster, config(name, **settings))


def test_oversubscription_lowers_what_is_between_edge_switches():
    # 12 hosts below each edge switch at 3:1 of 16 ports: regions of two servers are cut.
    tight = solved("oversub-fat-tree", radix=16)
    assert tight.transfers.finish.max() > 1.2 * solved().transfers.finish.max()
    rows = {row["kind"]: row["capacity_bytes_per_s"] for row in link_rows(tight)}
    assert rows["edge up"] == 4 * units.gbps(400.0)
