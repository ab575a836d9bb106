"""Flows of one training iteration: bytes by parallelism against closed forms and loops, and who sends to whom."""

import itertools

import numpy as np
import pytest

from mfabric_jax.traffic import measured, region_bytes, training_flows
from mfabric_jax.traffic.training import context_flows, expert_flows, gradient_flows, pipeline_flows
from mfabric_jax.workload import Architecture, GroupedQuery, Workload, get, iteration_bytes, place
from mfabric_jax.workload.volume import pp_bytes, replica_bytes
from tests.mistakes import refused

LABELS = ("EP", "DP inside", "DP between", "DP experts", "PP")


def job(dp=2, tp=2, pp=2, ep=4, blocks=5, dense=1, per_server=4, **settings):
    """Small, with uneven stages, a dense block and element sizes that differ."""
    inner = {"expert_hidden": 3, "shared_hidden": 2, "dense_blocks": dense, "dense_hidden": 6}
    model = Architecture("tiny", blocks, 4, GroupedQuery(2, 1, 2), experts=8, top_k=2, source="made up", **inner)
    settings = {"dispatch_bytes": 1, "combine_bytes": 2, "grad_bytes": 4, "sequence": 16, "micro_batch": 2} | settings
    settings = {"sharding": "none"} | settings
    return Workload.of("tiny", model, dp, tp, pp, ep, dp * tp * pp * ep, gpus_per_server=per_server, **settings)


SHAPES = (
    {},
    {"dp": 4, "tp": 1},
    {"dp": 1, "ep": 8},
    {"pp": 4, "tp": 4},
    {"pp": 1, "dp": 8, "ep": 1},
    {"ep": 2, "tp": 1},
)


def balanced(workload):
    """Every rank selects every expert equally often."""
    shape = (1, workload.moe_layers, 1, workload.ep, workload.architecture.experts)
    return np.full(shape, workload.selections / workload.architecture.experts)


def drawn(workload, replicas=3, micro_batches=3, seed=0):
    shape = (replicas, workload.moe_layers, micro_batches, workload.ep, workload.architecture.experts)
    return np.random.default_rng(seed).integers(0, 50, shape)


def sums(flows):
    return {label: flows.size[flows.of(label)].sum() for label in flows.labels}


def test_balanced_bytes_are_what_an_iteration_sends():
    again = [
        job(schedule="interleaved", chunks=2, micro_batches=4, recompute=kind)
        for kind in ("none", "block", "attention")
    ]
    for workload in (*(job(**shape) for shape in SHAPES), get("llama-moe"), get("mixtral-8x7b"), *again):
        flows, volume = training_flows(workload, balanced(workload)), iteration_bytes(workload)
        got = sums(flows)
        assert flows.labels == LABELS
        # All TP slices of a stage together; hierarchically as many bytes are sent as around one ring.
        data = got["DP inside"] + got["DP between"] + got["DP experts"]
        want = [volume[kind] for kind in ("EP", "PP", "DP")]
        np.testing.assert_allclose([got["EP"], got["PP"], data], want, rtol=1e-12)
        assert not flows.start.any()


def loops(workload, tokens):
    """Bytes of expert-parallel traffic from GPU to GPU, one all-to-all at a time."""
    sent, where = np.zeros((workload.gpus,) * 2), place(workload)
    rank = {(p, d, e, t): g for g, (p, d, e, t) in enumerate(zip(where.pp, where.dp, where.ep, where.tp, strict=True))}
    each = workload.architecture.experts // workload.ep
    blocks = [stage for stage in range(workload.pp) for _ in range(workload.stage_blocks[stage])]
    stage_of = blocks[workload.architecture.dense_blocks :]
    for d, layer, m in itertools.product(range(workload.dp), range(workload.moe_layers), range(workload.micro_batches)):
        chosen = tokens[d % tokens.shape[0], layer, m % tokens.shape[2]]
        for src, expert, t in itertools.product(range(workload.ep), range(8), range(workload.tp)):
            a, b = (rank[stage_of[layer], d, e, t] for e in (src, expert // each))
            part = chosen[src, expert] * workload.architecture.hidden / workload.tp
            sent[a, b] += part * (workload.dispatch_bytes + workload.combine_bytes)  # dispatch, and its gradient's
            sent[b, a] += part * (workload.combine_bytes + workload.dispatch_bytes)  # combine, and the way back
    np.fill_diagonal(sent, 0)
    return sent


def test_expert_flows_are_a_loop_over_all_to_alls():
    for shape in SHAPES:
        workload = job(micro_batches=5, **shape)
        tokens = drawn(workload)
        flows, sent = expert_flows(workload, tokens), np.zeros((workload.gpus,) * 2)
        assert len({*zip(flows.src.tolist(), flows.dst.tolist(), strict=True)}) == len(flows.src)
        sent[flows.src, flows.dst] = flows.size
        want = loops(workload, tokens)
        np.testing.assert_allclose(sent, want, rtol=1e-12)
        np.testing.assert_allclose(sent, sent.T, rtol=1e-12)  # both passes: dispatch and combine
        where = place(workload)
        for same in (where.pp, where.dp, where.tp):
            np.testing.assert_array_equal(same[flows.src], same[flows.dst])


def test_region_bytes_by_hand():
    # One stage, one layer, 2 ranks of 4 experts each; selections of 4 values, 1 and 2 bytes each: 12 bytes both ways.
    workload = job(dp=1, tp=1, pp=1, ep=2, blocks=1, dense=0, per_server=2, micro_batches=3)
    tokens = np.zeros((1, 1, 2, 2, 8))
    tokens[0, 0, 0, 0, [0, 4, 7]] = 10, 3, 2  # kept, and 5 to rank 1: micro-batches 0, 2
    tokens[0, 0, 1, 1, 3] = 7  # rank 1 to rank 0: micro-batch 1
    want = (2 * 5 + 7) * 4 * 3
    np.testing.assert_array_equal(region_bytes(workload, tokens)[0, 0], [[2 * 2 * 10 * 12, want], [want, 0]])


def ring(members, size):
    """Bytes of a ring all-reduce from each member to the next."""
    each = 2 * size * (len(members) - 1) / len(members)
    return {(a, b): each for a, b in zip(members, np.roll(members, -1), strict=True) if a != b}


def test_gradients_go_around_replicas_of_the_same_slice():
    for shape in SHAPES:
        workload, where = job(**shape), place(job(**shape))
        flows = gradient_flows(workload)
        got = {
            label: {(s, d): b for s, d, b in zip(*(x[flows.of(label)].tolist() for x in flows[:3]), strict=True)}
            for label in flows.labels
        }
        between, experts, inside = {}, {}, {}
        local = workload.gpus_per_server // workload.tp  # replicas of a slice in one server
        for stage, t in itertools.product(range(workload.pp), range(workload.tp)):
            size = replica_bytes(workload, stage)
            same = np.flatnonzero((where.pp == stage) & (where.tp == t))
            for server in range(0, len(same), local):
                for a, b in itertools.permutations(same[server : server + local], 2):
                    inside[a, b] = 2 * size.dense / workload.tp / local
            for n in range(local):
                between |= ring(same[n::local], size.dense / workload.tp / local)
            for e in range(workload.ep):
                experts |= ring(same[where.ep[same] == e], size.expert / workload.tp)
        for label, want in {"DP inside": inside, "DP between": between, "DP experts": experts}.items():
            assert got[label] == pytest.approx({k: v for k, v in want.items() if v}, rel=1e-12)
        # Those inside stay in a server, those between keep to their place in it.
        server = where.server
        for label, stays in (("DP inside", True), ("DP between", False)):
            mask = flows.of(label)
            assert np.all((server[flows.src[mask]] == server[flows.dst[mask]]) == stays)
        between = flows.of("DP between")
        np.testing.assert_array_equal((flows.dst - flows.src)[between] % workload.gpus_per_server, 0)


def test_activations_go_to_the_same_rank_of_the_next_stage_and_back():
    for shape in SHAPES:
        workload = job(**shape)
        flows = pipeline_flows(workload)
        stage = workload.gpus // workload.pp
        boundaries = workload.gpus - stage
        assert len(flows.src) == 2 * boundaries
        np.testing.assert_array_equal(flows.size, pp_bytes(workload) / workload.tp * workload.micro_batches)
        pairs = {*zip(flows.src.tolist(), flows.dst.tolist(), strict=True)}
        ahead = [(g, g + stage) for g in range(boundaries)]
        assert pairs == {*ahead, *((b, a) for a, b in ahead)}


def test_activations_of_chunks_go_around():
    # Three stages of two chunks: from each to the next twice, from the last to the first once, and all back.
    workload = job(pp=3, blocks=7, schedule="interleaved", chunks=2, micro_batches=3)
    flows, sent = pipeline_flows(workload), np.zeros((3, 3))
    where = place(workload)
    np.add.at(sent, (where.pp[flows.src], where.pp[flows.dst]), flows.size)
    for same in (where.tp, where.ep, where.dp):
        np.testing.assert_array_equal(same[flows.src], same[flows.dst])
    once = pp_bytes(workload) * workload.micro_batches * workload.dp * workload.ep
    np.testing.assert_allclose(sent, once * np.array([[0, 2, 1], [2, 0, 2], [1, 2, 0]]), rtol=1e-12)


def test_rings_and_gathered_parameters_are_what_an_iteration_sends():
    for shape in ({"cp": 2}, {"cp": 4, "recompute": "block"}, {"sharding": "gradients"}, {"sharding": "parameters"}):
        workload = job(micro_batches=3, **shape)
        flows, volume = training_flows(workload, balanced(workload)), iteration_bytes(workload)
        got = sums(flows)
        data = got["DP inside"] + got["DP between"] + got["DP experts"]
        np.testing.assert_allclose(data, volume["DP"], rtol=1e-12)
        np.testing.assert_allclose(got.get("CP", 0), volume.get("CP", 0), rtol=1e-12)
        assert ("CP" in volume) == (workload.cp > 1)
    flows, where = context_flows(job(cp=2)), place(job(cp=2))
    for same in (where.tp, where.dp, where.pp):
        np.testing.assert_array_equal(same[flows.src], same[flows.dst])
    np.testing.assert_array_equal(where.ep[flows.src] ^ 1, where.ep[flows.dst])


def test_measured_tokens_fit():
    workload = get("llama-moe")
    tokens = measured(workload, iterations=2, micro_batches=2, drift=0.0).count
    assert tokens.sum(-1).min() == tokens.sum(-1).max() == workload.selections
    got = region_bytes(workload, tokens)
    assert got.shape == (4, 16, 16, 16)
    # Replicas read the tokens cyclically; every rank sends its selections, what it keeps included, and takes answers.
    np.testing.assert_array_equal(got[:, 0], got[:, 2])
    assert np.any(got[:, 0] != got[:, 1])
    total = got.sum((0, 2, 3))
    each = 2 * workload.selections * workload.micro_batches * workload.moe_layers * 2 * workload.architecture.hidden * 2
    np.testing.assert_allclose(total, each * 16, rtol=1e-12)


def test_tokens_that_do_not_fit():
    for shape in ((1, 4, 1, 4), (1, 3, 1, 4, 8), (1, 4, 1, 3, 8), (1, 4, 1, 4, 6)):
        said = refused(expert_flows, job(), np.zeros(shape))
        assert said == f"tokens must be [replica 4 M 4 8], got {list(shape)}."
