"""Flows of one training iteration: bytes by parallelism against closed forms and loops, and who sends to whom."""

import collections
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from mfabric_jax.flows.flows import Flows
from mfabric_jax.traffic import measured_tokens, rank_bytes, region_bytes, server_bytes, training_flows
from mfabric_jax.traffic.demand_families import (
    BROAD,
    FAMILIES,
    draw_demands,
    draw_family,
    fold_to_servers,
    noisy_forecast,
    noisy_forecasts,
)
from mfabric_jax.traffic.dispatch import inside_bytes
from mfabric_jax.traffic.training import (
    all_to_all,
    context_flows,
    expert_flows,
    gradient_flows,
    hierarchical_all_reduce,
    pipeline_flows,
    point_to_point,
    ring_all_reduce,
    together,
)
from mfabric_jax.workload import Architecture, GroupedQuery, Workload, get, iteration_bytes, place_ranks
from mfabric_jax.workload.volume import pp_bytes, replica_bytes

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
    {"tp": 1, "ep": 8, "folded": 2},
    {"tp": 2, "ep": 4, "folded": 2},
    {"tp": 1, "ep": 4, "folded": 4, "dp": 4},
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
    sent, where = np.zeros((workload.gpus,) * 2), place_ranks(workload)
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
        where = place_ranks(workload)
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
        workload, where = job(**shape), place_ranks(job(**shape))
        flows = gradient_flows(workload)
        got = {label: {row[:2]: row[2] for row in rows(flows) if row[4] == label} for label in flows.labels}
        between, experts, inside = {}, {}, {}
        whole = workload.tp * workload.folded  # GPUs that split attention
        local = workload.gpus_per_server // whole  # replicas of a slice in one server
        for stage, t in itertools.product(range(workload.pp), range(whole)):
            size = replica_bytes(workload, stage)
            same = np.flatnonzero((where.pp == stage) & (np.arange(workload.gpus) % whole == t))
            for server in range(0, len(same), local):
                for a, b in itertools.permutations(same[server : server + local], 2):
                    inside[a, b] = 2 * size.dense / whole / local
            for n in range(local):
                between |= ring(same[n::local], size.dense / whole / local)
        for stage, e, t in itertools.product(range(workload.pp), range(workload.ep), range(workload.tp)):
            same = np.flatnonzero((where.pp == stage) & (where.ep == e) & (where.tp == t))
            experts |= ring(same, replica_bytes(workload, stage).expert / workload.tp)
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
    where = place_ranks(workload)
    np.add.at(sent, (where.pp[flows.src], where.pp[flows.dst]), flows.size)
    for same in (where.tp, where.ep, where.dp):
        np.testing.assert_array_equal(same[flows.src], same[flows.dst])
    once = pp_bytes(workload) * workload.micro_batches * workload.dp * workload.ep
    np.testing.assert_allclose(sent, once * np.array([[0, 2, 1], [2, 0, 2], [1, 2, 0]]), rtol=1e-12)


def test_rings_and_gathered_parameters_are_what_an_iteration_sends():
    folded = {"cp": 2, "folded": 2, "ep": 8, "tp": 1}
    for shape in (
        {"cp": 2},
        {"cp": 4, "recompute": "block"},
        {"sharding": "gradients"},
        {"sharding": "parameters"},
        folded,
    ):
        workload = job(micro_batches=3, **shape)
        flows, volume = training_flows(workload, balanced(workload)), iteration_bytes(workload)
        got = sums(flows)
        data = got["DP inside"] + got["DP between"] + got["DP experts"]
        np.testing.assert_allclose(data, volume["DP"], rtol=1e-12)
        np.testing.assert_allclose(got.get("CP", 0), volume.get("CP", 0), rtol=1e-12)
        assert ("CP" in volume) == (workload.cp > 1)
    flows, where = context_flows(job(cp=2)), place_ranks(job(cp=2))
    for same in (where.tp, where.dp, where.pp):
        np.testing.assert_array_equal(same[flows.src], same[flows.dst])
    np.testing.assert_array_equal(where.ep[flows.src] ^ 1, where.ep[flows.dst])


def test_replicas_read_tokens_cyclically():
    workload = get("llama-moe")
    tokens = measured_tokens(workload, iterations=2, micro_batches=2, drift=0.0).count
    assert tokens.sum(-1).min() == tokens.sum(-1).max() == workload.selections
    got = region_bytes(workload, tokens)
    assert got.shape == (4, 16, 16, 16)
    # Replicas read the tokens cyclically; every rank sends its selections, what it keeps included, and takes answers.
    np.testing.assert_array_equal(got[:, 0], got[:, 2])
    assert np.any(got[:, 0] != got[:, 1])
    total = got.sum((0, 2, 3))
    each = 2 * workload.selections * workload.micro_batches * workload.moe_layers * 2 * workload.architecture.hidden * 2
    np.testing.assert_allclose(total, each * 16, rtol=1e-12)


def rows(flows: Flows):
    """(src, dst, size, start, label) of every flow, sorted; checks the types on the way."""
    columns = flows.src, flows.dst, flows.size, flows.start, flows.task
    for column, dtype in zip(columns, (np.int64, np.int64, np.float64, np.float64, np.int16), strict=True):
        assert (column.dtype, column.shape) == (dtype, flows.src.shape)
    assert (flows.size > 0).all()
    assert (flows.src != flows.dst).all()
    every = zip(*(column.tolist() for column in columns), strict=True)
    return sorted((s, d, b, t, flows.labels[k]) for s, d, b, t, k in every)


@given(groups=st.integers(1, 4), n=st.integers(1, 9), seed=st.integers(0, 99))
def test_collectives_are_loops_over_pairs(groups, n, seed):
    draw = np.random.default_rng(seed)
    members = np.array([draw.choice(2**40, n, replace=False) for _ in range(groups)])
    size, each = draw.choice([0.0, 1.0, 3.5, 1e9], (groups, n, n)), draw.choice([0.0, 3.5, 1e9], (groups, 1))
    pairs, ring = [], []
    for g, i, j in np.ndindex(groups, n, n):
        a, b = members[g, i], members[g, j]
        if i != j and size[g, i, j] > 0:
            pairs.append((a, b, size[g, i, j], 0, "a2a"))
        if j == (i + 1) % n and i != j and each[g, 0] > 0:
            ring.append((a, b, 2 * each[g, 0] * (n - 1) / n, 0, "ring"))
    assert rows(all_to_all(members, size, label="a2a")) == sorted(pairs)
    assert rows(ring_all_reduce(members, each, label="ring")) == sorted(ring)


@given(st.integers(1, 4), st.integers(1, 5), st.sampled_from([0.0, 1.0, 3.5, 1e9]))
def test_a_hierarchical_all_reduce_is_three_loops(servers, local, size):
    members = np.random.default_rng(servers).permutation(servers * local).reshape(servers, local)
    inside, between = collections.Counter(), collections.Counter()
    for s, i in np.ndindex(servers, local):
        for j in range(local):
            for _ in ("reduce-scatter", "all-gather"):
                inside[members[s, i], members[s, j]] += size / local * (i != j)
        if servers > 1:
            between[members[s, i], members[(s + 1) % servers, i]] += 2 * size / local * (servers - 1) / servers
    got = hierarchical_all_reduce(members, size, label="grad")
    for label, want in (("grad inside", inside), ("grad between", between)):
        found = {row[:2]: row[2] for row in rows(got) if row[4] == label}
        assert found == pytest.approx({pair: sent for pair, sent in want.items() if sent}, rel=1e-12)


def test_flows_broadcast_drop_and_merge_their_labels():
    got = point_to_point([0, 1, 2], 2, [[5], [0]])
    assert rows(got) == [(0, 2, 5, 0, "point-to-point"), (1, 2, 5, 0, "point-to-point")]
    one, two = point_to_point(0, 1, 5, label="a"), point_to_point([1, 2], 0, 7, label="b")
    three = together(point_to_point(3, 4, 9, label="c"), point_to_point(4, 3, 2, label="a"))
    got = together(one, two, three)
    assert got.labels == ("a", "b", "c")
    want = ([0, 1, 2, 3, 4], [1, 0, 0, 4, 3], [5, 7, 7, 9, 2], [0] * 5, [0, 1, 1, 2, 0])
    for column, values in zip((got.src, got.dst, got.size, got.start, got.task), want, strict=True):
        np.testing.assert_array_equal(column, values)
    np.testing.assert_array_equal(got.of("a"), [True, False, False, False, True])


COUNTS = nps.arrays(np.int32, (4, 8), elements=st.integers(0, 1000))
build, inside = jax.jit(rank_bytes), jax.jit(inside_bytes, static_argnums=1)


@given(COUNTS)
def test_rank_bytes_agree_with_a_loop(tokens):
    expected = np.zeros((4, 4))
    for source, expert in np.ndindex(4, 8):
        expected[source, expert // 2] += tokens[source, expert] * 3
    np.testing.assert_array_equal(build(tokens, 3), expected)


@given(nps.arrays(np.float64, (6, 6), elements=st.integers(0, 1000)), st.sampled_from([1, 2, 3, 6]))
def test_servers_collect_their_ranks(demand, per_server):
    servers = 6 // per_server
    between, within = np.zeros((servers, servers)), np.zeros((servers, per_server, per_server))
    for i, j in np.ndindex(6, 6):
        between[i // per_server, j // per_server] += demand[i, j]
        if i // per_server == j // per_server:
            within[i // per_server, i % per_server, j % per_server] = demand[i, j]
    np.testing.assert_array_equal(server_bytes(jnp.asarray(demand), per_server), between)
    np.testing.assert_array_equal(inside(demand, per_server), within)


def test_a_batch_is_its_instances_and_integers_do_not_overflow():
    tokens = np.random.default_rng(0).integers(0, 9, (5, 4, 8))
    batch = jax.vmap(lambda one: server_bytes(rank_bytes(one, 7.0), 2))(tokens)
    np.testing.assert_array_equal(batch, [server_bytes(rank_bytes(jnp.asarray(one), 7.0), 2) for one in tokens])
    # 262144 selections of 14336 bytes: 3.8e9, beyond a 32-bit integer.
    assert rank_bytes(jnp.full((1, 1), 262144, jnp.int32), 14336)[0, 0] == 262144 * 14336
    demand = rank_bytes(jnp.ones((2, 2), jnp.float32), 2.0)
    assert {part.dtype for part in (demand, server_bytes(demand, 1), inside_bytes(demand, 2))} == {jnp.dtype("float32")}


# ----------------------------------------------------------------------------------------------------------- families
EACH = 20
# What 20 draws add up to, as ever: policies trained on these draws are judged on the same ones.
SUMS = {"zipf": 62.02493, "hot": 103.9643, "sparse": 325.8541, "block": 6654.462, "dense": 607.6647}
SUMS |= {"lognormal": 1720.09, "skewed": 303.8411}
SUMS |= {"near-permutation": 156.97777, "bipartite": 1674.9253, "low-rank": 744.74635, "hot-row-and-column": 11962.073}
SUMS |= {"hot-rows": 2950.6753, "gate": 288440}
ALL = {name: functools.partial(draw_demands, families=np.full(EACH, at), servers=6) for at, name in enumerate(FAMILIES)}
ALL |= {name: functools.partial(draw_family, family=family, servers=8) for name, family in BROAD.items()}


@pytest.fixture(scope="module")
def families():
    seeds = {name: 1 if name in FAMILIES else 3 for name in ALL}
    return {name: np.asarray(draw(jax.random.split(jax.random.key(seeds[name]), EACH))) for name, draw in ALL.items()}


def test_every_family_is_as_described(families):
    for name, demand in families.items():
        assert demand.dtype == np.float32
        assert np.isfinite(demand).all()
        assert np.all(demand >= 0)
        assert not demand[:, np.eye(demand.shape[1], dtype=bool)].any()
        np.testing.assert_allclose(demand.sum(), SUMS[name], rtol=1e-6, err_msg=name)
    partner = families["near-permutation"].argmax(2)
    assert all(sorted(row) == list(range(8)) for row in partner)
    for demand in families["bipartite"]:
        half = demand[0] > 0
        assert half.sum() == 4
        assert ((demand > 0) == (half[:, None] != half[None])).all()
    off = families["low-rank"][0][:4, 4:]  # no diagonal in it
    assert np.linalg.matrix_rank(off, tol=1e-4 * off.max()) == 3
    assert (families["gate"] == np.round(families["gate"])).all()


def test_another_family_is_another_draw():
    keys, every = jnp.stack([jax.random.key(1)] * EACH), np.arange(EACH) % len(FAMILIES)
    demand = np.asarray(draw_demands(keys, every, 6)).reshape(EACH, -1)
    assert len(np.unique(demand, axis=0)) == len(FAMILIES)


def test_a_forecast_is_off_by_its_sigma():
    keys, demand = jax.random.split(jax.random.key(2), 2), jnp.ones((2, 40, 40), jnp.float32)
    off = np.asarray(noisy_forecasts(keys, demand, 0.3))
    np.testing.assert_allclose(np.log(off).std(), 0.3, rtol=0.05)
    np.testing.assert_array_equal(noisy_forecast(keys[0], demand[0], 0.0), demand[0])
    np.testing.assert_allclose(noisy_forecast(keys[1], demand[1], 0.3), off[1], rtol=1e-6)


def test_neighbours_are_folded_to_servers():
    count = np.random.default_rng(0).integers(0, 9, (2, 1, 3, 4, 8))
    demand = fold_to_servers(count, 2)
    assert demand.shape == (6, 2, 2)
    for n, (i, m) in enumerate(np.ndindex(2, 3)):
        rows = count[i, 0, m]
        np.testing.assert_array_equal(demand[n], [[0, rows[:2, 4:].sum()], [rows[2:, :4].sum(), 0]])
